"""What batchers with a budget have in common: sizes, limits, and what is over them."""

import logging
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from streaming.dataflow.base import Group, Sample, Token
from streaming.dataflow.batchers.pooled import Pool, PoolBatcher, Size
from streaming.errors import ConfigError, SampleError

__all__ = [
    "Budget",
    "BudgetRule",
    "Entry",
    "Lane",
    "OversizePolicy",
    "PackingBatcher",
    "SizeFunction",
    "SizedPool",
    "collect",
    "default_modality",
    "default_size",
    "tokens_of",
]

logger = logging.getLogger(__name__)

SizeFunction: TypeAlias = Callable[[Sample], Size]
BudgetRule: TypeAlias = Callable[[Size], Size]
"""From the longest sample of a group to the budget of the group."""
OversizePolicy: TypeAlias = Literal["raise", "drop", "alone", "split"]


def default_size(sample: Sample) -> Size:
    """Tokens of a sample: the length of its `input_ids`."""
    ids = sample["input_ids"]
    if type(ids) is list:
        return len(ids)
    try:
        return ids.shape[0]  # type: ignore[no-any-return]  # `len` of a tensor takes far longer.
    except AttributeError:
        return len(ids)


def default_modality(sample: Sample) -> str:
    """Image, video or text, by the keys that a sample has; an image wins over a video."""
    if "pixel_values" in sample:
        return "image"
    return "video" if "pixel_values_videos" in sample else "text"


@dataclass(frozen=True, slots=True)
class Budget:
    """One more thing that a group must not have too much of.

    Attributes:
        name: What it is, for messages, such as "images" or "seconds".
        limit: The most of it that a group may have, added up.
        size: How much of it a sample has.
    """

    name: str
    limit: float
    size: SizeFunction


class Entry:
    """A sample that waits. Compared by identity."""

    __slots__ = ("extras", "modality", "sample", "size", "token")

    modality: Any
    extras: tuple[float, ...]

    def __init__(self, token: Token, sample: Sample, size: Size, modality: Any = None) -> None:
        self.token = token
        self.sample = sample
        self.size = size
        self.modality = modality
        self.extras = ()


def tokens_of(entries: Iterable[Entry]) -> list[Token]:
    """The tokens of some entries."""
    return [entry.token for entry in entries]


class PackedGroup(Group):
    """A group that looks up what is known of its samples when it is asked."""

    __slots__ = ("entries",)

    entries: Sequence[Entry]

    @property
    def tokens(self) -> Sequence[Token]:  # type: ignore[override]  # Never set.
        return [entry.token for entry in self.entries]

    @property
    def sizes(self) -> Sequence[Size]:  # type: ignore[override]
        return [entry.size for entry in self.entries]


def collect(entries: Sequence[Entry], pad_to: int | None = None) -> Group:
    """The group of some entries."""
    group = PackedGroup([entry.sample for entry in entries])
    group.entries = entries
    if pad_to is not None:
        group.pad_to = pad_to
    return group


