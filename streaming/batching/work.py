"""A whole epoch of work as an array: for old code and tests, plans don't need it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Ids, in_memory
from streaming.sampling import Share
from streaming.table import ShardTable
from streaming.world import World

__all__ = ["Dataset", "generate"]


class _Weighted(Protocol):
    """A stream whose weight is settled."""

    choose: int
    repeat: float
    proportion: float


class Dataset(Protocol):
    """What of a `StreamingDataset` decides the order of its samples."""

    batch_size: int | None
    shuffle: bool
    shuffle_algo: str
    shuffle_seed: int
    shuffle_block_size: int | None
    num_canonical_nodes: int | None
    sampling_method: str
    sampling_granularity: int
    partition_algo: str
    initial_physical_nodes: int | None
    samples_per_shard: NDArray[np.int64]
    stream_per_shard: NDArray[np.int64]

    @property
    def streams(self) -> Sequence[_Weighted]: ...


class _NodesUnsetError(ConfigError, RuntimeError):
    """The number of canonical nodes is still open. RuntimeError: the predecessor's."""


class _BlockUnsetError(ConfigError, TypeError):
    """The block size is still open. TypeError: the predecessor's."""


def generate(
    batching_method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """See `streaming.batching.generate_work`."""
    from streaming.plan import OrderSpec, Position, arrange, open_order  # It imports this package.

    if dataset.num_canonical_nodes is None:
        raise _NodesUnsetError("`num_canonical_nodes` must be set before an epoch can be laid out.")
    if dataset.shuffle and dataset.shuffle_block_size is None:
        raise _BlockUnsetError("`shuffle_block_size` must be set before an epoch can be shuffled.")
    if dataset.batch_size is None:
        raise ConfigError("`batch_size` must be set before an epoch can be laid out.")
    spec = OrderSpec(
        batch_size=dataset.batch_size,
        shuffle=dataset.shuffle,
        shuffle_algo=dataset.shuffle_algo,
        shuffle_seed=dataset.shuffle_seed,
        shuffle_block_size=dataset.shuffle_block_size,
        num_canonical_nodes=dataset.num_canonical_nodes,
        sampling_method=dataset.sampling_method,
        sampling_granularity=dataset.sampling_granularity,
        partition_algo=dataset.partition_algo,
        batching_method=batching_method,
    )
    spec = spec.resolve(world.num_nodes)
    shares = [Share(s.choose, s.repeat, s.proportion) for s in dataset.streams]
    none = np.zeros_like(dataset.samples_per_shard)
    table = ShardTable(
        dataset.samples_per_shard, none, none, dataset.stream_per_shard.astype(np.int32)
    )
    at = Position(epoch, sample_in_epoch, dataset.initial_physical_nodes)
    arrangement = arrange(spec, shares, world, at, as_recorded=True)
    order = open_order(spec, table, shares, epoch, arrangement.sources, in_memory)
    return order(arrangement.layout.whole())
