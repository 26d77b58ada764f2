"""Parquet: rows and columns, in sequence, shuffled and at random; indexes; memory of a worker.

Every measurement is a process of its own; the sides take turns, and each round gives one ratio.
This file is the parent, which writes the data, and the measured child. "first" is an epoch with an
empty cache, "second" and "third" those after it::

    bench.py --hf /path/to/venv/with/datasets
"""

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
BATCH = 8192
RANDOM_ROWS = 20_000

EPOCHS = ("first", "second", "third")

# Case to what it is, its unit, and its sides; ratios are to the first of each other library.
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "rows": ("as dicts, sequential", "M/s", ("first", "second", "third", "pyarrow")),
    "columns": ("by columns, sequential", "M/s", ("first", "second", "third", "pyarrow")),
    "shuffled": (
        "as dicts, shuffled (py1e)",
        "M/s",
        ("first", "second", "third", "hf", "hf-streaming"),
    ),
    "random": (
        "20,000 rows at random, 1 MB row groups",
        "M/s",
        ("first", "first-by-one", "pyarrow"),
    ),
    "index": ("index of 10,000 files, 20 ms away", "s", ("first", "second")),
    "memory": ("anonymous memory of a worker, 1 GB row group", "MB", ("first",)),
}


def write(folder: Path, rows: int) -> None:
    """Write what all sides read: {num, txt}, once in large row groups and once in small ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(0)
    words = [f"word{i}" for i in range(1000)]
    texts = [" ".join(draw.choices(words, k=9)) for _ in range(rows)]
    table = pa.table({"num": [draw.randrange(10**9) for _ in range(rows)], "txt": texts})
    for name, size in (("large", 100_000), ("small", 12_500)):
        (folder / name).mkdir(parents=True)
        step = -(-rows // 8)
        for number in range(8):
            part = table.slice(number * step, step)
            path = folder / name / f"part-{number}.parquet"
            pq.write_table(part, path, row_group_size=size, compression="zstd")
    (folder / "wide").mkdir()
    schema = pa.schema([("data", pa.binary())])
    with pq.ParquetWriter(folder / "wide" / "a.parquet", schema, use_dictionary=False) as out:
        out.write_table(pa.table({"data": [os.urandom(10_000)] * 100_000}, schema), 100_000)


def files_of(folder: Path) -> list[Path]:
    """The files that were written there."""
    return sorted(folder.glob("*.parquet"))


def ours(folder: Path, scratch: Path, **arguments: Any) -> Any:
    """A dataset of ours, whose cache is `scratch`."""
    from streaming import StreamingDataset

    return StreamingDataset(
        remote=str(folder), local=str(scratch), **{"batch_size": BATCH, **arguments}
    )


def work_of(case: str, side: str, folder: Path, scratch: Path) -> Callable[[], float]:
    """What a measurement does; it gives millions of rows."""
    large, small = folder / "large", folder / "small"
    if side in ("hf", "hf-streaming"):
        return hf_rows(side, large, scratch)
    if case == "random":
        return random_rows(side, small, scratch)
    if side == "pyarrow":
        return lambda: pyarrow_rows(case, large)
    dataset = ours(large, scratch, shuffle=case == "shuffled", batched=case == "columns")
    for _ in range(EPOCHS.index(side)):
        count(dataset)
    if case == "columns":
        return lambda: sum(len(batch["num"]) for batch in dataset) / 1e6
    return lambda: count(dataset)


def pyarrow_rows(case: str, folder: Path) -> float:
    """Batches of pyarrow, as dicts or as they are."""
    import pyarrow.parquet as pq

    found = 0
    for path in files_of(folder):
        file = pq.ParquetFile(path, memory_map=True)
        for batch in file.iter_batches(BATCH, use_threads=False):
            found += len(batch.to_pylist()) if case == "rows" else batch.num_rows
    return found / 1e6


def hf_rows(side: str, folder: Path, scratch: Path) -> Callable[[], float]:
    """Hugging Face datasets, shuffled: rows that are mapped, or a stream with a buffer."""
    import datasets  # type: ignore[import-not-found]

    names = [str(path) for path in files_of(folder)]
    loaded = datasets.load_dataset(
        "parquet",
        data_files=names,
        split="train",
        streaming=side == "hf-streaming",
        cache_dir=str(scratch),
    )
    # A stream as long as an epoch's block is large; of mapped rows a tenth, which take long enough.
    if side == "hf-streaming":
        return lambda: count(loaded.shuffle(seed=1, buffer_size=1 << 18))
    some = loaded.shuffle(seed=1).select(range(len(loaded) // 10))
    return lambda: count(some)


def random_rows(side: str, folder: Path, scratch: Path) -> Callable[[], float]:
    """Rows at random, decoding included: as one list, one by one, or by their row groups."""
    draw = random.Random(1)
    if side == "pyarrow":
        return lambda: naive_rows(folder, draw)
    dataset = ours(folder, scratch)
    places = [draw.randrange(len(dataset)) for _ in range(RANDOM_ROWS)]
    if side == "first-by-one":
        return lambda: count(dataset[place] for place in places)
    return lambda: count(dataset[places])


def naive_rows(folder: Path, draw: random.Random) -> float:
    """A row group read for each row."""
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(path, memory_map=True) for path in files_of(folder)]
    for _ in range(RANDOM_ROWS // 50):
        file = draw.choice(files)
        group = draw.randrange(file.metadata.num_row_groups)
        table = file.read_row_group(group, use_threads=False)
        table.slice(draw.randrange(table.num_rows), 1).to_pylist()
    return RANDOM_ROWS / 50 / 1e6


def count(rows: Iterable[Any]) -> float:
    """Go over rows; how many there were, in millions."""
    found = 0
    for _ in rows:
        found += 1
    return found / 1e6


def serve() -> None:
    """Offer 10,000 files until standard input ends, 20 ms away."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.servers.faulty import FaultyServer

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"num": range(100), "txt": ["a"] * 100}), sink)
    data = sink.getvalue().to_pybytes()
    with FaultyServer({f"bkt/{i:05}.parquet": data for i in range(10_000)}) as server:
        server.on_request = lambda method, path: time.sleep(0.02)
        print(server.url, flush=True)
        sys.stdin.read()