class PackingBatcher(PoolBatcher):
    """Base of the batchers with a budget.

    Args:
        max_tokens: The budget of a group.
        size: What a sample costs; None: the length of its `input_ids`.
        budgets: More budgets; the sum over a group must be within each of them.
        max_batch_size: The most samples of a group; None or 0 for any number.
        modality: Samples of which this differs never share a group. None: all may.
        round_to: Rows are padded to a multiple of this, and cost accordingly.
        oversize: What becomes of a sample that is over a budget all by itself: "raise" an error,
            "drop" it (counted, and the first one logged), let it be a group "alone", over the
            budget, or "split" it.
        split: For "split": cuts a sample into pieces that fit; a piece that doesn't raises.
        budget_rule: The budget of a group by its longest sample, in place of `max_tokens`.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    wants_sizes = True
    # Whether what is to be dropped is taken in all the same, and dropped when it is first in line.
    drops_late: ClassVar[bool] = False

    def __init__(
        self,
        max_tokens: Size,
        *,
        size: SizeFunction | None = None,
        budgets: Sequence[Budget] = (),
        max_batch_size: int | None = None,
        modality: Callable[[Sample], Any] | None = None,
        round_to: int = 1,
        oversize: OversizePolicy = "raise",
        split: Callable[[Sample], Iterable[Sample]] | None = None,
        budget_rule: BudgetRule | None = None,
    ) -> None:
        for name, value, least in (
            ("max_tokens", max_tokens, 1),
            ("max_batch_size", max_batch_size or 1, 1),
            ("round_to", round_to, 1),
        ):
            if not value >= least:
                raise ConfigError(f"`{name}` must be at least {least}, but is {value}.")
        if oversize not in ("raise", "drop", "alone", "split"):
            raise ConfigError(
                f'`oversize` must be "raise", "drop", "alone" or "split", but is {oversize!r}.'
            )
        if (oversize == "split") != (split is not None):
            raise ConfigError(
                f'`oversize="split"` goes together with `split`, which cuts a sample; here they '
                f"are {oversize!r} and {split!r}."
            )
        self.max_tokens = max_tokens
        self.size = size or default_size
        self.budgets = tuple(budgets)
        self.max_batch_size = max_batch_size
        self.modality = modality
        self.round_to = round_to
        self.oversize: OversizePolicy = oversize
        self.split = split
        self.budget_rule = budget_rule
        self.splits = split is not None
        self._is_warned = False

    def sample_size(self, sample: Sample) -> Size:
        """What a sample costs."""
        return self.size(sample)

    def row(self, size: Size) -> Size:
        """A size with the padding to `round_to`."""
        return size if self.round_to == 1 else -(-size // self.round_to) * self.round_to

    def budget(self, longest: Size) -> Size:
        """The budget of a group whose longest sample has this size."""
        return self.max_tokens if self.budget_rule is None else self.budget_rule(longest)

    def is_over(self, size: Size) -> bool:
        """Whether a sample of this size is over the budget all by itself."""
        return self.row(size) > self.budget(size)

    def fits(self, total: Sequence[float], entry: Entry) -> bool:
        """Whether the other budgets allow an entry beside what a group has of them already."""
        return all(
            have + more <= budget.limit
            for have, more, budget in zip(total, entry.extras, self.budgets, strict=True)
        )

    def pieces(self, sample: Sample) -> Sequence[Sample]:
        """A sample within the budget itself, or what `split` makes of one that is not."""
        if self.split is None:
            return (sample,)
        entry = Entry(None, sample, self.sample_size(sample))
        entry.extras = tuple(budget.size(sample) for budget in self.budgets)
        return list(self.split(sample)) if self._excess(entry) else (sample,)

    def enter(
        self,
        pool: Pool,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None,
    ) -> Iterator[Entry]:
        """Make entries of samples: those that may come in.

        Raises:
            SampleError: Some may not. Behind the last entry.
        """
        sizes = list(map(self.measure, samples)) if sizes is None else sizes
        modality, good = self.modality, self.unquestioned
        refused: list[str] = []
        for token, sample, size in zip(tokens, samples, sizes, strict=False):
            entry = Entry(token, sample, size, modality and modality(sample))
            if size < good or self.admits(pool, entry, refused):
                yield entry
        self.check(refused)

    @property
    def measure(self) -> SizeFunction:
        """What a sample costs, by the shortest way."""
        is_own = type(self).sample_size is not PackingBatcher.sample_size
        return self.sample_size if is_own else self.size

    @property
    def unquestioned(self) -> Size:
        """A sample below this size may always come in, and has no other sizes."""
        is_plain = not self.budgets and self.budget_rule is None and self.round_to == 1
        return self.max_tokens if is_plain else 0

    def admits(self, pool: Pool, entry: Entry, refused: list[str]) -> bool:
        """Measure the rest of an entry, and look closely. What can't come in by error is noted."""
        if self.budgets:
            entry.extras = tuple(budget.size(entry.sample) for budget in self.budgets)
        excess = self._excess(entry)
        if not excess or self.oversize == "alone" or (self.drops_late and self.oversize == "drop"):
            return True
        if not self.drops(pool, entry):
            token = entry.token
            refused.append(f"sample {token}: {excess}" if token is not None else excess)
        return False

    def check(self, refused: Sequence[str]) -> None:
        """Raise what `admits` noted."""
        if refused:
            raise SampleError(
                f"{type(self).__name__} was given more than fits into a group: "
                f"{'; '.join(refused)}. Raise the budget, or choose with `oversize=` what becomes "
                f"of such samples: 'drop', 'alone' or 'split'."
            )

    def drops(self, pool: Pool, entry: Entry) -> bool:
        """Whether an entry that is first in line is dropped: it is over the budget by itself."""
        excess = self._excess(entry) if self.oversize == "drop" else ""
        if excess:
            pool.dropped += 1
            self._warn(excess)
        return bool(excess)

    def _excess(self, entry: Entry) -> str:
        """What of an entry is over which budget; empty if nothing is."""
        if self.is_over(entry.size):
            return f"size {entry.size}, where the budget is {self.budget(entry.size)}"
        for have, budget in zip(entry.extras, self.budgets, strict=True):
            if have > budget.limit:
                return f"{have} {budget.name}, where the budget is {budget.limit}"
        return ""

    def _warn(self, excess: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s drops a sample that does not fit into a group by itself: %s. Later ones are "
                "only counted, as `dropped`.",
                type(self).__name__,
                excess,
            )


