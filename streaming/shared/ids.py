"""Tables of ids in mapped files, made once a node, readable while they are made.

The order that an exact shuffle gives is a table with as many ids as there are samples. Whichever
process comes first makes it, in a thread; all others of the node read the same file, and wait only
for the ids they ask for. The next run finds it under the digest of all that it follows from.

A maker that is killed lets go of its lock, and the next one begins anew: what it finds written is
compared, not believed.
"""

import atexit
import errno
import logging
import os
import stat
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from streaming.errors import StreamingError, WorkerError
from streaming.idmap import Ids, IdTable, Recipe, in_memory
from streaming.shared.idfile import IdFile, open_file
from streaming.shared.lock import FileLock

__all__ = ["LEAST", "Materialised", "temporary_orders"]

logger = logging.getLogger(__name__)

LEAST = 1 << 20
"""Ids below which a table stays in the memory of each process: it takes some milliseconds."""

CLOSE_SECONDS = 5.0  # How long to wait for a maker that is at work when all else has ended.

_SOON, _LATER = 0.0005, 0.02  # seconds between looks at what another process has made
_RETRY = 0.1  # seconds after which is looked whether another process still makes a table
_TRUSTED = 2  # times that a broken file is made anew before it is given up


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
        is_made = table.file.is_complete or table.is_made_here
        self._is_made_elsewhere = not (is_made or self._maker.makes(table))
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
                is_private = directory in temporary_orders()
                directory.mkdir(0o700 if is_private else 0o777, parents=True, exist_ok=True)
                return _SharedTable(recipe, open_file(directory, recipe, self._least), self._maker)
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
    except (StreamingError, OSError):
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

    def __init__(self, recipe: Recipe, file: "IdFile", maker: "_Maker") -> None:
        self.recipe = recipe
        self.file = file
        self.failure: Exception | None = None
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
        except Exception as error:  # noqa: BLE001 Told to whoever waits for the ids.
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
                self._do_without()
                return
            if not self.is_made_here and time.monotonic() - tried > _RETRY:
                self.take_on()  # Its maker may have died.
                tried = time.monotonic()
            self._maker.wait(delay)
            delay = min(2 * delay, _LATER)

    def _do_without(self) -> None:
        """Make the table in memory, as there can be no file.

        Raises:
            WorkerError: It is not the file that failed.
        """
        if not isinstance(self.failure, OSError):
            raise WorkerError(
                f"The order of an epoch can't be made: {self.failure}"
            ) from self.failure
        _warn_of_memory(self.recipe, f"{self.file.path}: {self.failure}")
        self._memory = in_memory(self.recipe)

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
        self._now: Path | None = None  # what is being made
        self._is_ahead = False  # of time: until something else is needed
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
        if os.getpid() != self._pid:
            return
        with self._changed:
            if not self._is_stopped:
                self._later = open_next
                self._start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being made."""
        return self._thread is None

    def makes(self, table: _SharedTable) -> bool:
        """Whether this thread makes a table now, perhaps as the next one of the last."""
        return self._now == table.file.path

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
        try:
            while self._make_next():
                pass
        except BaseException:
            with self._changed:
                self._thread = None
            raise

    def _make_next(self) -> bool:
        """Make what comes next; False, and the thread is gone, if there is nothing."""
        table = lock = open_next = None
        with self._changed:
            if self._tables:
                table, lock = self._tables.popleft()
            else:
                open_next, self._later = self._later, None
                if open_next is None:
                    self._thread = None
                    return False
        self._is_ahead = open_next is not None
        if open_next is not None:
            table = open_next()
            open_next = None  # With it goes what it may keep alive.
            lock = None if table is None or table.file.is_complete else table.file.take_over()
        if table is not None and lock is not None:
            self._now = table.file.path
            table.make(lock, self._tell)
            self._now = None
        return True

    def _tell(self) -> bool:
        """Tell those who wait that there is more; whether to leave it there."""
        with self._changed:
            self._changed.notify_all()
            return self._is_stopped or (self._is_ahead and bool(self._tables))


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
