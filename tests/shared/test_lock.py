import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming.shared.lock import FileLock, Stripes
from tests.conftest import ROOT

HOLDER = """
import os, sys
from pathlib import Path
from streaming.shared.lock import FileLock

lock = FileLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
if sys.argv[2] == "fork" and os.fork() == 0:
    os.close(1)
sys.stdin.readline()
"""


@contextmanager
def holder(path: Path, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def is_free(path: Path) -> bool:
    lock = FileLock(path)
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def test_an_exclusive_lock_keeps_out_all_others(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path).exclusive():
        assert not FileLock(path).acquire(blocking=False)
        assert not FileLock(path).acquire(shared=True, blocking=False)
    assert is_free(path)


def test_shared_locks_keep_out_only_exclusive_ones(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path).shared(), FileLock(path).shared():
        assert not is_free(path)
    assert is_free(path)


def test_a_held_lock_may_change_its_mode(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    lock.acquire()
    lock.acquire(shared=True)
    assert other.acquire(shared=True, blocking=False)
    other.release()
    lock.release()


def test_a_lock_is_freed_by_an_exception_and_by_the_garbage_collector(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), FileLock(path).exclusive():
        _ = 1 // 0
    assert is_free(path)
    lock = FileLock(path)
    lock.acquire()
    del lock
    assert is_free(path)


def test_a_lock_makes_its_file_but_not_its_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "gone" / "lock").acquire()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_frees_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        assert not is_free(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert is_free(path)


def test_a_killed_holder_frees_its_lock_although_its_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path, "fork") as process:
        assert not is_free(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        FileLock(path).acquire()  # Blocks for ever if the child holds a copy.


def test_a_forked_child_neither_holds_nor_frees_the_lock_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        was_held = lock.is_held
        lock.release()
        os._exit(int(was_held or is_free(path)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not is_free(path)
    lock.release()


def test_a_forked_child_can_take_the_lock_of_its_parent_when_it_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        lock.acquire()
        os._exit(int(not lock.is_held))
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_is_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="belongs to one process"):
        pickle.dumps(FileLock(tmp_path / "lock"))


def test_stripes_are_shared_by_things_a_count_apart(tmp_path: Path) -> None:
    stripes = Stripes(tmp_path, count=256)
    with stripes.lock(255).exclusive():
        assert not stripes.lock(511).acquire(blocking=False)
        with stripes.lock(0).exclusive():
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock.00", "lock.ff"]
