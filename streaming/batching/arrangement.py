"""What a batching method gives: where batches take their samples from."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

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
        tail: Row from which on ranks may have less than others; None: `full`.

    Attributes:
        num_rows: Rows of the whole epoch.
        tail: See above.
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
        tail: int | None = None,
    ) -> None:
        self.world, self.batch_size, self._parts = world, batch_size, parts
        self.num_rows, self.tail = rows, full if tail is None else tail
        self._whole = full
        self._counted = world.num_ranks * (named_batch_size or batch_size)
        self._is_named = named_batch_size is not None
        self._skip = self.rows_done(seen)
        if self._skip < rows and (again := seen - self.seen_after(self._skip)):
            notes += (
                f"{seen} samples seen is not a multiple of a global batch of {self._counted}: "
                f"{again} of them come again.",
            )
        super().__init__(world, batch_size, rows - self._skip, max(full - self._skip, 0), notes)
        self._offsets = np.cumsum([0] + [source.size for source in sources])

    def rows_done(self, seen: int) -> int:
        """How many rows of the whole epoch are filled by samples that all ranks have had."""
        rows = seen // self._counted
        if self._is_named or rows < self._whole:
            return min(rows, self.num_rows)
        return self._whole + int(np.searchsorted(self._tail_ends, seen, "right"))

    def seen_after(self, rows: int) -> int:
        """Samples that all ranks together have had after some rows of the whole epoch."""
        if self._is_named or rows <= self._whole:
            return rows * self._counted
        return int(self._tail_ends[rows - self._whole - 1])

    @cached_property
    def _tail_ends(self) -> Ids:
        """Samples that all ranks have had at the end of each row that has padding."""
        tail = np.arange(self._whole, self.num_rows)
        return self._whole * self._counted + np.cumsum(
            self.count_between(tail, 0, self.world.num_ranks * self.batch_size)
        )

    def count_between(self, row: Ids, start: int, stop: int) -> Ids:
        """How many places of rows of the whole epoch are not padding, of all ranks' in a line.

        Args:
            row: Rows, shape (n,).
            start: First place of the rows, which have `num_ranks * batch_size`.
            stop: Place before which to end.
        """
        size, count = self.batch_size, np.zeros_like(row)
        for rank in range(start // size, -(-stop // size)):
            node, rank_of_node = divmod(rank, self.world.ranks_per_node)
            # In the part of a rank, padding comes last.
            count += np.clip(
                self._real_count(row, node, rank_of_node) - max(start - rank * size, 0),
                0,
                min(stop, (rank + 1) * size) - max(start, rank * size),
            )
        return count

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        ranks = self.world.ranks_per_node
        return self.reads_by(range(node * ranks, (node + 1) * ranks))

    def reads_by(self, ranks: Collection[int]) -> list[tuple[int, ...] | None]:
        """As `reads`, for some ranks, counted through the nodes."""
        return [None] * len(self._parts)

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        row, node, rank, place = np.broadcast_arrays(row + self._skip, node, rank, place)
        out = np.full(row.shape, -1, np.int64)
        real = np.flatnonzero(row < self.num_rows)
        out.flat[real] = self._real_positions(
            row.flat[real], node.flat[real], rank.flat[real], place.flat[real]
        )
        return out

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        out = np.zeros(row.shape, np.int64)
        real = np.flatnonzero(row + self._skip < self.num_rows)
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
