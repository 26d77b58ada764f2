"""The arithmetic shuffle: its recorded orders, what it promises, and that it needs no table."""

import importlib.util
import json
import logging
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from streaming.errors import ConfigError
from streaming.idmap import IdTable, Recipe, in_memory
from streaming.shuffle import ShuffleSpec, get_shuffle, shuffles
from streaming.shuffle.block1 import Block1Order, block1
from tests.suites.shuffle import ShuffleSuite, specs


def refuse(recipe: Recipe) -> IdTable:
    raise AssertionError("a table is made")


class TestBlock1(ShuffleSuite):
    algo = "block1"


@pytest.fixture(scope="module")
def recorder(golden: Path) -> ModuleType:
    """The script that recorded the orders, as a module."""
    path = golden / "block1" / "generate.py"
    spec = importlib.util.spec_from_file_location("recorder", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_orders_are_the_recorded_ones(
    golden: Path, recorder: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    cases = json.loads((golden / "block1" / "block1.json").read_text())
    assert len(cases) >= 170
    run = recorder.run
    assert [
        each for each in cases if run(each["function"], each["arguments"]) != each["result"]
    ] == []


@given(specs)
def test_samples_stay_in_their_block_and_canonical_node(spec: ShuffleSpec) -> None:
    order = block1.open(spec, refuse)
    draws = order(np.arange(spec.num_samples))
    plain = Block1Order([ShuffleSpec(spec.sizes, spec.canonical_nodes, spec.seed, spec.epoch, 1)])
    before = plain(np.arange(spec.num_samples))  # Blocks of one: only pieces are in random order.
    size = 1 << (spec.block_size - 1).bit_length()
    for node in range(spec.canonical_nodes):
        start, stop = ((node + i) * spec.num_samples // spec.canonical_nodes for i in (0, 1))
        last = max((stop - start) // size, 1) - 1
        for number in range(last + 1):
            at = start + number * size
            block = slice(at, stop if number == last else at + size)
            assert sorted(draws[block].tolist()) == sorted(before[block].tolist())


@given(lists(specs, min_size=1, max_size=4))
def test_sources_side_by_side_are_each_in_an_order_of_their_own(some: list[ShuffleSpec]) -> None:
    many = [
        ShuffleSpec(spec.sizes, spec.canonical_nodes, 5, 1, spec.block_size, source=i)
        for i, spec in enumerate(some)
    ]
    order = block1.open_all(many, refuse)
    draws = order(np.arange(order.size))
    start = 0
    for spec in many:
        part = draws[start : start + spec.num_samples] - start
        assert np.array_equal(np.sort(part), np.arange(spec.num_samples))
        start += spec.num_samples
    positions = np.random.default_rng(3).permutation(order.size)
    assert np.array_equal(order(positions), draws[positions])


def test_equal_streams_are_not_shuffled_alike() -> None:
    spec = [ShuffleSpec(np.full(20, 50), 1, 5, 1, 64, source=source) for source in (0, 1)]
    draws = block1.open_all(spec, refuse)(np.arange(2000))
    assert not np.array_equal(draws[:1000], draws[1000:] - 1000)


@given(integers(1, 6), integers(0, 3), integers(0, 50))
def test_positions_in_any_order_give_the_same_draws(nodes: int, epoch: int, seed: int) -> None:
    order = block1.open(ShuffleSpec(np.arange(1, 90), nodes, 9, epoch, 512), refuse)
    whole = order(np.arange(order.size))
    rng = np.random.default_rng(seed)
    for positions in (
        np.arange(order.size)[::-1],
        rng.integers(0, order.size, 700),
        np.sort(rng.integers(0, order.size, 700)),
        rng.integers(0, order.size, (3, 5)),
        np.arange(100, 1700, 3),
        np.array(7),
        np.array([-1, 5, -1]),
    ):
        expected = np.where(positions < 0, -1, whole[positions])
        assert np.array_equal(order(positions), expected)
    assert order(np.array([-1, -1])).tolist() == [-1, -1]


def test_streams_are_spread_evenly_over_the_epoch() -> None:
    # 3 : 1 in shards of different sizes; a block holds some 20 shards.
    sizes = np.array([100] * 300 + [50] * 200)
    groups = np.array([0] * 300 + [1] * 200)
    spec = ShuffleSpec(sizes, 4, 3, 1, 2048, groups=groups)
    draws = block1.open(spec, refuse)(np.arange(40_000))
    shares = [(part < 30_000).mean() for part in np.split(draws, 20)]
    assert max(abs(share - 0.75) for share in shares) < 0.06
    alone = ShuffleSpec(sizes, 4, 3, 1, 2048)
    draws = block1.open(alone, refuse)(np.arange(40_000))
    by_chance = [(part < 30_000).mean() for part in np.split(draws, 20)]
    assert np.std(shares) < np.std(by_chance) / 2


def test_1e15_samples_are_shuffled_at_once_in_little_memory() -> None:
    sizes = np.full(10_000, 10**11)
    tracemalloc.start()
    order = block1.open(ShuffleSpec(sizes, 64, 1, 1), refuse)
    draws = order(np.arange(10**14, 10**14 + 64 * 4096, 64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(draws.tolist())) == 4096
    assert peak < 8 << 20


def test_more_than_2_to_the_63_is_refused() -> None:
    with pytest.raises(ConfigError, match="Lower `num_canonical_nodes`"):
        block1.open(ShuffleSpec(np.full(4, 2**58), 64, 1, 1), in_memory)


def test_blocks_that_are_small_for_the_shards_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    get_shuffle("block1", np.array([90, 40]), 1, 1, 0, 120)
    get_shuffle("block1", np.array([1, 1]), 1, 1, 0, 1)
    assert not caplog.records
    get_shuffle("block1", np.array([90, 40]), 1, 1, 0, 60)
    assert "Raise it to 180" in caplog.text


def test_it_is_the_one_shuffle_that_is_arithmetic() -> None:
    assert [name for name in shuffles if shuffles.get(name).is_arithmetic] == ["block1"]
