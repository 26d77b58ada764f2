"""Each global batch holds every stream in proportion."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streaming.batching.arrangement import (
    Arrangement,
    Source,
    StreamLayout,
    make_sources,
    refuse_batch_sizes,
)
from streaming.batching.turns import epoch_course, has_schedules, turns_key
from streaming.batching.work import Dataset, generate
from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.mixing import Turns
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.sampling import Share
from streaming.world import World

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["ScheduledLayout", "StratifiedLayout", "arrange", "generate_work_stratified_batching"]


class StratifiedLayout(StreamLayout):
    """A row is a piece of each stream, side by side.

    The epoch ends with the first stream that can't fill its piece; the rest is left out.

    Args:
        counts: Samples of each source in a global batch.
    """

    def __init__(
        self,
        spec: "OrderSpec",
        sources: Sequence[Source],
        parts: Sequence[Layout],
        counts: Ids,
        world: World,
        at: "Position",
    ) -> None:
        self._ends = np.cumsum(counts)
        self._counts = counts
        self._entries = np.array([part.full * world.ranks_per_node for part in parts], np.int64)
        full = int(min(self._entries // counts, default=0))
        notes: tuple[str, ...] = ()
        if parts and not full:
            notes = (
                f"A stream has less samples in an epoch than its part of a global batch: there is "
                f"one batch, which is not full. Lower `batch_size` ({spec.batch_size}).",
            )
        rows = max(full, 1) if parts else 0
        super().__init__(world, spec.batch_size, parts, sources, rows, full, at.seen, notes)

    def count_between(self, row: Ids, start: int, stop: int) -> Ids:
        begin = self._ends - self._counts
        end = begin + np.clip(self._entries - row[:, None] * self._counts, 0, self._counts)
        overlap = np.minimum(end, stop) - np.maximum(begin, start)
        counts: Ids = np.maximum(overlap, 0).sum(axis=1)
        return counts

    def _real_count(self, row: Ids, node: int, rank: int) -> Ids:
        start = (node * self.world.ranks_per_node + rank) * self.batch_size
        return self.count_between(row, start, start + self.batch_size)

    def _real_positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        in_row = (node * self.world.ranks_per_node + rank) * self.batch_size + place
        source = np.searchsorted(self._ends, in_row, "right")

        def find(i: int, mine: Ids) -> Ids:
            count = self._counts[i]
            return self._parts[i].traverse((row[mine] + 1) * count + in_row[mine] - self._ends[i])

        return self._collect(source, find)


class ScheduledLayout(StreamLayout):
    """A row is a piece of each stream, side by side, as long as its schedule says at that place.

    Args:
        sources: The sources.
        parts: Partition of each source.
        turns: How many samples each stream has given by when.
        streams: Stream of each source.
    """

    def __init__(
        self,
        spec: "OrderSpec",
        sources: Sequence[Source],
        parts: Sequence[Layout],
        turns: Turns,
        world: World,
        at: "Position",
    ) -> None:
        self._turns = turns
        self._streams = [source.stream for source in sources if source.stream is not None]
        samples = sum(source.size for source in sources)
        rows = samples // (world.num_ranks * spec.batch_size)
        super().__init__(world, spec.batch_size, parts, sources, rows, rows, at.seen)

    def _real_count(self, row: Ids, node: int, rank: int) -> Ids:
        return np.full_like(row, self.batch_size)

    def _real_positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        in_row = (node * self.world.ranks_per_node + rank) * self.batch_size + place
        rows, number = np.unique(row, return_inverse=True)
        before = self._turns.counts(rows * self.global_batch)[:, self._streams]
        behind = self._turns.counts((rows + 1) * self.global_batch)[:, self._streams]
        counts = behind - before
        stops = np.cumsum(counts, axis=1)
        source = (stops[number] <= in_row[:, None]).sum(axis=1)
        entry = before[number, source] + in_row - (stops - counts)[number, source]

        def find(i: int, mine: Ids) -> Ids:
            return self._parts[i].traverse(entry[mine])

        return self._collect(source, find)


def _apportion(proportions: list[float], size: int) -> Ids:
    """Divide a global batch: whole numbers in proportion, the largest rests rounded up."""
    wanted = np.array(proportions) * size
    counts = wanted.astype(np.int64)
    # Stable: numpy's default order of equal rests depends on the processor.
    by_rest = np.argsort(wanted - counts, kind="stable")[::-1]
    counts[by_rest[: max(size - int(counts.sum()), 0)]] += 1
    if (counts <= 0).any():
        raise ConfigError(
            f"`stratified` batching needs a sample of every stream in each global batch, but the "
            f"stream with a proportion of {proportions[int(np.argmin(counts))]:g} has none among "
            f"{size}. Raise `batch_size` or that proportion."
        )
    return counts


def arrange(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Deal out each stream by itself, sample by sample, as to a single node."""
    refuse_batch_sizes(shares, "stratified")
    if has_schedules(shares):
        return _arrange_scheduled(spec, shares, world, at)
    sources = make_sources(
        [share.choose for share in shares],
        [share.proportion for share in shares],
        spec.block_size,
    )
    proportions = [
        shares[source.stream].proportion for source in sources if source.stream is not None
    ]
    counts = _apportion(proportions, world.num_ranks * spec.batch_size)
    parts = _deal(spec, sources, world, at)
    return Arrangement(StratifiedLayout(spec, sources, parts, counts, world, at), sources)


def _arrange_scheduled(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Let schedules say how much of each stream a global batch holds; it may be nothing."""
    size = world.num_ranks * spec.batch_size
    samples = sum(share.choose for share in shares)
    samples = size * max(samples // size, min(samples, 1))
    turns = Turns(
        epoch_course(shares, at.epoch),
        len(shares),
        np.array([samples]),
        turns_key(spec, at.epoch),
    )
    counts = turns.totals()
    sources = make_sources(counts.tolist(), (counts / max(samples, 1)).tolist(), spec.block_size)
    layout = ScheduledLayout(spec, sources, _deal(spec, sources, world, at), turns, world, at)
    return Arrangement(layout, sources)


def _deal(
    spec: "OrderSpec", sources: Sequence[Source], world: World, at: "Position"
) -> list[Layout]:
    partition = partitions.get(spec.partition_algo)
    single = World(1, world.ranks_per_node, world.workers_per_rank)
    return [
        partition(
            PartitionSpec(
                source.size, spec.canonical_nodes, single, 1, initial_nodes=at.initial_nodes
            )
        )
        for source in sources
    ]


def generate_work_stratified_batching(
    dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch as an array: see `streaming.batching.generate_work`."""
    return generate("stratified", dataset, world, epoch, sample_in_epoch)
