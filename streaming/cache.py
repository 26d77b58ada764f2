"""The shards of a dataset on this node: get them here, keep them, drop them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ShardCorruptError
from streaming.format import open_reader
from streaming.format.reader import ShardReader
from streaming.shared.directory import CacheDirectory, DirectoryState, state_errors
from streaming.shared.files import Identity, Source
from streaming.shared.room import Room, evict
from streaming.shared.shelf import CachePart, Place, Shelf
from streaming.shared.source import obtain_index

__all__ = ["CacheDirectory", "CachePart", "ShardCache", "Source", "obtain_index"]

logger = logging.getLogger(__name__)


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

    Raises:
        CacheLimitError: `limit` is below what the largest shard takes while it is prepared.
    """

    def __init__(
        self,
        parts: Sequence[CachePart],
        limit: int | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        self._shelf = Shelf(parts)
        self._room = Room(self._shelf, limit)
        self._allow_unsafe_types = allow_unsafe_types
        self._seen = np.zeros(len(self._shelf), np.bool_)  # whole when this process last looked
        self._opened: dict[int, Identity] = {}
        self._refreshed: set[int] = set()

    def __len__(self) -> int:
        return len(self._shelf)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A shard cache belongs to one process. Pickle its parts.")

    @property
    def limit(self) -> int | None:
        """Bytes that the cached files may take; None: any."""
        return self._room.limit

    def close(self) -> None:
        """Give back the leases. Shards that threads are preparing are finished all the same."""
        self._shelf.close()

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

        True also when every shard has been seen here and nobody could have removed one since.
        """
        return not any(part.can_make for part in self._shelf.parts) or (
            not self._shelf.has_states and bool(self._seen.all())
        )

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
            CacheError: The directory can't be written or locked.
        """
        place = self._shelf.find(shard)
        if self._look(place):
            return True
        with self._hold(place) as state:
            return self._prepare(place, state, ahead)

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
        except ShardCorruptError:
            if not self.refresh(shard):
                raise
            return self._open(place, columns)

    def refresh(self, shard: int) -> bool:
        """Replace a shard in which a reader met damaged bytes.

        Returns:
            Whether it was replaced since it was last opened, by this process or another. False if
            it was before, or can't be: then the damage is in the source.
        """
        place = self._shelf.find(shard)
        if shard in self._refreshed or not place.files.can_make():
            return False
        self._refreshed.add(shard)
        with self._hold(place) as state:
            if place.files.identity() in (None, self._opened.get(shard)):
                logger.warning("Made anew, for it is damaged: %s", place.files.raw_paths[-1])
                self._make(place, state, anew=True)
        return True

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
        is_whole = place.files.identity() is not None
        self._seen[place.shard] = is_whole
        return is_whole

    @contextmanager
    def _hold(self, place: Place) -> Iterator[DirectoryState]:
        """Hold the lock of a shard: nobody else changes its files."""
        place.files.check_can_make()  # Before a state is opened that nobody has a use for.
        state = self._shelf.state(place.part)
        lock = state.lock(place.local)
        with state_errors(place.part.directory.path):
            lock.acquire()
        try:
            yield state
        finally:
            lock.release()

    def _open(self, place: Place, columns: Sequence[str] | None) -> ShardReader:
        if self.limit is not None and place.part.can_make:
            self._shelf.state(place.part).touch(place.local)
        try:
            return self._read(place, columns)
        except FileNotFoundError:
            pass  # It never came, or was removed a moment ago.
        with self._hold(place) as state:
            self._prepare(place, state, ahead=False)
            return self._read(place, columns)

    def _read(self, place: Place, columns: Sequence[str] | None) -> ShardReader:
        files, identity = place.files, place.files.identity()
        self._seen[place.shard] = identity is not None
        if identity is None:
            raise FileNotFoundError(files.raw_paths[-1])
        self._opened[place.shard] = identity
        wanted = place.part.columns if columns is None else columns
        return open_reader(
            files.info, files.raw_paths, wanted, allow_unsafe_types=self._allow_unsafe_types
        )

    def _prepare(self, place: Place, state: DirectoryState, ahead: bool) -> bool:
        """Bring a held shard here, if it still is not."""
        if self._look(place):
            state.record(place.local, place.files)
            return True
        if not self._room.reserve(place, state, ahead=ahead):
            return False
        self._make(place, state, anew=False)
        return True

    def _make(self, place: Place, state: DirectoryState, anew: bool) -> None:
        """Make the files of a held shard."""
        files = place.files
        logger.debug("Preparing shard %d, %s.", place.shard, files.raw_paths[-1])
        try:
            claims = state.claims(place.local, keep_zip=place.part.keep_zip)
            files.make(claims, anew=anew)
            if not place.part.keep_zip and state.is_own(place.local, "zip"):
                files.drop(files.zip_paths)
        finally:
            state.record(place.local, files)
        state.touch(place.local)
        self._seen[place.shard] = True
