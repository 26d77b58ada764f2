"""Exchange datasets with mosaicml-streaming, both ways, and compare what each side reads.

usage: run.py --peer PYTHON

PYTHON is the interpreter of a virtual environment with mosaicml-streaming 0.13.0. Each side writes
every encoding with every compression and every hash, and each side reads what both have written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def call(python: str, *args: str | Path) -> str:
    """Run one side. The peer must not find this repository's package."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    command = [python, str(HERE / "side.py"), *map(str, args)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="Python with mosaicml-streaming 0.13.0")
    peer = parser.parse_args().peer
    sides = {"ours": sys.executable, "peer": peer}
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        for writer, python in sides.items():
            call(python, "write", base / writer)
        found: dict[tuple[str, str], dict[str, Any]] = {
            (writer, reader): json.loads(
                call(python, "read", base / writer, base / f"{writer}-{reader}")
            )
            for writer in sides
            for reader, python in sides.items()
        }
        same_bytes = sum(
            path.read_bytes() == (base / "peer" / path.relative_to(base / "ours")).read_bytes()
            for path in (base / "ours").rglob("*.mds")
        )
        raw = len(list((base / "ours").rglob("*.mds")))
    wanted = found["peer", "peer"]
    failed = 0
    for (writer, reader), datasets in found.items():
        for name, samples in datasets.items():
            for i, (got, want) in enumerate(zip(samples, wanted[name], strict=True)):
                if got != want:
                    failed += 1
                    columns = [key for key in want[1] if got[1].get(key) != want[1][key]]
                    print(f"{writer} -> {reader}, {name}, sample {i}: {columns} differ")
    total = sum(len(samples) for datasets in found.values() for samples in datasets.values())
    print(f"{len(wanted)} datasets, {total} samples read, {failed} differ")
    print(f"{same_bytes} of {raw} uncompressed shards are equal byte for byte")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
