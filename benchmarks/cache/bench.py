"""What the cache of a node costs, and what it saves.

    bench.py warm       a warm cache beside local data, CPU time a sample
    bench.py cold       8 ranks of 4 workers on one cold cache: bytes fetched, indexes fetched
    bench.py half       a cache of half of the data, shuffled epochs: downloads beside last use
                        alone and the optimum
    bench.py locks      a lock taken and released, a last-use stamp
    bench.py shards     construction over a directory of a million shards with a warm table

CPU time throughout, of one process; what is compared takes turns.
"""

import argparse
import bisect
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.turns import spread  # noqa: E402
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset, World  # noqa: E402
from streaming.plan import EpochPlan  # noqa: E402
from streaming.shared.directory import DirectoryState  # noqa: E402
from streaming.shared.lock import FileLock, Stripes  # noqa: E402
from streaming.storage import Store, stores  # noqa: E402
from streaming.storage.stores.fault import FaultStore  # noqa: E402
from streaming.storage.stores.local import LocalStore  # noqa: E402
from streaming.stream import Stream  # noqa: E402

__all__ = ["main"]


def write(root: Path, shards: int, samples: int, size: int) -> Path:
    """A dataset of shards with so many samples of so many bytes each."""
    limit = samples * (size + 12) + 500
    with MDSWriter(out=str(root), columns={"x": "bytes"}, size_limit=limit) as out:
        for i in range(shards * samples):
            out.write({"x": b"%08d" % i + bytes(size - 8)})
    return root


def data_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*.mds"))


# --- warm -------------------------------------------------------------------------------------


