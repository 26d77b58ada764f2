"""Items of anything that can be iterated; streams of Hugging Face shard themselves."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from streaming.dataflow.base import (
    Cursor,
    DataDistributor,
    Json,
    RawItem,
    StreamPlan,
    Token,
    read_again,
)
from streaming.dataflow.distributors.epochs import check_epochs
from streaming.dataflow.distributors.workers import seen_as_worker
from streaming.dataflow.state import Count, parse_part
from streaming.errors import ConfigError, StateError

__all__ = ["IterableDistributor"]

logger = logging.getLogger(__name__)

Sharding = Literal["auto", "native", "modulo", "none"]


class IterableDistributor(DataDistributor):
    """Deals out the items of an iterable, pass after pass.

    How it is shared among the S logical streams of a job:

    - "native": the source has `shard(num_shards=, index=)` and tells its `num_shards`, as streams
      of Hugging Face do. Each stream reads shards of its own and discards nothing; where there are
      fewer shards than streams, streams that share a shard deal out its items.
    - "modulo": each stream reads the whole source and keeps every S-th item. So S times the reading
      is done in all; a warning tells the factor. For an indexable source use MapDistributor.
    - "none": each stream iterates the source as it is, because it should be read whole, or shards
      itself by the worker that torch tells of.

    In the first two cases a source that asks torch for its worker is told there is none, so it
    can't be sharded twice. Where the source has `set_epoch`, it is told each pass.

    Tokens are (pass, number in the stream's part). A natively sharded source that has `state_dict`
    and `load_state_dict` finds its place by them; others by reading again and discarding.

    Args:
        iterable: The source. An iterator, which can be read only once, is for one stream alone.
        sharding: See above; "auto" is "native" where that is possible, else "modulo".
        epochs: Passes that an iteration has; None goes on for ever.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        iterable: Any,
        *,
        sharding: Sharding = "auto",
        epochs: int | None = None,
    ) -> None:
        if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
            raise ConfigError(
                f"IterableDistributor needs an iterable, but got {type(iterable).__name__}."
            )
        if sharding not in ("auto", "native", "modulo", "none"):
            raise ConfigError(
                f'`sharding` must be "auto", "native", "modulo" or "none", but is {sharding!r}.'
            )
        if sharding == "native" and _num_shards(iterable) is None:
            raise ConfigError(
                f'`sharding="native"` needs a source with `shard(num_shards=, index=)` and '
                f'`num_shards`, which {type(iterable).__name__} has not. Use "modulo".'
            )
        dataset = sys.modules.get("streaming.dataset")
        if dataset is not None and isinstance(iterable, dataset.StreamingDataset):
            raise ConfigError(
                "A StreamingDataset shards itself by rank and worker, and would be sharded twice "
                "here. Use StreamingDistributor, which deals out its order to logical streams."
            )
        # Set by `split_dataset_by_node`; there is no public name for it.
        if sharding != "none" and getattr(iterable, "_distributed", None) is not None:
            raise ConfigError(
                f"This {type(iterable).__name__} was already split by rank (`split_dataset_by_node`"
                f" or a trainer's `prepare`), and would be split again here. Give the whole source."
            )
        self.iterable = iterable
        self.sharding: Sharding = sharding
        self.epochs = check_epochs(epochs)
        self._is_warned = False

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give the part of one worker of one rank."""
        plan = StreamPlan.of(dp_world_size, num_workers)
        for _, item in self.open(plan.stream(dp_rank * num_workers + worker_id), plan):
            yield item

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        return _IterableCursor(self._part(stream, plan), self.epochs)

    def fingerprint(self) -> dict[str, Json]:
        return {"sharding": self.sharding, "shards": _num_shards(self.iterable)}

    def _part(self, stream: int, plan: StreamPlan) -> "_Part":
        source: Any = self.iterable
        shards = _num_shards(source)
        streams, unit = plan.num_streams, plan.unit(stream)
        if isinstance(source, Iterator) and streams > 1:
            raise ConfigError(
                f"The source is an iterator ({type(source).__name__}): it can be read only once, "
                f"and not from {streams} logical streams. Give what makes the iterator: an object "
                f"whose `__iter__` begins anew."
            )
        if self.sharding == "none":
            _, _, worker, workers = plan.coordinates(stream)
            return _Part(source, 1, 0, streams == 1, (worker, workers))
        if shards is not None and self.sharding != "modulo":
            if shards >= streams:
                return _Part(source.shard(num_shards=streams, index=unit), 1, 0, True)
            shard = source.shard(num_shards=shards, index=unit % shards)
            sharers = len(range(unit % shards, streams, shards))
            return _Part(shard, sharers, unit // shards, True)
        if streams > 1 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s can't be sharded: each of the %d logical streams reads all of it and keeps "
                "every %d-th item, so %d times the reading is done. A source with `shard` and "
                "`num_shards`, or MapDistributor over an indexable one, reads each item once.",
                type(source).__name__,
                streams,
                streams,
                streams,
            )
        return _Part(source, streams, unit, streams == 1)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one logical stream reads.

    Attributes:
        source: What it iterates.
        step: It keeps one of so many items ...
        start: ... beginning with this one.
        is_own: Whether no other stream iterates the same object, whose place is then this stream's.
        worker: Which worker, of how many, the source is told that it is in.
    """

    source: Any
    step: int
    start: int
    is_own: bool
    worker: tuple[int, int] = (0, 1)