class Lane:
    """Entries that may share a group, by size; of equal size, in order of arrival."""

    __slots__ = ("entries", "sizes")

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self.entries: list[Entry] = []

    def place(self, entry: Entry) -> int:
        """Where an entry is."""
        place = bisect_left(self.sizes, entry.size)
        while self.entries[place] is not entry:
            place += 1
        return place

    def up_to(self, size: Size) -> int:
        """Place of the longest entry not above a size, of those the oldest; -1 for none."""
        place = bisect_right(self.sizes, size) - 1
        return place if place < 0 else bisect_left(self.sizes, self.sizes[place], 0, place)

    def pop(self, place: int) -> Entry:
        """Take an entry out."""
        del self.sizes[place]
        return self.entries.pop(place)


class SizedPool(Pool):
    """A fixed number of entries, in order of arrival and, in lanes by modality, in order of size.

    Each group is begun by the entry that has waited longest, so that none waits for ever.
    Subclasses say what joins it.
    """

    def __init__(self, batcher: PackingBatcher, pool_size: int) -> None:
        self.batcher = batcher
        self.pool_size = pool_size
        self._measure, self._unquestioned = batcher.measure, batcher.unquestioned
        self.arrived: dict[Entry, None] = {}
        self.lanes: dict[Any, Lane] = {}

    def want(self) -> int:
        return self.pool_size - len(self.arrived)

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        # As `enter`, without a generator: often there is one sample to add.
        batcher, arrived, lanes = self.batcher, self.arrived, self.lanes
        modality, good = batcher.modality, self._unquestioned
        measured = map(self._measure, samples) if sizes is None else sizes
        refused: list[str] = []
        for token, sample, size in zip(tokens, samples, measured):  # noqa: B905
            kind = modality and modality(sample)
            entry = Entry(token, sample, size, kind)
            if size >= good and not batcher.admits(self, entry, refused):
                continue
            arrived[entry] = None
            if kind not in lanes:
                lanes[kind] = Lane()
            lane = lanes[kind]
            place = bisect_right(lane.sizes, size)
            lane.sizes.insert(place, size)
            lane.entries.insert(place, entry)
        if refused:
            batcher.check(refused)

    def choose(self, ended: bool) -> Group | None:
        arrived = self.arrived
        if not arrived or (not ended and len(arrived) < self.pool_size):
            return None
        seed = next(iter(arrived))
        entries = self.gather(seed, self.lanes[seed.modality])
        if len(entries) == 1:
            group = PackedGroup((seed.sample,))
            group.entries = entries
            return group
        return collect(entries)

    @abstractmethod
    def gather(self, seed: Entry, lane: Lane) -> list[Entry]:
        """Take the seed, and what joins it, out of the pool."""

    def take(self, lane: Lane, place: int) -> Entry:
        """Take one entry out of the pool."""
        entry = lane.pop(place)
        del self.arrived[entry]
        return entry

    def pending(self) -> list[Token]:
        return tokens_of(self.arrived)

    def candidates(self, lane: Lane) -> Iterator[Entry]:
        """The entries of a lane in order of arrival."""
        if len(self.lanes) == 1:
            return iter(self.arrived)
        modality = lane.entries[0].modality if lane.entries else None
        return (entry for entry in self.arrived if entry.modality == modality)


def check_pool_size(pool_size: int) -> int:
    """Refuse a pool that can't be meant."""
    if pool_size < 1:
        raise ConfigError(f"`pool_size` must be at least 1, but is {pool_size}.")
    return pool_size
