"""Rows of single streams: dealt to any ranks, none of which is left without a batch."""

import random
from dataclasses import replace
from itertools import chain

import pytest

from streaming.batching.arrangement import Source
from streaming.batching.dealing import DealtLayout
from streaming.batching.per_stream import PerStreamLayout
from streaming.errors import ConfigError, StateError
from streaming.idmap import Ids
from streaming.plan import OrderSpec, Position, arrange, build_plan
from streaming.sampling import Share, Weight, weigh
from streaming.table import ShardTable
from streaming.world import World
from tests.suites.orders import shard_table

Steps = list[list[list[int]]]  # of each step what each rank reads


def read(
    spec: OrderSpec, table: ShardTable, shares: list[Share], world: World, at: Position
) -> tuple[DealtLayout, Steps]:
    """All steps of an epoch from a place on."""
    layout = arrange(spec, shares, world, at).layout
    assert isinstance(layout, DealtLayout)
    steps: Steps = [[[] for _ in range(world.num_ranks)] for _ in range(layout.rows)]
    for worker in range(world.num_workers):
        here = replace(world, worker=worker)
        plan = build_plan(spec, table, shares, here, at)
        batches: Ids = plan.ids(0, len(plan)).reshape(-1, plan.batch_size)
        assert plan.num_samples == (batches >= 0).sum()
        for number, batch in enumerate(batches):
            step = steps[number * world.workers_per_rank + here.worker_of_rank]
            step[here.rank] = batch[batch >= 0].tolist()
    assert all(all(step) for step in steps[: layout.num_rows]), "a rank has nothing"
    assert not any(any(step) for step in steps[layout.num_rows :])
    return layout, steps[: layout.num_rows]


@pytest.mark.parametrize("seed", range(60))
def test_a_run_goes_on_with_the_same_rows_on_any_ranks(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([1, 2, 3, 5, 8, 13, 40, 77, 150]) for _ in range(draw.randint(1, 5))]
    global_batch = draw.choice([4, 8, 12, 24])
    worlds = [
        World(nodes, ranks, draw.randint(1, 3))
        for nodes in (1, 2, 4)
        for ranks in (1, 2, 3, 4, 6)
        if global_batch % (nodes * ranks) == 0
    ]
    order = OrderSpec(
        batch_size=1,
        shuffle=True,
        shuffle_block_size=draw.choice([4, 50]),
        shuffle_algo=draw.choice(["py1e", "block1", "py1s", "py1br", "naive"]),
        batching_method=draw.choice(["per_stream", "device_per_stream", "stratified"]),
        num_canonical_nodes=draw.choice([4, 8]),
    )
    table = shard_table(*([5] * (size // 5) + [size % 5] * (size % 5 > 0) for size in sizes))
    shares, _ = weigh([Weight()] * len(sizes), sizes, None, 0)
    first, epoch = draw.choice(worlds), draw.randint(0, 2)
    spec = replace(order, batch_size=global_batch // first.num_ranks)
    try:
        _, whole = read(spec, table, shares, first, Position(epoch))
    except ConfigError as error:
        assert "sample of every stream in each global batch" in str(error)
        return
    done = seen = 0
    for _ in range(3):
        world = draw.choice(worlds)
        spec = replace(order, batch_size=global_batch // world.num_ranks)
        at = Position(epoch, seen, first.num_nodes, first.num_ranks)
        layout, rest = read(spec, table, shares, world, at)
        assert len(rest) == len(whole) - done
        for mine, theirs in zip(rest, whole[done:], strict=True):
            if (world.num_nodes, world.num_ranks) == (first.num_nodes, first.num_ranks):
                assert mine == theirs
                continue
            given, wanted = sorted(chain(*mine)), sorted(chain(*theirs))
            assert set(given) == set(wanted)
            assert given == wanted or len(set(wanted)) < global_batch
        steps = draw.randint(0, len(rest))
        done, seen = done + steps, layout.seen_after(steps)


def test_each_batch_of_the_last_step_is_given_before_one_is_given_again() -> None:
    table = shard_table([24], [12])
    shares, _ = weigh([Weight()] * 2, [24, 12], None, 0)
    spec = OrderSpec(batch_size=4, batching_method="device_per_stream", num_canonical_nodes=1)
    layout, steps = read(spec, table, shares, World(1, 6, 1), Position())
    assert layout.full == 1
    assert len(steps) == 2
    assert steps[1][3:] == steps[1][:3]
    assert sorted(chain(*steps[0], *steps[1][:3])) == list(range(36))
    assert layout.refilled == 12
    assert layout.seen_after(1) == 24
    assert layout.seen_after(2) == 36  # What several ranks have counts once.


def test_a_global_batch_that_cannot_be_dealt_is_refused() -> None:
    shares, _ = weigh([Weight()], [40], None, 0)
    spec = OrderSpec(batch_size=3, batching_method="per_stream", num_canonical_nodes=1)
    with pytest.raises(StateError, match=r"with 2 ranks has no global batches of 1 times 3"):
        arrange(spec, shares, World(), Position(0, 8, 1, 2))


def test_the_recorded_rows_are_there_for_who_asks() -> None:
    shares, _ = weigh([Weight()], [40], None, 0)
    spec = OrderSpec(batch_size=4, batching_method="per_stream", num_canonical_nodes=1)
    found = arrange(spec, shares, World(), Position(), as_recorded=True)
    assert isinstance(found.layout, PerStreamLayout)
    assert found.sources == (Source(0, 40, spec.resolve(1).block_size),)
