"""JSONL and CSV: finding records, reading them in sequence and at random, beside others.

Every measurement is a process of its own; the sides take turns, and each round gives one ratio.
This file is the parent, which writes the data, and the measured child. Sides that are not installed
are left out; orjson may lie in a folder of its own::

    bench.py --peer /path/to/venv --extra /path/to/folder/with/orjson
"""

import argparse
import csv
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
BUDGET = 1.0  # CPU seconds; passes are made until they are spent
WORDS = [f"word{i}" for i in range(1000)]

# What makes quotes needed: a separator in every text, and quotes in one of ten, or in each.
MORE: dict[str, Callable[[int], str]] = {
    "csv": lambda number: "",
    "quoted": lambda number: ', "so"' if number % 10 == 0 else ", so",
    "doubled": lambda number: ', "so"',
}

# Case to what it is, its unit, and its sides; the first is this library.
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "starts:jsonl": ("record starts, JSONL, 2 threads", "GB/s", ("ours",)),
    "starts:csv": ("record starts, CSV without quotes, 2 threads", "GB/s", ("ours",)),
    "starts:quoted": ("record starts, CSV with quotes, 2 threads", "GB/s", ("ours",)),
    "starts:doubled": ("record starts, CSV with six quotes a row, 2 threads", "GB/s", ("ours",)),
    "rows:jsonl": ("JSONL as dicts, sequential", "M/s", ("ours", "orjson", "msgspec", "json")),
    "rows:csv": ("CSV as dicts, sequential", "M/s", ("ours", "csv", "csv.DictReader")),
    "rows:quoted": ("the same with quotes", "M/s", ("ours", "csv", "csv.DictReader")),
    "rows:doubled": ("the same with six quotes a row", "M/s", ("ours", "csv", "csv.DictReader")),
    "get:json": ("JSON shards, random `dataset[i]`", "M/s", ("ours", "mosaic")),
}


def rows(count: int) -> Iterator[tuple[int, str]]:
    """A number and a line of some 70 characters."""
    draw = random.Random(0)
    for number in range(count):
        yield number, " ".join(draw.choices(WORDS, k=9))


def write(folder: Path, count: int, copies: int) -> None:
    """Write what all sides read, and the long files that record starts are found in."""
    from streaming import JSONWriter

    for kind in ("jsonl", *MORE):
        (folder / kind).mkdir(parents=True)
        path = folder / kind / f"data.{kind if kind == 'jsonl' else 'csv'}"
        with path.open("w", newline="") as file:
            if kind == "jsonl":
                file.writelines(json.dumps({"num": n, "txt": t}) + "\n" for n, t in rows(count))
            else:
                csv.writer(file).writerow(["num", "txt"])
                csv.writer(file).writerows((n, t + MORE[kind](n)) for n, t in rows(count))
        data = path.read_bytes()
        with (folder / f"{kind}.long").open("wb") as file:
            for _ in range(copies):
                file.write(data)
    with JSONWriter(columns={"num": "int", "txt": "str"}, out=str(folder / "shards")) as writer:
        for number, text in rows(count):
            writer.write({"num": number, "txt": text})


def find_starts(kind: str, folder: Path) -> Callable[[], float]:
    """What finds all records of the long file, and gives its GB."""
    from streaming.format.text.scan import File, line_starts
    from streaming.format.xsv.scan import record_starts

    def find() -> float:
        with File(folder / f"{kind}.long") as file:
            if kind == "jsonl":
                pieces = line_starts(file, threads=2)
            else:
                pieces = record_starts(file, b",", quoting=True, threads=2)
            assert sum(map(len, pieces))
            return file.size / 1e9

    return find


