"""The plan of an epoch: what workers read, what goes on elsewhere, what is refused."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from

from streaming.errors import ConfigError, StateError, UnknownNameError
from streaming.idmap import Ids, Recipe, in_memory
from streaming.plan import OrderSpec, Position, build_plan, count_samples
from streaming.sampling import Share, Weight, weigh
from streaming.spanner import Spanner
from streaming.world import World
from tests.suites.epochs import plan_whole
from tests.suites.orders import shard_table

SIZES = [20, 20, 20, 7, 31, 12, 8, 9, 25, 64]
TOTAL = sum(SIZES)
WHOLE = [Share(TOTAL, 1.0, 1.0)]


def rows(spec: OrderSpec, world: World, at: Position) -> list[list[int]]:
    """Global batches in order, without padding."""
    whole = plan_whole(spec, shard_table(SIZES), WHOLE, world, at)
    by_row = whole.transpose(3, 2, 0, 1, 4).reshape(-1, world.num_ranks * spec.batch_size)
    return [found for row in by_row if (found := row[row >= 0].tolist())]


def test_defaults_follow_from_the_nodes() -> None:
    spec = OrderSpec(batch_size=1)
    assert spec.resolve(2).num_canonical_nodes == 2
    assert spec.resolve(2).shuffle_block_size == 2_000_000
    assert spec.resolve(20).shuffle_block_size == 2**18
    for algo in ("py1s", "py2s"):
        assert OrderSpec(batch_size=1, shuffle_algo=algo).resolve(2).num_canonical_nodes == 128
    given_numbers = OrderSpec(batch_size=1, num_canonical_nodes=3, shuffle_block_size=5)
    assert given_numbers.resolve(2) == given_numbers
    with pytest.raises(ConfigError, match="call `resolve`"):
        _ = spec.canonical_nodes


def test_a_spec_goes_through_json() -> None:
    spec = OrderSpec(batch_size=8, shuffle=True, shuffle_algo="naive", num_canonical_nodes=4)
    again = OrderSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.digest() == spec.digest()


def test_specs_that_differ_have_different_digests_and_say_where() -> None:
    one, other = OrderSpec(batch_size=8), OrderSpec(batch_size=9, shuffle=True)
    assert one.digest() != other.digest()
    assert one.differences(other) == {"batch_size": (8, 9), "shuffle": (False, True)}
    assert one.differences(one) == {}


def test_numbers_of_numpy_are_plain_numbers_in_a_spec() -> None:
    spec = OrderSpec(batch_size=np.int64(8))  # type: ignore[arg-type]  # the point
    assert spec == OrderSpec(batch_size=8)
    assert type(spec.batch_size) is int


def test_an_order_of_an_older_release_has_defaults_for_what_it_lacks() -> None:
    assert OrderSpec.from_json({"batch_size": 3}) == OrderSpec(batch_size=3)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({}, "no `batch_size`"),
        ({"batch_size": 1, "more": 1}, "does not know: more"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"batch_size": 1, "shuffle_algo": []}, "`shuffle_algo` must be a name"),
        ({"batch_size": 1, "shuffle_algo": "bogus"}, "no shuffle algorithm 'bogus'"),
    ],
)
def test_an_order_in_json_that_cannot_be_is_refused(obj: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        OrderSpec.from_json(obj)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("batch_size", 2**63),
        ("batch_size", 1.5),
        ("batch_size", None),
        ("batch_size", True),
        ("shuffle_seed", -1),
        ("shuffle_seed", "a"),
        ("shuffle_block_size", 0),
        ("num_canonical_nodes", 0),
        ("num_canonical_nodes", 2**63),
        ("sampling_granularity", 0),
        ("sampling_method", "random"),
        ("replication", 0),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        OrderSpec(**{"batch_size": 1, name: value})


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("partition_algo", "orig, relaxed"),
        ("shuffle_algo", "block1, naive, .*py2s"),
        ("batching_method", "device_per_stream, .*stratified"),
    ],
)
def test_unknown_names_are_refused_with_those_there_are(name: str, known: str) -> None:
    settings: dict[str, Any] = {"batch_size": 1, name: "bogus"}
    with pytest.raises(UnknownNameError, match=f"'bogus'. Known: {known}"):
        OrderSpec(**settings)


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1), (0, 0, 0), (2**63, 0), (0.5, 0)])
def test_impossible_positions_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Position(*numbers)


@given(
    sampled_from(["block1", "naive", "py1b", "py1br", "py1e", "py1s", "py2s", None]),
    sampled_from(["orig", "relaxed"]),
    integers(1, 3),
    integers(1, 3),
    integers(1, 4),
    integers(1, 9),
)
def test_every_sample_comes_as_often_as_the_weights_say(
    algo: str | None, partition: str, nodes: int, ranks: int, workers: int, batch_size: int
) -> None:
    spec = OrderSpec(
        batch_size=batch_size,
        shuffle=algo is not None,
        shuffle_algo=algo or "py1e",
        shuffle_block_size=32,
        partition_algo=partition,
        num_canonical_nodes=nodes,
    )
    world = World(nodes, ranks, workers)
    table = shard_table(SIZES[:5], SIZES[5:])
    sizes = [sum(SIZES[:5]), sum(SIZES[5:])]
    shares, size = weigh([Weight(repeat=2), Weight(repeat=1.5)], sizes, None, 0)
    whole = plan_whole(spec, table, shares, world, Position())
    times = Counter(whole[whole >= 0].tolist())
    # Canonical nodes and ranks that come out one short repeat a sample.
    surplus = sum(times.values()) - size
    assert 0 <= surplus < nodes + world.num_ranks
    assert set(times) >= set(range(sizes[0]))
    assert sum(max(times[i] - 2, 0) for i in range(TOTAL)) <= surplus
    assert all(times[i] >= 2 for i in range(sizes[0]))
    assert all(times[i] >= 1 for i in range(sizes[0], TOTAL))


@given(
    sampled_from(["py1e", "block1"]),
    integers(0, 120),
    integers(0, 120),
    lists(integers(0, 119), max_size=5),
)
def test_random_access_is_the_whole(algo: str, start: int, stop: int, singles: list[int]) -> None:
    spec = OrderSpec(batch_size=4, shuffle=True, shuffle_algo=algo, shuffle_block_size=32)
    plan = build_plan(spec, shard_table(SIZES), WHOLE, World(1, 1, 2, 1), Position(2))
    whole = plan.ids(0, len(plan))
    start, stop = sorted((min(start, len(plan)), min(stop, len(plan))))
    assert np.array_equal(plan.ids(start, stop), whole[start:stop])
    for slot in singles:
        if slot < len(plan):
            assert plan.ids(slot, slot + 1)[0] == whole[slot]


@pytest.mark.parametrize("slots", [(-1, 2), (2, 1), (0, 10**6)])
def test_slots_of_nobody_are_refused(slots: tuple[int, int]) -> None:
    plan = build_plan(OrderSpec(batch_size=4), shard_table(SIZES), WHOLE, World(), Position())
    with pytest.raises(IndexError, match="are not in"):
        plan.ids(*slots)


def test_shards_come_in_the_order_of_first_use() -> None:
    spec = OrderSpec(batch_size=4, shuffle=True, shuffle_block_size=32)
    table = shard_table(SIZES)
    plan = build_plan(spec, table, WHOLE, World(1, 1, 3, 1), Position(2))
    shard_of, _ = Spanner(table.samples)(plan.ids(0, len(plan)))
    plain = list(dict.fromkeys(shard for shard in shard_of.tolist() if shard >= 0))
    assert plan.shards(0, 100) == plain
    assert plan.shards(0, 3) == plain[:3]
    assert plan.shards(0, 0) == []
    assert plan.shards(len(plan), 9) == []
    rest = list(dict.fromkeys(shard for shard in shard_of[40:].tolist() if shard >= 0))
    assert plan.shards(40, 100) == rest
    near = list(dict.fromkeys(shard for shard in shard_of[40:60].tolist() if shard >= 0))
    assert plan.shards(40, 100, stop=60) == near


@pytest.mark.parametrize("algo", ["naive", "py1e", "py1s", "block1"])
@pytest.mark.parametrize("done", [1, 3, 8])
def test_case_R11_a_run_goes_on_with_the_same_batches_elsewhere(algo: str, done: int) -> None:
    def order(world: World) -> OrderSpec:
        return OrderSpec(
            batch_size=24 // world.num_ranks,
            shuffle=True,
            shuffle_algo=algo,
            shuffle_block_size=64,
            num_canonical_nodes=4,
        )

    first = World(2, 2, 2)
    before = rows(order(first), first, Position(1))
    for world in (World(1, 1), World(1, 2, 3), World(4, 1, 2), World(3, 2), World(1, 4), World(2)):
        after = rows(order(world), world, Position(1, done * 24, initial_nodes=2))
        # The last batch may differ: it is filled up for the ranks there are.
        expected = before[done:]
        assert [sorted(row) for row in after[:-1]] == [sorted(row) for row in expected[:-1]]
        assert set(expected[-1]) <= {sample for row in before for sample in row}
        assert {i for row in [*before[:done], *after] for i in row} == set(range(TOTAL))


@pytest.mark.parametrize("algo", [None, "py1e", "block1"])
def test_case_R12_the_order_is_the_same_for_any_number_of_workers(algo: str | None) -> None:
    spec = OrderSpec(
        batch_size=6,
        shuffle=algo is not None,
        shuffle_algo=algo or "py1e",
        shuffle_block_size=64,
        num_canonical_nodes=2,
    )
    assert (
        rows(spec, World(1, 2, 1), Position())
        == rows(spec, World(1, 2, 4), Position())
        == rows(spec, World(1, 2, 3), Position())
    )
    resumed = rows(spec, World(1, 2, 4), Position(0, 48))
    assert resumed == rows(spec, World(1, 2, 1), Position())[4:]


@pytest.mark.parametrize("algo", ["block1", "naive", "py1b", "py1br", "py1e", "py1s", "py2s"])
def test_case_U1_two_samples_in_64_canonical_nodes_are_seen_and_reported(
    algo: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = OrderSpec(batch_size=4, shuffle=True, shuffle_algo=algo, num_canonical_nodes=64)
    share = [Share(2, 1.0, 1.0)]
    whole = plan_whole(spec, shard_table([1, 1]), share, World(1, 2, 2), Position())
    # As the predecessor has it: every canonical node has a sample, so both come 32 times.
    assert Counter(whole.ravel().tolist()) == {0: 32, 1: 32}
    assert "An epoch of 2 samples is too short for 64 canonical nodes" in caplog.text
    assert len(caplog.records) == 1  # from one worker only


@pytest.mark.parametrize("algo", ["py1e", "block1"])
def test_case_U2_partial_choices_rotate_with_the_epoch_unless_fixed(algo: str) -> None:
    table, share = shard_table([40, 40]), [Share(30, 30 / 80, 1.0)]

    def ids(method: str, epoch: int) -> Ids:
        spec = OrderSpec(batch_size=5, sampling_method=method, shuffle_algo=algo)
        return build_plan(spec, table, share, World(), Position(epoch)).ids(0, 30)

    # K4: with `balanced` the choice in a shard changes; how many of each shard doesn't.
    first, second = ids("balanced", 0), ids("balanced", 1)
    assert not np.array_equal(first, second)
    assert (first < 40).sum() == (second < 40).sum()
    assert np.array_equal(ids("fixed", 0), ids("fixed", 1))


@pytest.mark.parametrize("algo", ["py1e", "block1"])
def test_case_U3_shuffling_is_as_wide_at_the_end_as_in_the_middle(algo: str) -> None:
    table = shard_table([100] * 400)
    spec = OrderSpec(batch_size=10, shuffle=True, shuffle_algo=algo, shuffle_block_size=2000)
    share = [Share(40_000, 1.0, 1.0)]
    ids = build_plan(spec, table, share, World(), Position(3)).ids(0, 40_000)
    shards = [len(set((part // 100).tolist())) for part in np.split(ids, 40)]
    assert min(shards) > 0.5 * float(np.median(shards))
    assert sorted(ids.tolist()) == list(range(40_000))


def test_case_U5_an_epoch_counts_samples_once_with_replication() -> None:
    sizes, size = [200], 120
    shares, total = weigh([Weight()], sizes, size, 9176)
    assert total == size
    spec = OrderSpec(batch_size=5, replication=2)
    seen: dict[int, Ids] = {}
    for rank in range(4):
        world = World(1, 4, 1, rank).replicate(2)
        plan = build_plan(spec, shard_table(sizes), shares, world, Position())
        seen[rank] = plan.ids(0, len(plan))
        assert plan.num_samples == 60
    assert np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[2], seen[3])
    assert len(set(seen[0].tolist()) | set(seen[2].tolist())) == size


@given(
    sampled_from(["py1e", "block1"]),
    integers(1, 3),
    integers(1, 3),
    integers(1, 3),
    integers(1, 9),
    integers(0, 20),
    integers(1, 2),
)
def test_case_U8_ranks_have_no_sample_in_common_but_repeats(
    algo: str, nodes: int, ranks: int, workers: int, batch_size: int, batches: int, more: int
) -> None:
    spec = OrderSpec(
        batch_size=batch_size, num_canonical_nodes=nodes * more, shuffle=True, shuffle_algo=algo
    )
    world = World(nodes, ranks, workers)
    at = Position(0, min(batches * batch_size * world.num_ranks, TOTAL))
    whole = plan_whole(spec, shard_table(SIZES), WHOLE, world, at)
    times = Counter(whole[whole >= 0].tolist())
    surplus = sum(count - 1 for count in times.values())
    assert surplus < nodes * more + world.num_ranks * 2
    per_rank = (whole >= 0).sum(axis=(2, 3, 4))
    assert per_rank.min() == per_rank.max()


def test_nothing_is_left_at_the_end_of_an_epoch() -> None:
    spec = OrderSpec(batch_size=7, num_canonical_nodes=2)
    world = World(1, 1, 2)
    share = [Share(137, 1.0, 1.0)]
    left = [count_samples(spec, share, world, Position(0, seen), 0) for seen in (0, 130, 138)]
    assert left == [70, 7, 0]  # K7: an epoch of 137 samples has 138 places here
    plan = build_plan(spec, shard_table([137]), share, world, Position(0, 138))
    assert len(plan) == plan.num_samples == 0
    assert plan.ids(0, 0).shape == (0,)


def test_a_position_behind_the_epoch_is_refused() -> None:
    spec, share = OrderSpec(batch_size=7), [Share(137, 1.0, 1.0)]
    with pytest.raises(StateError, match="999 samples of the epoch are said to be seen"):
        count_samples(spec, share, World(), Position(0, 999))
    # As many as may have been given again, to more ranks than there are now, are the epoch's end.
    assert count_samples(spec, share, World(), Position(0, 139)) == 0
    with pytest.raises(StateError, match="137"):
        build_plan(spec, shard_table([137]), share, World(), Position(0, 10**6))


def test_shares_of_other_shards_are_refused() -> None:
    class Short(OrderSpec):
        """Never more than it says."""

    with pytest.raises(ConfigError):
        build_plan(
            OrderSpec(batch_size=1), shard_table([0]), [Share(5, 1.0, 1.0)], World(), Position()
        )


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_of_1e12_samples_in_1e6_shards_is_random_access(shuffle: bool) -> None:
    samples = np.full(10**6, 10**6)
    table = shard_table([0])
    table = type(table)(samples, samples, samples, np.zeros(10**6, np.int32))
    world = World(64, 8, 8, 4095)
    spec = OrderSpec(batch_size=32, shuffle=shuffle, shuffle_algo="block1")
    plan = build_plan(spec, table, [Share(10**12, 1.0, 1.0)], world, Position())
    assert plan.recipe is None
    assert len(plan) * world.num_workers >= 10**12
    ids = plan.ids(len(plan) - 4096, len(plan))
    assert shuffle or 10**12 - 10**10 < ids.max() < 10**12
    (middle,) = plan.ids(len(plan) // 2, len(plan) // 2 + 1).tolist()
    assert plan.shards(len(plan) // 2, 1) == [middle // 10**6]


@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s", "py1b", "naive", "py2s"])
@pytest.mark.parametrize("method", ["random", "per_stream", "device_per_stream", "stratified"])
def test_a_node_makes_the_ids_of_its_own_canonical_nodes_only(algo: str, method: str) -> None:
    sizes = [40, 60, 100]
    table = shard_table(*([10] * (size // 10) for size in sizes))
    shares, _ = weigh([Weight()] * 3, sizes, None, 0)
    spec = OrderSpec(
        batch_size=5,
        shuffle=True,
        shuffle_algo=algo,
        shuffle_block_size=50,
        num_canonical_nodes=4,
        batching_method=method,
    )
    held: list[int] = []

    def hold(recipe: Recipe) -> Ids:
        held.append(recipe.size)
        return in_memory(recipe)

    world = World(2, 2, 1, 1)
    plan = build_plan(spec, table, shares, world, Position(1), hold)
    assert plan.recipe is not None
    assert held == []  # until somebody reads
    plan.ids(0, len(plan))
    # Half of the canonical nodes; a rank of device_per_stream may read from both nodes' lists.
    is_whole = algo in ("naive", "py2s") or method in ("stratified", "device_per_stream")
    assert held == [200 if is_whole else 100]


def test_draws_from_parts_of_streams_are_counted_once_and_kept() -> None:
    table, share = shard_table([40, 40]), [Share(30, 30 / 80, 1.0)]
    held: dict[str, int] = {}

    def hold(recipe: Recipe) -> Ids:
        held[recipe.digest] = recipe.work
        return in_memory(recipe)

    plan = build_plan(OrderSpec(batch_size=5), table, share, World(), Position(), hold)
    assert list(held.values()) == [80]  # How often shards are drawn takes a permutation of all.
    plan.ids(0, 5)
    assert len(held) == 2


def test_an_empty_dataset_has_an_empty_epoch() -> None:
    for algo in ("py1e", "block1"):
        for method in ("random", "per_stream", "stratified", "device_per_stream"):
            spec = OrderSpec(batch_size=4, shuffle=True, shuffle_algo=algo, batching_method=method)
            plan = build_plan(spec, shard_table([0]), [Share(0, 0.0, 0.0)], World(), Position())
            assert (len(plan), plan.num_samples, plan.shards(0, 3)) == (0, 0, [])
