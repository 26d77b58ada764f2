"""Counters of processes, some of which are killed."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from streaming.shared.counts import WAIT_BOUNDS, Counts, CountsFolder, Stats, gather
from streaming.shared.holders import find_holders
from streaming.shared.lock import FileLock


def stats(folder: Path) -> Stats:
    return Stats.of(gather(folder))


def test_what_processes_count_is_added_up(tmp_path: Path) -> None:
    one, other = Counts(tmp_path), Counts(tmp_path)
    one.add(hits=2, fetched_bytes=10)
    other.add(hits=3)
    assert (stats(tmp_path).hits, stats(tmp_path).fetched_bytes) == (5, 10)
    one.close()
    assert stats(tmp_path).hits == 5
    other.close()
    assert stats(tmp_path).hits == 5
    assert {path.name for path in tmp_path.iterdir()} == {"fold.lock", "past.cnt"}


def count_and_die(folder: Path) -> None:
    Counts(folder).add(misses=1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_the_dead_have_counted_stays_in_one_file(tmp_path: Path) -> None:
    living = Counts(tmp_path)
    for _ in range(3):
        context: Any = multiprocessing.get_context("fork")
        process = context.Process(target=count_and_die, args=(tmp_path,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert stats(tmp_path).misses == 3
    living.close()
    assert stats(tmp_path).misses == 3
    assert {path.name for path in tmp_path.iterdir()} == {"fold.lock", "past.cnt"}


def test_sums_never_fall_while_processes_come_and_go(tmp_path: Path) -> None:
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            counts = Counts(tmp_path)
            counts.add(hits=1)
            counts.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = 0
    for _ in range(300):
        hits = stats(tmp_path).hits
        assert hits >= before
        before = hits
    is_over.set()
    for thread in threads:
        thread.join()
    assert before > 0


def test_what_was_added_up_before_a_kill_is_not_added_again(tmp_path: Path) -> None:
    one = Counts(tmp_path)
    one.add(hits=3)
    assert one._file is not None
    path = one._file.path
    content = path.read_bytes()
    one.close()
    assert not path.exists()
    path.write_bytes(content)  # As if the process had been killed before it could remove it.
    assert stats(tmp_path).hits == 3
    Counts(tmp_path).close()
    assert stats(tmp_path).hits == 3
    assert not path.exists()


def test_counters_need_no_folder(tmp_path: Path) -> None:
    counts = Counts()
    counts.add(hits=1)
    assert Stats.of(counts.values()).hits == 1
    (tmp_path / "file").touch()
    for where in (tmp_path / "file", tmp_path / "file" / "counts"):
        Counts(where).add(hits=1)
    assert CountsFolder(tmp_path / "gone").open().values().sum() == 0
    assert not gather(tmp_path / "gone").any()


def test_a_damaged_file_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "1-a.cnt").write_bytes(b"?" * 99)
    assert not gather(tmp_path).any()


def test_half_of_the_waits_were_not_longer_than_the_median() -> None:
    counts = Counts()
    assert Stats.of(counts.values()).wait_p50 == 0.0
    for seconds in (0.0, *[0.010] * 60, *[2.0] * 30, 1e9):
        counts.add_wait(seconds)
    found = Stats.of(counts.values())
    assert found.num_waits == 92
    assert found.wait_p50 == pytest.approx(0.010, rel=0.1)
    assert found.wait_p99 == pytest.approx(WAIT_BOUNDS[-1], rel=0.2)
    assert found.wait_quantile(0.9) == pytest.approx(2.0, rel=0.1)


def test_what_has_come_since_is_a_difference() -> None:
    counts = Counts()
    counts.add(hits=2)
    before = Stats.of(counts.values())
    counts.add(hits=1, retries=4)
    counts.add_wait(0.5)
    since = Stats.of(counts.values()).since(before)
    assert (since.hits, since.retries, since.num_waits) == (1, 4, 1)
    assert since.to_json()["wait_seconds"] == 0.5
    assert before.since(Stats.of(counts.values())).retries == 0  # Its files were removed.


def test_holders_of_locks_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    with FileLock(paths[0]).exclusive(), FileLock(paths[1]).shared():
        found = {holder.lock.name: holder for holder in find_holders(paths)}
    if not found:
        pytest.skip("this system does not say who holds locks")
    assert set(found) == {"a", "b"}
    assert {holder.pid for holder in found.values()} == {os.getpid()}
    assert not found["a"].is_shared
    assert found["b"].is_shared
    assert "python" in found["a"].command
    assert find_holders(paths) == ()
