"""Which epoch an iteration belongs to, and where in it: agreed on by a rank and its workers.

Each dataset object has a private run directory on the node, made in its rank process and known to
its workers by path. The record in it is one small file, changed under a kernel lock: nothing has a
name that somebody else could guess, and nothing waits for anybody.
"""

import errno
import multiprocessing
import multiprocessing.util
import os
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from streaming.errors import StateError
from streaming.shared.lock import FileLock

__all__ = ["EpochRecord", "RunDirectory", "Start", "sweep_runs"]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where an iteration begins.

    Attributes:
        epoch: Epoch, from 0.
        seen: Samples of the epoch that the whole run, all ranks together, has already consumed.
        num_canonical_nodes: Taken over from a loaded state; None if none was loaded.
        shuffle_seed: Likewise.
        initial_physical_nodes: Nodes the run began on, from a loaded state; None if it began here.
        initial_ranks: Likewise ranks; None also if the state did not tell.
        versions: Of each stream that is a table, the version that is read; None: those that the
            dataset was made with.
    """

    epoch: int
    seen: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    initial_ranks: int | None = None
    versions: tuple[int | None, ...] | None = None

    def next_epoch(self) -> "Start":
        """The beginning of the epoch after this one, in the same order."""
        return msgspec.structs.replace(self, epoch=self.epoch + 1, seen=0)


_BROUGHT = ("num_canonical_nodes", "shuffle_seed")


class _Record(msgspec.Struct, kw_only=True):
    begun: Start | None = None  # the newest iteration
    upcoming: Start = Start(epoch=0)
    is_loaded: bool = False  # `upcoming` comes from a state and has not begun
    ticket: tuple[int, int, int] | None = None
    joined: list[int] = []
    announced: dict[str, Start] = {}


class EpochRecord:
    """The record of one dataset object, at a path that its rank and its workers know.

    Picklable; any process may use it at any time, once it has been made with `create`.

    Args:
        directory: Where it is.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def create(cls, directory: Path) -> "EpochRecord":
        """Make a record in a directory that has none: nothing has begun."""
        record = cls(directory)
        record._write(_Record())
        return record

    def copy_to(self, directory: Path) -> "EpochRecord":
        """Begin a record of its own in another directory, at the same place as this one."""
        twin = EpochRecord.create(directory)
        with twin._change() as record:
            try:
                mine = self._read()
            except StateError:
                return twin  # Its owner is gone, and with it what there was to take over.
            record.begun, record.upcoming, record.is_loaded = (
                mine.begun,
                mine.upcoming,
                mine.is_loaded,
            )
        return twin

    def load(self, start: Start) -> None:
        """Let the next iteration begin at `start`."""
        with self._change() as record:
            record.upcoming, record.is_loaded = start, True
            record.ticket = None  # Workers that come now belong to the new iteration.

    def skip_to(self, epoch: int) -> None:
        """Let the next iteration begin at the beginning of `epoch`."""
        with self._change() as record:
            record.upcoming = msgspec.structs.replace(record.upcoming, epoch=epoch, seen=0)
            record.is_loaded = False

    def amend(self, **settings: int | None) -> None:
        """Let later iterations have other settings than a loaded state brought.

        Args:
            settings: `num_canonical_nodes` or `shuffle_seed`; other names don't matter here.
        """
        with self._change() as record:
            known = {name: value for name, value in settings.items() if name in _BROUGHT}
            record.upcoming = msgspec.structs.replace(record.upcoming, **known)

    def begin(
        self, is_over: Callable[[Start], bool], renew: Callable[[Start], Start] | None = None
    ) -> Start:
        """Open the next iteration.

        Args:
            is_over: Whether nothing is left to read from a place on. A state that was saved at the
                very end of an epoch then goes on with the next one.
            renew: Gives the beginning of an epoch that follows on another the versions that it
                shall be read in.
        """
        with self._change() as record:
            return self._open(record, is_over, renew)

    def join(
        self,
        ticket: tuple[int, int, int],
        worker: int,
        is_over: Callable[[Start], bool],
        renew: Callable[[Start], Start] | None = None,
    ) -> Start:
        """Take part in an iteration whose parent process was never asked, as a DataLoader worker.

        Args:
            ticket: Equal for the workers of one iteration: torch's base seed, how often this
                process has iterated, and the number of workers.
            worker: Which of these workers this is.
            is_over: As in `begin`.
            renew: Likewise.

        Returns:
            The newest iteration if it has this ticket and lacks this worker; else a new one.
        """
        with self._change() as record:
            if record.begun is None or record.ticket != ticket or worker in record.joined:
                self._open(record, is_over, renew)
                record.ticket, record.joined = ticket, []
            record.joined.append(worker)
            assert record.begun is not None
            return record.begun

    def announce(self, key: str, start: Start) -> None:
        """Tell the long-lived workers of loader `key` where their next iteration begins."""
        with self._change() as record:
            record.announced[key] = start

    def announced(self, key: str) -> Start:
        """What the parent process last announced to the workers of loader `key`."""
        return self._read().announced[key]

    def position(self) -> Start | None:
        """Where the newest iteration began, or a loaded one will; None before the first."""
        record = self._read()
        return record.upcoming if record.is_loaded else record.begun

    def upcoming(self) -> Start:
        """Where the next iteration will begin."""
        return self._read().upcoming

    @staticmethod
    def _open(
        record: _Record,
        is_over: Callable[[Start], bool],
        renew: Callable[[Start], Start] | None,
    ) -> Start:
        start = record.upcoming
        if start.seen and is_over(start):
            start = start.next_epoch()
        if renew is not None and start.epoch and not start.seen:
            start = renew(start)
        record.begun, record.upcoming, record.is_loaded = start, start.next_epoch(), False
        record.ticket = None
        return start

    @contextmanager
    def _change(self) -> Iterator[_Record]:
        self._read()  # Its error is the one to show if the directory is gone.
        with FileLock(self._directory / "lock").exclusive():
            record = self._read()
            yield record
            self._write(record)

    def _write(self, record: _Record) -> None:
        # A whole file or none: whoever is killed here leaves the old record.
        part = self._directory / f"epoch.{os.getpid()}.{threading.get_ident()}.part"
        part.write_bytes(msgspec.json.encode(record))
        part.replace(self._directory / "epoch.json")

    def _read(self) -> _Record:
        try:
            data = (self._directory / "epoch.json").read_bytes()
        except FileNotFoundError:
            raise StateError(
                f"The record of the run is gone from {self._directory}. That directory lives as "
                f"long as the dataset object in the rank process, which has been deleted or has "
                f"exited; or something has cleaned the temporary directory under a living run "
                f"(then set TMPDIR to one that is left alone). Go on from the last checkpoint."
            ) from None
        return msgspec.json.decode(data, type=_Record)


