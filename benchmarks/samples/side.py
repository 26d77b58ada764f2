"""One measurement in one process, under the library that the Python it runs in has.

Prints a line of JSON: samples, seconds and CPU seconds, those of ended children included. Opening
is outside the clock, but for `start`; the plan of the epoch is inside it.
"""

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import data  # type: ignore[import-not-found]  # They lie beside this file.
import peers  # type: ignore[import-not-found]

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
os.environ |= {"DISABLE_VERSION_CHECK": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}

RANDOM = 20_000  # single samples
SHARDS = 50_000

Count = tuple[int, float, float]


class Clock:
    """Seconds and CPU seconds from when it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), self._cpu()

    def stop(self, samples: int) -> Count:
        """Samples, seconds and CPU seconds."""
        return samples, time.perf_counter() - self.wall, self._cpu() - self.cpu

    @staticmethod
    def _cpu() -> float:
        used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in used)


def drain(items: Iterable[Any], size_of: Any, budget: float, step: int) -> Count:
    """Read to the end, or until the budget of seconds is spent."""
    clock, count = Clock(), 0
    iterator = iter(items)
    while True:
        found = [size_of(item) for item in itertools.islice(iterator, step)]
        count += sum(found)
        if len(found) < step or time.perf_counter() - clock.wall > budget:
            break
    del iterator, items  # Workers that are still there end now, and their time counts.
    return clock.stop(count)


def one(item: Any) -> int:
    """Samples of a sample."""
    return 1


def first_length(batch: Any) -> int:
    """Samples of a batch."""
    return len(next(iter(batch.values())))


def read_random(get: Any, size: int, budget: float) -> Count:
    """Single samples, anywhere."""
    picks = random.Random(1).choices(range(size), k=RANDOM)
    get(picks[0])
    clock, count = Clock(), 0
    for start in range(0, RANDOM, 100):
        for pick in picks[start : start + 100]:
            get(pick)
        count += 100
        if time.perf_counter() - clock.wall > budget:
            break
    return clock.stop(count)


def write(peer: Any, kind: str, source: Path, out: Path, *, by_table: bool) -> Count:
    """Write a dataset, from samples or from a table, which are in memory before the clock runs."""
    columns = data.load(source, kind)
    for path in (out, Path(f"{out}-cache")):
        shutil.rmtree(path, ignore_errors=True)
    count = len(next(iter(columns.values())))
    if by_table:
        table = columns if isinstance(peer, peers.Mosaic) else data.table(columns)
        clock = Clock()
        peer.write_table(kind, table, out)
    else:
        rows = list(data.rows(columns))
        clock = Clock()
        peer.write(kind, rows, out)
    return clock.stop(count)


def start(peer: Any, work: Path) -> Count:
    """Construct a dataset of very many shards, and take the first batch."""
    many = work / "many"
    if not (many / "index.json").exists():
        columns = {name: column[:1000] for name, column in data.load(work.parent, "text").items()}
        peer.write("text", data.rows(columns), work / "one")
        many.mkdir()
        peer.many_shards(work / "one", many, SHARDS)
    peer.start(work / "text")  # Imports, and what is made once a process.
    clock = Clock()
    peer.start(many)
    return clock.stop(1)


def measure(name: str, case: str, source: Path, work: Path, budget: float) -> Count:
    """Do one of the cases of `bench.py`."""
    peer = peers.PEERS[name]()
    work.mkdir(parents=True, exist_ok=True)
    verb, kind, *more = case.split(":")
    workers = int(more[0]) if more else 0
    out = work / kind
    if verb in ("write", "write_table"):
        return write(peer, kind, source, work / f"{verb}-{kind}", by_table=verb == "write_table")
    if verb == "make":  # What is read later, in whichever way it can be written.
        return write(peer, kind, source, out, by_table=not hasattr(peer, "write"))
    if verb == "start":
        return start(peer, work)
    if verb == "rows":
        return drain(peer.rows(kind, out), one, budget, 512)
    if verb == "columns":
        return drain(peer.columns(kind, out), int, budget, 16)
    if verb == "get":
        get, size = peer.get(kind, out)
        return read_random(get, size, budget)
    import torch

    torch.set_num_threads(1)  # Or its threads spin against each other in the collate.
    make = peer.loader if verb == "loader" else peer.loader_columns
    return drain(make(kind, out, workers), first_length, budget, 1)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=peers.PEERS)
    parser.add_argument("case")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=4)
    args = parser.parse_args()
    verb, found = args.case.partition(":")[0], None
    if verb == "make" or hasattr(peers.PEERS[args.peer], verb):
        count, wall, cpu = measure(
            args.peer, args.case, args.data, args.data / args.peer, args.budget
        )
        found = {"count": count, "wall": wall, "cpu": max(cpu, 1e-9)}
    print("\n" + json.dumps(found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # Threads of some libraries would go on.


if __name__ == "__main__":
    main()
