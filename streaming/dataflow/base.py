"""The four roles, and what passes between them. Imports nothing but the standard library.

    DataDistributor --item--> RawItemProcessor --sample--> SampleBatcher --group--> BatchCollator

Roles are passed as objects; anything that has the methods will do, a subclass or not.
"""

import copy
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from streaming.errors import ConfigError, StateError

__all__ = [
    "MAX_AGAIN",
    "Batch",
    "BatchCollator",
    "Cursor",
    "DataDistributor",
    "Group",
    "Json",
    "RawItem",
    "RawItemProcessor",
    "Sample",
    "SampleBatcher",
    "SkipItem",
    "StreamCursor",
    "StreamPlan",
    "Token",
    "as_token",
    "open_cursor",
    "read_again",
    "takes_rng",
    "wants_rng",
]

logger = logging.getLogger(__name__)

RawItem: TypeAlias = Any
"""What a source holds: a dict most of the time, but any object will do."""
Sample: TypeAlias = Any
"""What a processor makes of an item: a dict most of the time."""
Batch: TypeAlias = Any
"""What a collator makes of a group: a dict most of the time."""
Json: TypeAlias = Any
"""A value that JSON has."""
Token: TypeAlias = int | str | tuple["Token", ...] | None
"""The name of an item in its logical stream: it rises with time and never changes its meaning.

None where there are no names, outside a loader.
"""


T = TypeVar("T")

# What is drawn or read again one by one to find a place: no run comes so far. A damaged state would
# keep a loader busy for years.
MAX_AGAIN = 2**32


class SkipItem(Exception):
    """Raised by `RawItemProcessor.process`: the item counts as consumed and gives no sample."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How a job's data are dealt out to logical streams. Fixed when the job first starts.

    A logical stream has a slice of the data, a position and a batcher of its own, and is never
    split: ranks and workers come and go, the logical streams stay.

    Attributes:
        num_streams: Logical streams of the whole job.
        origin: Data-parallel ranks and workers of each at the first start.
    """

    num_streams: int
    origin: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.num_streams, *self.origin) < 1:
            raise ConfigError(
                f"There must be at least one logical stream, one rank and one worker, but there "
                f"are {self.num_streams}, {self.origin[0]} and {self.origin[1]}."
            )

    @classmethod
    def of(cls, dp_world_size: int, num_workers: int) -> "StreamPlan":
        """One logical stream for each worker of each rank."""
        return cls(dp_world_size * num_workers, (dp_world_size, num_workers))

    @property
    def is_natural(self) -> bool:
        """Whether each worker of the first start has one logical stream."""
        return self.num_streams == self.origin[0] * self.origin[1]

    def unit(self, stream: int) -> int:
        """Which slice of the data a logical stream reads, in [0, num_streams).

        Streams take turns, so that stream s is made by rank s % ranks first; slices are counted
        rank by rank. This puts each slice where a start on `origin` expects it.
        """
        ranks, workers = self.origin
        return stream % ranks * workers + stream // ranks if self.is_natural else stream

    def stream(self, unit: int) -> int:
        """The logical stream that reads slice `unit`: the inverse of `unit`."""
        ranks, workers = self.origin
        return unit % workers * ranks + unit // workers if self.is_natural else unit

    def coordinates(self, stream: int) -> tuple[int, int, int, int]:
        """The arguments of `DataDistributor.stream` that mean this logical stream."""
        ranks, workers = self.origin if self.is_natural else (self.num_streams, 1)
        unit = self.unit(stream)
        return unit // workers, ranks, unit % workers, workers


