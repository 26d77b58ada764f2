"""Partitions: which position of the epoch each worker reads, and when."""

import logging
from collections.abc import Callable

from streaming.idmap import Ids
from streaming.partition.layout import Layout, PartitionSpec
from streaming.util.importing import Registry
from streaming.world import World

__all__ = ["Layout", "PartitionSpec", "algos", "get_partitions", "partitions"]

logger = logging.getLogger(__name__)

partitions: Registry[Callable[[PartitionSpec], Layout]] = Registry(
    "partition algorithm",
    {
        "orig": "streaming.partition.orig:OrigLayout",
        "relaxed": "streaming.partition.relaxed:relaxed",
    },
    group="streaming.partitions",
)
algos = partitions.table
"""The old name."""


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """A whole epoch's partition as an array. Plans don't need it: this is for old code and tests.

    Args:
        algo: Name of the partition algorithm.
        num_samples: Positions of the epoch.
        num_canonical_nodes: Parts of the epoch that are read side by side.
        num_physical_nodes: Nodes.
        ranks_per_node: Ranks of a node.
        workers_per_rank: Workers of a rank.
        batch_size: Samples of one rank's batch.
        drop_first: Samples of the epoch that were seen before, by all ranks together.
        initial_physical_nodes: Nodes at the start of a resumed run.

    Returns:
        Positions, -1 for padding, shape (nodes, ranks, workers, batches, batch size).

    Raises:
        UnknownNameError: There is no such algorithm.
        ConfigError: The numbers don't fit each other.
        StateError: `drop_first` is behind the end of the epoch.
    """
    partition = partitions.get(algo)
    world = World(num_physical_nodes, ranks_per_node, workers_per_rank)
    spec = PartitionSpec(
        num_samples, num_canonical_nodes, world, batch_size, drop_first, initial_physical_nodes
    )
    spec.check_seen()
    layout = partition(spec)
    for note in layout.notes:
        logger.warning("%s", note)
    return layout.whole()
