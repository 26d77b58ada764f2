"""What a process needs to read samples: the cache, its open readers, and the way from id to bytes.

Made in the process that reads, on first use, and never pickled. One block of ids costs one look at
each shard it touches; nothing here is done per sample but the handing out.
"""

import logging
import os
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Generic, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming.cache import CachePart, ShardCache
from streaming.errors import MissingFileError, ShardCorruptError
from streaming.format.column import Column, Pieces, Stack, inverse, merge_columns, merge_stacks
from streaming.format.reader import LostIndexError, Sample, ShardReader
from streaming.prefetch import Prefetcher
from streaming.shared.counts import CountsFolder
from streaming.spanner import Spanner
from streaming.world import detect_worker

__all__ = ["PerProcess", "Runtime", "checked_ids"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Method = Literal["take", "take_parts", "take_stacked"]

# An open reader holds some KB and one or two maps of files, of usually 65,530 that there may be.
MAX_READERS = 1024
# Under a cache limit an open reader keeps the space of a shard in use that was evicted or made anew
# meanwhile. So many of those on a node, or one in each process.
MAX_GONE = 8


class PerProcess(Generic[T]):
    """A value that each process makes for itself when it first asks.

    A forked or spawned process starts without one. What a fork copied is kept, but never used, nor
    closed: it is still in use where it came from.

    Args:
        make: Makes it.

    Attributes:
        value: This process's value if it has been made. To look here first saves a call.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.value: T | None = None
        self._copied: T | None = None
        _each.add(self)

    def get(self) -> T:
        """This process's value."""
        if self.value is None:
            self.value = self._make()
        return self.value

    def forget(self) -> None:
        """Start without one, in a process that was forked."""
        self._copied, self.value = self.value or self._copied, None

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        PerProcess.__init__(self, state["_make"])


_each: "weakref.WeakSet[PerProcess[Any]]" = weakref.WeakSet()


def _forget_each() -> None:
    for held in list(_each):
        held.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_each)