def measure_index(side: str, scratch: Path) -> float:
    """Seconds from nothing, or from what was kept, to a dataset of 10,000 files far away."""
    from streaming import StreamingDataset

    command = [sys.executable, __file__, "--child", "index", "--side", "server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        url = server.stdout.readline().strip()
        options = {"endpoint": url, "access_key_id": "a", "secret_access_key": "b"}
        seconds = 0.0
        for _ in range(1 if side == "first" else 2):
            started = time.perf_counter()
            dataset = StreamingDataset(
                remote="s3://bkt",
                local=str(scratch),
                batch_size=1,
                stream_config={"storage_options": options},
            )
            seconds = time.perf_counter() - started
            assert dataset.size == 1_000_000
        server.stdin.close()
    return seconds


def measure_memory(folder: Path, scratch: Path) -> float:
    """MB that a process takes for itself to read one large row group, shuffled."""

    def anonymous() -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) / 1024

    dataset = ours(folder / "wide", scratch, shuffle=True, batch_size=32)
    before, most = anonymous(), 0.0
    for number, _ in enumerate(dataset):
        if not number % 100:
            most = max(most, anonymous() - before)
    return most


def measure(case: str, side: str, folder: Path) -> dict[str, float]:
    """One measurement in this process."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        if case == "index":
            return {"value": measure_index(side, scratch / "cache")}
        if case == "memory":
            return {"value": measure_memory(folder, scratch / "cache")}
        if not side.startswith("hf"):
            __import__("pyarrow.parquet")  # Not a part of what is measured.
        work = work_of(case, side, folder, scratch / "cache")
        gc.collect()  # Nor is what imports have left to the collector.
        started = time.process_time()
        done = work()
        return {"value": done / (time.process_time() - started)}
    finally:
        shutil.rmtree(scratch)


def run(case: str, side: str, folder: Path, args: argparse.Namespace) -> float | None:
    """One measurement in a process of its own; None if the side is not installed."""
    from benchmarks.turns import ask

    python, path = sys.executable, str(ROOT)
    if side.startswith("hf"):
        if args.hf is None:
            return None
        python, path = str(Path(args.hf) / "bin" / "python"), ""
    more = {"PYTHONPATH": path} if path else {"HF_HUB_OFFLINE": "1"}
    command = [python, __file__, "--child", case, "--side", side, "--data", str(folder)]
    found: dict[str, float] | None = ask(command, more, folder)
    return None if found is None else found["value"]


def compare(folder: Path, args: argparse.Namespace) -> None:
    """Take turns and print medians with the smallest and largest of the rounds."""
    from benchmarks.turns import spread

    load = f"{os.getloadavg()[0]:.1f}"
    print(
        f"{args.rows} rows, {args.rounds} rounds, {os.cpu_count()} cores, Python "
        f"{sys.version.split()[0]}, load {load}; median (smallest-largest); rates a CPU second\n"
    )
    print("| what | side | value | first / side | second / side | third / side |")
    print("|---" * 6 + "|")
    for case in args.case or CASES:
        what, unit, sides = CASES[case]
        rounds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side in sides:
                value = run(case, side, folder, args)
                if value is not None:
                    rounds[side].append(value)
        for side, found in rounds.items():
            if not found:
                continue
            cells = [what, side, f"{spread(found)} {unit}"]
            for mine in EPOCHS:
                is_other = side not in EPOCHS and mine in rounds
                ratios = [a / b for a, b in zip(rounds.get(mine, ()), found, strict=False)]
                cells.append(spread(ratios) if is_other else "")
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows in all files")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case")
    parser.add_argument("--hf", help="virtual environment with Hugging Face datasets")
    parser.add_argument("--case", action="append", choices=CASES, help="only these")
    parser.add_argument("--data", type=Path, help="where the data is or goes (default: temporary)")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side == "server":
        serve()
        return
    if args.child:
        print(json.dumps(measure(args.child, args.side, args.data)))
        return
    sys.path.insert(0, str(ROOT))  # Not in children: a peer's would find this library.
    with tempfile.TemporaryDirectory() as temporary:
        folder = ((args.data or Path(temporary)) / "parquet").resolve()
        if not folder.exists():
            write(folder, args.rows)
        compare(folder, args)


if __name__ == "__main__":
    main()
