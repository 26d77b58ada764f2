"""Each global batch comes from one stream; streams take turns at random."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from streaming.batching.arrangement import Arrangement, Source, StreamLayout
from streaming.batching.turns import ByTurns, TakeTurns
from streaming.batching.work import Dataset, generate
from streaming.idmap import Ids
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.sampling import Share, has_own_sizes
from streaming.world import World

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["PerStreamLayout", "arrange", "generate_work_per_stream_batching"]


class PerStreamLayout(StreamLayout):
    """A row is one row of one stream's own partition.

    What doesn't fill a stream's last row is left out. A stream too small for a single row has one
    with padding, at the end of the epoch.

    Args:
        spec: The order.
        sources: The sources.
        parts: Partition of each source.
        sizes: Samples of a rank's batch of each source.
        full: Rows that are not padded.
        turns: Whose turn it is in each of them; one lane.
        world: The nodes, ranks and workers it is for.
        at: Where to begin.
        named_batch_size: Samples by which a rank's batch is counted; None: as many as it has.
    """

    def __init__(
        self,
        spec: "OrderSpec",
        sources: Sequence[Source],
        parts: Sequence[Layout],
        sizes: Ids,
        full: int,
        turns: TakeTurns,
        world: World,
        at: "Position",
        named_batch_size: int | None = None,
    ) -> None:
        self._sizes = sizes
        self._turns = turns
        self._full = full
        self._tiny = np.flatnonzero(np.array([part.full for part in parts], np.int64) == 0)
        notes: tuple[str, ...] = ()
        if len(self._tiny):
            notes = (
                f"{len(self._tiny)} of {len(parts)} streams have less than a global batch of "
                f"{world.num_ranks * spec.batch_size} samples in an epoch. Each gives one batch "
                f"that is not full, at the end.",
            )
        slots = int(sizes.max()) if len(sizes) else spec.batch_size
        super().__init__(
            world,
            slots,
            parts,
            sources,
            full + len(self._tiny),
            full if (sizes == slots).all() else 0,
            at.seen,
            notes,
            named_batch_size,
            full,
        )

    def reads_by(self, ranks: Collection[int]) -> list[tuple[int, ...] | None]:
        nodes = {rank // self.world.ranks_per_node for rank in ranks}
        return [_united([part.reads(node)[0] for node in nodes]) for part in self._parts]

    def _who(self, row: Ids) -> tuple[Ids, Ids]:
        """The source of each row, and how many rows of it came before."""
        source, before = np.empty_like(row), np.zeros_like(row)
        is_full = row < self._full
        rows = row[is_full]
        source[is_full], before[is_full] = self._turns(np.zeros_like(rows), rows)
        source[~is_full] = self._tiny[row[~is_full] - self._full]
        return source, before

    def _real_count(self, row: Ids, node: int, rank: int) -> Ids:
        source, _ = self._who(row)
        counts = self._sizes[source]
        first = np.zeros(1, np.int64)
        for i in np.flatnonzero(row >= self._full).tolist():
            counts[i] = self._parts[source[i]].count(first, node, rank)[0]
        return counts

    def _real_positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        source, turn = self._who(row)
        source = np.where(place < self._sizes[source], source, -1)

        def find(i: int, mine: Ids) -> Ids:
            return self._parts[i].positions(turn[mine], node[mine], rank[mine], place[mine])

        return self._collect(source, find)


def _united(reads: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The canonical nodes that are read by any of these; None: it may be any."""
    if any(canonical is None for canonical in reads):
        return None
    return tuple(sorted({each for canonical in reads for each in canonical or ()}))


def arrange(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Deal out each stream by itself."""
    named = spec.batch_size if has_own_sizes(shares) else None

    def deal(sources: Sequence[Source], sizes: Ids) -> list[Layout]:
        return [
            partition(
                PartitionSpec(
                    source.size, spec.canonical_nodes, world, size, initial_nodes=at.initial_nodes
                )
            )
            for source, size in zip(sources, sizes.tolist(), strict=True)
        ]

    def count(parts: Sequence[Layout], sizes: Ids) -> Ids:
        return np.array([part.full for part in parts], np.int64)

    def lay_out(
        sources: Sequence[Source], parts: list[Layout], sizes: Ids, full: int, turns: TakeTurns
    ) -> PerStreamLayout:
        return PerStreamLayout(spec, sources, parts, sizes, full, turns, world, at, named)

    partition = partitions.get(spec.partition_algo)
    return ByTurns(1, world.num_ranks, deal, count, lay_out).arrange(spec, shares, at)


def generate_work_per_stream_batching(
    dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch as an array: see `streaming.batching.generate_work`."""
    return generate("per_stream", dataset, world, epoch, sample_in_epoch)