def warm(place: Path, arguments: argparse.Namespace) -> None:
    """Epochs over a warm cache, with and without a limit, and over the same files as local data."""
    remote = write(place / "remote", 64, arguments.samples // 64, 200)
    common: dict[str, Any] = {
        "batch_size": 32,
        "shuffle": True,
        "shuffle_algo": "block1",
        "num_canonical_nodes": 1,
    }
    datasets = {
        "local": StreamingDataset(local=str(remote), **common),
        "warm": StreamingDataset(remote=str(remote), local=str(place / "a"), **common),
        "limit": StreamingDataset(
            remote=str(remote), local=str(place / "b"), cache_limit="10gb", **common
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in datasets}
    for turn in range(arguments.rounds + 1):
        for name, dataset in datasets.items():
            begun = time.process_time()
            count = sum(1 for _ in dataset)
            if turn:
                times[name].append((time.process_time() - begun) / count * 1e6)
    print("| cache | us of CPU a sample | of local data |\n| --- | --- | --- |")
    for name, found in times.items():
        ratios = [ours / local for ours, local in zip(found, times["local"], strict=True)]
        print(f"| {name} | {spread(found, '.2f')} | {spread(ratios, '.2f')} |")


# --- cold -------------------------------------------------------------------------------------


def cold(place: Path, arguments: argparse.Namespace) -> None:
    """Many processes that begin at once with nothing."""
    remote = write(place / "remote", 64, 100, 1000)
    log = place / "log"
    log.touch()

    class Counting(LocalStore):
        def get_file(self, key: str, path: Path) -> None:
            with log.open("ab", buffering=0) as file:
                file.write(f"{key} {(self.root / key).stat().st_size}\n".encode())
            super().get_file(key, path)

    def open_counting(url: str, options: object = None) -> tuple[Store, str]:
        return FaultStore(Counting(Path(url.removeprefix("counting://")))), ""

    stores.register("counting", open_counting)

    def read(rank: int) -> None:
        dataset = StreamingDataset(
            remote=f"counting://{remote}",
            local=str(place / "local"),
            batch_size=8,
            shuffle=True,
            world=World(ranks_per_node=arguments.ranks, worker=rank),
        )
        for _ in StreamingDataLoader(dataset, batch_size=8, num_workers=arguments.workers):
            pass

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=read, args=(rank,)) for rank in range(arguments.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = [line.split() for line in log.read_text().splitlines()]
    fetched = sum(int(size) for name, size in lines if name != "index.json")
    indexes = sum(name == "index.json" for name, _ in lines)
    codes = {process.exitcode for process in processes}
    print(
        f"{arguments.ranks} ranks of {arguments.workers} workers (exit codes {codes}): "
        f"{fetched / data_bytes(remote):.3f} of the data fetched, the index {indexes} times"
    )


# --- half -------------------------------------------------------------------------------------


def half(place: Path, arguments: argparse.Namespace) -> None:
    """Downloads of some shuffled epochs, with room for half of the data."""
    shards, samples = 64, 50
    remote = write(place / "remote", shards, samples, 500)
    size = max(path.stat().st_size for path in remote.glob("*.mds"))
    print("| shuffle | workers | ours | last use | optimum | every shard anew |")
    print("| --- | --- | --- | --- | --- | --- |")
    for algo in ("py1e", "block1"):
        for num_workers in (0, 2, 4):
            dataset = StreamingDataset(
                remote=str(remote),
                local=str(place / f"{algo}-{num_workers}"),
                batch_size=10,
                shuffle=True,
                shuffle_algo=algo,
                shuffle_block_size=8 * samples,
                num_canonical_nodes=1,
                predownload=40,
                cache_limit=shards // 2 * size,
            )
            accesses = list(trace(dataset, num_workers, arguments.epochs))
            loader = StreamingDataLoader(dataset, batch_size=10, num_workers=num_workers)
            for _ in range(arguments.epochs):
                for _ in loader:
                    pass
            found = (
                dataset.stats().misses,
                by_last_use(accesses, shards // 2),
                at_best(accesses, shards // 2),
                arguments.epochs * shards,
            )
            print(f"| {algo} | {num_workers} | {' | '.join(map(str, found))} |")


def trace(dataset: StreamingDataset, num_workers: int, epochs: int) -> Iterator[int]:
    """The shards of all batches, one after another, as workers take turns."""
    world = World()
    for epoch in range(epochs):
        start = dataset._own_record().upcoming()
        for _ in range(epoch):
            start = start.next_epoch()
        plans: list[EpochPlan] = [
            dataset._plan(start, world.with_workers(num_workers, worker))
            for worker in range(max(num_workers, 1))
        ]
        for slot in range(0, max(map(len, plans)), 10):
            for plan in plans:
                if slot < len(plan):
                    yield from plan.shards(slot, 10, slot + 10)


def by_last_use(accesses: Sequence[int], room: int) -> int:
    """Downloads if the longest unused shard goes."""
    held: OrderedDict[int, None] = OrderedDict()
    downloads = 0
    for shard in accesses:
        downloads += shard not in held
        held[shard] = None
        held.move_to_end(shard)
        if len(held) > room:
            held.popitem(last=False)
    return downloads


def at_best(accesses: Sequence[int], room: int) -> int:
    """Downloads if the shard goes whose next use is farthest (Belady's rule)."""
    places: dict[int, list[int]] = {}
    for place, shard in enumerate(accesses):
        places.setdefault(shard, []).append(place)
    held: set[int] = set()
    downloads = 0
    for place, shard in enumerate(accesses):
        if shard in held:
            continue
        downloads += 1
        held.add(shard)
        if len(held) > room:
            held.remove(max(held, key=lambda other: _next(places[other], place)))
    return downloads


def _next(places: Sequence[int], after: int) -> float:
    found = bisect.bisect_right(places, after)
    return places[found] if found < len(places) else float("inf")


# --- locks ------------------------------------------------------------------------------------


def locks(place: Path, arguments: argparse.Namespace) -> None:
    """Single steps, in a loop."""
    write(place / "remote", 8, 10, 100)
    stream = Stream(remote=str(place / "remote"), local=str(place / "local"))
    stream.apply_default({"keep_zip": False})
    index, directory = stream.obtain_index()
    state = DirectoryState(directory, index)
    stripes = Stripes(place)

    def take() -> None:
        lock = stripes.lock(7)
        lock.acquire()
        lock.release()

    steps: dict[str, Callable[[], None]] = {
        "a lock taken and released": take,
        "last-use stamp": lambda: state.touch(3),
        "a counter": lambda: state.counts.add(hits=1),
        "needs of other processes": lambda: _discard(state.needs.of_others()),
    }
    print("| step | us of CPU |\n| --- | --- |")
    for name, step in steps.items():
        times = [_time(step, 20_000) for _ in range(arguments.rounds)]
        print(f"| {name} | {spread(times, '.2f')} |")
    state.close()


def _discard(found: object) -> None:
    """Nothing."""


def _time(step: Callable[[], None], count: int) -> float:
    begun = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begun) / count * 1e6


# --- shards -----------------------------------------------------------------------------------


def shards(place: Path, arguments: argparse.Namespace) -> None:
    """A directory with very many files, and the index that names them."""
    remote, local = place / "remote", place / "local"
    remote.mkdir()
    local.mkdir()
    info = {
        "column_encodings": ["bytes"],
        "column_names": ["x"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": 1000,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
    }
    entries = []
    for i in range(arguments.count):
        name = f"shard.{i:07}.mds"
        entries.append({**info, "raw_data": {"basename": name, "bytes": 65_536_000, "hashes": {}}})
        os.close(os.open(local / name, os.O_CREAT | os.O_WRONLY))
    (remote / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    del entries

    def construct() -> float:
        begun = time.process_time()
        StreamingDataset(
            remote=str(remote),
            local=str(local),
            batch_size=32,
            shuffle=True,
            shuffle_algo="block1",
            num_canonical_nodes=64,
        )
        return time.process_time() - begun

    print(f"first of a node: {construct():.2f} s")
    print(f"later: {spread([construct() for _ in range(arguments.rounds)], '.2f')} s of CPU")
    stream = Stream(remote=str(remote), local=str(local))
    stream.apply_default({"keep_zip": False})
    index, directory = stream.obtain_index()
    begun = time.process_time()
    state = DirectoryState(directory, index)
    print(f"the table from a listing, for who is alone: {time.process_time() - begun:.2f} s of CPU")
    begun = time.process_time()
    DirectoryState(directory, index).close()
    print(f"the table, for whoever comes next: {time.process_time() - begun:.3f} s of CPU")
    with FileLock(local / ".streaming" / "total").exclusive():
        begun = time.process_time()
        np.argsort(state.last_use_ns(), kind="stable")
    print(f"all shards by last use: {time.process_time() - begun:.3f} s of CPU")
    state.close()


def main(words: Sequence[str] | None = None) -> None:
    """Run one of them."""
    commands = {step.__name__: step for step in (warm, cold, half, locks, shards)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=commands)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=64_000)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--temporary", type=Path, help="directory for all of it")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=arguments.temporary) as folder:
        commands[arguments.what](Path(folder), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
