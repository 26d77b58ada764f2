"""What a batching method gives: where batches take their samples from."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streaming.errors import ConfigError
from streaming.idmap import Ids, grouped
from streaming.partition.layout import Layout
from streaming.sampling import Share
from streaming.world import World

__all__ = ["Arrangement", "Source", "StreamLayout", "batch_sizes", "make_sources"]


@dataclass(frozen=True, slots=True)
class Source:
    """A sequence of draws that is shuffled by itself.

    Attributes:
        stream: The stream it is drawn from; None: all of them.
        size: Draws.
        block_size: Draws over which a shuffle spreads a sample.
    """

    stream: int | None
    size: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The batches of an epoch, before anything is shuffled.

    Attributes:
        layout: Gives the position of each slot. Positions count through the sources.
        sources: In order.
    """

    layout: Layout
    sources: tuple[Source, ...]


def make_sources(
    sizes: Sequence[int], proportions: Sequence[float], block_size: int
) -> tuple[Source, ...]:
    """A source for each stream that contributes; blocks are smaller for a smaller stream.

    Args:
        sizes: Draws of each stream.
        proportions: Share of each stream in the epoch.
        block_size: Draws over which a shuffle would spread a sample of all streams together.
    """
    return tuple(
        # At 0 and 1 there is nothing to spread over; shuffles with blocks take 2 and more.
        Source(i, size, max(int(block_size * proportion), 2))
        for i, (size, proportion) in enumerate(zip(sizes, proportions, strict=True))
        if size
    )


def batch_sizes(shares: Sequence[Share], batch_size: int) -> Ids:
    """Samples of a rank's batch of each stream, shape (streams,)."""
    return np.array([share.batch_size or batch_size for share in shares], np.int64)


def refuse_batch_sizes(shares: Sequence[Share], method: str) -> None:
    """Make sure that no stream has a batch size of its own.

    Raises:
        ConfigError: One has.
    """
    for i, share in enumerate(shares):
        if share.batch_size is not None:
            raise ConfigError(
                f"Stream {i} has a `batch_size` of its own ({share.batch_size}), but with "
                f"`{method}` batching no batch is of one stream. Use `per_stream` or "
                f"`device_per_stream`, or leave it out."
            )


class StreamLayout(Layout):
    """Base of layouts whose rows are put together from the partitions of single streams.

    Where streams have batch sizes of their own, a row has places for the largest, and a place in
    the epoch is counted as if all batches had the size that the order names: all ranks must agree
    on it, whatever stream each of them has read.

    Args:
        world: The nodes, ranks and workers it is for.
        batch_size: Places of a rank in a row.
        parts: Partition of each source.
        sources: The sources.
        rows: Rows of the whole epoch.
        full: Rows of the whole epoch without padding, from the first.
        seen: Samples that were given out before; rows that they fill are left out.
        notes: What a user should know.
        named_batch_size: Samples by which a rank's batch is counted in `seen`; None: as many as it
            has, which are less in rows with padding.
    """

    def __init__(
        self,
        world: World,
        batch_size: int,
        parts: Sequence[Layout],
        sources: Sequence[Source],
        rows: int,
        full: int,
        seen: int,
        notes: tuple[str, ...] = (),
        named_batch_size: int | None = None,
    ) -> None:
        self.world, self.batch_size, self._parts = world, batch_size, parts
        size = world.num_ranks * (named_batch_size or batch_size)
        self._skip = min(seen // size, rows)
        if named_batch_size is None and self._skip >= full:
            self._skip = full + self._padded_rows(seen // world.num_ranks, full, rows)
        elif seen % size:
            notes += (
                f"{seen} samples seen is not a multiple of a global batch of {size}: "
                f"{seen % size} of them come again.",
            )
        self._end = rows
        super().__init__(world, batch_size, rows - self._skip, max(full - self._skip, 0), notes)
        self._offsets = np.cumsum([0] + [source.size for source in sources])

    def _padded_rows(self, seen: int, full: int, rows: int) -> int:
        """How many of the rows that have padding are done when each rank has had `seen` samples.

        Ranks may have less of such a row than others; it is done when those with most of it are.
        """
        tail, world = np.arange(full, rows), self.world
        most = np.zeros_like(tail)
        for node, rank in itertools.product(range(world.num_nodes), range(world.ranks_per_node)):
            most = np.maximum(most, self._real_count(tail, node, rank))
        ends = full * self.batch_size + np.cumsum(most)
        return int(np.searchsorted(ends, seen, "right"))

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        return [None] * len(self._parts)

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        row, node, rank, place = np.broadcast_arrays(row + self._skip, node, rank, place)
        out = np.full(row.shape, -1, np.int64)
        real = np.flatnonzero(row < self._end)
        out.flat[real] = self._real_positions(
            row.flat[real], node.flat[real], rank.flat[real], place.flat[real]
        )
        return out

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        out = np.zeros(row.shape, np.int64)
        real = np.flatnonzero(row + self._skip < self._end)
        out[real] = self._real_count(row[real] + self._skip, node, rank)
        return out

    @abstractmethod
    def _real_count(self, row: Ids, node: int, rank: int) -> Ids:
        """`count` for rows of the whole epoch, shape (n,)."""

    @abstractmethod
    def _real_positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        """Positions at places of rows of the whole epoch; four arrays of shape (n,)."""

    def _collect(self, source: Ids, find: Callable[[int, Ids], Ids]) -> Ids:
        """Ask each source for its positions, and put them together.

        Args:
            source: The source of each place, shape (n,); -1 is padding.
            find: Gives the positions that a source has for some of these n places; -1 is padding.
        """
        out = np.full(source.shape, -1, np.int64)
        for i, mine in grouped(source):
            if i >= 0:
                found = find(i, mine)
                out[mine] = np.where(found < 0, -1, found + self._offsets[i])
        return out
