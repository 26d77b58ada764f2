import multiprocessing
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streaming.cache import CachePart, ShardCache
from streaming.errors import CacheError, ObjectNotFoundError, WorkerError
from streaming.format.index import FileInfo
from streaming.prefetch import Prefetcher, _Crew, _Job, default_threads
from streaming.shared.directory import measure
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import FolderSource, open_part, write_dataset
from tests.conftest import RunPython

__all__ = ["open_cache"]  # A fixture.

LIMIT = 20  # seconds that a test waits for an event before it fails


@dataclass
class Plan:
    """The shard of each slot."""

    slots: Sequence[int]
    asked: int = 0

    def __len__(self) -> int:
        return len(self.slots)

    def shards(self, start: int, limit: int, stop: int | None = None) -> list[int]:
        self.asked += 1
        return list(dict.fromkeys(self.slots[start:stop]))[:limit]


@dataclass(frozen=True)
class WatchedSource(FolderSource):
    """A source that tells of each shard it is asked for, holds shards back, or fails."""

    asked: dict[int, threading.Event] = field(default_factory=dict)
    held: dict[int, threading.Event] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        if file.basename == "index.json":
            return super().fetch(file, path, digest)
        shard = int(file.basename.split(".")[1])
        self.asked.setdefault(shard, threading.Event()).set()
        if shard in self.held:
            assert self.held[shard].wait(LIMIT)
        if shard in self.errors:
            raise self.errors[shard]
        return super().fetch(file, path, digest)

    def is_asked(self, shard: int) -> bool:
        return self.asked.setdefault(shard, threading.Event()).wait(LIMIT)

    def hold(self, *shards: int) -> threading.Event:
        """Let fetches of these shards wait until the event is set."""
        event = threading.Event()
        self.held.update(dict.fromkeys(shards, event))
        return event


class OpenPrefetcher:
    """Opens prefetchers and closes them."""

    def __init__(self) -> None:
        self.opened: list[Prefetcher] = []

    def __call__(self, cache: ShardCache, slots: Sequence[int], **options: Any) -> Prefetcher:
        options = {"predownload": 4, "threads": 2, **options}
        self.opened.append(Prefetcher(cache, Plan(slots), **options))
        return self.opened[-1]


@pytest.fixture
def open_prefetcher() -> Iterator[OpenPrefetcher]:
    opener = OpenPrefetcher()
    yield opener
    for prefetcher in opener.opened:
        prefetcher.close()


@pytest.fixture
def source(tmp_path: Path) -> WatchedSource:
    return WatchedSource(write_dataset(tmp_path / "remote", shards=10))


@pytest.fixture
def part(tmp_path: Path, source: WatchedSource) -> CachePart:
    return open_part(tmp_path / "local", source)