class Runtime:
    """Reads samples by id, one process long. Threads may share it.

    Args:
        parts: The streams, in the order in which their shards are numbered.
        samples_per_shard: Samples in each shard, shape (num_shards,).
        limit: Bytes the cached shards may take; None: any.
        ranks_per_node: Ranks that read from the same cache, each with as many workers as this one.
        allow_unsafe_types: Whether columns may be read whose decoding runs code from the data.
        decoders: Functions that make values of the stored bytes of some columns, by column.
        counts: Where what the cache does is counted; None: nowhere.

    Attributes:
        get: Gives one sample, by its id, an `int` of Python's own. An IndexError if there is none.
    """

    def __init__(
        self,
        parts: Sequence[CachePart],
        samples_per_shard: NDArray[np.int64],
        *,
        limit: int | None = None,
        ranks_per_node: int = 1,
        allow_unsafe_types: bool = False,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        counts: CountsFolder | None = None,
    ) -> None:
        self.cache = ShardCache(
            parts,
            limit,
            allow_unsafe_types=allow_unsafe_types,
            counts=None if counts is None else counts.open(),
        )
        self.spanner = Spanner(samples_per_shard)
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self.mean_bytes = 0  # of a sample, at most: of what was opened, if it is not in the index
        self._lock = threading.Lock()
        self._decoders = decoders or {}
        self._finishing: Prefetcher | None = None
        self._marks: dict[int, int] = {}  # of the open shards, if there is a limit
        self._max_gone = None
        if limit is not None:
            processes = ranks_per_node * max(1, detect_worker()[0])
            self._max_gone = max(1, MAX_GONE // processes)
        self._getters: dict[int, Callable[[int], Sample]] = {}  # of the open shards
        self._is_bounded = limit is not None or len(samples_per_shard) > MAX_READERS
        self.get = self._make_get()

    def __reduce__(self) -> NoReturn:
        raise TypeError("A runtime belongs to one process; it can't be pickled.")

    def _make_get(self) -> Callable[[int], Sample]:
        """What gives one sample.

        A closure, for each attribute of an object costs as much as to decode a number. It does not
        keep this object, which keeps it.
        """
        bounds, getters = self.spanner.bounds, self._getters
        states, touch, is_bounded = self.cache.states, self.cache.touch, self._is_bounded
        runtime: Runtime = weakref.proxy(self)

        def get(sample_id: int) -> Sample:
            shard = bisect_right(bounds, sample_id) - 1
            try:
                getter = getters[shard]
            except KeyError:  # It is not open, or there is none.
                pass
            else:
                if states:
                    touch(shard)
                if is_bounded:
                    runtime.reader(shard)  # So that others are dropped first.
                try:
                    return getter(sample_id - bounds[shard])
                except Exception as error:  # noqa: BLE001  # `get_item` says what is wrong.
                    logger.debug("Sample %d is read again: %s", sample_id, error)
            sample: Sample = runtime._take(*runtime.spanner[sample_id], "get_item")
            return sample

        return get

    def take(self, ids: NDArray[np.int64]) -> list[Sample]:
        """Samples in the order of `ids`, shape (n,), each in [0, num_samples)."""
        parts, places = self._take_each(ids, "take")
        samples: list[Sample] = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        if places is None:
            return samples
        return [samples[place] for place in inverse(places).tolist()]

    def take_columns(self, ids: NDArray[np.int64]) -> dict[str, Column]:
        """The same by columns; none if there are no ids.

        Raises:
            DataError: Their shards have different columns.
        """
        return {
            name: column.to_array() if isinstance(column, Pieces) else column
            for name, column in self.take_parts(ids).items()
        }

    def take_parts(self, ids: NDArray[np.int64]) -> dict[str, Column | Pieces]:
        """The same, but large arrays may stay where they are until they are sliced."""
        parts, places = self._take_each(ids, "take_parts")
        if places is None:
            return dict(parts[0]) if parts else {}
        return merge_columns(parts, places)

    def take_stacked(self, ids: NDArray[np.int64]) -> dict[str, Stack] | None:
        """The same as torch's default collate would see them; see `ShardReader.take_stacked`.

        Returns:
            None if that can't be told of all of their shards, or they differ.
        """
        parts, places = self._take_each(ids, "take_stacked")
        if not parts or any(part is None for part in parts):
            return None
        return dict(parts[0]) if places is None else merge_stacks(parts, places)

    def reader(self, shard: int) -> ShardReader:
        """The open reader of a shard, which is brought here first if need be.

        Readers that were not used for longest are dropped, not closed: another thread may be
        reading from one, and the last who does closes it.
        """
        readers = self._readers
        try:
            reader = readers[shard]
            if self._is_bounded:
                readers.move_to_end(shard)  # Another thread may have dropped it in between.
        except KeyError:
            pass
        else:
            return reader
        reader = self.cache.open(shard)
        if self._decoders:
            reader.use_decoders(self._decoders)
        self.mean_bytes = max(self.mean_bytes, reader.mean_bytes)
        with self._lock:
            readers[shard], self._getters[shard] = reader, reader.getter()
            while len(readers) > MAX_READERS:
                del self._getters[readers.popitem(last=False)[0]]
            if self._max_gone is not None:
                self._drop_gone(shard, self._max_gone)
        return reader

    def _drop_gone(self, opened: int, most: int) -> None:
        """Drop readers of files that are there no more, but for some that were used last."""
        shards = np.fromiter(self._readers, np.int64)
        marks = dict(zip(shards.tolist(), self.cache.marks(shards).tolist(), strict=True))
        self._marks[opened] = marks[opened]
        gone = [shard for shard, mark in marks.items() if self._marks[shard] != mark]
        for shard in gone[: max(0, len(gone) - most)]:
            del self._readers[shard], self._getters[shard]
        self._marks = {shard: self._marks[shard] for shard in self._readers}

    def forget(self, shard: int) -> None:
        """Drop the reader of a shard, if there is one."""
        with self._lock:
            self._readers.pop(shard, None)
            self._getters.pop(shard, None)

    def begin(self, *, reads_once: bool) -> None:
        """Begin an iteration.

        Args:
            reads_once: Whether it reads each sample once and in order, and no other process does.
        """
        for shard, reader in list(self._readers.items()):
            if reader.reads_once:
                self.forget(shard)
        self.cache.read_once(reads_once)

    def let_finish(
        self, prefetcher: Prefetcher | None, upcoming: Callable[[], Sequence[int]] | None = None
    ) -> None:
        """Let an iteration that is over bring what comes next, until another takes its place.

        Args:
            prefetcher: Of the iteration; None: end what there was before.
            upcoming: As for `Prefetcher.finish`.
        """
        if self._finishing is not None:
            self._finishing.close(timeout=0.0)
        self._finishing = prefetcher
        if prefetcher is not None:
            prefetcher.finish(upcoming)

    def close(self) -> None:
        """Drop all readers and close the cache."""
        with self._lock:
            self._readers.clear()
            self._getters.clear()
        self.let_finish(None)
        self.cache.close()

    def _take_each(
        self, ids: NDArray[np.int64], method: _Method
    ) -> tuple[list[Any], NDArray[np.int64] | None]:
        """What each shard gives, and where the samples of one shard after another belong.

        The places are None if there is only one shard, and all are in order, or none.
        """
        if not len(ids):
            return [], None
        only = self.spanner.only(ids)
        if only is not None:
            return [self._take(only[0], ids - only[1], method)], None
        # Each shard is read from its beginning to its end, as memory is read fastest.
        is_sorted = bool((ids[1:] >= ids[:-1]).all())
        order = np.arange(len(ids)) if is_sorted else _ascending(ids, self.spanner.size)
        pieces = self.spanner.split(ids[order])
        runs = [list(run) for _, run in groupby(pieces, self._group)]
        if len(runs) == 1 and len(pieces) > 1:
            places = None if is_sorted else order
            return [self._take_run(runs[0], places, method)], None
        return [
            self._take(*run[0], method) if len(run) == 1 else self._take_run(run, None, method)
            for run in runs
        ], order

    def _group(self, piece: tuple[int, NDArray[np.int64]]) -> Hashable:
        """What pieces have in common that are read by one call: at least the shard."""
        shard = piece[0]
        try:
            return self.reader(shard).group or shard
        except ShardCorruptError as error:
            return self._repaired(shard, error).group or shard

    def _take_run(
        self,
        pieces: list[tuple[int, NDArray[np.int64]]],
        places: NDArray[np.int64] | None,
        method: _Method,
    ) -> Any:
        """What the shards of one group give; see `ShardReader.take_group`."""
        if method == "take_stacked":
            return None  # Readers of groups can't tell.
        shards = [shard for shard, _ in pieces]
        for shard in shards:
            self.cache.touch(shard)
        wanted: Literal["take", "take_columns"] = "take" if method == "take" else "take_columns"
        for is_last in (False, True):
            readers = [(self.reader(shard), offsets) for shard, offsets in pieces]
            try:
                return readers[0][0].take_group(readers, places, wanted)
            except (MissingFileError, LostIndexError) as error:  # Another process evicted one.
                if is_last:
                    raise
                self._bring_back(shards, error)
            except ShardCorruptError:  # Of one of them, which only reading each by itself tells.
                if is_last:
                    raise
                for shard, offsets in pieces:
                    self.reader(shard).reopen()  # What was read before may hide what is damaged.
                    self._take(shard, offsets, method)
        raise AssertionError("It returns or raises.")

    def _bring_back(self, shards: Sequence[int], error: MissingFileError | LostIndexError) -> None:
        """Open shards anew, of which a file was found to be gone, or never to have been there."""
        self.cache.read_once(False)
        if isinstance(error, LostIndexError):
            self.cache.remake(shards, error)
        for shard in shards:
            self.forget(shard)
        for shard in shards:
            self.reader(shard).reopen()

    def _take(
        self, shard: int, offsets: NDArray[np.int64] | int, method: _Method | Literal["get_item"]
    ) -> Any:
        """What one shard gives, brought back or fetched again if its files went or are damaged."""
        self.cache.touch(shard)
        try:
            try:
                return getattr(self.reader(shard), method)(offsets)
            except (MissingFileError, LostIndexError) as error:  # Another process evicted it.
                self._bring_back([shard], error)
                return getattr(self.reader(shard), method)(offsets)
        except ShardCorruptError as error:
            try:
                return getattr(self._repaired(shard, error), method)(offsets)
            except ShardCorruptError as again:  # It had been replaced, by what is damaged as well.
                return getattr(self._repaired(shard, again), method)(offsets)

    def _repaired(self, shard: int, error: ShardCorruptError) -> ShardReader:
        """A reader of the shard after it was fetched again; where it can't be, `error` stands."""
        self.forget(shard)
        if not self.cache.refresh(shard):
            raise error
        reader = self.reader(shard)
        reader.reopen()
        return reader


def _ascending(ids: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Places of ids in [0, size) in their order, shape (n,)."""
    bits = len(ids).bit_length()
    if size.bit_length() + bits > 63:
        return np.argsort(ids)
    # numpy sorts numbers in less than half of the time in which it finds out their order.
    packed = (ids << bits) | np.arange(len(ids))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def checked_ids(ids: Sequence[int] | NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Sample ids as users give them, those from the end put right.

    Raises:
        IndexError: One is not in [-size, size).
    """
    found = np.asarray(ids, np.int64)
    if found.size and not (found.min() >= -size and found.max() < size):
        raise IndexError(
            f"Samples {found.min()} to {found.max()} are not all in [-{size}, {size})."
        )
    return np.where(found < 0, found + size, found)
