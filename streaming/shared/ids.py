"""Tables of ids in mapped files, made once a node, readable while they are made.

The order that an exact shuffle gives is a table with as many ids as there are samples. Whichever
process comes first makes it, in a thread; all others of the node read the same file, and wait only
for the ids they ask for. The next run finds it under the digest of all that it follows from.

In a directory are, for each table, `<digest>.ids`, which whoever uses it holds shared, and
`<digest>.lock`, which its maker holds; and `lock`, under which files are opened, taken over and
removed. A maker that is killed lets go of its lock, and the next one begins anew: what it finds
written is compared, not believed.
"""

import atexit
import errno
import logging
import mmap
import os
import stat
import tempfile
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.errors import StreamingError
from streaming.idmap import Ids, IdTable, Recipe, in_memory
from streaming.shared.lock import FileLock

__all__ = ["LEAST", "Materialised", "temporary_orders"]

logger = logging.getLogger(__name__)

LEAST = 1 << 20
"""Ids below which a table stays in the memory of each process: it takes some milliseconds."""

CLOSE_SECONDS = 5.0  # How long to wait for a maker that is at work when all else has ended.

_KEPT = 2  # tables that are kept: this epoch's, and the next or the last one's
_LIVE = 4  # parts of a table that a maker keeps open; each may hold some blocks
_CHUNK = 1 << 16  # ids that are written together, at least
_DROP = 1 << 14  # ids that are read before mapped pages are given back
_SOON, _LATER = 0.0005, 0.02  # seconds between looks at what another process has made
_RETRY = 0.1  # seconds after which is looked whether another process still makes a table
_TRUSTED = 2  # times that a broken file is made anew before it is given up

_MAGIC = b"STRMIDS1"  # The digit is the version of this layout.
_HEADER = np.dtype(
    [("magic", "S8"), ("digest", "S64"), ("parts", "<i8"), ("size", "<i8"), ("itemsize", "<i8")]
)
_PAGE = 1 << 16  # at which the ids begin; a multiple of the page of any machine


class Materialised:
    """Holds tables of ids in files of a directory. A `Hold`; threads may share it.

    Made in the process that reads, and kept as long as its tables are; never pickled. Its thread
    ends when nothing is left to make, when this object is closed or garbage, or at exit. Where no
    directory can be used, or the disk is full, tables are made in memory, with a warning that says
    how much of it.

    Args:
        directories: Where files may be; the first that can be used is.
        least: Ids below which a table is made in memory.
    """

    def __init__(self, directories: Sequence[Path], *, least: int = LEAST) -> None:
        self._directories = tuple(directories)
        self._least = least
        self._maker = _Maker()
        self._is_made_elsewhere = False
        self._finalizer = weakref.finalize(self, self._maker.stop)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Tables of ids are open in one process; pass their directory on.")

    def __call__(self, recipe: Recipe, /) -> IdTable:
        """Hold a table. Waits for one that is made in memory only."""
        if max(recipe.size, recipe.work) < self._least:
            return in_memory(recipe)
        table = self._open(recipe)
        if isinstance(table, str):
            _warn_of_memory(recipe, table)
            return in_memory(recipe)
        table.take_on()
        self._is_made_elsewhere = not table.is_made_here
        return table

    def prepare(self, recipe_of: Callable[[], Recipe | None]) -> None:
        """Make a table in the background that will be asked for later, after those that are now.

        Where another process makes those, it is left to that one.

        Args:
            recipe_of: Says how, in the background. Its errors are for those who ask later.
        """
        if not self._is_made_elsewhere:
            self._maker.later(partial(_open_next, weakref.ref(self), recipe_of))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """End the thread; what it was making is left for others to finish.

        Args:
            timeout: Seconds to wait for what it is doing now.
        """
        self._finalizer()
        self._maker.join(timeout)

    def _open(self, recipe: Recipe) -> "_SharedTable | str":
        """Open a table; the reason if there can be none."""
        reasons = []
        for directory in self._directories:
            try:
                return _SharedTable(recipe, _open_file(directory, recipe, self._least), self._maker)
            except OSError as error:
                reasons.append(f"{directory}: {error.strerror or error}")
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    break  # It is the right place; the next one is not for lack of space.
        return "; ".join(reasons) or "no directory is given"

    def _open_later(self, recipe: Recipe | None) -> "_SharedTable | None":
        if recipe is None or max(recipe.size, recipe.work) < self._least:
            return None
        table = self._open(recipe)
        return None if isinstance(table, str) else table


