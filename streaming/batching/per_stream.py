"""Each global batch comes from one stream; streams take turns at random."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streaming.batching.arrangement import (
    Arrangement,
    Source,
    StreamLayout,
    batch_sizes,
    make_sources,
)
from streaming.batching.turns import (
    TakeTurns,
    epoch_course,
    has_schedules,
    make_turns,
    scheduled_turns,
    turns_key,
)
from streaming.batching.work import Dataset, generate
from streaming.idmap import Ids
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.sampling import Share
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
            spec.batch_size,
        )

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        return [part.reads(node)[0] for part in self._parts]

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


def arrange(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Deal out each stream by itself."""
    sizes = batch_sizes(shares, spec.batch_size)
    if has_schedules(shares):
        return _arrange_scheduled(spec, shares, sizes, world, at)
    sources = make_sources(
        [share.choose for share in shares],
        [share.proportion for share in shares],
        spec.block_size,
    )
    sizes = sizes[[source.stream for source in sources if source.stream is not None]]
    parts = _deal(spec, sources, sizes, world, at)
    counts = np.array([part.full for part in parts], np.int64)
    turns = make_turns(spec, at.epoch, counts, 1)
    full = int(counts.sum())
    return Arrangement(
        PerStreamLayout(spec, sources, parts, sizes, full, turns, world, at), sources
    )


def _arrange_scheduled(
    spec: "OrderSpec", shares: Sequence[Share], sizes: Ids, world: World, at: "Position"
) -> Arrangement:
    """Let schedules say how many whole rows each stream has."""
    unit = world.num_ranks * spec.batch_size
    samples = sum(share.choose for share in shares)
    rows = max(samples // unit, min(samples, 1))
    course = epoch_course(shares, at.epoch, unit, sizes)
    turns, counts, there = scheduled_turns(course, np.array([rows]), turns_key(spec, at.epoch))
    sources = make_sources(
        (counts * world.num_ranks * sizes).tolist(),
        (counts / max(rows, 1)).tolist(),
        spec.block_size,
    )
    parts = _deal(spec, sources, sizes[there], world, at)
    layout = PerStreamLayout(spec, sources, parts, sizes[there], rows, turns, world, at)
    return Arrangement(layout, sources)


def _deal(
    spec: "OrderSpec", sources: Sequence[Source], sizes: Ids, world: World, at: "Position"
) -> list[Layout]:
    partition = partitions.get(spec.partition_algo)
    return [
        partition(
            PartitionSpec(
                source.size, spec.canonical_nodes, world, size, initial_nodes=at.initial_nodes
            )
        )
        for source, size in zip(sources, sizes.tolist(), strict=True)
    ]


def generate_work_per_stream_batching(
    dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch as an array: see `streaming.batching.generate_work`."""
    return generate("per_stream", dataset, world, epoch, sample_in_epoch)