class _Place(msgspec.Struct):
    number: Count
    index: Count
    passes: Count = msgspec.field(name="pass")
    source: Any = msgspec.UNSET


class _IterableCursor(Cursor):
    """One logical stream of an iterable."""

    def __init__(self, part: _Part, epochs: int | None) -> None:
        self._part = part
        self._epochs = epochs
        self._has_state = part.is_own and all(
            hasattr(part.source, name) for name in ("state_dict", "load_state_dict")
        )
        self._pass = 0
        self._number = 0  # of the next item of this stream in this pass
        self._index = 0  # of the next item of the source in this pass
        self._items: Iterator[RawItem] | None = None
        self._fault: Exception | None = None

    def __next__(self) -> tuple[Token, RawItem]:
        tokens, items = self.take(1)
        if not items:
            raise StopIteration
        return tokens[0], items[0]

    def take(self, limit: int) -> tuple[Sequence[Token], list[RawItem]]:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        with seen_as_worker(*self._part.worker):
            while True:
                if self._items is None:
                    self._items = self._begin()
                first, items = self._number, self._read(self._items, limit)
                if items:
                    tokens = [(self._pass, number) for number in range(first, self._number)]
                    return tokens, items
                is_empty = not self._number
                self._pass, self._number, self._index, self._items = self._pass + 1, 0, 0, None
                if is_empty or (self._epochs and self._pass % self._epochs == 0):
                    return [], []

    def state_dict(self) -> Json:
        state = {"pass": self._pass, "number": self._number, "index": self._index}
        if self._has_state and self._items is not None:
            state["source"] = self._part.source.state_dict()
        return state

    def load_state_dict(self, state: Json) -> None:
        found = parse_part(state, _Place, "The place in an iterable")
        kept = len(range(self._part.start, found.index, self._part.step))
        if found.number != kept:
            raise StateError(
                f"The state is of a place behind {found.index} items of an iterable, of which "
                f"{kept} are of this logical stream, but it says {found.number}."
            )
        self._pass, self._number, self._index = found.passes, found.number, found.index
        if not self._index:
            return
        with seen_as_worker(*self._part.worker):
            if self._has_state and found.source is not msgspec.UNSET:
                self._set_epoch()
                self._load_source(found.source)
                self._items = iter(self._part.source)
                return
            name = type(self._part.source).__name__
            self._items = read_again(self._begin, self._index, name)

    def _load_source(self, state: Json) -> None:
        try:
            self._part.source.load_state_dict(state)
        except Exception as error:
            raise StateError(
                f"{type(self._part.source).__name__} does not take the place {state!r:.100} that "
                f"the state has for it: {type(error).__name__}: {error}"
            ) from error

    def _begin(self) -> Iterator[RawItem]:
        source = self._part.source
        if isinstance(source, Iterator) and self._pass:
            logger.warning(
                "The source is an iterator (%s), so there is no second pass over it. Give what "
                "makes the iterator, or `epochs=1`.",
                type(source).__name__,
            )
        self._set_epoch()
        return iter(source)

    def _set_epoch(self) -> None:
        if hasattr(self._part.source, "set_epoch"):
            self._part.source.set_epoch(self._pass)

    def _read(self, source: Iterator[RawItem], limit: int) -> list[RawItem]:
        """The next items of this stream in this pass, none at its end."""
        step, start = self._part.step, self._part.start
        items: list[RawItem] = []
        try:
            for item in source:
                self._index += 1
                if (self._index - 1) % step == start:
                    items.append(item)
                    self._number += 1
                    if len(items) == limit:
                        break
        except Exception as error:
            if not items:
                raise
            self._fault = error  # Raised in the next call: what came before it is good.
        return items


def _num_shards(source: Any) -> int | None:
    """Shards that a source can be split into by its own means; None if it can't be."""
    if not callable(getattr(source, "shard", None)):
        return None
    shards = getattr(source, "num_shards", getattr(source, "n_shards", None))
    return shards if isinstance(shards, int) and shards > 0 else None
