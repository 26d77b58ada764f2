"""How the samples of a plan are given out: block by block, in the shape that was asked for.

An output makes what users see of one block of slots. Which there are: single samples, samples one
by one through a user's method, lists a batch, columns a batch, and stacks for a loader. `iterate`
is the loop over blocks, while the next shards are on their way.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from streaming.format.column import Column, Stack, slice_columns
from streaming.format.reader import Sample
from streaming.plan import EpochPlan
from streaming.prefetch import Prefetcher
from streaming.runtime import Runtime

__all__ = [
    "BlockSizes",
    "BlockSource",
    "ColumnBatches",
    "Lists",
    "Output",
    "Samples",
    "StackedBatch",
    "StackedBatches",
    "Stacks",
    "iterate",
]

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stacks:
    """How a loader wants batches: nearly collated (see `StackedBatch`), or as lists of samples.

    Attributes:
        batch_size: Samples of each.
        drop_last: Whether to leave out a last one that has fewer.
        is_by_rows: Whether each is what the plan has for a batch, though it may have fewer samples
            there than elsewhere.
        is_listed: Whether lists are wanted.
    """

    batch_size: int
    drop_last: bool
    is_by_rows: bool = False
    is_listed: bool = False


class StackedBatch:
    """A batch of samples by columns, as a loader hands it to its own collate.

    Attributes:
        size: Samples.
        columns: See `ShardReader.take_stacked`. None: `samples` is all that is known.
        samples: The samples, if there are no columns.
    """

    __slots__ = ("columns", "samples", "size")

    def __init__(
        self, size: int, columns: dict[str, Stack] | None, samples: list[Sample] | None = None
    ) -> None:
        self.size = size
        self.columns = columns
        self.samples = samples or []


class Output(Protocol):
    """Makes of a block what the user sees."""

    def __call__(self, slots: Ids, ids: Ids, is_last: bool) -> Iterable[Any]:
        """What the next block gives.

        Args:
            slots: Of a worker, in their order: a sample's id, or less than 0 for padding.
            ids: Those that are samples.
            is_last: Whether no sample comes after them.
        """
        ...


class Samples:
    """One sample after another.

    Args:
        take: Gives the samples of some ids.
    """

    def __init__(self, take: Callable[[Ids], Iterable[Any]]) -> None:
        self._take = take

    def __call__(self, slots: Ids, ids: Ids, is_last: bool) -> Iterable[Any]:
        """See `Output`."""
        return self._take(ids)


class Lists:
    """A batch after another, which may have as many samples as the plan has there.

    Args:
        take: Gives the samples of a batch.
        batch_size: Slots of each, with padding.
    """

    def __init__(self, take: Callable[[Ids], Any], batch_size: int) -> None:
        self._take = take
        self._batch_size = batch_size

    def __call__(self, slots: Ids, ids: Ids, is_last: bool) -> Iterable[Any]:
        """See `Output`."""
        return (
            self._take(batch[batch >= 0])
            for batch in slots.reshape(-1, self._batch_size)
            if (batch >= 0).any()
        )


class _Batches:
    """Batches that may go over the ends of blocks.

    Args:
        runtime: Reads samples.
        batch_size: Samples of each.
        drop_last: Whether to leave out a last one that has fewer.
        is_by_rows: See `Stacks`; blocks are whole batches then.
    """

    def __init__(
        self,
        runtime: Runtime,
        batch_size: int,
        *,
        drop_last: bool = False,
        is_by_rows: bool = False,
    ) -> None:
        self._runtime = runtime
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._is_by_rows = is_by_rows
        self._rest: Ids = np.empty(0, np.int64)

    def __call__(self, slots: Ids, ids: Ids, is_last: bool) -> Iterable[Any]:
        """See `Output`."""
        if self._is_by_rows and len(ids) < len(slots):
            sizes = (slots.reshape(-1, self._batch_size) >= 0).sum(axis=1)
            stops = np.cumsum(sizes[sizes > 0]).tolist()
            return self._cut(ids, list(itertools.pairwise([0, *stops])))
        ids = np.concatenate([self._rest, ids]) if len(self._rest) else ids
        is_cut = not is_last or self._drop_last
        whole = len(ids) // self._batch_size * self._batch_size if is_cut else len(ids)
        ids, self._rest = ids[:whole], ids[whole:]
        starts = range(0, whole, self._batch_size)
        return self._cut(ids, [(start, min(start + self._batch_size, whole)) for start in starts])

    def _cut(self, ids: Ids, bounds: Sequence[tuple[int, int]]) -> Iterator[Any]:
        """Read some samples now, so that what fails ends the iteration, and cut them into batches.

        Args:
            ids: Of whole batches.
            bounds: Where each of them starts and stops.
        """
        raise NotImplementedError


class ColumnBatches(_Batches):
    """Batches as dicts of columns."""

    def _cut(self, ids: Ids, bounds: Sequence[tuple[int, int]]) -> Iterator[dict[str, Column]]:
        columns = self._runtime.take_parts(ids)
        return (slice_columns(columns, *each) for each in bounds)


class StackedBatches(_Batches):
    """Batches for a loader; see `StackedBatch`."""

    def _cut(self, ids: Ids, bounds: Sequence[tuple[int, int]]) -> Iterator[StackedBatch]:
        columns = self._runtime.take_stacked(ids)
        if columns is None:
            samples = self._runtime.take(ids)
            return (StackedBatch(b - a, None, samples[a:b]) for a, b in bounds)
        return (
            StackedBatch(b - a, {name: stack[a:b] for name, stack in columns.items()})
            for a, b in bounds
        )


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """How many slots are decoded at once.

    Attributes:
        least: Slots of the first, which is a batch if that is not huge, so that it comes soon.
        most: Slots that later ones may have, as they become larger.
        most_bytes: Bytes that the samples of one may have.
        is_whole: Whether each has a multiple of `least`.
    """

    least: int
    most: int
    most_bytes: int
    is_whole: bool

    def cut(self, num_slots: int, mean_bytes: Callable[[], int]) -> Iterator[tuple[int, int]]:
        """Blocks one after another, as [start, stop).

        Args:
            num_slots: Slots in all.
            mean_bytes: Bytes of a sample as far as that is known now; 0: not yet.
        """
        start, size, most = 0, self.least, self.most
        while start < num_slots:
            yield start, min(start + size, num_slots)
            start += size
            if found := mean_bytes():
                most = min(most, self.most_bytes // found)
            size = max(min(2 * size, most), self.least)
            size -= size % self.least if self.is_whole else 0


def iterate(
    plan: EpochPlan,
    blocks: Iterable[tuple[int, int]],
    runtime: Runtime,
    prefetcher: Prefetcher,
    output: Output,
) -> Iterator[Iterable[Any]]:
    """Give out the samples of a plan by blocks.

    Args:
        plan: Of this process.
        blocks: How its slots are cut.
        runtime: Reads samples.
        prefetcher: Brings the shards of the plan.
        output: What is given out.
    """
    left = plan.num_samples  # What comes after them is padding.
    for start, stop in blocks:
        if not left:
            return
        if start:  # The first shards come alone, so that they come soon.
            prefetcher.advance(start)
        slots = plan.ids(start, stop)
        ids = slots if slots.min(initial=0) >= 0 else slots[slots >= 0]
        left -= len(ids)
        if not runtime.cache.is_inert():  # Else nothing can be missing.
            prefetcher.wait(runtime.spanner.shards(ids))
        if not start:
            prefetcher.advance(start)
        yield output(slots, ids, not left)


class BlockSource(itertools.chain[Any]):
    """What blocks hold one after another; what a generator takes 20 ns each for, in C.

    Closes like one, too; then at most the rest of a block comes.
    """

    _blocks: Generator[Iterable[Any], None, None]

    @classmethod
    def of(cls, blocks: Generator[Iterable[Any], None, None]) -> "BlockSource":
        """That of blocks that are made when their turn comes."""
        samples = cast(BlockSource, cls.from_iterable(blocks))
        samples._blocks = blocks
        return samples

    def close(self) -> None:
        """End what brings the next blocks."""
        self._blocks.close()
