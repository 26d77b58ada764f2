"""Groups of samples that are padded to one of few lengths."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from streaming.dataflow.base import Group, Token
from streaming.dataflow.batchers.packing import (
    Entry,
    PackingBatcher,
    check_pool_size,
    collect,
    tokens_of,
)
from streaming.dataflow.batchers.pooled import Pool, Size
from streaming.errors import ConfigError

__all__ = ["BucketBatcher"]


class BucketBatcher(PackingBatcher):
    """Sorts samples into buckets by size; a bucket that is full goes out, padded to its edge.

    For models that should see few shapes: there is one for each edge, but for groups that are cut
    short. Groups come with `pad_to`.

    Args:
        max_tokens: The budget of a group: its edge times its count; the last edge is at most this.
        edges: Largest size of each bucket, rising. None: from `shortest` on, each `growth` times
            the one before, up to `max_tokens`.
        growth: See `edges`.
        shortest: See `edges`.
        pool_size: Samples that may wait. When there are more, the bucket with the oldest goes out
            as it is, so that rare sizes don't wait for ever.
        options: Those of PackingBatcher. A sample above the last edge is over the budget.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        max_tokens: Size,
        edges: Sequence[int] | None = None,
        *,
        growth: float = 1.2,
        shortest: int = 64,
        pool_size: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(max_tokens, **options)
        if edges is None:
            if not growth > 1 or shortest < 1:
                raise ConfigError(
                    f"`growth` must be above 1 and `shortest` at least 1, but they are {growth} "
                    f"and {shortest}."
                )
            edges = _grow(shortest, growth, int(max_tokens))
        if not edges or sorted(set(edges)) != list(edges) or not 0 < edges[0]:
            raise ConfigError(f"`edges` must be positive and rise, but are {list(edges)}.")
        self.edges = [int(self.row(edge)) for edge in edges]
        if self.edges[-1] > max_tokens:
            raise ConfigError(
                f"The last edge, with padding {self.edges[-1]}, must be within the budget of "
                f"{max_tokens}."
            )
        self.pool_size = check_pool_size(pool_size)

    def open(self) -> Pool:
        return _BucketPool(self)

    def is_over(self, size: Size) -> bool:
        return size > self.edges[-1]

    def edge(self, size: Size) -> int | None:
        """What a sample of this size is padded to; None above the last edge."""
        return None if self.is_over(size) else self.edges[bisect_left(self.edges, size)]

    def capacity(self, edge: int) -> int:
        """How many samples a bucket takes."""
        count = max(int(self.budget(edge) // edge), 1)
        return min(count, self.max_batch_size) if self.max_batch_size else count


class _Bucket:
    """Samples that go out together."""

    __slots__ = ("edge", "entries", "extras")

    def __init__(self, edge: int | None, extras: tuple[float, ...]) -> None:
        self.edge = edge
        self.entries: list[Entry] = []
        self.extras = extras


class _BucketPool(Pool):
    def __init__(self, batcher: BucketBatcher) -> None:
        self._batcher = batcher
        self._arrived: dict[Entry, _Bucket] = {}
        self._buckets: dict[tuple[int | None, Any], _Bucket] = {}
        self._full: list[_Bucket] = []

    def want(self) -> int:
        return 0 if self._full or len(self._arrived) > self._batcher.pool_size else 1

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Any],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        for entry in self._batcher.enter(self, tokens, samples, sizes):
            self._take_in(entry)

    def choose(self, ended: bool) -> Group | None:
        if self._full:
            return self._take_out(self._full.pop(0))
        if self._arrived and (ended or len(self._arrived) > self._batcher.pool_size):
            entry, bucket = next(iter(self._arrived.items()))
            del self._buckets[bucket.edge, entry.modality]
            return self._take_out(bucket)
        return None

    def pending(self) -> list[Token]:
        return tokens_of(self._arrived)

    def _take_in(self, entry: Entry) -> None:
        batcher = self._batcher
        edge = batcher.edge(entry.size)
        key = (edge, entry.modality)
        bucket = self._buckets.get(key)
        if bucket is not None and not batcher.fits(bucket.extras, entry):
            self._full.append(self._buckets.pop(key))
            bucket = None
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(edge, (0.0,) * len(batcher.budgets))
        self._arrived[entry] = bucket
        bucket.entries.append(entry)
        bucket.extras = tuple(
            have + more for have, more in zip(bucket.extras, entry.extras, strict=True)
        )
        if edge is None or len(bucket.entries) == batcher.capacity(edge):
            self._full.append(self._buckets.pop(key))

    def _take_out(self, bucket: _Bucket) -> Group:
        for entry in bucket.entries:
            del self._arrived[entry]
        return collect(bucket.entries, bucket.edge)


def _grow(shortest: int, growth: float, longest: int) -> list[int]:
    edges = [min(shortest, longest)]
    while edges[-1] < longest:
        edges.append(min(max(int(edges[-1] * growth), edges[-1] + 1), longest))
    return edges
