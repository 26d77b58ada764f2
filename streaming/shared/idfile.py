"""One table of ids in a mapped file: how it lies there, how it is made, and who may make it.

In a directory are, for each table, `<kind>-<digest>.ids`, which whoever uses it holds shared, and
`<kind>-<digest>.lock`, which its maker holds; and `lock`, under which files are opened, taken over
and removed. A file begins with a header, then for each part how many ids are there and how many
somebody waits for, then the ids.
"""

import logging
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids, Recipe
from streaming.shared.lock import FileLock

__all__ = ["IdFile", "open_file"]

logger = logging.getLogger(__name__)

_KEPT = 2  # tables that are kept: this epoch's, and the next or the last one's
_LIVE = 4  # parts of a table that a maker keeps open; each may hold some blocks
_CHUNK = 1 << 16  # ids that are written together, at least
_DROP = 1 << 14  # ids that are read before mapped pages are given back
_MAGIC = b"STRMIDS1"  # The digit is the version of this layout.
_HEADER = np.dtype(
    [("magic", "S8"), ("digest", "S64"), ("parts", "<i8"), ("size", "<i8"), ("itemsize", "<i8")]
)
_PAGE = 1 << 16  # at which the ids begin; a multiple of the page of any machine


class IdFile:
    """One table on disk, mapped. Ids are stored plus one, so that a hole is never taken for an id.

    Attributes:
        path: The file.
        progress: Ids of each part that are there, from its first; shape (parts,), shared.
        demand: Ids of each part that somebody waits for; likewise.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self._lease = FileLock(path)
        self._lease.acquire(shared=True)
        try:
            self._map(recipe)
        except BaseException:
            self._lease.release()
            raise

    def _map(self, recipe: Recipe) -> None:
        with self.path.open("r+b") as file:
            self._mmap = mmap.mmap(file.fileno(), 0)
        parts = len(recipe.sizes)
        shared = np.frombuffer(self._mmap, "<i8", 1 + 2 * parts, _HEADER.itemsize)
        self._is_made, self.progress, self.demand = np.split(shared, [1, 1 + parts])
        dtype = _dtype(recipe)
        self._start = _first_byte(parts)
        self._ids = np.frombuffer(self._mmap, dtype, recipe.size, self._start)
        self._read = 0
        self._is_again = False

    @property
    def is_complete(self) -> bool:
        """Whether all ids are there, and on the disk."""
        return bool(self._is_made[0])

    def read(self, places: Ids) -> Ids | None:
        """The ids at some places, which have been made; None if one of them is missing."""
        found = self._ids[places].astype(np.int64)
        self._read += found.size
        if self._read > _DROP and hasattr(mmap, "MADV_DONTNEED"):
            # The pages stay in the kernel's cache, but are not counted as this process's.
            self._mmap.madvise(mmap.MADV_DONTNEED, self._start)
            self._read = 0
        found -= 1
        return None if found.size and int(found.min()) < 0 else found

    def reset(self) -> None:
        """Take back that anything is there."""
        self._is_again = bool(self.progress.any())
        self._is_made[0] = 0
        self.progress[:] = 0

    def take_over(self) -> FileLock | None:
        """Become the maker, if there is none and the file is not complete."""
        lock = FileLock(self.path.with_suffix(".lock"))
        with FileLock(self.path.with_name("lock")).exclusive():
            if self.is_complete or not lock.acquire(blocking=False):
                return None
            # Whoever opens the file from now on knows that what it says of itself is said by a
            # living maker. Nobody else may be believed: a machine that went down may have kept the
            # header and lost the ids.
            self.reset()
        return lock

    def fill(self, recipe: Recipe) -> Iterator[None]:
        """Make all ids. For the holder of the maker's lock.

        Yields:
            Whenever there are more.

        Raises:
            OSError: They can't be written.
        """
        sizes = np.array(recipe.sizes, np.int64)
        starts = np.cumsum(sizes) - sizes
        live: OrderedDict[int, tuple[Iterator[Ids], int]] = OrderedDict()
        part = 0
        with self.path.open("r+b", buffering=0) as file:
            while (self.progress < sizes).any():
                part = self._next_part(sizes, part)
                if part in live:
                    chunks, at = live.pop(part)
                else:
                    chunks, at = _merged(recipe.open(part)), 0
                chunk = next(chunks)
                if at + len(chunk) > self.progress[part]:
                    self._write(file.fileno(), int(starts[part]) + at, chunk)
                    self.progress[part] = at + len(chunk)
                if at + len(chunk) < sizes[part]:
                    live[part] = chunks, at + len(chunk)
                    if len(live) > _LIVE:
                        live.popitem(last=False)
                yield
            # The ids are on the disk before the word that they are, whenever power fails.
            os.fsync(file.fileno())
        self._is_made[0] = 1
        self._mmap.flush(0, self._start)

    def _next_part(self, sizes: NDArray[np.int64], part: int) -> int:
        """What to make next: what is waited for, else the part that is open, else the first."""
        waiting = np.flatnonzero(np.minimum(self.demand, sizes) > self.progress)
        if len(waiting):
            return int(waiting[0])
        if self.progress[part] < sizes[part]:
            return part
        return int(np.argmax(self.progress < sizes))

    def _write(self, fd: int, place: int, chunk: Ids) -> None:
        itemsize = self._ids.itemsize
        for first in range(0, len(chunk), _CHUNK):
            stored = (chunk[first : first + _CHUNK] + 1).astype(self._ids.dtype)
            data = memoryview(stored.tobytes())
            at = self._start + (place + first) * itemsize
            if self._is_again and os.pread(fd, len(data), at) == data:
                continue
            while len(data):
                written = os.pwrite(fd, data, at)
                data, at = data[written:], at + written


def open_file(directory: Path, recipe: Recipe, least: int) -> IdFile:
    """Open the file of a table, made if need be, and remove what nobody needs any more.

    Args:
        directory: Where; it exists.
        recipe: The table.
        least: Ids from which it counts as an order, of which the newest are kept; those of fewer
            ids count among themselves.

    Raises:
        OSError: It can't be had there: no space, no right, no locks.
    """
    kind = "order" if recipe.size >= least else "draws"
    path = directory / f"{kind}-{recipe.digest}.ids"
    with FileLock(directory / "lock").exclusive():
        if not _is_as_meant(path, recipe):
            _remove(path)
            _tidy(directory, kind, path)
            try:
                _create(path, recipe)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        file = IdFile(path, recipe)
    os.utime(path)
    return file


def _is_as_meant(path: Path, recipe: Recipe) -> bool:
    """Whether a file of this table is there, with the size it must have."""
    header = _header(recipe)
    try:
        with path.open("rb") as file:
            return (
                file.read(len(header)) == header
                and os.fstat(file.fileno()).st_size
                == _first_byte(len(recipe.sizes)) + recipe.size * _dtype(recipe).itemsize
            )
    except FileNotFoundError:
        return False


def _create(path: Path, recipe: Recipe) -> None:
    size = _first_byte(len(recipe.sizes)) + recipe.size * _dtype(recipe).itemsize
    with path.open("xb") as file:
        if hasattr(os, "posix_fallocate"):
            # All of its space, now: a full disk is an error here, not in the middle of an epoch.
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        file.write(_header(recipe))


def _tidy(directory: Path, kind: str, wanted: Path) -> None:
    """Remove tables that nobody uses, but for the newest, so that there are two with `wanted`."""
    unused = []
    kept = 1
    for path in directory.glob(f"{kind}-*.ids"):
        if path == wanted:
            continue
        lease = FileLock(path)
        try:
            if lease.acquire(blocking=False):
                unused.append((path.stat().st_mtime_ns, path))
            else:
                kept += 1
        except PermissionError:
            continue  # Another user's, who sees to it.
        finally:
            lease.release()
    unused.sort(reverse=True)
    for _, path in unused[max(_KEPT - kept, 0) :]:
        logger.debug("Removing %s, which nobody uses.", path)
        _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


def _header(recipe: Recipe) -> bytes:
    fields = (
        _MAGIC,
        recipe.digest.encode(),
        len(recipe.sizes),
        recipe.size,
        _dtype(recipe).itemsize,
    )
    return np.array([fields], _HEADER).tobytes()


def _first_byte(parts: int) -> int:
    """Where the ids begin: behind the header, the flag, and two numbers for each part."""
    head = _HEADER.itemsize + 8 * (1 + 2 * parts)
    return -(-head // _PAGE) * _PAGE


def _dtype(recipe: Recipe) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u4") if recipe.stop < 1 << 32 else np.dtype("<u8")


def _merged(chunks: Iterator[Ids]) -> Iterator[Ids]:
    """The same ids in chunks that are worth writing."""
    held: list[Ids] = []
    count = 0
    for chunk in chunks:
        if len(chunk):
            held.append(chunk)
            count += len(chunk)
        if count >= _CHUNK:
            yield held[0] if len(held) == 1 else np.concatenate(held)
            held, count = [], 0
    if held:
        yield np.concatenate(held)
