"""What is said of an epoch beforehand, against plans and against a simulation step by step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, sampled_from

from streaming.batching import batchings
from streaming.errors import ConfigError
from streaming.explain import (
    Network,
    Question,
    WholeEpoch,
    explain,
    foresee_downloads,
    measure_quality,
    summarise,
)
from streaming.plan import OrderSpec, Position, build_plan
from streaming.sampling import Share, Weight, weigh
from streaming.table import ShardTable
from streaming.world import World
from tests.suites.epochs import plan_whole

SIZES = [[20, 11, 29], [30, 10]]
SHARD_BYTES = [100, 50, 170, 90, 40]
ZIP_BYTES = [60, 0, 0, 80, 0]


def make_table() -> ShardTable:
    return ShardTable(
        np.array([size for sizes in SIZES for size in sizes]),
        np.array(SHARD_BYTES),
        np.array(ZIP_BYTES),
        np.array([0, 0, 0, 1, 1], np.int32),
    )


def make(
    world: World, method: str = "random", *, seen: int = 0, **changes: Any
) -> tuple[WholeEpoch, list[Share]]:
    weights = changes.pop("weights", [Weight()] * 2)
    shares, _ = weigh(weights, [60, 40], changes.pop("epoch_size", None), 9176)
    settings: dict[str, Any] = {
        "batch_size": 3,
        "shuffle": True,
        "shuffle_block_size": 40,
        "batching_method": method,
        **changes,
    }
    spec = OrderSpec(**settings)
    return WholeEpoch(spec, make_table(), shares, world, Position(1, seen)), shares


@pytest.mark.parametrize("method", sorted(batchings))
@pytest.mark.parametrize("algo", ["py1e", "block1"])
def test_steps_are_what_workers_read(method: str, algo: str) -> None:
    world = World(2, 2, 3)
    epoch, shares = make(world, method, shuffle_algo=algo)
    whole = plan_whole(epoch.spec, make_table(), shares, world, Position(1))
    expected = whole.transpose(3, 2, 0, 1, 4).reshape(-1, 2, 2, 3)
    assert np.array_equal(epoch.ids(slice(0, epoch.num_steps)), expected)
    assert np.array_equal(epoch.ids(slice(2, 5), [1]), expected[2:5, 1:])
    walked = np.concatenate([ids for _, ids in epoch.walk(10**6)])
    assert np.array_equal(walked, expected)


@pytest.mark.parametrize("method", sorted(batchings))
def test_the_samples_of_a_step_on_a_rank_are_told_with_their_places(method: str) -> None:
    world = World(2, 2, 3)
    epoch, shares = make(world, method)
    for rank in range(4):
        for step in (0, 4, 5):
            worker = World(2, 2, 3, rank * 3 + step % 3)
            plan = build_plan(epoch.spec, make_table(), shares, worker, Position(1))
            ids = plan.ids(step // 3 * 3, step // 3 * 3 + 3)
            drawn = epoch.batch(step, rank)
            assert [each.sample for each in drawn] == ids[ids >= 0].tolist()
            for each in drawn:
                assert each.worker == step % 3
                assert each.stream == (each.sample >= 60)
                firsts = [0, 20, 31, 60, 90]
                assert firsts[each.shard] + each.offset == each.sample


@pytest.mark.parametrize("method", sorted(batchings))
@pytest.mark.parametrize("algo", ["py1e", "block1"])
def test_a_sample_is_found_in_all_steps_in_which_it_comes(method: str, algo: str) -> None:
    epoch, _ = make(World(2, 2, 3), method, weights=[Weight(repeat=2), Weight()], shuffle_algo=algo)
    whole = epoch.ids(slice(0, epoch.num_steps))
    for sample in (0, 7, 59, 60, 99):
        found = epoch.find(sample)
        expected = np.argwhere(whole == sample)
        assert [(each.step, each.rank // 2, each.rank % 2, each.place) for each in found] == list(
            map(tuple, expected.tolist())
        )
        assert all(each.worker == each.step % 3 for each in found)


def test_what_there_is_not_is_refused() -> None:
    epoch, _ = make(World(1, 2))
    with pytest.raises(ConfigError, match="no step 17: they go from 0 to 16"):
        epoch.batch(17, 0)
    with pytest.raises(ConfigError, match="no rank 2"):
        epoch.batch(0, 2)
    with pytest.raises(ConfigError, match="no sample 100: they go from 0 to 99"):
        epoch.find(100)


@given(
    sampled_from(sorted(batchings)),
    integers(1, 2),
    integers(1, 3),
    integers(1, 3),
    integers(1, 7),
    integers(0, 60),
)
def test_what_is_counted_is_what_there_is(
    method: str, nodes: int, ranks: int, workers: int, batch_size: int, seen: int
) -> None:
    try:
        epoch, shares = make(
            World(nodes, ranks, workers),
            method,
            batch_size=batch_size,
            seen=seen,
            num_canonical_nodes=2,
        )
    except ConfigError:
        return
    summary = summarise(epoch, epoch.table, shares, ["a", "b"])
    ids = epoch.ids(slice(0, epoch.num_steps))
    assert summary.given == (ids >= 0).sum()
    assert summary.padding == (ids < 0).sum()
    assert summary.steps == (ids >= 0).any(axis=(1, 2, 3)).sum()
    rank_batches = (ids >= 0).any(axis=3).sum(axis=0)
    assert summary.batches_per_rank == (rank_batches.min(), rank_batches.max())
    is_short = (ids >= 0).any(axis=(1, 2, 3)) & (ids < 0).any(axis=(1, 2, 3))
    assert summary.short == is_short.sum()
    assert [stream.drawn for stream in summary.streams] == [60, 40]
    assert summary.samples == 100


def simulate(
    epoch: WholeEpoch, network: Network, nodes: list[int], steps: int
) -> tuple[list[float], list[int], int]:
    """When each step begins, bytes of each node, and the peak of shards in use: step by step."""
    table = epoch.table
    sizes = np.where(table.zip_bytes > 0, table.zip_bytes, table.raw_bytes).tolist()
    ahead = -(-network.predownload // epoch.spec.batch_size) * epoch.world.workers_per_rank
    needs: list[list[list[int]]] = []  # node, step: shards
    for node in nodes:
        per_step = []
        for step in range(steps):
            ids = epoch.ids(slice(step, step + 1), [node]).ravel()
            ids = ids[ids >= 0]
            per_step.append(list(dict.fromkeys(epoch.spanner(ids)[0].tolist())))
        needs.append(per_step)
    begins: list[float] = []
    free = [0.0] * len(nodes)
    there: list[set[int]] = [set() for _ in nodes]
    for step in range(steps):
        begin = begins[-1] + network.step_time if begins else 0.0
        for i, per_step in enumerate(needs):
            for shard in per_step[step]:
                if shard not in there[i]:
                    there[i].add(shard)
                    asked = begins[step - ahead - 1] + network.step_time if step > ahead else 0.0
                    free[i] = max(free[i], asked) + sizes[shard] / network.bandwidth
                    begin = max(begin, free[i])
        begins.append(begin)
    peak = 0
    for per_step in needs:
        uses: dict[int, list[int]] = {}
        for step, shards in enumerate(per_step):
            for shard in shards:
                uses.setdefault(shard, []).append(step)
        for step in range(steps):
            live = [s for s, at in uses.items() if at[0] - ahead <= step <= at[-1]]
            peak = max(peak, sum(SHARD_BYTES[shard] for shard in live))
    return begins, [sum(sizes[shard] for shard in found) for found in there], peak


@given(
    lists(sampled_from([0, 1]), min_size=1, max_size=2, unique=True),
    integers(1, 3),
    floats(1, 1e4),
    floats(0, 5),
    integers(0, 40),
    sampled_from([1, 5, 10**6]),
)
def test_downloads_are_those_of_a_simulation_step_by_step(
    nodes: list[int],
    workers: int,
    bandwidth: float,
    step_time: float,
    predownload: int,
    limit: int,
) -> None:
    epoch, _ = make(World(2, 1, workers))
    network = Network(bandwidth, step_time, predownload)
    found = foresee_downloads(epoch, network, nodes, limit)
    steps = min(limit, epoch.num_steps)
    begins, sizes, peak = simulate(epoch, network, nodes, steps)
    assert found.steps == steps
    assert found.bytes == tuple(sizes)
    assert found.cache_limit == peak
    assert found.first_batch == pytest.approx(begins[0])
    assert found.seconds == pytest.approx(begins[-1] + step_time)
    assert found.waiting == pytest.approx(found.seconds - steps * step_time, abs=1e-6)
    for step, seconds, _ in found.timeline:
        if step < steps:
            assert seconds == pytest.approx(begins[step])
    assert found.timeline[-1][2] == sum(sizes)


def test_quality_tells_an_ordered_epoch_from_a_shuffled_one() -> None:
    count = 1 << 16
    shard = np.arange(count) // 256
    stream = np.arange(count) // (count // 2)
    ordered = np.arange(count)
    flat = measure_quality(ordered, shard, stream, count, 1024)
    assert flat.distance < 0.001
    assert flat.shards == flat.shards_least == 4
    assert flat.chi_square > 100
    assert flat.stream_error > 10 * flat.stream_error_by_chance
    perfect = np.random.default_rng(0).permutation(count)
    mixed = measure_quality(perfect, shard[perfect], stream[perfect], count, 1024)
    assert mixed.distance == pytest.approx(1, abs=0.02)
    assert mixed.same_shard == pytest.approx(1, abs=0.2)
    assert mixed.shards == pytest.approx(mixed.shards_by_chance, rel=0.02)
    assert mixed.stream_error == pytest.approx(mixed.stream_error_by_chance, rel=0.2)
    assert mixed.chi_square == pytest.approx(1, abs=0.1)


def test_quality_of_next_to_nothing_is_measured() -> None:
    for count in (0, 1, 2):
        ids = np.arange(count)
        assert measure_quality(ids, ids, ids, count, 64).samples == count


def test_an_explanation_is_json_and_answers_what_was_asked() -> None:
    epoch, shares = make(World(2, 2, 3))
    network = Network(100, 0.5, 9)
    question = Question(names=["a", "b"], network=network, batch=(1, 2), sample=7)
    answer = explain(epoch, shares, question)
    assert answer.keys() == {
        "order",
        "world",
        "epoch",
        "downloads",
        "quality",
        "batch",
        "sample",
    }
    assert answer["epoch"]["streams"][1]["name"] == "b"
    assert len(answer["batch"]["samples"]) == 3
    assert len(answer["sample"]["occurrences"]) >= 1
    less = explain(epoch, shares, Question(names=["a", "b"], quality=False))
    assert less.keys() == {"order", "world", "epoch"}


def test_of_very_many_nodes_some_are_looked_at() -> None:
    sizes = np.full(10**5, 10**7)
    table = ShardTable(sizes, sizes, np.zeros_like(sizes), np.zeros(10**5, np.int32))
    spec = OrderSpec(batch_size=32, shuffle=True, shuffle_algo="block1")
    share = [Share(10**12, 1.0, 1.0)]
    epoch = WholeEpoch(spec, table, share, World(64, 8, 8), Position())
    network = Network(1e9, 0.5, 256)
    question = Question(names=["a"], network=network, steps=40_000, quality=False)
    downloads = explain(epoch, share, question)["downloads"]
    assert downloads["steps"] == 40_000
    assert len(downloads["nodes"]) == 3
