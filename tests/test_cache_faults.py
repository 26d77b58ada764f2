"""Faults that whole machines have: full disks, stopped processes, wrong clocks, lost workers."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader

from streaming import StreamingDataLoader, StreamingDataset, World
from streaming.cache import CachePart, ShardCache
from streaming.errors import StreamingError
from streaming.shared.directory import holders_of
from streaming.shared.lock import FileLock
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import FolderSource, fetches, open_part, sample, write_dataset
from tests.conftest import RunPython

__all__ = ["open_cache"]  # A fixture.

LIMIT = 30  # seconds that a test waits for something before it fails
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a file system")


def start(action: Callable[..., None], *args: Any) -> Any:
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=action, args=args)
    process.start()
    return process


def until(is_done: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(batches: Any) -> list[bytes]:
    return [value for batch in batches for value in batch["x"]]


def all_names(shards: int, samples: int) -> list[bytes]:
    return sorted(sample(shard, place) for shard in range(shards) for place in range(samples))


# --- A cache that is smaller than the data ----------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_case_S19_half_of_the_data_are_not_fetched_anew_in_each_epoch(
    tmp_path: Path, num_workers: int
) -> None:
    shards, epochs = 32, 4
    remote = write_dataset(tmp_path / "remote", shards)
    size = (remote / "shard.00000.mds").stat().st_size
    dataset = StreamingDataset(
        remote=str(remote),
        local=str(tmp_path / "local"),
        batch_size=5,
        shuffle=True,
        shuffle_block_size=15,
        num_canonical_nodes=1,
        predownload=10,
        cache_limit=shards // 2 * size,
    )
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=num_workers)
    for _ in range(epochs):
        assert sorted(names(loader)) == all_names(shards, 5)
        assert len(list((tmp_path / "local").glob("*.mds"))) <= shards // 2 + 1 + num_workers
    # By last use alone it would be some 0.85 of them in each epoch after the first.
    assert dataset.stats().misses < shards * (1 + (epochs - 1) * 0.75)


# --- Workers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_workers",
    [0, 1, 3, pytest.param(16, marks=pytest.mark.slow), pytest.param(33, marks=pytest.mark.slow)],
)
def test_case_H6_any_number_of_workers_reads_the_same_samples(
    tmp_path: Path, num_workers: int
) -> None:
    source = write_dataset(tmp_path / "remote", 12)
    dataset = StreamingDataset(
        remote=str(source), local=str(tmp_path / "local"), batch_size=2, shuffle=True
    )
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=num_workers)
    # Each worker gets as many samples: the last ones may come twice.
    assert set(names(loader)) == set(all_names(12, 5))
    assert dataset.stats().misses == 12


class FailingDataset(StreamingDataset):
    """One sample can't be read."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        if sample_id == 0:
            raise ValueError("sample 0 is broken")
        return super().get_item(sample_id, retry)


