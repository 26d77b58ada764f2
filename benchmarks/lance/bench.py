"""Lance datasets: in sequence, shuffled, at random, beside pylance's own reading.

Every measurement is a process of its own; the sides take turns, and each round gives one ratio of
CPU seconds. This file is the parent, which writes the data, and the measured child::

    bench.py --rows 2000000 --rounds 3
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
PICKS = 20_000
LOADED = 30_000  # rows that pylance gives through a loader, which takes long enough

# Case to what it is, its sides, and the least that the first should have of the second's rate.
CASES: dict[str, tuple[str, tuple[str, str], float]] = {
    "rows": ("sequential, dicts", ("ours", "batches of 8,192"), 0.85),
    "columns": ("sequential, columns", ("ours", "batches of 8,192"), 0.8),
    "take": ("20,000 random rows as one list", ("ours", "one `take`"), 1.0),
    "shuffled": ("shuffled epoch, block of 2^18", ("ours", "ours, sequential"), 0.3),
    "loader": ("shuffled, torch DataLoader, batches of 256", ("ours", "pylance"), 10.0),
}


def write(path: Path, rows: int, words: int) -> None:
    """Rows of a number and a text of so many words, of seven characters each."""
    import lance
    import pyarrow as pa

    draw = random.Random(0)
    known = [f"word{i}" for i in range(1000)]
    texts = [" ".join(draw.choices(known, k=words)) for _ in range(1_800_000 // words)]
    piece = [texts[i % len(texts)] for i in range(rows)]
    table = pa.table({"num": np.arange(rows), "txt": piece})
    lance.write_dataset(table, str(path), max_rows_per_file=max(rows // 8, 1))


def count(items: Iterable[Any]) -> int:
    """How many there are, one by one."""
    found = 0
    for _ in items:
        found += 1
    return found


def ours(case: str, path: str) -> Callable[[], int]:
    """What reads by this library, and gives how many rows."""
    from torch.utils.data import DataLoader

    from streaming import StreamingDataset

    shuffled = {"shuffle": True, "num_canonical_nodes": 1, "shuffle_block_size": 1 << 18}
    if case == "columns":
        batches = StreamingDataset(local=path, batch_size=8192, batched=True)
        return lambda: sum(len(batch["num"]) for batch in batches)
    if case in ("shuffled", "loader"):
        dataset = StreamingDataset(local=path, batch_size=256, **shuffled)  # type: ignore[arg-type]
        if case == "shuffled":
            return lambda: count(dataset)
        return lambda: sum(len(batch["num"]) for batch in DataLoader(dataset, batch_size=256))
    dataset = StreamingDataset(local=path, batch_size=256)
    if case == "rows":
        return lambda: count(dataset)
    draw = np.random.default_rng(0)
    return lambda: len(dataset._runtime.get().take(draw.integers(0, dataset.size, PICKS)))


class Rows:
    """Map-style data over pylance's own batched `take`."""

    def __init__(self, path: str) -> None:
        import lance

        self._dataset = lance.dataset(path)

    def __len__(self) -> int:
        return int(self._dataset.count_rows())

    def __getitems__(self, picks: list[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._dataset.take(picks).to_pylist()
        return rows


def theirs(case: str, path: str) -> Callable[[], int]:
    """The same by pylance."""
    import lance
    from torch.utils.data import DataLoader

    if case == "shuffled":
        return ours("rows", path)
    dataset = lance.dataset(path)
    if case == "rows":
        return lambda: sum(
            count(batch.to_pylist()) for batch in dataset.to_batches(batch_size=8192)
        )
    if case == "columns":
        return lambda: sum(batch.num_rows for batch in dataset.to_batches(batch_size=8192))
    if case == "take":
        draw, size = np.random.default_rng(0), dataset.count_rows()
        return lambda: len(dataset.take(draw.integers(0, size, PICKS)).to_pylist())

    def load() -> int:
        found = 0
        data: Any = Rows(path)
        for batch in DataLoader(data, batch_size=256, shuffle=True):
            found += len(batch["num"])
            if found >= LOADED:
                break
        return found

    return load


def measure(case: str, side: int, path: str) -> float:
    """Rows a CPU second, after passes that warm caches and the process."""
    read = theirs(case, path) if side else ours(case, path)
    for _ in range(2):  # Of ours, the first goes by the helper.
        read()
    started = time.process_time()
    found = read()
    return found / (time.process_time() - started)


def run(case: str, side: int, path: Path) -> float:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--side", f"{case}:{side}", "--data", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def main() -> None:
    """Measure all cases, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--words", type=int, default=9, help="in the text of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--data", type=Path, help="where the data are, or shall be")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        case, side = options.side.split(":")
        print(json.dumps(measure(case, int(side), str(options.data))))
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import spread

    with tempfile.TemporaryDirectory() as folder:
        path = options.data or Path(folder, "table")
        if not path.exists():
            write(path, options.rows, options.words)
        print("| case | ours, M rows a CPU second | beside | ratio | asked |")
        print("| --- | --- | --- | --- | --- |")
        for case in options.cases:
            what, (_, beside), least = CASES[case]
            pairs = [(run(case, 0, path), run(case, 1, path)) for _ in range(options.rounds)]
            rates = spread([one / 1e6 for one, _ in pairs], ".2f")
            peers = spread([other / 1e6 for _, other in pairs], ".2f")
            ratios = spread([one / other for one, other in pairs], ".2f")
            print(f"| {what} | {rates} | {beside}: {peers} | {ratios} | {least} |", flush=True)


if __name__ == "__main__":
    main()
