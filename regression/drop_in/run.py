"""Run one script with mosaicml-streaming and with this library, and compare what it prints.

usage: run.py --peer PYTHON

PYTHON is the interpreter of a virtual environment with mosaicml-streaming 0.13.0. The script is the
same file on both sides; each goes on from the state that the other has saved, too.
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


def call(python: str, *args: str | Path) -> dict[str, Any]:
    """Run the script. The peer must not find this repository's package."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    command = [python, "-W", "ignore", str(HERE / "script.py"), *map(str, args)]
    with tempfile.TemporaryDirectory() as elsewhere:
        run = subprocess.run(
            command,
            env=environment,
            cwd=elsewhere,
            capture_output=True,
            text=True,
        )
    if run.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr[-4000:]}")
    return dict(json.loads(line) for line in run.stdout.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="Python with mosaicml-streaming 0.13.0")
    sides = {"peer": parser.parse_args().peer, "ours": sys.executable}
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        for side, python in sides.items():  # Saves the state that the other side takes up.
            call(python, base / f"{side}-first", base / f"{side}.json")
        found = {
            side: call(python, base / side, base / f"{side}-again.json", base / f"{other}.json")
            for (side, python), other in zip(sides.items(), reversed(sides), strict=True)
        }
    ours, peer = found["ours"], found["peer"]
    differ = [what for what in peer if ours.get(what) != peer[what]]
    for what in peer:
        print("differs" if what in differ else "equal  ", what)
    for what in differ:
        print(f"{what}\n  peer {json.dumps(peer[what])[:600]}")
        print(f"  ours {json.dumps(ours.get(what))[:600]}")
    print(f"{len(peer)} results, {len(differ)} differ")
    return bool(differ) or ours.keys() != peer.keys()


if __name__ == "__main__":
    sys.exit(main())
