"""Delta tables beside Parquet over the same files, and how long a long log takes.

Every measurement is a process of its own; the sides take turns, and each round gives one ratio of
CPU seconds. This file is the parent, which writes the data, and the measured child::

    bench.py --rows 2000000 --rounds 3
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
FILES = 100_000  # in the long log

# Case to what it is, and the least that Delta should have of Parquet's rate.
CASES = {"rows": ("sequential, dicts", 0.9), "columns": ("sequential, columns", 0.9)}


def write(path: Path, rows: int) -> None:
    """A table of a number and a text of some 65 characters, in eight files."""
    import pyarrow as pa
    from deltalake import write_deltalake

    draw = random.Random(0)
    words = [f"word{i}" for i in range(1000)]
    texts = [" ".join(draw.choices(words, k=9)) for _ in range(100_000)]
    step = max(rows // 8, 1)
    for start in range(0, rows, step):
        numbers = range(start, min(start + step, rows))
        table = pa.table({"num": numbers, "txt": [texts[i % len(texts)] for i in numbers]})
        write_deltalake(str(path), table, mode="append")


def write_log(path: Path) -> None:
    """The log of a table of many files, which are not there."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    field = {"name": "num", "type": "long", "nullable": True, "metadata": {}}
    about = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [field]}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 1,
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": about},
    ]
    for number in range(FILES):
        stats = {"numRecords": 100, "minValues": {"num": number}, "maxValues": {"num": number + 9}}
        actions.append(
            {
                "add": {
                    "path": f"part-{number:06d}-{number:032x}.parquet",
                    "partitionValues": {},
                    "size": 1000 + number,
                    "modificationTime": 1_700_000_000_000 + number,
                    "dataChange": True,
                    "stats": json.dumps(stats),
                }
            }
        )
    for version in range(10):
        part = actions[version * len(actions) // 10 : (version + 1) * len(actions) // 10]
        text = "".join(json.dumps(action) + "\n" for action in part)
        (log / f"{version:020d}.json").write_text(text)


def read(case: str, side: str, path: str) -> float:
    """Rows a CPU second, of a second pass: files are decoded once a node."""
    from streaming import StreamingDataset

    place = path if side == "delta" else [f"{path}/*.parquet"]
    config = {"local": place}
    dataset = StreamingDataset(
        stream_config=config, batch_size=8192 if case == "columns" else 256, batched=case != "rows"
    )

    def once() -> int:
        if case == "columns":
            return sum(len(batch["num"]) for batch in dataset)
        found = 0
        for _ in dataset:
            found += 1
        return found

    once()
    started = time.process_time()
    found = once()
    return found / (time.process_time() - started)


def snapshot(path: str, kept: str) -> dict[str, float]:
    """Seconds until all files of a version are known, and MB of the processes that it takes."""
    from streaming.format.delta.state import take_state
    from streaming.format.tables import TablePlace
    from streaming.storage.guard import end_helper

    started = time.perf_counter()
    state = take_state(TablePlace.at(path), 9, Path(kept))
    assert sum(1 for _ in state.files()) == FILES
    seconds = time.perf_counter() - started
    end_helper()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    there = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": seconds, "here": here, "there": there}


def run(*arguments: str) -> Any:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--side", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure all cases, and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        case, *rest = options.side
        print(json.dumps(snapshot(*rest) if case == "snapshot" else read(case, *rest)))
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import spread

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table")
        write(path, options.rows)
        print("| case | Delta, M rows a CPU second | Parquet, same files | ratio | asked |")
        print("| --- | --- | --- | --- | --- |")
        for case, (what, least) in CASES.items():
            pairs = [
                (run(case, "delta", str(path)), run(case, "parquet", str(path)))
                for _ in range(options.rounds)
            ]
            rates = spread([one / 1e6 for one, _ in pairs], ".2f")
            peers = spread([other / 1e6 for _, other in pairs], ".2f")
            ratios = spread([one / other for one, other in pairs], ".2f")
            print(f"| {what} | {rates} | {peers} | {ratios} | {least} |", flush=True)
        log = Path(folder, "log")
        write_log(log)
        taken = [run("snapshot", str(log), f"{folder}/kept-{i}") for i in range(options.rounds)]
        print(f"\n{FILES:,} files in the log: ", end="")
        print(f"{spread([row['seconds'] for row in taken], '.1f')} s, ", end="")
        print(f"{spread([row['there'] for row in taken], '.0f')} MB in the helper, ", end="")
        print(f"{spread([row['here'] for row in taken], '.0f')} MB here")


if __name__ == "__main__":
    main()
