"""The batching methods, against recordings and for what they promise."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis.strategies import integers, lists, sampled_from
from numpy.typing import NDArray

from streaming.batching import batchings, generate_work
from streaming.batching.device_per_stream import generate_work_device_per_stream_batching
from streaming.batching.per_stream import generate_work_per_stream_batching
from streaming.batching.random import generate_work_random_batching
from streaming.batching.stratified import generate_work_stratified_batching
from streaming.errors import ConfigError, UnknownNameError
from streaming.idmap import Ids
from streaming.plan import OrderSpec, Position, build_plan, count_samples, open_draws
from streaming.sampling import Weight, weigh
from streaming.world import World
from tests.suites.epochs import Epoch, plan_whole, recorded_epoch
from tests.suites.orders import differing, read_cases, shard_table

# The predecessor raises where a stream gives nothing or less than a batch: see exceptions.md.
RAISES_NO_MORE = {f"{i:04d} does not raise" for i in (*range(362, 371), 372, 374, 375)}


def by_old_function(epoch: Epoch) -> Ids:
    at = epoch.at
    return generate_work(epoch.batching_method, epoch, epoch.world, at.epoch, at.seen)


def by_plans(epoch: Epoch) -> Ids:
    return plan_whole(
        epoch.spec, epoch.table, epoch.shares, epoch.world, epoch.at, as_recorded=True
    )


@pytest.mark.parametrize("give", [by_old_function, by_plans])
def test_epochs_are_the_recorded_ones(golden: Path, give: Any) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        epoch = recorded_epoch(golden, params)
        draws = open_draws(epoch.spec, epoch.table, epoch.shares, epoch.at.epoch)
        out = {"out": give(epoch)}
        return {**out, "units": draws.units, "ids": draws(np.arange(draws.size))}

    assert set(differing(read_cases(golden, "work"), call)) == RAISES_NO_MORE


@pytest.mark.parametrize("give", [by_old_function, by_plans])
def test_epochs_go_on_elsewhere_as_recorded(golden: Path, give: Any) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        return {name: give(recorded_epoch(golden, params[name])) for name in ("first", "rest")}

    assert differing(read_cases(golden, "resume"), call) == []


def test_the_old_functions_of_each_method_are_the_same(golden: Path) -> None:
    case = next(read_cases(golden, "work"))
    streams = [["a", {}], ["b", {}], ["c", {}]]
    for method, function in {
        "random": generate_work_random_batching,
        "stratified": generate_work_stratified_batching,
        "per_stream": generate_work_per_stream_batching,
        "device_per_stream": generate_work_device_per_stream_batching,
    }.items():
        epoch = recorded_epoch(
            golden, {**case.params, "streams": streams, "batching_method": method}
        )
        assert np.array_equal(function(epoch, epoch.world, 0, 0), by_old_function(epoch))


def test_open_settings_are_refused_as_before(golden: Path) -> None:
    epoch = recorded_epoch(golden, next(read_cases(golden, "work")).params)
    for name, kind in (
        ("num_canonical_nodes", RuntimeError),
        ("shuffle_block_size", TypeError),
        ("batch_size", ValueError),
    ):
        open_setting: dict[str, Any] = {name: None}
        changed = replace(epoch, shuffle=True, **open_setting)
        with pytest.raises(kind, match=f"`{name}` must be set") as caught:
            by_old_function(changed)
        assert isinstance(caught.value, ConfigError)


def test_an_unknown_method_is_refused_with_those_there_are(golden: Path) -> None:
    epoch = recorded_epoch(golden, next(read_cases(golden, "work")).params)
    with pytest.raises(UnknownNameError, match=r"'bogus'. Known: device_per_stream, per_stream"):
        generate_work("bogus", epoch, epoch.world, 0, 0)


def whole_epoch(
    method: str,
    sizes: list[int],
    world: World,
    batch_size: int = 4,
    seen: int = 0,
    nodes: int | None = None,
) -> Ids:
    """An epoch of streams of these sizes, 5 samples a shard."""
    spec = OrderSpec(
        batch_size=batch_size,
        shuffle=True,
        shuffle_block_size=64,
        batching_method=method,
        num_canonical_nodes=nodes or world.num_nodes,
    )
    table = shard_table(*([5] * (size // 5) + [size % 5] for size in sizes))
    shares, _ = weigh([Weight()] * len(sizes), sizes, None, 0)
    return plan_whole(spec, table, shares, world, Position(1, seen))


methods = pytest.mark.parametrize("method", sorted(batchings))


@given(
    sampled_from(sorted(batchings)),
    lists(integers(1, 60), min_size=1, max_size=4),
    integers(1, 2),
    integers(1, 3),
    integers(1, 3),
    integers(1, 5),
    integers(0, 3),
)
def test_counted_samples_are_those_there_are(
    method: str,
    sizes: list[int],
    nodes: int,
    ranks: int,
    workers: int,
    batch_size: int,
    rows_seen: int,
) -> None:
    world = World(nodes, ranks, workers)
    seen = min(rows_seen * world.num_ranks * batch_size, sum(sizes))
    spec = OrderSpec(batch_size=batch_size, batching_method=method, num_canonical_nodes=2)
    shares, _ = weigh([Weight()] * len(sizes), sizes, None, 0)
    at = Position(0, seen)
    try:
        whole = plan_whole(spec, shard_table(*([size] for size in sizes)), shares, world, at)
    except ConfigError:
        assume(False)
        raise
    counted = [count_samples(spec, shares, world, at, worker) for worker in range(workers)]
    assert counted == (whole[0, 0] >= 0).sum(axis=(1, 2)).tolist()
    ids, times = np.unique(whole[whole >= 0], return_counts=True)
    assert ids.max(initial=0) < sum(sizes)
    if seen == 0:
        # Ends of canonical nodes and of ranks may be repeated, and batches of the last row.
        repeated = 2 * len(sizes) * (2 + world.num_ranks) + world.num_ranks * batch_size
        assert times.sum() <= sum(sizes) + repeated


@methods
def test_case_R12_the_number_of_workers_changes_nothing(method: str) -> None:
    rows = []
    for workers in (1, 4, 2):
        whole = whole_epoch(method, [60, 90, 43], World(1, 2, workers))
        row = whole.transpose(3, 2, 0, 1, 4).reshape(-1, 8)
        rows.append(row[(row >= 0).any(axis=1)].tolist())
    assert rows[0] == rows[1] == rows[2]


@methods
def test_case_B5_only_the_last_batches_are_short(method: str) -> None:
    whole = whole_epoch(method, [60, 90, 43], World(2, 2, 3))
    counts = (whole >= 0).sum(axis=4).transpose(3, 2, 0, 1).reshape(-1, 4)
    # One partial global batch, whole ones before, none behind.
    is_full = (counts == 4).all(axis=1)
    short = int(is_full.sum())
    assert is_full[:short].all()
    assert (counts[short + 1 :] == 0).all()


@methods
def test_case_U8_ranks_have_no_sample_in_common_but_repeats(method: str) -> None:
    whole = whole_epoch(method, [60, 90, 43], World(2, 2, 2))
    times = Counter(whole[whole >= 0].tolist())
    assert sum(count - 1 for count in times.values()) <= 3 * 4


def test_case_B3_a_stream_smaller_than_a_batch_or_the_nodes_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for method in ("device_per_stream", "per_stream"):
        caplog.clear()
        whole = whole_epoch(method, [64, 1], World(2, 1, 2), batch_size=8, nodes=4)
        # The tiny stream's sample is there, in the last batch that is not all padding.
        assert 64 in whole
        assert set(range(64)) <= set(whole.ravel().tolist())
        if method == "per_stream":
            assert "1 of 2 streams have less than a global batch of 16" in caplog.text


def test_tiny_streams_of_per_stream_come_last() -> None:
    whole = whole_epoch("per_stream", [64, 3, 2, 40], World(1, 2, 1))
    rows = whole.transpose(3, 2, 0, 1, 4).reshape(-1, 8)
    streams = [set(np.searchsorted([64, 67, 69], row[row >= 0], "right").tolist()) for row in rows]
    assert streams[-2:] == [{1}, {2}]
    assert sorted(map(list, streams[:-2])) == [[0]] * 8 + [[3]] * 5


@methods
def test_case_B6_a_stream_that_contributes_nothing_is_skipped(method: str) -> None:
    spec = OrderSpec(batch_size=4, batching_method=method, num_canonical_nodes=1)
    table, world = shard_table([40], [9], [30]), World(1, 2, 1)
    weights = [Weight(choose=40), Weight(choose=0), Weight(choose=30)]
    shares, _ = weigh(weights, [40, 9, 30], None, 0)
    whole = plan_whole(spec, table, shares, world, Position())
    streams = set(np.searchsorted([40, 49], whole[whole >= 0], "right").tolist())
    assert streams == {0, 2}


@methods
def test_case_B8_a_batch_larger_than_the_dataset_is_one_short_batch(method: str) -> None:
    whole = whole_epoch(method, [7], World(1, 1, 2), batch_size=100)
    assert sorted(whole[whole >= 0].tolist()) == list(range(7))
    assert (whole[0, 0, 0] >= 0).sum() == 7


def test_a_huge_batch_is_counted_at_once() -> None:
    shares, _ = weigh([Weight()], [7], None, 0)
    for method in batchings:
        spec = OrderSpec(batch_size=2**40, batching_method=method)
        assert count_samples(spec, shares, World(1, 1, 4), Position()) == 7


def test_case_B1_random_batching_mixes_streams_as_their_weights_say() -> None:
    sizes = [20_000, 50_000, 30_000]
    table = shard_table(*([100] * (size // 100) for size in sizes))
    shares, _ = weigh([Weight(proportion=p) for p in (3, 5, 2)], sizes, 50_000, 9176)
    spec = OrderSpec(batch_size=10, shuffle=True, shuffle_block_size=4000)
    ids = build_plan(spec, table, shares, World(), Position()).ids(0, 50_000)
    stream = np.searchsorted(np.cumsum(sizes), ids, "right")
    for window in np.split(stream, 25):
        found = np.bincount(window, minlength=3) / len(window)
        assert np.abs(found - [0.3, 0.5, 0.2]).max() < 0.17
    assert np.bincount(stream).tolist() == [share.choose for share in shares]


def test_stratified_batches_hold_every_stream_in_proportion() -> None:
    whole = whole_epoch("stratified", [60, 90, 150], World(1, 2, 2), batch_size=5)
    rows = whole.transpose(3, 2, 0, 1, 4).reshape(-1, 10)
    for row in rows[(rows >= 0).all(axis=1)]:
        assert np.bincount(np.searchsorted([60, 150], row, "right")).tolist() == [2, 3, 5]


def test_batches_of_device_per_stream_are_of_one_stream() -> None:
    whole = whole_epoch("device_per_stream", [60, 90, 150], World(2, 2, 2))
    for batch in whole.reshape(-1, 4):
        assert len(set(np.searchsorted([60, 150], batch[batch >= 0], "right").tolist())) <= 1


def test_a_mix_that_a_batch_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="sample of every stream in each global batch"):
        whole_epoch("stratified", [5, 900], World())
    with pytest.raises(ConfigError, match="`num_canonical_nodes` is 3"):
        whole_epoch("device_per_stream", [50], World(2), nodes=3)


def test_rows_seen_in_part_come_again_and_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    whole = whole_epoch("per_stream", [64], World(1, 2, 1), seen=20)
    assert (whole >= 0).sum() == 48
    assert "4 of them come again" in caplog.text


def test_thousand_streams_are_planned_quickly() -> None:
    count = 1000
    table = shard_table(*([10_000] * 100 for _ in range(count)))
    shares, _ = weigh([Weight()] * count, [10**6] * count, None, 0)
    for method in batchings:
        spec = OrderSpec(batch_size=32, batching_method=method)
        world = World(8, 8, 8, 77)
        plan = build_plan(spec, table, shares, world, Position())
        ids = plan.ids(0, 4096)
        assert len(set(ids.tolist())) == 4096