class Cursor(ABC):
    """One logical stream of a source, in order: gives (token, item) without end.

    Where a distributor has a number of epochs to go, StopIteration comes after them, and the next
    call begins the next ones. Belongs to one thread.

    Attributes:
        can_fetch: Whether `fetch` works, so that single items can be had again.
    """

    can_fetch: bool = False

    def __iter__(self) -> "Cursor":
        return self

    @abstractmethod
    def __next__(self) -> tuple[Token, RawItem]:
        """The next item, with its token."""

    def take(self, limit: int) -> tuple[Sequence[Token], list[RawItem]]:
        """The next items: at least one, at most `limit`; or none, which is the end.

        This default gives one. Sources that read several for less than one by one override it; an
        item that can't be read then raises in the call in which it comes first, and is passed over.
        """
        try:
            token, item = next(self)
        except StopIteration:
            return [], []
        return [token], [item]

    @abstractmethod
    def state_dict(self) -> Json:
        """The place right after the last item that was given out."""

    @abstractmethod
    def load_state_dict(self, state: Json) -> None:
        """Go on from a place. Called before the first item is taken."""

    def fetch(self, token: Token) -> RawItem:
        """The item of a token, wherever this cursor is. Only if `can_fetch`."""
        raise NotImplementedError(f"{type(self).__name__} can't fetch single items.")

    def close(self) -> None:
        """End what runs in the background, if anything does."""
        return


class DataDistributor(ABC):
    """Owns the dataset: sharding over ranks and workers, shuffling, position."""

    @abstractmethod
    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give this rank's and worker's disjoint part of the data, without end."""

    def state_dict(self) -> dict[str, Json]:
        """The place of the one stream that this object gives; nothing if it keeps none."""
        return {}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Let the next `stream` begin at a place. Does nothing if none is kept."""
        return

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        """Open one logical stream.

        This default wraps the method `stream`. It finds its place again by `state_dict`, if that is
        overridden, and else by reading from the beginning and discarding.
        """
        return StreamCursor(self, stream, plan)

    def counts(self, plan: StreamPlan) -> Sequence[int] | None:
        """Items that each logical stream has in an epoch; None if that can't be told."""
        return None

    def fingerprint(self) -> dict[str, Json]:
        """What must be equal for a token to mean the same item: lengths, seeds, sharding."""
        return {}


class StreamCursor(Cursor):
    """The cursor of a distributor that has only the method `stream`.

    Tokens are (pass, number): a stream that ends and is asked again begins its next pass.
    """

    def __init__(self, distributor: DataDistributor, stream: int, plan: StreamPlan) -> None:
        self._has_state = _overrides(distributor, "state_dict", DataDistributor)
        # A place of its own: a distributor that keeps one keeps it for the object.
        self._distributor = copy.copy(distributor) if self._has_state else distributor
        self._coordinates = plan.coordinates(stream)
        self._pass = 0
        self._number = 0
        self._items: Iterator[RawItem] | None = None

    def __next__(self) -> tuple[Token, RawItem]:
        if self._items is None:
            self._items = iter(self._distributor.stream(*self._coordinates))
        try:
            item = next(self._items)
        except StopIteration:
            self._pass, self._number, self._items = self._pass + 1, 0, None
            raise
        self._number += 1
        return (self._pass, self._number - 1), item

    def state_dict(self) -> Json:
        state: dict[str, Json] = {"pass": self._pass, "number": self._number}
        if self._has_state:
            state["inner"] = self._distributor.state_dict()
        return state

    def load_state_dict(self, state: Json) -> None:
        name = type(self._distributor).__name__
        found = state if isinstance(state, dict) else {}
        counts = [found.get("pass"), found.get("number")]
        is_whole = all(type(count) is int and count >= 0 for count in counts)
        if not is_whole or (self._has_state and "inner" not in found):
            raise StateError(
                f"The place of a {name} in the state is damaged: it is {state!r:.100}."
            )
        self._pass, self._number = state["pass"], state["number"]
        if self._has_state:
            self._distributor.load_state_dict(state["inner"])
            return
        if self._number:
            self._items = read_again(
                lambda: iter(self._distributor.stream(*self._coordinates)), self._number, name
            )