def test_case_H15_a_sample_that_raises_in_one_rank_holds_up_no_other(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote", 12)

    def read(rank: int) -> None:
        dataset = FailingDataset(
            remote=str(remote),
            local=str(tmp_path / "local"),
            batch_size=2,
            world=World(ranks_per_node=2, worker=rank),
        )
        loader = StreamingDataLoader(dataset, batch_size=2, num_workers=1)
        try:
            assert len(names(loader)) == 30
            code = 0
        except ValueError as error:
            code = 7 if "sample 0 is broken" in str(error) else 1
        del loader, dataset
        sys.exit(code)

    begun = time.monotonic()
    processes = [start(read, rank) for rank in range(2)]
    for process in processes:
        process.join(LIMIT)
    assert sorted(process.exitcode for process in processes) == [0, 7]
    assert time.monotonic() - begun < LIMIT


def test_case_H20_a_worker_that_is_killed_is_named_within_seconds(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote", 40)
    dataset = StreamingDataset(
        remote=str(remote), local=str(tmp_path / "local"), batch_size=1, predownload=1
    )
    batches = iter(StreamingDataLoader(dataset, batch_size=1, num_workers=2, prefetch_factor=2))
    next(batches)
    victim = multiprocessing.active_children()[0]
    begun = time.monotonic()
    victim.kill()
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid.* {victim.pid}\)"):
        for _ in batches:
            pass
    assert time.monotonic() - begun < LIMIT
    del batches
    assert sorted(names(DataLoader(dataset, batch_size=1))) == all_names(40, 5)


# --- Processes that are stopped, or forked at a bad moment ------------------------------------


def prepare(part: CachePart, shards: list[int], limit: int | None = None) -> None:
    cache = ShardCache([part], limit)
    for shard in shards:
        cache.prepare(shard)
    cache.close()


@contextlib.contextmanager
def stopped(process: Any) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_a_process_that_is_stopped_with_a_lock_holds_up_only_its_shard(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    remote = write_dataset(tmp_path / "remote", 6)
    slow = FolderSource(remote, tmp_path / "log", gate=tmp_path / "gate")
    part = open_part(tmp_path / "local", FolderSource(remote))
    with FileLock(tmp_path / "gate").exclusive():
        owner = start(prepare, CachePart(part.directory, part.index, slow), [0])
        until(lambda: fetches(tmp_path / "log")["shard.00000.mds"])
        os.kill(owner.pid, signal.SIGSTOP)
    with stopped(owner):
        cache = open_cache(part)
        for shard in range(1, 6):
            assert values(cache, shard) == expected(shard)
        assert [holder.pid for holder in holders_of(tmp_path / "local")] == [owner.pid]
        waiting = threading.Thread(target=cache.prepare, args=(0,))
        waiting.start()
        until(lambda: len(holders_of(tmp_path / "local")) == 2)
        assert {holder.is_waiting for holder in holders_of(tmp_path / "local")} == {False, True}
    waiting.join(LIMIT)
    owner.join(LIMIT)
    assert (owner.exitcode, waiting.is_alive()) == (0, False)
    assert values(cache, 0) == expected(0)
    assert fetches(tmp_path / "log")["shard.00000.mds"] == 1


def test_a_process_that_is_stopped_while_it_makes_room_lets_others_go_on_later(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = open_part(tmp_path / "local", FolderSource(write_dataset(tmp_path / "remote", 6)))
    limit = 2 * part.index.shard(0).raw_bytes

    def hold() -> None:
        with FileLock(tmp_path / "local" / ".streaming" / "total").exclusive():
            (tmp_path / "held").touch()
            signal.pause()

    cache = open_cache(part, limit=limit)
    cache.prepare(0)
    owner = start(hold)
    until((tmp_path / "held").exists)
    with stopped(owner):
        others = [start(prepare, part, [1, 2, 3], limit) for _ in range(2)]
        until(lambda: sum(one.is_waiting for one in holders_of(tmp_path / "local")) > 0)
        assert values(cache, 0) == expected(0)  # What is here can be read.
        owner.kill()  # Delivered even to a stopped process; the kernel lets go of its locks.
    for process in (owner, *others):
        process.join(LIMIT)
    assert [process.exitcode for process in others] == [0, 0]
    assert cache.usage() <= limit


def test_a_fork_while_another_thread_downloads_hinders_neither_side(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    remote = write_dataset(tmp_path / "remote", 6)
    slow = FolderSource(remote, tmp_path / "log", gate=tmp_path / "gate")
    part = open_part(tmp_path / "local", FolderSource(remote))
    cache = open_cache(CachePart(part.directory, part.index, slow))
    with FileLock(tmp_path / "gate").exclusive():
        thread = threading.Thread(target=cache.prepare, args=(0,))
        thread.start()
        until(lambda: fetches(tmp_path / "log")["shard.00000.mds"])
        child = start(prepare, part, [1, 2, 3])
        child.join(LIMIT)
        assert child.exitcode == 0
        later = start(prepare, part, [0])  # Has to wait for the thread, and does.
    thread.join(LIMIT)
    later.join(LIMIT)
    assert (thread.is_alive(), later.exitcode) == (False, 0)
    assert fetches(tmp_path / "log")["shard.00000.mds"] == 1
    assert values(cache, 0) == expected(0)


# --- Clocks -----------------------------------------------------------------------------------


def test_a_clock_that_was_set_back_spoils_no_order_for_long(
    tmp_path: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = open_part(tmp_path / "local", FolderSource(write_dataset(tmp_path / "remote", 8)))
    cache = open_cache(part, limit=3 * part.index.shard(0).raw_bytes)
    for shard in (0, 1, 2):
        cache.prepare(shard)
    hour = 3600 * 10**9
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - hour)
    cache.touch(1)
    cache.prepare(3)
    cache.prepare(4)
    # Those whose last use is still to come, by this clock, have gone first.
    assert [shard for shard in range(8) if cache.is_present(shard)] == [1, 3, 4]


# --- Disks ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def read_or_say(remote: Path, local: Path, limit: int | None) -> None:
    """Read everything, or end with 7 if it is said that the disk is full."""
    try:
        cache = ShardCache([open_part(local, FolderSource(remote))], limit)
        for shard in range(2):
            assert values(cache, shard) == expected(shard, padding=4000)
    except (StreamingError, OSError) as error:
        os._exit(7 if "no space left" in str(error).lower() else 1)
    os._exit(0)


@needs_root
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_disk_that_is_full_at_any_step_is_said_and_harms_nothing(
    tmp_path: Path, small_disk: Path, compression: str | None
) -> None:
    remote = write_dataset(tmp_path / "remote", 2, compression=compression, padding=4000)
    limit = None if compression is None else 50_000
    codes = []
    for free in range(0, 120_000, 4096):
        local = small_disk / "local"
        with (small_disk / "ballast").open("wb") as file:
            stat = os.statvfs(small_disk)
            file.write(bytes(max(0, stat.f_bavail * stat.f_frsize - free)))
        process = start(read_or_say, remote, local, limit)
        process.join(LIMIT)
        codes.append(process.exitcode)
        (small_disk / "ballast").unlink()
        again = start(read_or_say, remote, local, limit)
        again.join(LIMIT)
        assert again.exitcode == 0, f"after {free} bytes were free"
        assert not list(local.rglob("*.part"))
        shutil.rmtree(local)
    assert set(codes) == {0, 7}
    assert codes == sorted(codes, reverse=True)  # From some size on all is well.


@needs_root
def test_case_H14_a_tiny_shared_memory_is_enough(tmp_path: Path, run_python: RunPython) -> None:
    write_dataset(tmp_path / "remote", 40, 25, padding=4000)
    script = """
import os, subprocess, sys
from streaming import StreamingDataLoader, StreamingDataset

if not hasattr(os, "unshare"):
    import ctypes
    assert ctypes.CDLL(None).unshare(0x00020000) == 0
else:
    os.unshare(os.CLONE_NEWNS)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
dataset = StreamingDataset(
    remote=sys.argv[1], local=sys.argv[2], batch_size=50, shuffle=True, cache_limit="2mb"
)
loader = StreamingDataLoader(dataset, batch_size=50, num_workers=2, prefetch_factor=4)
for epoch in range(2):
    print(sum(len(batch["x"]) for batch in loader), os.listdir("/dev/shm"))
"""
    done = run_python(script, tmp_path / "remote", tmp_path / "local", check=False)
    if "mount" in done.stderr and done.returncode:
        pytest.skip("no file system can be mounted here")
    assert done.stdout == "1000 []\n1000 []\n", done.stderr


def test_case_S8_a_damaged_copy_is_fetched_again_once_and_a_damaged_source_is_named(
    tmp_path: Path,
) -> None:
    remote = write_dataset(tmp_path / "remote", 3, hashes=["xxh64"])
    options: dict[str, Any] = {
        "remote": str(remote),
        "local": str(tmp_path / "local"),
        "batch_size": 1,
        "validate_hash": "xxh64",
    }
    assert len(list(StreamingDataset(**options))) == 15
    path = tmp_path / "local" / "shard.00001.mds"
    path.write_bytes(b"\xff" * path.stat().st_size)
    dataset = StreamingDataset(**options)
    assert sorted(each["x"] for each in dataset) == all_names(3, 5)
    assert (dataset.stats().repairs, dataset.stats().fetched_bytes) == (1, path.stat().st_size)
    source = remote / "shard.00001.mds"
    source.write_bytes(b"\xff" * path.stat().st_size)
    path.unlink()
    dataset = StreamingDataset(**options)
    with pytest.raises(StreamingError, match=r"shard.00001.mds.*should have xxh64 \w+, but has"):
        list(dataset)


def test_a_copy_that_is_overwritten_while_it_is_open_is_fetched_again(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote", 3)
    places = {"remote": str(remote), "local": str(tmp_path / "local")}
    dataset = StreamingDataset(**places, batch_size=1)  # type: ignore[arg-type]
    first = [each["x"] for each in dataset]
    for path in (tmp_path / "local").glob("*.mds"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert [each["x"] for each in dataset] == first
    assert dataset.stats().repairs == 3