def _open_next(
    holder: "weakref.ref[Materialised]", recipe_of: Callable[[], Recipe | None]
) -> "_SharedTable | None":
    """Open a table that is to be made ahead of time."""
    alive = holder()
    if alive is None:
        return None
    try:
        return alive._open_later(recipe_of())
    except StreamingError:
        logger.debug("The next table can't be prepared.", exc_info=True)
        return None


def temporary_orders() -> tuple[Path, ...]:
    """This user's directory for tables where a dataset's own can't be written to.

    None if somebody else has made it: what is in there is believed.
    """
    path = Path(tempfile.gettempdir(), f"streaming-orders-{os.getuid()}")
    try:
        info = path.lstat()
    except FileNotFoundError:
        return (path,)
    return (path,) if info.st_uid == os.getuid() and stat.S_ISDIR(info.st_mode) else ()


class _SharedTable:
    """A table in a file, perhaps still being made by a thread of this process or by another."""

    def __init__(self, recipe: Recipe, file: "_IdFile", maker: "_Maker") -> None:
        self.recipe = recipe
        self.file = file
        self.failure: OSError | None = None
        self.is_made_here = False
        self._maker = maker
        self._bounds = np.cumsum([0, *recipe.sizes])
        self._is_complete = False
        self._distrusted = 0
        self._memory: Ids | None = None

    def __len__(self) -> int:
        return self.recipe.size

    def __getitem__(self, places: Ids, /) -> Ids:
        while self._memory is None:
            if not self._is_complete:
                self._wait(places)
            if self._memory is None:
                ids = self.file.read(places)
                if ids is not None:
                    return ids
                self._distrust()
        return self._memory[places]

    def take_on(self) -> None:
        """Make it in the background, unless another process does."""
        if not self.file.is_complete and (lock := self.file.take_over()) is not None:
            self.is_made_here = True
            if not self._maker.add(self, lock):
                self.make(lock, lambda: False)

    def make(self, lock: FileLock, is_stopped: Callable[[], bool]) -> None:
        """Make it in this thread; `lock`, the maker's, is released."""
        try:
            for _ in self.file.fill(self.recipe):
                if is_stopped():
                    break
        except OSError as error:
            self.failure = error
        finally:
            self.is_made_here = self.file.is_complete
            lock.release()

    def _wait(self, places: Ids) -> None:
        """Wait until the ids at these places are there."""
        self._is_complete = self.file.is_complete
        flat = places.ravel()
        if self._is_complete or not len(flat):
            return
        needed = np.zeros(len(self.recipe.sizes), np.int64)
        part = np.searchsorted(self._bounds, flat, "right") - 1
        np.maximum.at(needed, part, flat - self._bounds[part] + 1)
        parts = np.flatnonzero(needed)
        needed = needed[parts]
        delay, tried = _SOON, time.monotonic()
        while (self.file.progress[parts] < needed).any() and not self.file.is_complete:
            self.file.demand[parts] = np.maximum(self.file.demand[parts], needed)
            if self.failure is not None:
                _warn_of_memory(self.recipe, f"{self.file.path}: {self.failure}")
                self._memory = in_memory(self.recipe)
                return
            if not self.is_made_here and time.monotonic() - tried > _RETRY:
                self.take_on()  # Its maker may have died.
                tried = time.monotonic()
            self._maker.wait(delay)
            delay = min(2 * delay, _LATER)

    def _distrust(self) -> None:
        """Have the file made anew: an id that should be there is not."""
        self._distrusted += 1
        self._is_complete = False
        logger.warning("%s lacks ids that it should have. They are made anew.", self.file.path)
        self.file.reset()
        if self._distrusted > _TRUSTED:
            self.failure = OSError(errno.EIO, "ids that were written are not there")
        elif not self.is_made_here or self._maker.is_idle:
            self.take_on()


