"""Epochs over the datasets that orders were recorded with, by the old function and by plans."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids
from streaming.plan import OrderSpec, Position, build_plan
from streaming.sampling import Share, Weight, weigh
from streaming.table import ShardTable
from streaming.world import World
from tests.suites.orders import shard_table

__all__ = ["Epoch", "plan_whole", "recorded_epoch"]


@dataclass
class Epoch:
    """An epoch on a world, and what a dataset would tell of itself."""

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
    streams: Sequence[Any]
    batching_method: str
    table: ShardTable
    shares: list[Share]
    world: World
    at: Position

    @property
    def spec(self) -> OrderSpec:
        assert self.batch_size is not None
        return OrderSpec(
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            shuffle_algo=self.shuffle_algo,
            shuffle_seed=self.shuffle_seed,
            shuffle_block_size=self.shuffle_block_size,
            num_canonical_nodes=self.num_canonical_nodes,
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            partition_algo=self.partition_algo,
            batching_method=self.batching_method,
        )


def recorded_epoch(golden: Path, params: dict[str, Any]) -> Epoch:
    """The epoch of one recorded call."""
    names = [name for name, _ in params["streams"]]
    sizes = [_shard_sizes(golden, name) for name in names]
    weights = [Weight(**weight) for _, weight in params["streams"]]
    shares, _ = weigh(weights, [*map(sum, sizes)], params["epoch_size"], params["shuffle_seed"])
    table = shard_table(*sizes)
    fields = {name: params[name] for name in Epoch.__annotations__ if name in params}
    fields["streams"] = shares
    return Epoch(
        **fields,
        samples_per_shard=table.samples,
        stream_per_shard=table.stream.astype(np.int64),
        table=table,
        shares=shares,
        world=World(params["num_nodes"], params["ranks_per_node"], params["workers_per_rank"]),
        at=Position(params["epoch"], params["sample_in_epoch"], params["initial_physical_nodes"]),
    )


def _shard_sizes(golden: Path, name: str) -> list[int]:
    index = json.loads((golden / "datasets" / "orders" / name / "index.json").read_text())
    return [shard["samples"] for shard in index["shards"]]


def plan_whole(
    spec: OrderSpec,
    table: ShardTable,
    shares: Sequence[Share],
    world: World,
    at: Position,
    *,
    as_recorded: bool = False,
) -> Ids:
    """The plans of all workers, put together as `generate_work` gives them."""
    workers = []
    for worker in range(world.num_workers):
        plan = build_plan(
            spec, table, shares, replace(world, worker=worker), at, as_recorded=as_recorded
        )
        ids = plan.ids(0, len(plan))
        assert plan.num_samples == (ids >= 0).sum()
        workers.append(ids)
    shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank, -1, spec.batch_size)
    whole = np.stack(workers)
    return whole.reshape(*shape) if whole.size else whole.reshape(*shape[:3], 0, shape[4])
