"""Deals the rows of an epoch to its ranks so that each has something of every row.

An epoch of rows that are made of single streams ends where some ranks have no batch any more, and
its rows follow from the ranks that there were when the run began. So that all ranks always have
equally many batches, and a run goes on with the same rows on any other ranks, rows are laid out
once and dealt anew.
"""

from itertools import pairwise

import numpy as np

from streaming.batching.arrangement import StreamLayout
from streaming.idmap import Ids
from streaming.partition import Layout
from streaming.world import World

__all__ = ["DealtLayout"]


class DealtLayout(Layout):
    """The rows of another layout, each cut evenly over the ranks of this world.

    A rank that would have nothing of a row is given what another rank has of it: each batch of a
    row is given once before one is given again. The epoch ends with the last row that has samples.

    Args:
        base: The whole epoch, as it was laid out for the ranks that the run began on.
        world: The nodes, ranks and workers there are now. Global batches of both are equal.
        seen: Samples that were given out before, by all ranks together. Of a row that they fill in
            part, all come again.
    """

    def __init__(self, base: StreamLayout, world: World, seen: int) -> None:
        batch_size = base.global_batch // world.num_ranks
        self._base = base
        self._first = first = base.rows_done(seen)
        self._tail = max(base.tail, first)
        ends = range(0, base.global_batch + 1, batch_size)
        rows = np.arange(self._tail, base.num_rows)
        counts = np.array(
            [base.count_between(rows, start, stop) for start, stop in pairwise(ends)]
        ).T
        counts = counts[counts.any(axis=1)]  # What is behind is padding for everybody.
        self._givers = _find_givers(counts)
        self._counts = np.take_along_axis(counts, self._givers, axis=1)
        self.refilled = int(self._counts.sum() - counts.sum())
        self.num_rows = self._tail + len(counts) - first
        # Rows that are full by what is given again don't count: on other ranks they may not be.
        full = max(base.full - first, 0)
        notes = base.notes
        if self.num_rows and (again := seen - base.seen_after(first)):
            notes += (
                f"{seen} samples seen do not end with a global batch: {again} of them come again.",
            )
        super().__init__(world, batch_size, self.num_rows, full, notes)

    def seen_after(self, rows: int) -> int:
        """Samples of the epoch that all ranks together have had after some more rows.

        Those that were given to several ranks count once. Equal for any ranks that read the same.
        """
        return self._base.seen_after(self._first + min(rows, self.num_rows))

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        ranks = np.arange(node * self.world.ranks_per_node, (node + 1) * self.world.ranks_per_node)
        own = {*ranks.tolist(), *self._givers[:, ranks].ravel().tolist()}
        size, base_size = self.batch_size, self._base.batch_size
        return self._base.reads_by(
            {
                base_rank
                for rank in own
                for base_rank in range(rank * size // base_size, -(-(rank + 1) * size // base_size))
            }
        )

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        rank += node * self.world.ranks_per_node
        row = row + self._first
        out = np.zeros(row.shape, np.int64)
        is_body = row < self._tail
        if self._base.full == self._base.tail:
            out[is_body] = self.batch_size
        else:
            start = rank * self.batch_size
            out[is_body] = self._base.count_between(row[is_body], start, start + self.batch_size)
        in_tail = np.flatnonzero(~is_body & (row < self._first + self.num_rows))
        out[in_tail] = self._counts[row[in_tail] - self._tail, rank]
        return out

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        row, rank, place = np.broadcast_arrays(
            row + self._first, node * self.world.ranks_per_node + rank, place
        )
        in_tail = row >= self._tail
        if in_tail.any():
            rank = rank.copy()
            in_tail &= row < self._first + self.num_rows
            rank[in_tail] = self._givers[row[in_tail] - self._tail, rank[in_tail]]
        base = self._base
        if self.batch_size != base.batch_size:
            rank, place = np.divmod(rank * self.batch_size + place, base.batch_size)
        found = base.positions(
            np.minimum(row, max(base.rows - 1, 0)),
            *np.divmod(rank, base.world.ranks_per_node),
            place,
        )
        return np.where(row < self._first + self.num_rows, found, -1)


def _find_givers(counts: Ids) -> Ids:
    """From which rank each rank takes its part of a row, shape (rows, ranks).

    Args:
        counts: Samples of each rank, of the same shape; no row is empty.
    """
    givers = np.tile(np.arange(counts.shape[1]), (len(counts), 1))
    for row in np.flatnonzero((counts == 0).any(axis=1)).tolist():
        empty, there = np.flatnonzero(counts[row] == 0), np.flatnonzero(counts[row])
        givers[row, empty] = there[np.arange(len(empty)) % len(there)]
    return givers
