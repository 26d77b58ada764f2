"""Locks of the kernel on files: whoever dies, lets go."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from streaming.shared.sharing import share

__all__ = ["FileLock", "Stripes"]


class FileLock:
    """A lock on a file, among processes and threads.

    An object is one holder, not thread-safe: threads that keep each other out make one each. The
    file is made if need be, its directory is not, and it stays: to remove it would be a race. The
    descriptor is open only while the lock is held. A forked child does not hold what its parent
    holds; it neither keeps it locked nor lets go of it.

    Args:
        path: The file, which holds nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, shared or not, in this process."""
        return self._fd >= 0 and self._pid == os.getpid()

    def acquire(self, *, shared: bool = False, blocking: bool = True) -> bool:
        """Take the lock. On a lock that is held: change its mode, and others may come in between.

        Args:
            shared: With others who share it, instead of alone.
            blocking: Wait for those who hold it.

        Returns:
            Whether it is held now; always true if `blocking`.

        Raises:
            OSError: The file can't be opened, or the file system has no locks.
        """
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if blocking else fcntl.LOCK_NB)
        if not self.is_held:
            self._fd, self._pid = _open(self.path), os.getpid()
        try:
            fcntl.flock(self._fd, mode)
        except BlockingIOError:
            self.release()
            return False
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Let go; nothing happens if it is not held."""
        if self.is_held:
            # Before close: a process that C code forked may hold a copy of the descriptor.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            _close(self._fd)
        self._fd = -1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone for the length of a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with others for the length of a block."""
        self.acquire(shared=True)
        try:
            yield
        finally:
            self.release()

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A file lock belongs to one process. Pass its path on.")


class Stripes:
    """A fixed number of locks for any number of things: thing i takes the lock i % count.

    Threads may share it.

    Args:
        root: Directory of the lock files `lock.00`, `lock.01`, ...
        count: How many there are. All who share a directory must agree on it.
    """

    def __init__(self, root: Path, count: int = 256) -> None:
        self._root = root
        self._count = count

    def lock(self, index: int) -> FileLock:
        """The lock of thing `index`, not yet held."""
        return FileLock(self._root / f"lock.{index % self._count:02x}")


# Descriptors open in this process. A forked child closes its copies, or it would keep the locks of
# a parent that is killed. `_guard` keeps a fork from coming between an open and its note here. It
# is re-entrant because the garbage collector may call FileLock.__del__ while it is held.
_descriptors: set[int] = set()
_guard = threading.RLock()


def _open(path: Path) -> int:
    with _guard:
        fd = _open_file(path)
        _descriptors.add(fd)
    return fd


def _open_file(path: Path) -> int:
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            # Another user's. To read it is enough for a lock, but on network file systems.
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue  # Another was quicker.
        try:
            share(fd, is_written=True, parent=path.parent)
        except FileNotFoundError:
            return fd  # The directory was removed a moment ago, as by a sweep of dead runs.
        except BaseException:
            os.close(fd)
            raise
        return fd


def _close(fd: int) -> None:
    with _guard:
        _descriptors.discard(fd)
        os.close(fd)


def _close_copies() -> None:
    while _descriptors:
        os.close(_descriptors.pop())
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_copies
)
