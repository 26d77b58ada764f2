"""Files that one process writes and any reads: nobody waits, and the dead are told from the living.

A file is a mark and some whole numbers, mapped by its process, which holds a lock on it as long as
it lives. A number that changes is never seen half changed.
"""

import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming.shared.lock import FileLock
from streaming.shared.sharing import make_directory

__all__ = ["OwnFile", "is_dead", "own_files", "read_own_file", "sweep_unborn"]

_NEW = ".new"
_ATTEMPTS = 10


class OwnFile:
    """The file of this process in a folder. Threads may share it; of no use after a fork.

    Args:
        folder: Where it is made; comes into being if need be.
        mark: What such files begin with: 8 bytes, and the ending of their names.
        size: Numbers in it, all 0.

    Raises:
        OSError: It can't be made.
    """

    def __init__(self, folder: Path, mark: bytes, size: int) -> None:
        make_directory(folder)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path = folder / f"{name}{_suffix(mark)}"
        # Locked before it has its name, or it would be taken for a dead one's.
        new = folder / f"{name}{_NEW}"
        self._lease = FileLock(new)
        for attempt in range(_ATTEMPTS):
            try:
                self.values = self._make(new, mark, size)
                return
            except FileNotFoundError:
                # `sweep_unborn` of another process may come between its making and its locking.
                if attempt + 1 == _ATTEMPTS or not folder.is_dir():
                    raise

    def _make(self, new: Path, mark: bytes, size: int) -> NDArray[np.int64]:
        self._lease.acquire(shared=True)
        try:
            # Written, not left sparse, as in SharedTable.
            with new.open("r+b") as file:
                file.write(mark + bytes(8 * size))
                file.flush()
                data = mmap.mmap(file.fileno(), 0)
            new.rename(self.path)
        except BaseException:
            self._lease.release()
            new.unlink(missing_ok=True)
            raise
        values: NDArray[np.int64] = np.frombuffer(data, np.int64, offset=len(mark))
        return values

    def close(self) -> None:
        """Let others see that this process has done with it. The numbers stay."""
        self._lease.release()


def own_files(folder: Path, mark: bytes) -> Iterator[Path]:
    """The files of all processes, living or dead."""
    return _with_suffix(folder, _suffix(mark))


def sweep_unborn(folder: Path) -> None:
    """Remove files whose makers were killed before they were made."""
    for path in _with_suffix(folder, _NEW):
        if is_dead(path):
            path.unlink(missing_ok=True)


def read_own_file(path: Path, mark: bytes, size: int) -> NDArray[np.int64]:
    """The numbers in a file; all 0 if it is gone, hidden or no such file."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, PermissionError):
        data = b""
    if not data.startswith(mark) or len(data) != len(mark) + 8 * size:
        return np.zeros(size, np.int64)
    return np.frombuffer(data, np.int64, offset=len(mark))


def is_dead(path: Path) -> bool:
    """Whether the process of a file has ended, in whatever way, or closed it."""
    lock = FileLock(path)
    try:
        found = lock.acquire(blocking=False)
    except PermissionError:
        return False  # Another user's; his next process sees to it.
    lock.release()
    return found


def _suffix(mark: bytes) -> str:
    return f".{mark[4:7].decode().lower()}"


def _with_suffix(folder: Path, suffix: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from [Path(entry) for entry in entries if entry.name.endswith(suffix)]
    except (FileNotFoundError, NotADirectoryError):
        return
