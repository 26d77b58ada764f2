"""Groups of a fixed number of samples, in order."""

from collections.abc import Iterable, Sequence
from itertools import islice

from streaming.dataflow.base import Group, Sample, Token
from streaming.dataflow.batchers.pooled import Pool, PoolBatcher, Size
from streaming.errors import ConfigError

__all__ = ["SimpleBatcher"]


class SimpleBatcher(PoolBatcher):
    """Puts samples together as they come.

    Args:
        batch_size: Samples of a group.
        drop_last: Whether to drop a last group that is too short, rather than to give it out.

    Raises:
        ConfigError: `batch_size` is below 1.
    """

    def __init__(self, batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ConfigError(f"`batch_size` must be at least 1, but is {batch_size}.")
        self.batch_size = batch_size
        self.drop_last = drop_last

    def open(self) -> Pool:
        return _SimplePool(self.batch_size, self.drop_last)


class _SimplePool(Pool):
    def __init__(self, batch_size: int, drop_last: bool) -> None:
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._tokens: list[Token] = []
        self._samples: list[Sample] = []
        self._whole: tuple[Sequence[Token], Sequence[Sample]] | None = None

    def want(self) -> int:
        return 0 if self._whole else self._batch_size - len(self._samples)

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        if len(samples) == self._batch_size and isinstance(tokens, Sequence):
            self._whole = (tokens, samples)  # Needs no look at its parts.
        else:
            self._tokens += islice(tokens, len(samples))
            self._samples += samples

    def choose(self, ended: bool) -> Group | None:
        tokens, samples = self._whole or (self._tokens, self._samples)
        is_short = len(samples) < self._batch_size
        if not samples or (is_short and not ended):
            return None
        group = Group(samples)
        group.tokens = tokens
        self._tokens, self._samples, self._whole = [], [], None
        if is_short and self._drop_last:
            self.dropped += len(group)
            return None
        return group

    def pending(self) -> list[Token]:
        return list(self._whole[0] if self._whole else self._tokens)
