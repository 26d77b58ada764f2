"""Rows of exactly the same length: samples one after another, cut where a row ends."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from streaming.dataflow.base import Group, Json, Sample, Token
from streaming.dataflow.batchers.pooled import Pool, PoolBatcher, Size
from streaming.dataflow.state import Count, parse_part
from streaming.errors import ConfigError, StateError

__all__ = ["ConcatBatcher"]

_KEYS = ("input_ids", "labels", "attention_mask", "token_mask")


class ConcatBatcher(PoolBatcher):
    """Concatenates samples in order and cuts after every `max_tokens` tokens.

    Nothing is padded or left out, but documents are cut. A group holds pieces: copies of the sample
    with the keys of its sequence sliced; `offsets` of the group says where each piece begins in its
    document.

    Args:
        max_tokens: Tokens of a row.
        keys: Keys of a sample that have one value a token. The first gives the length; others may
            be missing.
        drop_last: Whether to drop a last row that is too short, rather than to give it out.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self, max_tokens: int, keys: Sequence[str] = _KEYS, *, drop_last: bool = False
    ) -> None:
        if max_tokens < 1:
            raise ConfigError(f"`max_tokens` must be at least 1, but is {max_tokens}.")
        if isinstance(keys, str) or not keys:
            raise ConfigError(f"`keys` must be a list of at least one key, but is {keys!r}.")
        self.max_tokens = max_tokens
        self.keys = tuple(keys)
        self.drop_last = drop_last

    def sample_size(self, sample: Sample) -> int:
        """Tokens of a sample."""
        return len(sample[self.keys[0]])

    def open(self) -> Pool:
        return _ConcatPool(self)


class _ConcatPool(Pool):
    """Documents that are not used up, and how far the first one is."""

    def __init__(self, batcher: ConcatBatcher) -> None:
        self._batcher = batcher
        self._queue: deque[tuple[Token, Sample, int]] = deque()
        self._used = 0
        self._total = 0  # tokens in the queue that are not used

    def want(self) -> int:
        return 0 if self._total >= self._batcher.max_tokens else 1

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        for token, sample in zip(tokens, samples, strict=False):
            size = self._batcher.sample_size(sample)
            if size:
                if not self._queue:
                    if self._used >= size:
                        raise StateError(
                            f"The state has a document of which {self._used} tokens are used, but "
                            f"it has {size}. Were the data, or the processor, changed?"
                        )
                    self._total = -self._used  # Of a document that comes back after a resume.
                self._queue.append((token, sample, size))
                self._total += size

    def choose(self, ended: bool) -> Group | None:
        room = self._batcher.max_tokens
        if self._total < room:
            if not ended or not self._queue:
                return None
            if self._batcher.drop_last:
                self.dropped += len(self._queue)
                self._queue.clear()
                self._used = self._total = 0
                return None
        group = Group()
        tokens: list[Token] = []
        sizes: list[Size] = []
        offsets: list[int] = []
        while room and self._queue:
            token, sample, size = self._queue[0]
            stop = min(size, self._used + room)
            group.append(self._piece(sample, self._used, stop, size))
            tokens.append(token)
            sizes.append(stop - self._used)
            offsets.append(self._used)
            room -= stop - self._used
            self._total -= stop - self._used
            self._used = stop
            if stop == size:
                self._queue.popleft()
                self._used = 0
        group.tokens, group.sizes, group.offsets = tokens, sizes, offsets
        return group

    def pending(self) -> list[Token]:
        return [token for token, _, _ in self._queue]

    def state_dict(self) -> Json:
        return self._used

    def load_state_dict(self, state: Json) -> None:
        self._used = parse_part(state, Count, "The place in a document")

    def _piece(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        if (start, stop) == (0, size):
            return sample
        piece: dict[str, Any] = dict(sample)
        for key in self._batcher.keys:
            if key in piece:
                piece[key] = piece[key][start:stop]
        return piece
