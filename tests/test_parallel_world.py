"""Worlds in which some ranks see the same samples, laid out in any way."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, permutations, sampled_from

from streaming.errors import ConfigError
from streaming.plan import OrderSpec, Position, build_plan
from streaming.sampling import Share
from streaming.world import World
from tests.conftest import RunPython
from tests.suites.orders import shard_table

TABLE = shard_table([20] * 30)
WHOLE = [Share(600, 1.0, 1.0)]


def read(world: World, algo: str = "py1e") -> list[int]:
    """What a rank of one worker sees of an epoch."""
    spec = OrderSpec(batch_size=4, shuffle=True, shuffle_algo=algo, shuffle_block_size=64)
    plan = build_plan(spec, TABLE, WHOLE, world.replicate(1), Position(1))
    ids = plan.ids(0, len(plan))
    seen: list[int] = ids[ids >= 0].tolist()
    return seen


def check(data_ranks: Sequence[int], nodes: int, algo: str = "py1e") -> None:
    ranks = len(data_ranks) // nodes
    seen: dict[int, list[int]] = {}
    for rank, data_rank in enumerate(data_ranks):
        ids = read(World(nodes, ranks, 1, rank, tuple(data_ranks)), algo)
        assert seen.setdefault(data_rank, ids) == ids
    everything = [sample for ids in seen.values() for sample in ids]
    assert set(everything) == set(range(600))
    # Canonical nodes and ranks that come out one short repeat a sample.
    assert len(everything) < 600 + nodes + 2 * len(seen)


@given(
    permutations(["dp", "tp", "pp", "cp"]),
    integers(1, 3),
    integers(1, 2),
    integers(1, 2),
    integers(1, 2),
    sampled_from([1, 2, 4]),
    sampled_from(["py1e", "block1"]),
)
def test_case_U6_replicas_see_the_same_and_others_disjoint_samples_in_any_layout(
    dims: list[str], dp: int, tp: int, pp: int, cp: int, nodes: int, algo: str
) -> None:
    sizes = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
    shape = [sizes[name] for name in dims]
    if np.prod(shape) % nodes:
        nodes = 1
    data_ranks = [
        place[dims.index("dp")] for place in itertools.product(*(range(size) for size in shape))
    ]
    check(data_ranks, nodes, algo)


def test_case_U6_replicas_need_not_be_equally_many() -> None:
    check([0, 1, 1, 2, 0, 1, 3, 3], 2)


def test_case_U6_consecutive_replicas_see_what_replication_gives_them() -> None:
    for rank in range(8):
        world = World(1, 8, 1, rank)
        mapped = world.with_data_ranks([rank // 2 for rank in range(8)])
        assert mapped.replicate(1) == world.replicate(2)


def test_nodes_stay_nodes_where_each_has_data_ranks_of_its_own() -> None:
    # 8 nodes of 8 ranks, tensor parallel pairs: each node reads its own part of the data.
    world = World(8, 8, 2, 77, tuple(rank // 2 for rank in range(64)))
    assert world.parallel == World(8, 4, 2, 77 // 2 // 2 * 2 + 1)
    # Pipeline stages on different nodes: both read the same.
    world = World(2, 4, 1, 5, tuple(rank % 4 for rank in range(8)))
    assert world.parallel == World(1, 4, 1, 1)


def test_workers_of_replicas_are_each_other_s() -> None:
    world = World(1, 4, 1, 3).with_data_ranks([0, 1, 0, 1]).with_workers(3, 2)
    assert world.data_ranks == (0, 1, 0, 1)
    assert world.replicate(1) == World(1, 2, 3, 5)


@pytest.mark.parametrize(
    ("data_ranks", "message"),
    [
        ([0, 1, 0], "for each of the 4 ranks, but has 3"),
        ([0, 2, 2, 0], "goes from 0 to 2 without 1"),
        ([-1, 0, 1, 2], "goes from -1 to 2"),
        ([1, 1, 1, 1], "without 0"),
    ],
)
def test_impossible_data_ranks_are_refused(data_ranks: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World(2, 2).with_data_ranks(data_ranks)


def test_data_ranks_and_replication_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="`replication` .2. says it too"):
        World(1, 4).with_data_ranks([0, 0, 1, 1]).replicate(2)


def mesh(shape: Sequence[int], names: Sequence[str] | None) -> Any:
    """What a DeviceMesh says of itself."""
    return SimpleNamespace(
        mesh=np.arange(np.prod(shape)).reshape(shape),
        mesh_dim_names=None if names is None else tuple(names),
    )


def test_a_mesh_says_who_sees_the_same() -> None:
    world = World(2, 8, 1, 5)
    layout = mesh((2, 4, 2), ("pp", "dp", "tp"))
    assert world.with_mesh(layout, "dp").data_ranks == (0, 0, 1, 1, 2, 2, 3, 3) * 2
    both = world.with_mesh(layout, ("pp", "dp"))
    assert both.data_ranks == tuple(rank // 2 for rank in range(16))
    turned = world.with_mesh(layout, ("dp", "pp"))
    assert turned.data_ranks == (0, 0, 2, 2, 4, 4, 6, 6, 1, 1, 3, 3, 5, 5, 7, 7)
    assert world.with_mesh(layout, ()).data_ranks == (0,) * 16


@pytest.mark.parametrize(
    ("shape", "names", "dims", "message"),
    [
        ((2, 2), ("a", "b"), "dp", "which are a, b, but is dp"),
        ((2, 2), None, "dp", "without names"),
        ((2, 2), ("a", "b"), ("a", "a"), "but is a, a"),
        ((2,), ("dp",), "dp", "has 2 of the ranks 0 to 3 in dp. Pass the whole mesh"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(
    shape: Any, names: Any, dims: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        World(1, 4).with_mesh(mesh(shape, names), dims)


MESH = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from streaming.world import World

dist.init_process_group("fake", rank=5, world_size=8, store=FakeStore())
mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
world = World(1, 8, 1, 5).with_mesh(mesh, ("dp_replicate", "dp_shard"))
print(*world.data_ranks, world.checked_against_group() == world)
dist.destroy_process_group()
"""


def test_a_mesh_of_torch_is_one(run_python: RunPython) -> None:
    pytest.importorskip("torch")
    assert run_python(MESH).stdout == "0 0 1 1 2 2 3 3 True\n"
