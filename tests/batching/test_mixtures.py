"""Mixtures that change, and streams with batch sizes of their own."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, sampled_from

from streaming.batching import batchings
from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.plan import OrderSpec, Position, arrange, build_plan
from streaming.sampling import Share, Weight, weigh
from streaming.schedule import Schedule
from streaming.table import ShardTable
from streaming.world import World
from tests.suites.epochs import plan_whole
from tests.suites.orders import shard_table

methods = pytest.mark.parametrize("method", sorted(batchings))
algos = pytest.mark.parametrize("algo", ["py1e", "block1"])

SIZES = [900, 700, 400]
BOUNDS = np.cumsum(SIZES)
TABLE = shard_table(*([100] * (size // 100) for size in SIZES))


def mixture(*schedules: Any, epoch_size: int = 1920) -> list[Share]:
    return weigh([Weight(proportion=s) for s in schedules], SIZES, epoch_size, 9176)[0]


CHANGING = mixture(Schedule.linear({0: 1, 1920: 0}), Schedule.steps({0: 0.5, 960: 1.5}), 0.5)


def spec_of(method: str, algo: str = "block1", **changes: Any) -> OrderSpec:
    settings: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "shuffle_algo": algo,
        "shuffle_block_size": 256,
        "num_canonical_nodes": 4,
        "batching_method": method,
        **changes,
    }
    return OrderSpec(**settings)


def global_batches(
    spec: OrderSpec, shares: list[Share], world: World, at: Position, table: ShardTable = TABLE
) -> Ids:
    """Rows of the epoch: shape (rows, places of all ranks)."""
    batch = arrange(spec, shares, world, at).layout.batch_size
    workers = []
    for worker in range(world.num_workers):
        place = World(world.num_nodes, world.ranks_per_node, world.workers_per_rank, worker)
        plan = build_plan(spec, table, shares, place, at)
        workers.append(plan.ids(0, len(plan)).reshape(-1, batch))
    shape = (world.num_ranks, world.workers_per_rank, -1, batch)
    rows = np.stack(workers).reshape(shape).transpose(2, 1, 0, 3)
    return rows.reshape(-1, world.num_ranks * batch)


def streams_of(ids: Ids) -> Ids:
    return np.searchsorted(BOUNDS, ids, "right")


def shares_at(start: float, stop: float) -> np.ndarray[Any, Any]:
    """Share of each stream of CHANGING in a part of the first epoch, by many small steps."""
    places = np.linspace(start, stop, 1001)
    weights = np.stack(
        [1 - places / 1920, np.where(places < 960, 0.5, 1.5), np.full(1001, 0.5)], axis=1
    )
    # Between the points shares go in straight lines: 0, 960 and 1920 are all there are.
    knots = np.array([[1, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 1.5, 0.5], [0, 1.5, 0.5]])
    knots /= knots.sum(axis=1, keepdims=True)
    first = (places / 960)[:, None]
    low = np.where(places[:, None] < 960, knots[0], knots[2])
    high = np.where(places[:, None] < 960, knots[1], knots[3])
    assert weights.shape == low.shape
    shares: np.ndarray[Any, Any] = (low + (high - low) * (first % 1)).mean(axis=0)
    return shares


@methods
@algos
def test_the_mixture_of_each_part_of_an_epoch_is_what_the_schedules_say(
    method: str, algo: str
) -> None:
    rows = global_batches(spec_of(method, algo), CHANGING, World(1, 2, 2), Position())
    ids = rows[rows >= 0]
    assert abs(len(ids) - 1920) < 16
    for part in range(4):
        found = np.bincount(streams_of(ids[480 * part : 480 * (part + 1)]), minlength=3) / 480
        # Turns are in random order within windows, here the whole epoch where they are batches.
        window = 1920 if method in ("per_stream", "device_per_stream") else 1920 / 4
        expected = shares_at(0, 1920) if window == 1920 else shares_at(480 * part, 480 * (part + 1))
        slack = 0.25 if window == 1920 else 0.3 if method == "random" else 0.02
        assert np.abs(found - expected).max() < slack
    found = np.bincount(streams_of(ids), minlength=3) / len(ids)
    assert np.abs(found - shares_at(0, 1920)).max() < 0.02


@methods
def test_turns_of_a_long_epoch_follow_the_schedules_closely(method: str) -> None:
    # Small batches, so that there are many windows of turns.
    size = 10**6
    table = shard_table([1000] * 1000, [1000] * 1000)
    shares, _ = weigh(
        [Weight(proportion=Schedule.linear({0: 0, size: 1})), Weight(proportion=1)],
        [size, size],
        size,
        9176,
    )
    spec = spec_of(method, batch_size=2, num_canonical_nodes=1)
    plan = build_plan(spec, table, shares, World(1, 1, 1), Position())
    for place in (0.1, 0.5, 0.9):
        start = int(place * len(plan)) // 2 * 2
        ids = plan.ids(start, start + 40_000)
        share = (ids[ids >= 0] < size).mean()
        # From 0 of 1 to 1 of 2 in a straight line.
        assert abs(share - 0.5 * (place + 0.02)) < 0.02


@methods
@algos
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_resume_of_a_changing_mixture_is_exact(method: str, algo: str, epoch: int) -> None:
    spec = spec_of(method, algo)
    whole = global_batches(spec, CHANGING, World(2, 1, 2), Position(epoch))
    for rows in (1, 57, 200):
        rest = global_batches(spec, CHANGING, World(2, 1, 3), Position(epoch, rows * 8))
        left = whole[rows:]
        length = min(len(rest), len(left))  # All workers of a rank have equally many rows.
        assert np.array_equal(rest[:length], left[:length])
        assert (rest[length:] == -1).all()
        assert (left[length:] == -1).all()


@methods
@algos
def test_a_changing_mixture_goes_on_with_the_same_batches_elsewhere(method: str, algo: str) -> None:
    first = global_batches(spec_of(method, algo), CHANGING, World(2, 2, 1), Position(1))
    for world in (World(1, 2, 3), World(4, 1), World(1, 4), World(1, 1)):
        spec = spec_of(method, algo, batch_size=16 // world.num_ranks)
        at = Position(1, 16 * 50, initial_nodes=2)
        rest = global_batches(spec, CHANGING, world, at)
        if method == "device_per_stream" and world.num_nodes != 2:
            continue  # Which node a batch comes from is part of it: K1.
        assert [sorted(row) for row in rest[:60].tolist()] == [
            sorted(row) for row in first[50:110].tolist()
        ]


@methods
def test_schedules_go_on_from_epoch_to_epoch(method: str) -> None:
    shares = mixture(Schedule.steps({0: 1, 3840: 0}), Schedule.steps({0: 0, 3840: 1}), 0)
    for epoch, stream in ((0, 0), (1, 0), (2, 1), (5, 1)):
        rows = global_batches(spec_of(method), shares, World(1, 2), Position(epoch))
        assert set(streams_of(rows[rows >= 0]).tolist()) == {stream}


@given(
    sampled_from(sorted(batchings)),
    sampled_from(["naive", "py1s", "block1"]),
    lists(lists(floats(0, 3), min_size=2, max_size=2), min_size=3, max_size=3),
    integers(1, 700),
    integers(0, 2),
    integers(1, 3),
)
def test_streams_are_drawn_evenly_by_any_schedule(
    method: str, algo: str, weights: list[list[float]], size: int, epoch: int, ranks: int
) -> None:
    schedules = [Schedule.linear({0: low + 0.01, 500: high + 0.01}) for low, high in weights]
    shares = mixture(*schedules, epoch_size=size)
    spec = spec_of(method, algo, num_canonical_nodes=2)
    try:
        rows = global_batches(spec, shares, World(1, ranks), Position(epoch))
    except ConfigError as error:
        assert "too few" in str(error)  # A partition can't deal out a few samples.
        return
    ids = rows[rows >= 0]
    times = Counter(ids.tolist())
    for stream, (low, high) in enumerate(zip([0, *BOUNDS], BOUNDS, strict=False)):
        counts = [times[i] for i in range(low, high)]
        # Canonical nodes and ranks that come out one short repeat a sample.
        surplus = 2 + 2 * ranks
        assert sum(max(count - min(counts) - 1, 0) for count in counts) <= surplus, stream


def sized(*sizes: int | None, choose: list[int] | None = None) -> list[Share]:
    weights = [
        Weight(batch_size=size, choose=None if choose is None else choose[i])
        for i, size in enumerate(sizes)
    ]
    return weigh(weights, SIZES, None, 9176)[0]


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
@algos
def test_case_B9_each_stream_has_batches_of_its_own_size(method: str, algo: str) -> None:
    shares = sized(2, 7, None)
    rows = global_batches(spec_of(method, algo), shares, World(1, 2, 2), Position())
    batches = rows.reshape(-1, 7)
    seen: Counter[int] = Counter()
    for batch in batches:
        real = batch[batch >= 0]
        assert (batch[len(real) :] == -1).all()
        if len(real):
            (stream,) = set(streams_of(real).tolist())
            assert len(real) == (2, 7, 4)[stream]
            seen[stream] += 1
    if method == "per_stream":  # All ranks at once.
        streams = [streams_of(row[row >= 0]).tolist() for row in rows if (row >= 0).any()]
        assert all(len(set(row)) == 1 for row in streams)
    # Ranks of a canonical node that come out one short repeat a sample, for which another may not
    # fill a batch.
    assert len(set(rows[rows >= 0].tolist())) >= 2000 - 4 * (method == "device_per_stream")
    assert 2000 <= (rows >= 0).sum() <= 2000 + 4 * 2
    assert [seen[0] * 2, seen[1] * 7, seen[2] * 4] == pytest.approx([900, 700, 400], abs=4)


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
@algos
def test_a_resume_with_batch_sizes_of_streams_is_exact(method: str, algo: str) -> None:
    shares, spec = sized(2, 7, None), spec_of(method, algo)
    whole = global_batches(spec, shares, World(1, 2, 2), Position(1))
    # Places are counted as if all batches had the four samples that the order names.
    rest = global_batches(spec, shares, World(1, 2, 3), Position(1, 100 * 8))
    left = whole[100:]
    length = min(len(rest), len(left))  # All workers of a rank have equally many rows.
    assert np.array_equal(rest[:length], left[:length])
    assert (rest[length:] == -1).all()
    assert (left[length:] == -1).all()


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_batch_sizes_of_streams_may_go_with_schedules(method: str) -> None:
    weights = [
        Weight(proportion=Schedule.linear({0: 1, 1920: 3}), batch_size=2),
        Weight(proportion=2),
        Weight(proportion=1, batch_size=9),
    ]
    shares, _ = weigh(weights, SIZES, 1920, 9176)
    rows = global_batches(spec_of(method), shares, World(1, 2, 2), Position())
    ids = rows[rows >= 0]
    found = np.bincount(streams_of(ids), minlength=3) / len(ids)
    # Shares are of samples, not of batches.
    assert np.abs(found - [0.4, 0.4, 0.2]).max() < 0.06


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_counted_samples_are_those_there_are_with_batch_sizes(method: str) -> None:
    shares = sized(2, 7, None, choose=[80, 90, 3])
    spec = spec_of(method)
    whole = [
        build_plan(spec, TABLE, shares, World(1, 2, 3, worker), Position(0, 16))
        for worker in range(6)
    ]
    for plan in whole:
        ids = plan.ids(0, len(plan))
        assert plan.num_samples == (ids >= 0).sum()
        assert plan.batch_size == 7


@pytest.mark.parametrize("method", ["random", "stratified"])
def test_batch_sizes_of_streams_are_refused_where_batches_mix_streams(method: str) -> None:
    with pytest.raises(ConfigError, match="Stream 1 has a `batch_size` of its own"):
        global_batches(spec_of(method), sized(None, 7, None), World(), Position())


@methods
@algos
def test_case_B3_streams_smaller_than_anything_work_with_schedules(method: str, algo: str) -> None:
    table = shard_table([3], [1], [50])
    weights = [Weight(proportion=Schedule.linear({0: p, 99: 1})) for p in (0.01, 0.01, 1)]
    shares, _ = weigh(weights, [3, 1, 50], 54, 0)
    spec = spec_of(method, algo, num_canonical_nodes=8)
    rows = global_batches(spec, shares, World(4, 2, 2), Position(), table)
    assert (rows >= 0).any()
    assert rows.max() < 54


@methods
def test_case_B3_any_tiny_streams_work(method: str) -> None:
    for sizes in ([1, 1, 1], [5, 2, 30], [100, 1, 1]):
        table = shard_table(*([size] for size in sizes))
        shares, _ = weigh([Weight()] * 3, sizes, None, 0)
        for algo in ("py1s", "block1"):
            spec = spec_of(method, algo, num_canonical_nodes=4, batch_size=2)
            for world in (World(4, 1, 2), World(2, 4), World(1, 1)):
                if method == "stratified" and world.num_ranks * 2 < sum(sizes) / min(sizes):
                    continue  # Not even one sample of each fits into a batch.
                rows = global_batches(spec, shares, world, Position(), table)
                found = set(rows[rows >= 0].tolist())
                if method == "random":
                    assert found == set(range(sum(sizes)))
                elif method != "stratified":  # That ends with the first stream.
                    # What does not fill a stream's last batch is left out, but for a tiny stream.
                    for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
                        here = len(found & set(range(first, first + size)))
                        assert here > size - 2 * world.num_ranks
                        assert here == size or size > 2


@methods
def test_case_B1_block1_mixes_streams_as_their_weights_say(method: str) -> None:
    sizes = [20_000, 50_000, 30_000]
    table = shard_table(*([100] * (size // 100) for size in sizes))
    shares, _ = weigh([Weight(proportion=p) for p in (3, 5, 2)], sizes, 50_000, 9176)
    spec = OrderSpec(
        batch_size=10,
        shuffle=True,
        shuffle_algo="block1",
        shuffle_block_size=4000,
        batching_method=method,
    )
    plan = build_plan(spec, table, shares, World(), Position())
    ids = plan.ids(0, len(plan))
    stream = np.searchsorted(np.cumsum(sizes), ids[ids >= 0], "right")
    for start in range(0, len(stream) - 2000, 2000):
        found = np.bincount(stream[start : start + 2000], minlength=3) / 2000
        assert np.abs(found - [0.3, 0.5, 0.2]).max() < 0.13
    assert np.abs(np.bincount(stream) - [15_000, 25_000, 10_000]).max() <= 10


@methods
def test_block1_gives_every_sample_as_often_as_its_weight_says(method: str) -> None:
    sizes = [200, 500, 300]
    table = shard_table(*([20] * (size // 20) for size in sizes))
    weights = [Weight(repeat=2.5), Weight(choose=120), Weight(repeat=1)]
    shares, size = weigh(weights, sizes, None, 0)
    spec = OrderSpec(batch_size=10, shuffle=True, shuffle_algo="block1", batching_method=method)
    whole = plan_whole(spec, table, shares, World(1, 2, 2), Position())
    times = Counter(whole[whole >= 0].tolist())
    lost = size - sum(times.values())
    assert lost <= (0 if method == "random" else 60 if method != "stratified" else size)
    assert {times[i] for i in range(200)} <= {0, 1, 2, 3} | {4}
    assert max(times[i] for i in range(200, 700)) <= 1 + (lost < 0)
    if method == "random":
        assert all(times[i] in (2, 3) for i in range(200))
        assert sum(times[i] for i in range(200, 700)) == 120
        assert all(times[i] == 1 for i in range(700, 1000))
