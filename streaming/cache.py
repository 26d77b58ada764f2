"""The shards of a dataset on this node: get them here, keep them, drop them."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheError, ShardCorruptError
from streaming.format import open_reader, read_once
from streaming.format.reader import LostIndexError, ShardReader
from streaming.format.registry import formats
from streaming.shared.counts import Counts
from streaming.shared.directory import CacheDirectory, DirectoryState, state_errors, state_path
from streaming.shared.files import Identity, Source
from streaming.shared.origin import check_origin, check_unchanged, restore_origin
from streaming.shared.pin import Pin
from streaming.shared.room import Room, evict
from streaming.shared.shelf import CachePart, Place, Shelf
from streaming.shared.source import obtain_index
from streaming.storage.download import retries_of_thread

__all__ = ["CacheDirectory", "CachePart", "ShardCache", "Source", "obtain_index"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # how long it is believed that nothing is missing
_REMOVED = (
    "The cache in %s was removed or moved under this run. It is made anew, and what is missing is "
    "fetched again."
)
_ATTEMPTS = 5  # at a shard whose files are removed while they are made

_T = TypeVar("_T")


class ShardCache:
    """The shards of all streams of a dataset, for one process.

    Shards are numbered stream after stream. Made in the process that reads; never pickled, of no
    use after a fork. Threads may share it. Any number of processes may have one on the same
    directories: each shard is fetched once, under a lock that the kernel takes from whoever dies.

    A shard that is here and whole costs a `stat` a file to open, no lock and no write: a finished
    local dataset may lie in a read-only directory.

    Only what this library fetched or made is ever removed, and only to stay within `limit` or when
    asked. An open reader keeps its data; the space comes free when it closes.

    Args:
        parts: The streams.
        limit: Bytes that the files of parts with a source, and raw files made of local compressed
            ones, may take. None: any. If nothing can be removed for a shard that is needed now,
            the limit is exceeded rather than to wait for ever.
        allow_unsafe_types: Let readers decode columns whose decoding runs code from the data.
        counts: Counts what is done, beside the counters of each directory.

    Raises:
        CacheLimitError: `limit` is below what the largest shard takes while it is prepared.
    """

    def __init__(
        self,
        parts: Sequence[CachePart],
        limit: int | None = None,
        *,
        allow_unsafe_types: bool = False,
        counts: Counts | None = None,
    ) -> None:
        self._shelf = Shelf(parts)
        self._counts = counts or Counts()
        self._room = Room(self._shelf, limit, self._counts)
        self._allow_unsafe_types = allow_unsafe_types
        self._seen = np.zeros(len(self._shelf), np.bool_)  # whole when this process last looked
        self._opened: dict[int, Identity] = {}
        self._refreshed: set[int] = set()
        self._is_whole, self._looked_at = False, -np.inf
        self._checked: set[Path] = set()  # directories that are the source's, as they say
        self._unread: set[int] = set()  # made by this process, and not opened since
        self._pins: list[Pin | None] = []  # keep what was made anew
        self._reads_once = False
        self._passing: set[int] = set()  # seen so far in their compressed files only

    def __len__(self) -> int:
        return len(self._shelf)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A shard cache belongs to one process. Pickle its parts.")

    @property
    def states(self) -> Mapping[Path, object]:
        """What is noted of shards in use, by directory; `touch` has no effect while it is empty."""
        return self._shelf.states

    @property
    def limit(self) -> int | None:
        """Bytes that the cached files may take; None: any."""
        return self._room.limit

    def close(self) -> None:
        """Give back the leases. Shards that threads are preparing are finished all the same."""
        self._shelf.close()
        self._counts.close()

    def is_present(self, shard: int) -> bool:
        """Whether a shard is here and whole. Looks at the files on first asking only."""
        return not self.absent([shard])

    def absent(self, shards: Sequence[int] | NDArray[np.int64]) -> list[int]:
        """Those of the shards that are not here, or not whole, in the order given.

        Looks at the files of each shard on first asking only; then at the table that processes
        share.
        """
        ids = np.asarray(shards, np.int64)
        doubtful = ids[~(self._seen[ids] & self._shelf.may_have_raw(ids))]
        return [shard for shard in doubtful.tolist() if not self._look(self._shelf.find(shard))]

    def is_inert(self) -> bool:
        """Whether nothing can be missing: no part has a source or compressed files.

        True also when every shard has been seen here and, as far as was known a moment ago, nobody
        has removed one since. `open` brings what is missing all the same.
        """
        if not any(part.can_make for part in self._shelf.parts):
            return True
        if not self._seen.all() or (self.limit is not None and self._shelf.has_states):
            return False
        if not self._shelf.has_states:
            return True
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._is_whole = bool((self.marks(np.arange(len(self))) >= 0).all())
            self._looked_at = time.monotonic()
        return self._is_whole

    def marks(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """A number for each shard that changes when its files are removed or made anew."""
        return self._shelf.marks(shards)

    def prepare(self, shard: int, *, ahead: bool = False) -> bool:
        """Bring a shard here; afterwards its raw files are whole.

        Args:
            shard: In [0, len).
            ahead: It is not needed yet: do nothing if it would not fit into the limit, or only by
                removing a shard that is needed next.

        Returns:
            Whether it is here; always true unless `ahead`.

        Raises:
            ConfigError: The index has no hash of the name that shall be checked.
            MissingFileError: A file is not here, and there is no source.
            ShardCorruptError: A file is not what the index says, also when fetched again.
            StoreError: The source failed.
            CacheError: The directory can't be written or locked, or something keeps removing what
                is made there.
        """
        place = self._shelf.find(shard)
        if self._look(place):
            return True
        return self._held(place, lambda state: self._prepare(place, state, ahead))

    def open(self, shard: int, columns: Sequence[str] | None = None) -> ShardReader:
        """Prepare a shard and open it before anybody can remove it again.

        A shard that turns out damaged when opened is fetched again once.

        Args:
            shard: In [0, len).
            columns: Give only these; None gives those of the part.

        Raises:
            UnsafeTypeError: A column would run code, and that was not allowed.
            CacheError, StoreError, ShardCorruptError, ...: As for `prepare`.
        """
        place = self._shelf.find(shard)
        try:
            return self._open(place, columns)
        except LostIndexError as error:
            self.remake([shard], error)
            return self._open(place, columns)
        except ShardCorruptError:
            if not self.refresh(shard):
                raise
            return self._open(place, columns)

    def remake(self, shards: Iterable[int], error: LostIndexError) -> None:
        """Make anew what is beside some shards, which was lost with their directory.

        Raises:
            LostIndexError: That, if nobody can.
            CacheConflictError: The data are others by now.
            CacheError, StoreError, ...: As for the index.
        """
        parts = [self._shelf.find(shard).part for shard in shards]
        for part in {part.directory.path: part for part in parts}.values():
            if part.remake is None:
                raise error
            logger.warning(_REMOVED, part.directory.path)
            self._pins.append(part.remake())

    def refresh(self, shard: int) -> bool:
        """Replace a shard in which a reader met damaged bytes.

        Returns:
            Whether it was replaced since it was last opened, by this process or another; what
            another has put there may be damaged, too. False if this one did before, or it can't
            be: then the damage is in the source.
        """
        place = self._shelf.find(shard)
        if shard in self._refreshed or not place.files.can_make():
            return False

        def make_anew(state: DirectoryState) -> None:
            if place.files.identity() in (None, self._opened.get(shard)):
                self._refreshed.add(shard)
                logger.warning("Made anew, for it is damaged: %s", place.files.raw_paths[-1])
                self._make(place, state, anew=True)

        self._held(place, make_anew)
        return True

    def begin_epoch(self) -> None:
        """Say that all shards are to be read again: those that were read last can go last."""
        self._room.begin()

    def read_once(self, is_so: bool) -> None:
        """Say whether each sample is read once and in order, by this process alone, from now on.

        Shards of formats with `Format.read_once` are then opened without their raw files, if those
        are not here already. Who asks for samples in another way finds that out by an error of the
        reader, takes this back and opens the shard anew.
        """
        self._reads_once = is_so
        if not is_so:
            self._seen[list(self._passing)] = False
            self._passing.clear()

    def note_wait(self, shard: int, seconds: float) -> None:
        """Count that a reader stood still for a shard."""
        self._counts.add_wait(seconds)
        state = self._shelf.open_state(self._shelf.find(shard).part)
        if state is not None:
            state.counts.add_wait(seconds)

    def touch(self, shard: int) -> None:
        """Note that a shard is in use, so that others go first."""
        self._shelf.touch(shard)

    def pin(self, shards: Sequence[int]) -> None:
        """Say which shards this process needs next, in order of use; for what was said before.

        They are the last to be removed by this process, and look fresh to others.
        """
        self._room.pin(shards)

    def evict(self, shard: int) -> int:
        """Remove the files of a shard, as far as this library made them and they can be had again.

        Returns:
            Bytes that were removed.
        """
        place = self._shelf.find(shard)
        if not place.files.can_make():
            return 0
        with self._hold(place) as state:
            return evict(place, state)

    def coldest(self) -> int | None:
        """The shard that was not used for longest, of those that `evict` would remove."""
        return self._room.coldest()

    def usage(self) -> int:
        """Bytes that count towards the limit now."""
        return self._room.used()

    def _look(self, place: Place) -> bool:
        """Whether a shard is here."""
        return any(self._see(place))

    def _see(self, place: Place) -> tuple[Identity | None, bool]:
        """What the raw files of a shard are known by, and whether it is read without them."""
        identity = place.files.identity()
        passes = identity is None and self._passes(place) and place.files.has_zips()
        if passes:
            self._passing.add(place.shard)
        self._seen[place.shard] = identity is not None or passes
        return identity, passes

    def _passes(self, place: Place) -> bool:
        """Whether a shard is read from its compressed files, if it has no raw ones."""
        files = place.files
        has_way = formats.get(files.info.format).read_once is not None and files.steps is None
        return self._reads_once and has_way

    def _held(self, place: Place, act: Callable[[DirectoryState], _T]) -> _T:
        """Do something under the lock of a shard; again if files go while they are being made."""
        attempts = 0
        while True:
            attempts += 1
            try:
                with self._hold(place) as state:
                    return act(state)
            except (OSError, CacheError, ShardCorruptError) as error:
                if not self._has_lost_files(place.part, error):
                    raise
                if attempts == _ATTEMPTS:
                    raise CacheError(
                        f"Files in {place.part.directory.path} were removed while they were made, "
                        f"{attempts} times in a row; the last time: {error} See that nothing "
                        f"cleans that directory under the run, or give another `local`."
                    ) from error
                logger.debug("Removed while it was made, so made again: %s", error)

    def _has_lost_files(self, part: CachePart, error: BaseException | None) -> bool:
        """Whether something failed because files of the cache, not of the source, are gone."""
        directory = part.directory.path
        roots = [f"{path}{os.sep}" for path in (directory, state_path(directory))]
        if isinstance(error, FileNotFoundError | ShardCorruptError):
            state = self._shelf.open_state(part)
            if state is not None and not state.is_current():
                return True
        while error is not None:
            if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.EEXIST):
                name = str(error.filename2 or error.filename or "")
                if f"{name}{os.sep}".startswith(tuple(roots)):
                    # What was in the way may have been a directory that went a moment later.
                    return error.errno == errno.ENOENT or not Path(name).is_file()
            error = error.__cause__
        return False

    @contextmanager
    def _hold(self, place: Place) -> Iterator[DirectoryState]:
        """Hold the lock of a shard: nobody else changes its files."""
        place.files.check_can_make()  # Before a state is opened that nobody has a use for.
        state = self._current_state(place.part)
        lock = state.lock(place.local)
        with state_errors(place.part.directory.path):
            lock.acquire()
        try:
            yield state
        finally:
            lock.release()

    def _current_state(self, part: CachePart) -> DirectoryState:
        """The state of a directory, which is made anew if something has removed or moved it."""
        self._check_origin(part)
        state = self._shelf.state(part)
        with state_errors(part.directory.path):
            if state.is_current():
                return state
        logger.warning(_REMOVED, part.directory.path)
        if part.remake is None:
            restore_origin(part.directory, part.source)
        else:
            self._pins.append(part.remake())
        self._shelf.renew(part, state)
        return self._shelf.state(part)

    def _count(self, place: Place, **amounts: int) -> None:
        self._counts.add(**amounts)
        state = self._shelf.open_state(place.part)
        if state is not None:
            state.counts.add(**amounts)

    def _open(self, place: Place, columns: Sequence[str] | None) -> ShardReader:
        self._check_origin(place.part)
        if self.limit is not None and place.part.can_make:
            with suppress(CacheError):  # Read-only: nothing is evicted there, if all is whole.
                self._shelf.state(place.part).touch(place.local)
        state = self._shelf.open_state(place.part)
        try:
            if state is None or state.is_current():
                return self._read(place, columns)
        except FileNotFoundError:
            pass  # It never came, or was removed a moment ago.
        begun = time.monotonic()

        def prepare_and_read(state: DirectoryState) -> ShardReader:
            self._prepare(place, state, ahead=False)
            return self._read(place, columns)

        reader = self._held(place, prepare_and_read)
        self.note_wait(place.shard, time.monotonic() - begun)
        return reader

    def _check_origin(self, part: CachePart) -> None:
        """Before a directory is first used here: it may have become another source's since."""
        if part.source is not None and part.directory.path not in self._checked:
            check_origin(part.directory, part.source)
            self._checked.add(part.directory.path)

    def _read(self, place: Place, columns: Sequence[str] | None) -> ShardReader:
        files, (identity, passes) = place.files, self._see(place)
        wanted = place.part.columns if columns is None else columns
        if passes:
            reader = read_once(files.info, files.zip_paths[-1], wanted)
        elif identity is None:
            path = str(files.raw_paths[-1])
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        else:
            self._opened[place.shard] = identity
            reader = open_reader(
                files.info, files.raw_paths, wanted, allow_unsafe_types=self._allow_unsafe_types
            )
        if place.shard in self._unread:
            self._unread.discard(place.shard)  # It was counted when it was missing.
        else:
            self._count(place, hits=1)
        return reader

    def _prepare(self, place: Place, state: DirectoryState, ahead: bool) -> bool:
        """Bring a held shard here, if it still is not."""
        if self._look(place):
            state.record(place.local, place.files)
            return True
        if not self._room.reserve(place, state, ahead=ahead, raw=not self._passes(place)):
            return False
        self._make(place, state, anew=False)
        return True

    def _make(self, place: Place, state: DirectoryState, anew: bool) -> None:
        """Make the files of a held shard."""
        files = place.files
        logger.debug("Preparing shard %d, %s.", place.shard, files.raw_paths[-1])
        self._check_source(place)
        retries, fetched = retries_of_thread(), 0
        # Another thread may open the shard as soon as it is whole: it is counted before.
        kind = "repairs" if anew else "misses"
        self._count(place, **{kind: 1})
        self._unread.add(place.shard)
        try:
            claims = state.claims(place.local, keep_zip=place.part.keep_zip)
            if self._passes(place) and not anew:
                fetched = files.fetch_zips(claims)
            else:
                fetched = files.make(claims, anew=anew)
                if not place.part.keep_zip and state.is_own(place.local, "zip"):
                    files.drop(files.zip_paths)
        except BaseException:
            self._count(place, **{kind: -1})
            self._unread.discard(place.shard)
            raise
        finally:
            state.record(place.local, files)
            retries = retries_of_thread() - retries
            self._count(place, fetched_bytes=fetched, retries=retries)
        state.note_made(place.local)
        state.touch(place.local)
        self._seen[place.shard] = True

    def _check_source(self, place: Place) -> None:
        """Before more is fetched, see that it is of the dataset that is here."""
        part = place.part
        if part.source is not None:
            check_unchanged(part.directory, part.source)