@pytest.fixture
def cache(part: CachePart, open_cache: OpenCache) -> ShardCache:
    return open_cache(part)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_shards_come_before_they_are_waited_for(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    assert all(source.is_asked(shard) for shard in range(4))
    prefetcher.wait([0, 1, 2, 3])
    assert cache.absent(range(4)) == []


def test_nothing_is_fetched_farther_ahead_than_asked(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, range(10))
    for slot in range(7):
        prefetcher.advance(slot)
        prefetcher.wait([slot, slot + 3])
        assert max(source.asked) == slot + 3
    prefetcher.advance(9)
    prefetcher.wait([9])
    assert sorted(source.asked) == list(range(10))


def test_without_look_ahead_a_shard_comes_when_waited_for(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, range(10), predownload=0)
    prefetcher.advance(0)
    prefetcher.wait([3, 5, 3])
    assert sorted(source.asked) == [3, 5]


def test_with_all_shards_here_no_thread_starts(
    cache: ShardCache, open_prefetcher: OpenPrefetcher
) -> None:
    for shard in range(10):
        cache.prepare(shard)
    prefetcher = open_prefetcher(cache, range(10))
    for slot in range(10):
        prefetcher.advance(slot)
        prefetcher.wait([slot])
    assert prefetch_threads() == []


def test_a_finished_local_dataset_is_not_looked_ahead_in(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    cache = open_cache(open_part(write_dataset(tmp_path / "data"), None))
    plan = Plan([0, 1, 2, 3])
    prefetcher = Prefetcher(cache, plan, predownload=4)
    for slot in range(4):
        prefetcher.advance(slot)
        prefetcher.wait([slot])
    prefetcher.close()
    assert plan.asked == 0


def test_a_plan_is_asked_once_for_some_slots(
    cache: ShardCache, open_prefetcher: OpenPrefetcher
) -> None:
    plan = Plan([0] * 1000)
    prefetcher = Prefetcher(cache, plan, predownload=80)
    for slot in range(1000):
        prefetcher.advance(slot)
    prefetcher.close()
    assert plan.asked <= 1000 / 10 + 1


def test_an_error_is_raised_when_its_shard_is_needed(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    source.errors[2] = ObjectNotFoundError("There is no shard 2.")
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    assert source.is_asked(2)
    prefetcher.wait([0, 1])
    with pytest.raises(ObjectNotFoundError) as caught:
        prefetcher.wait([1, 2])
    assert caught.value is source.errors[2]


def test_an_error_is_raised_while_other_shards_are_still_on_their_way(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    source.errors[2] = ObjectNotFoundError("There is no shard 2.")
    come = source.hold(1)
    prefetcher = open_prefetcher(cache, range(10))
    with pytest.raises(ObjectNotFoundError):
        prefetcher.wait([1, 2])
    come.set()
    prefetcher.wait([1])


def test_a_failed_shard_is_tried_again_when_waited_for_again(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    source.errors[0] = ObjectNotFoundError("There is no shard 0.")
    prefetcher = open_prefetcher(cache, range(10))
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            prefetcher.wait([0])
    del source.errors[0]
    prefetcher.wait([0])
    assert values(cache, 0) == expected(0)


def test_a_foreign_error_is_the_cause_of_ours(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    source.errors[1] = ZeroDivisionError("by user code")
    prefetcher = open_prefetcher(cache, range(10))
    with pytest.raises(WorkerError, match="shard 1 failed: ZeroDivisionError: by user") as caught:
        prefetcher.wait([1])
    assert caught.value.__cause__ is source.errors[1]
    assert isinstance(caught.value, RuntimeError)  # As the predecessor.


def test_a_shard_evicted_before_its_use_is_fetched_again(
    cache: ShardCache, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    for _ in range(3):
        prefetcher.wait([0, 1])
        assert cache.absent([0, 1]) == []
        cache.evict(1)


def test_closing_ends_the_threads_and_begins_nothing_more(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    come = source.hold(0, 1)
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    assert source.is_asked(0)
    assert source.is_asked(1)
    prefetcher.close(timeout=0)  # Two downloads hang.
    assert len(prefetch_threads()) == 2
    come.set()
    prefetcher.close()
    assert prefetch_threads() == []
    assert sorted(source.asked) == [0, 1]
    with pytest.raises(CacheError, match="closed"):
        prefetcher.wait([5])


def test_closing_wakes_who_waits(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    come = source.hold(0, 1)
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    assert source.is_asked(0)
    assert source.is_asked(1)
    found: Future[None] = Future()

    def run() -> None:
        try:
            prefetcher.wait([3])
        except CacheError as error:
            found.set_exception(error)

    waiter = threading.Thread(target=run)
    waiter.start()
    prefetcher.close(timeout=0)
    with pytest.raises(CacheError, match="closed"):
        found.result(LIMIT)
    waiter.join()
    come.set()


def test_an_abandoned_prefetcher_ends_its_threads(cache: ShardCache, source: WatchedSource) -> None:
    def iterate() -> Iterator[None]:
        prefetcher = Prefetcher(cache, Plan(range(10)), predownload=4)
        prefetcher.advance(0)
        prefetcher.wait([0])
        yield

    iterator = iterate()
    next(iterator)
    threads = prefetch_threads()
    assert threads
    del iterator
    for thread in threads:
        thread.join(LIMIT)
    assert prefetch_threads() == []


def test_the_interpreter_exits_while_a_download_hangs(
    tmp_path: Path, run_python: RunPython
) -> None:
    write_dataset(tmp_path / "remote")
    script = """
import sys, threading
from pathlib import Path
from streaming import prefetch
from streaming.cache import ShardCache
from tests.common.shards import FolderSource, open_part

class HangingSource(FolderSource):
    def fetch(self, file, path, digest=None):
        if file.basename != "index.json":
            asked.set()
            threading.Event().wait()
        return super().fetch(file, path, digest)

class Plan:
    def __len__(self):
        return 4
    def shards(self, start, limit, stop):
        return range(start, stop)

prefetch.CLOSE_SECONDS = 0.1
asked = threading.Event()
root = Path(sys.argv[1])
cache = ShardCache([open_part(root / "local", HangingSource(root / "remote"))])
prefetcher = prefetch.Prefetcher(cache, Plan(), predownload=4)
prefetcher.advance(0)
assert asked.wait(20)
"""
    run_python(script, tmp_path, timeout=30)


def test_a_forked_child_can_drop_a_prefetcher_in_use(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, range(10))
    prefetcher.advance(0)
    prefetcher.wait([0])
    child = os.fork()
    if child == 0:
        prefetcher.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    prefetcher.wait([1])


def test_urgent_jobs_come_first_and_cancelled_ones_never() -> None:
    begin, done = threading.Event(), threading.Event()
    order = []

    def prepare(shard: int, *, ahead: bool) -> bool:
        assert begin.wait(LIMIT)
        assert ahead
        order.append(shard)
        if shard == 9:
            done.set()
        return True

    crew = _Crew(prepare, 1)
    jobs = {shard: _Job(shard) for shard in (0, 1, 2, 3, 9)}
    for shard in (0, 1, 2, 3, 9):
        crew.submit(jobs[shard])
    for shard in (2, 3):
        jobs[shard].is_urgent = True
        crew.submit(jobs[shard])
    for _ in range(2):
        crew.cancel(jobs[3])
    begin.set()
    assert done.wait(LIMIT)
    crew.stop()
    crew.join(LIMIT)
    assert order in ([0, 2, 1, 9], [2, 0, 1, 9])  # The thread may have taken 0 at once.
    assert jobs[3].future.cancelled()


def read_all(
    cache: ShardCache,
    slots: Sequence[int],
    check: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    prefetcher = Prefetcher(cache, Plan(slots), **options)
    try:
        for slot, shard in enumerate(slots):
            prefetcher.advance(slot)
            prefetcher.wait([shard])
            assert values(cache, shard) == expected(shard)
            check()
    finally:
        prefetcher.close()


@pytest.mark.parametrize("shards_in_cache", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("predownload", [0, 1, 4, 16])
@pytest.mark.parametrize("threads", [1, 3])
def test_case_S11_a_tight_limit_neither_hangs_nor_is_exceeded(
    part: CachePart, open_cache: OpenCache, shards_in_cache: int, predownload: int, threads: int
) -> None:
    limit = shards_in_cache * part.index.shard(0).raw_bytes
    cache = open_cache(part, limit=limit)
    rng = random.Random(shards_in_cache)
    slots = [shard for _ in range(3) for shard in rng.sample(range(10), 10)]

    def check() -> None:
        paths = [path for path in part.directory.path.iterdir() if ".mds" in path.name]
        assert measure(paths) <= limit

    read_all(cache, slots, check, predownload=predownload, threads=threads)


def run_process(local: Path, source: FolderSource, seed: int, shards_in_cache: int) -> None:
    part = open_part(local, source)
    cache = ShardCache([part], shards_in_cache * part.index.shard(0).raw_bytes)
    slots = random.Random(seed).choices(range(10), k=40)
    read_all(cache, slots, predownload=6, threads=2)
    cache.close()


@pytest.mark.parametrize("shards_in_cache", [1, 3, 7])
def test_case_S11_processes_that_look_ahead_under_a_tight_limit_all_finish(
    tmp_path: Path, shards_in_cache: int
) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote", shards=10))
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(
            target=run_process, args=(tmp_path / "local", source, seed, shards_in_cache)
        )
        for seed in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3


def test_the_number_of_threads_is_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    assert [default_threads(n) for n in (0, 1, 4, 8, 32, 100)] == [8, 8, 8, 4, 1, 1]


def test_a_prefetcher_is_not_pickled(cache: ShardCache, open_prefetcher: OpenPrefetcher) -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(open_prefetcher(cache, []))


def ended(prefetcher: Prefetcher) -> bool:
    prefetcher._crew.join(LIMIT)
    return not any(thread.is_alive() for thread in prefetcher._crew._threads)


def test_what_comes_next_is_brought_when_all_has_been_read(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    prefetcher = open_prefetcher(cache, [0, 1])
    prefetcher.advance(0)
    prefetcher.wait([0, 1])
    prefetcher.finish(lambda: [1, 7, 8])
    assert source.is_asked(7)
    assert source.is_asked(8)
    assert ended(prefetcher)
    assert cache.absent(range(10)) == [2, 3, 4, 5, 6, 9]


def test_with_nothing_to_come_the_threads_end(
    cache: ShardCache, open_prefetcher: OpenPrefetcher
) -> None:
    for upcoming in (None, list):
        prefetcher = open_prefetcher(cache, [0, 1])
        prefetcher.wait([0])
        prefetcher.finish(upcoming)
        assert ended(prefetcher)


def test_what_comes_next_can_be_called_off(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    held = source.hold(5, 6)
    prefetcher = open_prefetcher(cache, [0], threads=1)
    prefetcher.wait([0])
    prefetcher.finish(lambda: [5, 6])
    assert source.is_asked(5)
    prefetcher.close(timeout=0.0)
    held.set()
    assert ended(prefetcher)
    assert cache.absent([5, 6]) == [6]


def test_what_goes_wrong_with_what_comes_next_is_told_when_it_is_needed(
    cache: ShardCache, source: WatchedSource, open_prefetcher: OpenPrefetcher
) -> None:
    source.errors[5] = ObjectNotFoundError("no 5")
    prefetcher = open_prefetcher(cache, [0])
    prefetcher.wait([0])
    prefetcher.finish(lambda: [5])
    assert source.is_asked(5)
    assert ended(prefetcher)
    following = open_prefetcher(cache, [5])
    with pytest.raises(ObjectNotFoundError, match="no 5"):
        following.wait([5])


def test_under_a_limit_a_slow_reader_looks_less_far_ahead(
    part: CachePart, open_cache: OpenCache, open_prefetcher: OpenPrefetcher
) -> None:
    slots = [slot // 100 for slot in range(1000)]
    size = part.index.shard(0).raw_bytes
    cache = open_cache(part, limit=9 * size)
    prefetcher = open_prefetcher(cache, slots, predownload=800)
    for seconds in range(20):
        prefetcher._pace.moved(seconds, 100.0 * seconds)  # A hundredth of a slot a second.
        prefetcher._pace.brought(0.1)
    assert prefetcher._ahead() == 100
    assert open_prefetcher(open_cache(part), slots, predownload=800)._ahead() == 800
