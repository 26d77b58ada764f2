"""Streams share a batch as chance has it: all their samples are shuffled as one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streaming.batching.arrangement import (
    Arrangement,
    Source,
    make_sources,
    refuse_batch_sizes,
)
from streaming.batching.turns import epoch_course, has_schedules, turns_key
from streaming.batching.work import Dataset, generate
from streaming.idmap import Ids
from streaming.mixing import Turns
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.partition.layout import RestLayout
from streaming.sampling import Share
from streaming.shuffle.exact import borders
from streaming.world import World

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["Mixture", "arrange", "generate_work_random_batching"]


class Mixture:
    """Mixes streams, each shuffled by itself, as their schedules say: maps position to draw.

    Draws count through the sources that `sources` names. A lane is a canonical node: all of them
    are read side by side, so each takes its turns from the first place of the epoch to the last.

    Args:
        spec: The order.
        shares: What each stream gives; all have schedules.
        epoch: Number of the epoch.
    """

    def __init__(self, spec: "OrderSpec", shares: Sequence[Share], epoch: int) -> None:
        self._samples = sum(share.choose for share in shares)
        self._nodes = spec.canonical_nodes
        self._block_size = spec.block_size
        self._borders = borders(self._samples, self._nodes)
        lengths = np.diff(self._borders)
        course = epoch_course(shares, epoch, unit=self._nodes)
        self._turns = Turns(course, len(shares), lengths, turns_key(spec, epoch))
        # Nodes differ in length by one sample at most: so do the counts that streams have in them.
        self._totals = self._turns.counts(np.array([int(lengths.min()), int(lengths.max())]))
        is_long = lengths > lengths.min()
        long_before = np.cumsum(is_long) - is_long
        self._before = np.stack([np.arange(self._nodes) - long_before, long_before], axis=1)
        self._starts = np.cumsum(self._counts) - self._counts

    @property
    def size(self) -> int:
        return self._samples

    @property
    def sources(self) -> tuple[Source, ...]:
        """A source for each stream that is there."""
        counts = self._counts
        proportions = counts / max(self._samples, 1)
        return make_sources(counts.tolist(), proportions.tolist(), self._block_size)

    @property
    def _counts(self) -> Ids:
        """Draws of each stream."""
        lengths = np.diff(self._borders)
        is_long = int((lengths > lengths.min()).sum())
        counts: Ids = self._totals[0] * (self._nodes - is_long) + self._totals[1] * is_long
        return counts

    def __call__(self, ids: Ids, /) -> Ids:
        flat = ids.ravel()
        out = np.full(len(flat), -1, np.int64)
        real = np.flatnonzero(flat >= 0)
        position = flat[real]
        node = np.searchsorted(self._borders, position, "right") - 1
        stream, before = self._turns(node, position - self._borders[node])
        in_nodes = (self._before[node] * self._totals[:, stream].T).sum(axis=1)
        out[real] = self._starts[stream] + in_nodes + before
        return out.reshape(ids.shape)


def arrange(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Deal out the draws of all streams, which are one source."""
    refuse_batch_sizes(shares, "random")
    size = sum(share.choose for share in shares)
    part = PartitionSpec(
        size, spec.canonical_nodes, world, spec.batch_size, at.seen, at.initial_nodes
    )
    partition = partitions.get(spec.partition_algo)
    layout = partition(part)
    began_here = (at.initial_nodes, at.initial_ranks) == (world.num_nodes, world.num_ranks)
    if part.seen and began_here and part.seen % layout.global_batch == 0:
        # Else the last samples, which make ranks come out even, would be others than without a
        # stop: the predecessor chooses them from what is left.
        whole = partition(replace(part, seen=0, initial_nodes=None))
        layout = RestLayout(whole, part.seen // whole.global_batch)
    if part.seen > part.num_samples:
        part.check_seen(_count_repeated(partitions.get(spec.partition_algo), part))
    if has_schedules(shares):
        return Arrangement(layout, Mixture(spec, shares, at.epoch).sources)
    return Arrangement(layout, (Source(None, size, spec.block_size),))


def _count_repeated(partition: Callable[[PartitionSpec], Layout], part: PartitionSpec) -> int:
    """How many samples of a whole epoch may come again, on this world or the one it began on.

    A state that was saved near the end counts them too, and must load again.
    """
    world = part.world
    layout = partition(replace(part, seen=0))
    workers = (world.with_workers(world.workers_per_rank, i) for i in range(world.workers_per_rank))
    given = world.num_ranks * sum(map(layout.num_samples, workers))
    # Other ranks than ours, of which a state does not tell, may have been given more.
    return max(given - part.num_samples, 0) + part.num_samples


def generate_work_random_batching(
    dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch as an array: see `streaming.batching.generate_work`."""
    return generate("random", dataset, world, epoch, sample_in_epoch)