class _Maker:
    """The thread of a process that makes tables, one at a time, those first that are needed first.

    Started when there is something to make, it ends when there is nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tables: deque[tuple[_SharedTable, FileLock]] = deque()
        self._later: Callable[[], _SharedTable | None] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._pid = os.getpid()

    def add(self, table: _SharedTable, lock: FileLock) -> bool:
        """Make a table whose maker's lock is held; False if this thread makes nothing more."""
        if os.getpid() != self._pid or self._thread is threading.current_thread():
            # A forked child has no such thread, and the thread itself can't wait for itself.
            return False
        with self._changed:
            if self._is_stopped:
                return False
            self._tables.append((table, lock))
            self._start()
        return True

    def later(self, open_next: Callable[[], _SharedTable | None]) -> None:
        """Make what `open_next` gives when all else is made; of two such only the newest."""
        with self._changed:
            if not self._is_stopped:
                self._later = open_next
                self._start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being made."""
        return self._thread is None

    def wait(self, seconds: float) -> None:
        """Wait for progress, or a moment."""
        if os.getpid() != self._pid:
            time.sleep(seconds)
            return
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        """Begin nothing more, and leave what is being made after its next chunk."""
        if os.getpid() != self._pid:
            return  # A forked child has a copy of the condition, in whatever state.
        with self._changed:
            self._is_stopped = True
            self._later = None
            while self._tables:
                table, lock = self._tables.pop()
                table.is_made_here = False
                lock.release()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most so many seconds."""
        thread = self._thread if os.getpid() == self._pid else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(timeout, 0.0))

    def _start(self) -> None:
        """Start the thread. For the holder of the condition's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="streaming-ids", daemon=True)
            _makers.add(self)
            self._thread.start()

    def _run(self) -> None:
        while True:
            table = lock = None
            with self._changed:
                if self._tables:
                    table, lock = self._tables.popleft()
                elif self._later is None:
                    self._thread = None
                    return
                open_next, self._later = (None, self._later) if table else (self._later, None)
            if open_next is not None:
                table = open_next()
                open_next = None  # With it goes what it may keep alive.
                lock = None if table is None or table.file.is_complete else table.file.take_over()
            if table is not None and lock is not None:
                table.make(lock, self._tell)

    def _tell(self) -> bool:
        """Tell those who wait that there is more; whether to stop."""
        with self._changed:
            self._changed.notify_all()
            return self._is_stopped


class _IdFile:
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


def _open_file(directory: Path, recipe: Recipe, least: int) -> _IdFile:
    """Open the file of a table, made if need be, and remove what nobody needs any more.

    Raises:
        OSError: It can't be had there: no space, no right, no locks.
    """
    mode = 0o700 if directory in temporary_orders() else 0o777
    directory.mkdir(mode, exist_ok=True, parents=True)
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
        file = _IdFile(path, recipe)
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
        # All of its space, now: a full disk is an error here, and not in the middle of an epoch.
        os.posix_fallocate(file.fileno(), 0, size)
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


def _warn_of_memory(recipe: Recipe, reason: str) -> None:
    logger.warning(
        "The order of an epoch can't be kept in a file (%s). It takes %.0f MB of memory in each "
        "process that reads. Make room, or choose an arithmetic shuffle such as `block1`.",
        reason,
        8e-6 * recipe.size,
    )


# At exit, a thread gets a moment to come to an end: one that is frozen by the interpreter's end in
# the middle of foreign code may take the process down with it.
_makers: "weakref.WeakSet[_Maker]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    makers = list(_makers)
    for maker in makers:
        maker.stop()
    deadline = time.monotonic() + CLOSE_SECONDS
    for maker in makers:
        maker.join(deadline - time.monotonic())
