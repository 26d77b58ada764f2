"""Room for shards under a limit: who has to go, and in which order."""

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheError, CacheLimitError
from streaming.shared.counts import Counts
from streaming.shared.directory import DirectoryState, measure
from streaming.shared.shelf import CachePart, Place, Shelf

__all__ = ["Room", "evict"]

logger = logging.getLogger(__name__)


class Room:
    """Keeps the shards of a shelf within a limit. Threads may share it.

    Counted are the files of parts with a source, and raw files made of local compressed ones.

    What was decoded (`Format.decode`) has a limit beside, `CachePart.decoded_limit`.

    Args:
        shelf: The shards.
        limit: Bytes that they may take; None: any.
        counts: Counts what is evicted, beside the counters of its directory.

    Attributes:
        limit: The limit, if what the shelf has may come to more.

    Raises:
        CacheLimitError: `limit` is below what the largest shard takes while it is prepared.
    """

    def __init__(self, shelf: Shelf, limit: int | None, counts: Counts | None = None) -> None:
        self.limit = self._total = limit
        self._shelf = shelf
        self._needs = np.concatenate([np.zeros(0, np.int64), *map(_needs, shelf.parts)])
        # One part of each directory that can change, and its first shard.
        self._roots = {
            part.directory.path: (part, first)
            for part, first in zip(shelf.parts, shelf.firsts, strict=False)
            if part.can_make
        }
        limits = [x.decoded_limit for x in shelf.parts if x.decoded_limit is not None]
        self._decoded_limit = max(limits, default=None)
        self._next_use: dict[int, int] = {}
        self._is_exceeded = False
        self._counts = counts or Counts()
        self._begun_ns = 0
        self._told: set[int] = set()  # states, by identity, that know what is needed here
        if limit is not None and len(shelf):
            self._check_limit(limit)
            if limit >= self._needs.sum():
                self.limit = None  # All there is finds room.
                if not any(part.directory.is_made for part, _ in self._roots.values()):
                    self._total = None  # ... and no other index has files there.

    def pin(self, shards: Sequence[int]) -> None:
        """Say which shards are needed next, in order of use; for what was said before."""
        self._next_use = {shard: place for place, shard in enumerate(shards)}
        for shard in shards:
            self._shelf.touch(shard)
        for part, first in self._roots.values():
            try:
                state = self._shelf.state(part) if shards else self._shelf.open_state(part)
            except CacheError:
                continue  # Read-only: nobody evicts anything there.
            if state is not None:
                self._tell(state, first)

    def _tell(self, state: DirectoryState, first: int) -> None:
        """Tell other processes of a directory what is needed of it."""
        shards = np.array(list(self._next_use), np.int64) - first
        state.needs.tell(shards[(shards >= 0) & (shards < len(state))].tolist())
        self._told.add(id(state))

    def begin(self) -> None:
        """Say that an epoch begins: what was read before is still to come."""
        self._begun_ns = time.time_ns()

    def used(self) -> int:
        """Bytes that are here or promised, those of other indexes of a directory as well."""
        parts = [part for part, _ in self._roots.values()]
        return sum(map(self._used_by, parts)) + sum(state.strangers() for state in self._states())

    def _states(self) -> list[DirectoryState]:
        """The states of directories that are open."""
        found = (self._shelf.open_state(part) for part, _ in self._roots.values())
        return [state for state in found if state is not None]

    def coldest(self) -> int | None:
        """The shard that was not used for longest, of those that were fetched or made here."""
        shards, _ = self._victims({}, ahead=False)
        found = (shard for shard in shards.tolist() if self._shelf.find(shard).files.can_make())
        return next(found, None)

    def reserve(
        self, place: Place, state: DirectoryState, *, ahead: bool, raw: bool = True
    ) -> bool:
        """Promise the bytes of a held shard, and evict others until the limit holds.

        Args:
            place: The shard.
            state: Of its directory.
            ahead: It can wait.
            raw: Whether raw files are made, too.

        Returns:
            Whether to go on: there is room, or the shard can't wait. If not, nothing is promised.
        """
        if self._total is None and self._decoded_limit is None:
            state.promise(place.local, place.files, raw=raw)
            return True
        states = [self._shelf.state(part) for part, _ in self._roots.values()]
        for found, (_, first) in zip(states, self._roots.values(), strict=True):
            if id(found) not in self._told:
                self._tell(found, first)
        with states[0].room().exclusive():
            state.promise(place.local, place.files, raw=raw)
            if self._total is not None and (over := self.used() - self._total) > 0:
                for found in states:  # What nobody needs any more goes first.
                    over -= found.drop_strangers(over)
            has_room = self._decoded_limit is None or self._shrink(place.shard, ahead) <= 0
            if self._total is None:
                if ahead and not has_room:
                    state.record(place.local, place.files)
                return has_room or not ahead
            excess = self._make(place.shard, self._total, ahead)
            if excess <= 0 and (has_room or not ahead):
                return True
            if ahead:
                state.record(place.local, place.files)
                return False
        if not self._is_exceeded:
            self._is_exceeded = True
            logger.warning(
                "The cached shards take %d bytes more than `cache_limit` (%d): the rest is being "
                "prepared, or was there before this library came and is not its to remove. Raise "
                "the limit, or remove what is not needed from %s.",
                excess,
                self._total,
                ", ".join(map(str, self._roots)),
            )
        return True

    def _check_limit(self, limit: int) -> None:
        largest = self._shelf.find(int(self._needs.argmax()))
        least = int(self._needs.max())
        if limit < least:
            raise CacheLimitError(
                f"`cache_limit` is {limit} bytes, but shard {largest.files.raw_paths[-1]} takes "
                f"{least} while it is prepared ({largest.files.info.raw_bytes} raw). Give at "
                f"least {least}; some more, so that others can be fetched while it is read."
            )

    def _used_by(self, part: CachePart) -> int:
        has_zips = part.source is not None
        state = self._shelf.open_state(part)
        if state is not None:
            return state.used(zips=has_zips)
        shards = map(part.files, range(len(part.index)))
        return sum(
            measure(files.raw_paths) + (measure(files.zip_paths) if has_zips else 0)
            for files in shards
        )

    def _make(self, shard: int, limit: int, ahead: bool) -> int:
        """Evict what nobody is at work on, until the limit holds with `shard`. The room is held.

        Returns:
            Bytes by which it is exceeded; not positive if it holds.
        """
        next_use = self._next_use  # Once: other threads replace it.
        excess = self.used() - limit
        if ahead:
            excess += self._needed_before(shard, next_use)
        if excess <= 0:
            return excess
        victims, sizes = self._victims(next_use, ahead)
        if ahead and sizes.sum() < excess:
            return excess
        for victim in victims.tolist():
            excess -= self._evict_if_free(victim)
            if excess <= 0:
                break
        return excess

    def _shrink(self, shard: int, ahead: bool) -> int:
        """Evict decoded files that can be made again from what is here. The room is held.

        They go before anything that would have to be fetched, to stay within either limit.

        Returns:
            Bytes by which their own limit is exceeded; not positive if it holds.
        """
        next_use = self._next_use
        parts = [part for part, _ in self._roots.values() if part.decoded_limit is not None]
        decoded = sum(self._shelf.state(part).used(zips=False) for part in parts)
        excess = decoded - (self._decoded_limit or 0)
        most = excess if self._total is None else max(excess, self.used() - self._total)
        if ahead:
            waiting = self._needed_before(shard, next_use)
            excess, most = excess + waiting, most + waiting
        if most <= 0:
            return excess
        victims, _ = self._victims(next_use, ahead)
        for victim in victims.tolist():
            if victim != shard:
                freed = self._evict_if_free(victim, decoded=True)
                excess, most = excess - freed, most - freed
            if most <= 0:
                break
        return excess

    def _needed_before(self, shard: int, next_use: dict[int, int]) -> int:
        """Bytes of the shards that are needed before this one, and for which no room is made yet.

        Threads come in any order; without this, one would take the place of a shard that is needed
        earlier, which would then have to exceed the limit. A shard that is no longer needed comes
        after all that are.
        """
        place = next_use.get(shard, len(next_use))
        earlier = np.array([other for other, at in next_use.items() if at < place], np.int64)
        return int(self._needs[earlier][~self._shelf.may_have_raw(earlier)].sum())

    def _victims(
        self, next_use: dict[int, int], ahead: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Shards that may be evicted, in the order in which to do it, and the bytes in each.

        First those that were read in this epoch, whose next use is farthest; then those that are
        still to come; each from the longest unused. Last, and not at all to look ahead, those that
        other processes need next, and those that are needed here, from the farthest.
        """
        states = [(self._shelf.state(part), first) for part, first in self._roots.values()]
        sizes = np.concatenate([state.own_bytes() for state, _ in states])
        ages = np.concatenate([state.last_use_ns() for state, _ in states])
        ids = np.concatenate([first + np.arange(len(state)) for state, first in states])
        is_needed = np.isin(ids, list(next_use))
        free = np.flatnonzero((sizes > 0) & ~is_needed)
        now = time.time_ns()
        ages = np.where(ages > now, 0, ages)  # The clock was set back.
        others = np.concatenate([first + state.needs.of_others() for state, first in states])
        turns = self._turns(ids[free], ages[free], others)
        by_turn = np.lexsort((ages[free], turns))
        if ahead:
            by_turn = by_turn[turns[by_turn] < 2]
        order = free[by_turn].tolist()
        if not ahead:
            needed = np.flatnonzero((sizes > 0) & is_needed).tolist()
            order += sorted(needed, key=lambda at: next_use[int(ids[at])], reverse=True)
        return ids[order], sizes[order]

    def _turns(
        self, ids: NDArray[np.int64], ages: NDArray[np.int64], others: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Whose turn it is to go, of shards that are not needed here: the lowest come first."""
        is_read = ages >= self._begun_ns
        turns: NDArray[np.int64] = np.where(np.isin(ids, others), 2, np.where(is_read, 0, 1))
        return turns

    def _evict_if_free(self, shard: int, *, decoded: bool = False) -> int:
        """Evict a shard unless somebody is at work on it.

        Args:
            shard: Which.
            decoded: Only its decoded files, and only if they can be made again without fetching.
        """
        place = self._shelf.find(shard)
        state = self._shelf.state(place.part)
        lock = state.lock(place.local)
        if decoded and (place.part.decoded_limit is None or not place.files.has_zips()):
            return 0
        if not place.files.can_make() or not lock.acquire(blocking=False):
            return 0
        try:
            freed = evict(place, state, keep_zip=decoded)
        finally:
            lock.release()
        if freed:
            for counts in (self._counts, state.counts):
                counts.add(evictions=1, evicted_bytes=freed)
        return freed


def evict(place: Place, state: DirectoryState, *, keep_zip: bool = False) -> int:
    """Remove what this library made or fetched of a held shard, which can be made again.

    Args:
        place: The shard.
        state: Of its directory.
        keep_zip: Leave what it was decompressed or decoded from.

    Returns:
        Bytes that were removed.
    """
    files = place.files
    paths = files.raw_paths if state.is_own(place.local, "raw") else []
    if state.is_own(place.local, "zip") and files.source is not None and not keep_zip:
        paths += files.zip_paths
    freed = measure(paths)
    try:
        files.drop(paths)
    except PermissionError:
        freed -= measure(paths)  # Another user's. His own processes can remove it.
    state.record(place.local, files)
    if freed:
        logger.debug("Evicted shard %d, %d bytes.", place.shard, freed)
    return freed


def _needs(part: CachePart) -> NDArray[np.int64]:
    """Bytes that each shard takes while it is prepared; 0 where nothing can be prepared."""
    table = part.index.table
    if part.source is not None:
        return table.raw_bytes + table.zip_bytes
    return np.where(table.zip_bytes > 0, table.raw_bytes, 0)
