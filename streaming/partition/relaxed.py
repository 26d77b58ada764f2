"""The partition that lets a run go on with another number of nodes, in closed form."""

from dataclasses import replace

import numpy as np

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.partition.layout import Layout, PartitionSpec
from streaming.partition.orig import OrigLayout
from streaming.world import World

__all__ = ["RelaxedLayout", "get_partitions_relaxed", "relaxed"]


class RelaxedLayout(Layout):
    """The global batches of the run's first nodes, each cut anew for the nodes there are now.

    Raises:
        ConfigError: The global batch can't be the one of the first nodes.
    """

    def __init__(self, spec: PartitionSpec) -> None:
        world = spec.world
        ranks = world.ranks_per_node
        initial = spec.initial_nodes or world.num_nodes
        size, rest = divmod(world.num_ranks * spec.batch_size, initial * ranks)
        if rest:
            raise ConfigError(
                f"A global batch of {world.num_ranks * spec.batch_size} ({spec.batch_size} for "
                f"each of {world.num_ranks} ranks) can't be cut for the {initial} nodes with "
                f"{ranks} ranks on which the run began. Change `batch_size`."
            )
        before = World(initial, ranks, world.workers_per_rank)
        self._initial = OrigLayout(replace(spec, world=before, batch_size=size))
        super().__init__(
            world, spec.batch_size, self._initial.rows, self._initial.full, self._initial.notes
        )

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        in_row = (node * self.world.ranks_per_node + rank) * self.batch_size + place
        return self._initial.traverse(row * self.global_batch + in_row)

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        size = self._initial.batch_size
        real = self._initial.count(row, 0, 0)  # the same for all ranks there were
        start = (node * self.world.ranks_per_node + rank) * self.batch_size
        stop = start + self.batch_size
        before = start // size * real + np.minimum(start % size, real)
        return stop // size * real + np.minimum(stop % size, real) - before


def relaxed(spec: PartitionSpec) -> Layout:
    """Deal as `orig` does, but where that can't be, as it would have been on the first nodes."""
    nodes, canonical = spec.world.num_nodes, spec.canonical_nodes
    fits = max(nodes, canonical) % min(nodes, canonical) == 0
    return OrigLayout(spec) if fits or spec.initial_nodes is None else RelaxedLayout(spec)


def get_partitions_relaxed(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """The `relaxed` partition as an array: see `streaming.partition.get_partitions`."""
    world = World(num_physical_nodes, ranks_per_node, workers_per_rank)
    spec = PartitionSpec(
        num_samples, num_canonical_nodes, world, batch_size, drop_first, initial_physical_nodes
    )
    spec.check_seen()
    return relaxed(spec).whole()
