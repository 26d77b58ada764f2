"""Lets a batcher of either kind make groups of samples that have tokens, and knows which wait."""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from streaming.dataflow.base import Group, Json, Sample, SampleBatcher, Token
from streaming.dataflow.batchers.pooled import PoolBatcher, Size
from streaming.errors import DataError

__all__ = ["Grouping", "Read", "open_grouping"]

logger = logging.getLogger(__name__)

Read: TypeAlias = Callable[[int], tuple[Sequence[Token], list[Sample], list[Size] | None]]
"""Gives at least one and at most so many tokens, samples and sizes; none at the end."""

# A batcher that keeps more than this has probably dropped samples without a word.
_MANY = 1 << 16


class Grouping(ABC):
    """The groups of one logical stream.

    Attributes:
        dropped: Samples that are in no group and will never be.
    """

    dropped: int

    @abstractmethod
    def next_group(self) -> Group | None:
        """The next group; None at the end, after which the next call begins anew."""

    @abstractmethod
    def pending(self) -> list[Token]:
        """Tokens of the samples that wait, in their order of arrival."""

    def held(self) -> list[list[Token]]:
        """Tokens of groups that are decided and wait."""
        return []

    def state_dict(self) -> Json:
        """What must be known beside the tokens."""
        return None

    def load_state_dict(self, state: Json) -> None:
        """Take over what `state_dict` gave."""
        return


def open_grouping(batcher: SampleBatcher, read: Read) -> Grouping:
    """Begin to make groups of what `read` gives."""
    if isinstance(batcher, PoolBatcher):
        return _PoolGrouping(batcher, read)
    return _GeneratorGrouping(batcher, read)


class _PoolGrouping(Grouping):
    """The groups of a built-in batcher."""

    def __init__(self, batcher: PoolBatcher, read: Read) -> None:
        self._pool = batcher.open()
        self._read = read
        self._ended = False

    @property
    def dropped(self) -> int:  # type: ignore[override]  # Read only here.
        return self._pool.dropped

    def next_group(self) -> Group | None:
        pool = self._pool
        while True:
            while not self._ended and (wanted := pool.want()):
                tokens, samples, sizes = self._read(wanted)
                if samples:
                    pool.add(tokens, samples, sizes)
                else:
                    self._ended = True
            group = pool.choose(self._ended)
            if group is not None:
                return group
            if self._ended or not pool.want():
                self._ended = False
                return None

    def pending(self) -> list[Token]:
        return self._pool.pending()

    def held(self) -> list[list[Token]]:
        return self._pool.held()

    def state_dict(self) -> Json:
        return self._pool.state_dict()

    def load_state_dict(self, state: Json) -> None:
        self._pool.load_state_dict(state)


class _GeneratorGrouping(Grouping):
    """The groups of a batcher of whatever kind: samples are known again by identity."""

    def __init__(self, batcher: SampleBatcher, read: Read) -> None:
        self.dropped = 0
        self._batcher = batcher
        self._read = read
        self._is_tracked = getattr(batcher, "resumable", True)
        self._groups: Iterator[list[Sample]] | None = None
        self._number = 0
        self._waiting: dict[int, tuple[Token, Sample]] = {}
        self._numbers: dict[int, deque[int]] = {}  # by the id of the sample
        self._again: deque[tuple[Token, Sample]] = deque()

    def next_group(self) -> Group | None:
        if self._groups is None:
            self._groups = iter(self._batcher.batches(self._samples()))
        try:
            samples = next(self._groups, None)
        except Exception:
            self._groups = None  # It is over; a new one gets what waits.
            self._again = deque([*self._waiting.values(), *self._again])
            self._forget()
            raise
        if samples is not None:
            return self._named(samples)
        self._groups = None
        self.dropped += len(self._waiting)
        self._forget()
        return None

    def pending(self) -> list[Token]:
        return [token for token, _ in (*self._waiting.values(), *self._again)]

    def _samples(self) -> Iterator[Sample]:
        while True:
            if self._again:
                token, sample = self._again.popleft()
            else:
                tokens, samples, _ = self._read(1)
                if not samples:
                    return
                token, sample = tokens[0], samples[0]
            if self._is_tracked:
                self._waiting[self._number] = (token, sample)
                self._numbers.setdefault(id(sample), deque()).append(self._number)
                self._number += 1
                if len(self._waiting) == _MANY:
                    logger.warning(
                        "%s keeps %d samples. If it drops samples, set its `resumable` to False: "
                        "they count as waiting now.",
                        type(self._batcher).__name__,
                        _MANY,
                    )
            yield sample

    def _named(self, samples: list[Sample]) -> Group:
        """The group, with tokens; its samples wait no longer."""
        group = samples if isinstance(samples, Group) else Group(samples)
        if not self._is_tracked:
            return group
        tokens = []
        for sample in samples:
            numbers = self._numbers.get(id(sample))
            if not numbers:
                raise DataError(
                    f"{type(self._batcher).__name__} gave out a sample that it was not given: a "
                    f"copy, perhaps, or the same one twice. Set its attribute `resumable` to False "
                    f"if that is meant; a loader then can't save its place."
                )
            number = numbers.popleft()
            if not numbers:
                del self._numbers[id(sample)]
            tokens.append(self._waiting.pop(number)[0])
        group.tokens = tokens
        return group

    def _forget(self) -> None:
        self._waiting.clear()
        self._numbers.clear()