def read_rows(side: str, kind: str, folder: Path) -> Callable[[], float]:
    """What reads a file, as dicts or as what a side makes of a line, and gives millions of rows."""
    path = next((folder / kind).iterdir())
    if side == "ours":
        from streaming import StreamingDataset

        dataset = StreamingDataset(local=str(folder / kind), batch_size=256)
        return lambda: count_rows(dataset)
    if kind != "jsonl":
        reader = csv.reader if side == "csv" else csv.DictReader
        return lambda: count_rows(reader(path.open(newline="")))
    loads: Callable[[bytes], Any] = json.loads
    if side == "msgspec":
        import msgspec

        loads = msgspec.json.Decoder().decode
    elif side == "orjson":
        import orjson  # type: ignore[import-not-found]

        loads = orjson.loads

    def read() -> float:
        found = 0
        with path.open("rb") as file:
            for line in file:
                loads(line)
                found += 1
        return found / 1e6

    return read


def count_rows(rows: Iterable[Any]) -> float:
    """Go over rows; how many there were, in millions."""
    found = 0
    for _ in rows:
        found += 1
    return found / 1e6


def get_places(side: str, folder: Path, count: int) -> Callable[[], float]:
    """What reads samples at random places of the shards, and gives their number in millions."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(folder / "shards"), batch_size=256)
    places = random.Random(1).sample(range(count), count // (1 if side == "ours" else 20))
    dataset[0]  # Opens the shard.

    def get() -> float:
        for place in places:
            dataset[place]
        return len(places) / 1e6

    return get


def measure(case: str, side: str, folder: Path, count: int) -> dict[str, float]:
    """Time passes, in this process: by the clock on the wall and by that of the CPU."""
    what, _, kind = case.partition(":")
    if what == "starts":
        work = find_starts(kind, folder)
    elif what == "rows":
        work = read_rows(side, kind, folder)
    else:
        work = get_places(side, folder, count)
    wall, cpu, done = time.perf_counter(), time.process_time(), 0.0
    while time.process_time() - cpu < BUDGET:
        done += work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": done / wall, "cpu": done / cpu}


def run(case: str, side: str, folder: Path, args: argparse.Namespace) -> dict[str, float] | None:
    """One measurement in a process of its own; None if the side is not installed."""
    from benchmarks.turns import ask

    python, paths = sys.executable, [str(ROOT), *([args.extra] if args.extra else [])]
    if side == "mosaic":
        if args.peer is None:
            return None
        python, paths = str(Path(args.peer) / "bin" / "python"), []
    more = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    command = [python, __file__, "--child", case, "--side", side]
    command += ["--data", str(folder), "--rows", str(args.rows)]
    rates: dict[str, float] | None = ask(command, more, folder)
    return rates


def compare(folder: Path, args: argparse.Namespace) -> None:
    """Take turns and print medians with the smallest and largest of the rounds."""
    from benchmarks.turns import spread

    load = f"{os.getloadavg()[0]:.1f}"
    print(
        f"{args.rows} rows, {args.rounds} rounds, {os.cpu_count()} cores, Python "
        f"{sys.version.split()[0]}, load {load}; median (smallest-largest)\n"
    )
    print(
        "| what | side | rate | a CPU second | ours / side, a CPU second |\n|---|---|---|---|---|"
    )
    for case in args.case or CASES:
        what, unit, sides = CASES[case]
        rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side in sides:
                rates = run(case, side, folder, args)
                if rates is not None:
                    rounds[side].append(rates)
        for side, found in rounds.items():
            if not found:
                continue
            ratios = [a["cpu"] / b["cpu"] for a, b in zip(rounds["ours"], found, strict=True)]
            cells = [spread([rates[clock] for rates in found]) for clock in ("wall", "cpu")]
            ratio = "" if side == "ours" else spread(ratios)
            print(
                f"| {what} | {side} | {cells[0]} {unit} | {cells[1]} {unit} | {ratio} |", flush=True
            )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a file")
    parser.add_argument("--copies", type=int, default=10, help="of it in a long one")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case")
    parser.add_argument("--peer", help="virtual environment with mosaicml-streaming")
    parser.add_argument("--extra", help="folder with more packages, such as orjson")
    parser.add_argument("--case", action="append", choices=CASES, help="only these")
    parser.add_argument("--data", type=Path, help="where the data is or goes (default: temporary)")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.side, args.data, args.rows)))
        return
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.data or Path(temporary)) / "text"
        if not folder.exists():
            write(folder, args.rows, args.copies)
        compare(folder.resolve(), args)


if __name__ == "__main__":
    main()
