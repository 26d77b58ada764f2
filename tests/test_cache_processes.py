"""Caches of several processes on one directory, some of which are killed."""

import io
import itertools
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from streaming.cache import CachePart, ShardCache, obtain_index
from streaming.shared.lock import FileLock
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import FolderSource, fetches, listing, open_part, write_dataset

__all__ = ["open_cache"]  # A fixture.


def start(method: str, target: Callable[..., None], *args: Any) -> BaseProcess:
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=args)
    process.start()
    return process


def exit_codes(processes: Sequence[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def read_all(local: Path, source: FolderSource, seed: int, limit: int | None) -> None:
    """Read all shards twice, in an order of one's own, and check every sample."""
    part = open_part(local, source)
    cache = ShardCache([part], limit)
    order = random.Random(seed).sample(range(len(cache)), len(cache))
    for shard in order + order:
        assert values(cache, shard) == expected(shard)
        cache.touch(shard)
    cache.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_case_H3_four_processes_fetch_each_shard_once(tmp_path: Path, method: str) -> None:
    remote = write_dataset(tmp_path / "remote", shards=12, compression="zstd")
    source = FolderSource(remote, tmp_path / "log", gate=tmp_path / "gate")
    with FileLock(tmp_path / "gate").exclusive():
        processes = [
            start(method, read_all, tmp_path / "local", source, seed, None) for seed in range(4)
        ]
    assert exit_codes(processes) == [0] * 4
    counts = fetches(tmp_path / "log")
    assert set(counts.values()) == {1}
    assert len(counts) == 1 + 12


@pytest.mark.parametrize("shards_in_cache", [1, 2, 5])
def test_processes_under_a_tight_limit_all_finish(tmp_path: Path, shards_in_cache: int) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote", shards=6))
    part = open_part(tmp_path / "local", source)
    limit = shards_in_cache * part.index.shard(0).raw_bytes
    processes = [
        start("fork", read_all, tmp_path / "local", source, seed, limit) for seed in range(4)
    ]
    assert exit_codes(processes) == [0] * 4
    cache = ShardCache([part], limit)
    assert values(cache, 0) == expected(0)
    cache.close()


def prepare_first(part: CachePart) -> None:
    cache = ShardCache([part])
    cache.prepare(0)
    cache.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_case_H2_a_killed_owner_frees_its_shard(
    tmp_path: Path, open_cache: OpenCache, method: str
) -> None:
    remote = write_dataset(tmp_path / "remote")
    source = FolderSource(remote, log=tmp_path / "pipe", gate=tmp_path / "gate")
    # The index first: then the only line in the pipe is the shard's.
    part = open_part(tmp_path / "local", FolderSource(remote))
    part = CachePart(part.directory, part.index, source)
    os.mkfifo(tmp_path / "pipe")
    with FileLock(tmp_path / "gate").exclusive():
        process = start(method, prepare_first, part)
        assert (tmp_path / "pipe").read_text() == "shard.00000.mds\n"
        process.kill()
        assert exit_codes([process]) == [-signal.SIGKILL]
    (tmp_path / "pipe").unlink()
    assert values(open_cache(part), 0) == expected(0)


def die_at(moment: int, action: Callable[..., None], *args: Any) -> None:
    """Do something, and be killed right before or after the n-th change to a directory."""
    moments = itertools.count()

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(moments) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            found = change(*args, **kwargs)
            if next(moments) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    for name in ("replace", "unlink", "mkdir", "open"):
        setattr(os, name, watched(getattr(os, name)))
    io.open = watched(io.open)
    action(*args)


def prepare_two(part: CachePart) -> None:
    cache = ShardCache([part], max(info.raw_bytes + info.zip_bytes for info in part.index))
    for shard in (0, 1):
        cache.prepare(shard)
    cache.close()


STATE = {
    "counts",
    "index.lock",
    "lease",
    "lock.00",
    "lock.01",
    "needs",
    "shards.tbl",
    "source.json",
    "total",
}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_case_H2_after_a_kill_at_any_moment_the_next_start_is_right(
    tmp_path: Path, compression: str | None
) -> None:
    remote = write_dataset(tmp_path / "remote", 2, compression=compression, padding=200)
    source = FolderSource(remote)
    for moment in itertools.count():
        local = tmp_path / f"local{moment}"
        part = open_part(local, source)
        (code,) = exit_codes([start("fork", die_at, moment, prepare_two, part)])
        cache = ShardCache([part])
        cache.prepare(0)
        names = set(listing(local)) - {"index.json"}
        assert all(name.endswith((".mds", ".zstd")) for name in names)  # Nothing temporary.
        assert cache.usage() == sum(len(listing(local)[name]) for name in names)
        for shard in (0, 1):
            assert values(cache, shard) == expected(shard, padding=200)
        # Everything is known to be the library's own, and can go.
        assert cache.evict(0) > 0
        assert cache.evict(1) > 0
        assert cache.usage() == 0
        cache.close()
        assert set(listing(local)) == {"index.json"}
        assert {path.name for path in (local / ".streaming").iterdir()} <= STATE
        counts = {path.name for path in (local / ".streaming" / "counts").iterdir()}
        assert counts == {"fold.lock", "past.cnt"}
        assert list((local / ".streaming" / "needs").iterdir()) == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert moment > 20


def obtain(local: Path, source: FolderSource) -> None:
    obtain_index(local, source)


def test_case_H2_after_a_kill_at_any_moment_the_next_start_has_the_index(tmp_path: Path) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"))
    other = FolderSource(write_dataset(tmp_path / "other"))
    for moment in itertools.count():
        local = tmp_path / f"local{moment}"
        (code,) = exit_codes([start("fork", die_at, moment, obtain, local, source)])
        assert open_part(local, source).directory.path == local
        assert open_part(local, other).directory.path != local
        assert list(listing(local))[-1] == "index.json"
        assert len(listing(local)) == 2  # The other one's is in its folder.
        assert {path.name for path in (local / ".streaming").iterdir()} <= STATE
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert moment > 10
