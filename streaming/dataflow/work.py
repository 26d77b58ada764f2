"""How the samples of one logical stream are made of items, and what they are called."""

from collections.abc import Callable, Iterable, Sequence

from streaming.dataflow.base import RawItem, Sample, SkipItem, Token, wants_rng
from streaming.dataflow.batchers.pooled import PoolBatcher, Size
from streaming.dataflow.processors.basic import IdentityProcessor
from streaming.dataflow.roles import Roles
from streaming.dataflow.seeding import generator, seed_everything
from streaming.errors import StateError

__all__ = ["Work"]

_ALL = -1  # In place of the number of a sample: all that are made of its item.


class Work:
    """How one logical stream makes samples of items, and names them.

    Attributes:
        is_trivial: Whether the item is the sample.
        is_late: Whether sizes are told before the work, so that the work waits for the group.
        simple: What makes the sample, if nothing but the item is needed; None otherwise.
    """

    def __init__(self, roles: Roles, stream: int) -> None:
        processor, batcher = roles.processor, roles.batcher
        self._expand: Callable[..., Iterable[Sample]] | None = getattr(processor, "expand", None)
        pooled = batcher if isinstance(batcher, PoolBatcher) else None
        self._pieces = pooled.pieces if pooled is not None and pooled.splits else None
        self._process: Callable[..., Sample | None] = processor.process
        self._key = (roles.seed, stream)
        self._rng = wants_rng(processor)
        self._seeds = roles.seed_globals
        self._levels = (self._expand is not None) + (self._pieces is not None)
        size: Callable[[RawItem], Size] | None = getattr(processor, "size", None)
        wants_sizes = pooled is not None and pooled.wants_sizes
        self._measure = pooled.sample_size if pooled is not None and wants_sizes else None
        self.is_late = size is not None and wants_sizes and not self._levels
        self._size = size
        is_simple = not (self._levels or self._rng or self._seeds or self.is_late)
        self.simple = self._process if is_simple else None
        self.is_trivial = is_simple and type(processor) is IdentityProcessor

    def size(self, item: RawItem) -> Size:
        """What the sample of an item will cost."""
        assert self._size is not None
        return self._size(item)

    def measure(self, samples: Sequence[Sample]) -> list[Size] | None:
        """The sizes of what waits in the batcher, if it has any."""
        measure = self._size if self.is_late else self._measure
        return None if measure is None else [measure(sample) for sample in samples]

    def make(self, token: Token, item: RawItem) -> list[Sample]:
        """All samples of an item."""
        options = {"rng": generator(*self._key, token)} if self._rng else {}
        if self._seeds:
            seed_everything(*self._key, token)
        try:
            if self._expand is not None:
                samples = list(self._expand(item, **options))
            else:
                samples = [self._process(item, **options)]
        except SkipItem:
            return []
        return [sample for sample in samples if sample is not None]

    def named(self, token: Token, samples: Sequence[Sample]) -> list[tuple[Token, Sample]]:
        """Samples of an item, cut where the batcher wants it, each with its own token."""
        base = token if isinstance(token, tuple) else (token,)
        named = [
            ((*base, number) if self._expand is not None else token, sample)
            for number, sample in enumerate(samples)
        ]
        if self._pieces is None:
            return named
        return [
            ((*(name if isinstance(name, tuple) else (name,)), number), piece)
            for name, sample in named
            for number, piece in enumerate(self._pieces(sample))
        ]

    def base(self, token: Token) -> Token:
        """The token of the item that a sample was made of."""
        if not self._levels:
            return token
        if not isinstance(token, tuple) or len(token) <= self._levels:
            raise StateError(f"The state names sample {token!r:.100}, which lacks its number.")
        base = token[: -self._levels]
        return base[0] if len(base) == 1 else base

    def whole(self, token: Token) -> Token:
        """A token that stands for all samples of an item."""
        if not self._levels:
            return token
        return (*(token if isinstance(token, tuple) else (token,)), *(_ALL,) * self._levels)