def read_again(begin: Callable[[], Iterator[T]], count: int, name: str) -> Iterator[T]:
    """What comes behind some items of a source that keeps no place.

    Args:
        begin: Reads the source from its beginning.
        count: How many items were there before.
        name: What the source is, in messages.

    Raises:
        StateError: They are more than any run has, or than the source has.
    """
    if count > MAX_AGAIN:
        raise StateError(
            f"The state is of a place behind {count} items, which would have to be read again: "
            f"{name} keeps no place, and {MAX_AGAIN} items are the most."
        )
    logger.warning("%s keeps no place: going on after %d items by reading them again.", name, count)
    items = begin()
    came = sum(1 for _ in islice(items, count))
    if came < count:
        raise StateError(
            f"{name} gave {came} items, but the state is of a place behind {count}. It is not the "
            f"source that it was saved with."
        )
    return items


class RawItemProcessor(ABC):
    """Makes a sample of an item: decodes, tokenises, augments.

    Beside `process` a processor may offer, under exactly these names (None is as good as nothing):

    - ``expand(item) -> Iterable[dict]``: used instead of `process`, for items that make several
      samples or none;
    - ``size(item) -> number``: tells what a sample will cost from the item alone. A batcher with a
      budget then chooses groups of items, and they are processed when their group goes out.

    A `process` or `expand` that has a parameter ``rng`` is given a `numpy.random.Generator` by that
    name. It depends on the loader's seed, the logical stream and the token alone: an item that is
    processed again gives the same sample again, in whatever process.
    """

    @abstractmethod
    def process(self, item: RawItem) -> Sample | None:
        """Make the sample. None, or `SkipItem` raised, drops the item; drops are counted."""

    @property
    def wants_rng(self) -> bool:
        """Whether the method that is used has a parameter `rng`."""
        return takes_rng(getattr(self, "expand", None) or self.process)


class SampleBatcher(ABC):
    """Buffers samples, and decides which ones go together.

    Attributes:
        resumable: Whether the groups follow from the samples given and nothing else, and hold the
            very objects that were given. Set it to False in a subclass that copies or merges
            samples, drops some, or draws random numbers: a loader then refuses to save its state.
    """

    resumable: bool = True

    @abstractmethod
    def batches(self, samples: Iterator[Sample]) -> Iterator[list[Sample]]:
        """Give groups of samples until the samples end and none is left."""

    def sample_size(self, sample: Sample) -> float:
        """What a sample costs, in the batcher's own unit."""
        raise NotImplementedError(f"{type(self).__name__} has no sizes.")


class BatchCollator(ABC):
    """Gives a group the shape that the model wants."""

    @abstractmethod
    def collate(self, samples: list[Sample]) -> Batch:
        """Make the batch of one group; built-in batchers give a `Group`."""


class Group(list[Sample]):
    """The samples of one batch, and what is known of them.

    Attributes:
        tokens: Their tokens; None outside a loader.
        sizes: Their sizes; None if the batcher has none.
        offsets: Where each begins in the sample it was cut from; None if nothing was cut.
        pad_to: The size that all are to be padded to; None leaves it to the collator.
    """

    tokens: Sequence[Token] | None = None
    sizes: Sequence[float] | None = None
    offsets: Sequence[int] | None = None
    pad_to: int | None = None


def as_token(value: Json) -> Token:
    """A token that went through JSON, which has no tuples."""
    return tuple(map(as_token, value)) if isinstance(value, list | tuple) else value


def open_cursor(distributor: DataDistributor, stream: int, plan: StreamPlan) -> Cursor:
    """Open a logical stream of a distributor that may have nothing but the method `stream`."""
    if hasattr(distributor, "open"):
        return distributor.open(stream, plan)
    return StreamCursor(distributor, stream, plan)


def wants_rng(processor: RawItemProcessor) -> bool:
    """Whether a processor wants random numbers, also if it is not a RawItemProcessor."""
    if hasattr(processor, "wants_rng"):
        return bool(processor.wants_rng)
    return takes_rng(getattr(processor, "expand", None) or processor.process)


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `rng`. Those of C without a signature have none."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _overrides(role: object, method: str, base: type) -> bool:
    """Whether a role has a method of its own, not the one that does nothing."""
    own = getattr(type(role), method, None)
    return own is not None and own is not getattr(base, method)