class RunDirectory:
    """A private directory that lives as long as this object.

    Held by a shared lock on a file in it, which the kernel frees when its processes die, however
    they die; the next run then removes it. Made in the rank process; never pickled.
    """

    def __init__(self) -> None:
        sweep_runs()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_prefix()))
            self._lease = FileLock(self.path / "lease")
            self._lease.acquire(shared=True)
            if (self.path / "lease").exists():
                break
            self._lease.release()  # A sweep came between the directory and the lock, and took both.
        self._finalizer = weakref.finalize(self, _remove, self.path, self._lease, os.getpid())
        if multiprocessing.parent_process() is not None:
            # Such a process ends without the finalizers that others run at exit.
            multiprocessing.util.Finalize(None, self._finalizer, exitpriority=0)

    def close(self) -> None:
        """Remove the directory. In a forked child nothing happens: it is the parent's."""
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run directory belongs to one process. Pass its path on.")


def sweep_runs(prefix: str | None = None, *, is_dry: bool = False) -> list[Path]:
    """Remove the run directories of this user's dead processes.

    Args:
        prefix: Look for temporary directories of this prefix instead, whose owners hold a lock on
            a file "lease" in them as well.
        is_dry: Only find them.

    Returns:
        Those that were removed, or would be.
    """
    prefix, removed = prefix or _prefix(), []
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    for path in found:
        try:
            info = path.lstat()
            # Without a lock file it may be one that is being made: then it is young.
            is_young = time.time() - info.st_mtime < _MAKING_SECONDS
            if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
                continue
            if not (path / "lease").exists() and is_young:
                continue
            lease = FileLock(path / "lease")
            if lease.acquire(blocking=False):
                try:
                    if not is_dry:
                        shutil.rmtree(path)
                    removed.append(path)
                finally:
                    lease.release()
        except FileNotFoundError:
            continue  # Its owner, or another sweep, was quicker.
        except OSError as error:
            # A third one looked at the lock at this moment, and so made its file again.
            if error.errno != errno.ENOTEMPTY:
                raise
    return removed


_MAKING_SECONDS = 60.0


def _prefix() -> str:
    return f"streaming-run-{os.getuid()}-"


def _remove(path: Path, lease: FileLock, pid: int) -> None:
    if os.getpid() == pid:  # A forked child has a copy of the object, and drops it when it likes.
        shutil.rmtree(path, ignore_errors=True)
        lease.release()
