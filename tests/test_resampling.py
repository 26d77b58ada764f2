"""Which samples the draws of an epoch are, drawn as the predecessor does and by arithmetic."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import booleans, data, integers, lists

from streaming.errors import ConfigError
from streaming.idmap import Hold, Ids, IdTable, Recipe, in_memory
from streaming.resampling import (
    HeldChoices,
    Resample,
    Sampling,
    resample,
    resample_by_arithmetic,
    systematic,
)
from streaming.sampling import Share
from tests.suites.orders import shard_table


@given(data(), integers(0, 3), booleans(), integers(1, 4))
def test_every_sample_is_drawn_as_often_as_its_stream_is(
    draw: Any, epoch: int, is_balanced: bool, granularity: int
) -> None:
    sizes = lists(integers(0, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)
    streams = draw.draw(lists(sizes, min_size=1, max_size=3))
    shares = [Share(draw.draw(integers(0, 40)), 0, 0) for _ in streams]
    sampling = Sampling(seed=5, epoch=epoch, granularity=granularity, is_balanced=is_balanced)
    draws = resample(shard_table(*streams), shares, sampling)
    times = Counter(draws(np.arange(draws.size)).tolist())
    first = 0
    for stream, share in zip(streams, shares, strict=True):
        total = sum(stream)
        counts = [times[first + i] for i in range(total)]
        assert sum(counts) == share.choose
        assert set(counts) <= {share.choose // total, -(-share.choose // total)}
        first += total
    assert draws.units.sum() == draws.size
    assert (draws.units > 0).all()


@given(lists(integers(0, 7), min_size=1, max_size=6), lists(integers(0, 20), min_size=6))
def test_whole_draws_are_the_concatenation_of_repeats_and_choices(
    sizes: list[int], wanted: list[int]
) -> None:
    chosen = [count if size else 0 for size, count in zip(sizes, wanted, strict=False)]
    rng = np.random.default_rng(3)
    plain: list[int] = []
    units: list[int] = []
    first = 11
    for size, count in zip(sizes, chosen, strict=True):
        if size:
            plain += list(range(first, first + size)) * (count // size)
            units += [size] * (count // size)
            if count % size:
                choice = rng.choice(size, count % size, replace=False)
                plain += sorted((first + choice).tolist())
                units.append(count % size)
        first += size
    chosen_array = np.array(chosen, np.int64)
    choices = HeldChoices(np.array(sizes), chosen_array, 3, in_memory)
    draws = Resample(11, np.array(sizes), chosen_array, choices)
    assert draws(np.arange(draws.size)).tolist() == plain
    assert draws.units.tolist() == units
    backwards = np.arange(draws.size)[::-1]
    assert draws(backwards).tolist() == plain[::-1]
    assert draws(np.full((2, 2), -1)).tolist() == [[-1, -1], [-1, -1]]


def _refuse(recipe: Recipe) -> IdTable:
    raise AssertionError("a table is made")


@pytest.mark.parametrize("repeat", [0, 1, 3])
def test_whole_repeats_need_no_table(repeat: int) -> None:
    table = shard_table([4, 0, 3], [2])
    shares = [Share(7 * repeat, repeat, 0.5), Share(2 * repeat, repeat, 0.5)]
    draws = resample(table, shares, Sampling(seed=1, epoch=0), hold=_refuse)
    ids = draws(np.arange(draws.size)).tolist()
    assert sorted(ids) == sorted(list(range(9)) * repeat)


def test_balanced_choices_change_with_the_epoch_and_fixed_ones_do_not() -> None:
    table, shares = shard_table([50, 50]), [Share(30, 0.3, 1.0)]

    def ids(epoch: int, *, is_balanced: bool) -> Ids:
        sampling = Sampling(seed=1, epoch=epoch, is_balanced=is_balanced)
        return resample(table, shares, sampling)(np.arange(30))

    assert np.array_equal(ids(0, is_balanced=False), ids(1, is_balanced=False))
    assert not np.array_equal(ids(0, is_balanced=True), ids(1, is_balanced=True))


def test_choices_are_held_under_a_name_of_what_they_follow_from() -> None:
    held: list[str] = []

    def hold(recipe: Recipe) -> Ids:
        held.append(recipe.digest)
        return in_memory(recipe)

    def draw(hold: Hold, *, choose: int = 5, seed: int = 1) -> None:
        resample(shard_table([9]), [Share(choose, 0, 1)], Sampling(seed=seed, epoch=0), hold=hold)

    draw(hold)
    draw(hold)
    draw(hold, choose=6)
    draw(hold, seed=2)
    # Each time how often shards are drawn, and which of their samples.
    assert held[:2] == held[2:4]
    assert len(set(held)) == 6


@given(
    lists(integers(0, 40), min_size=1, max_size=9).filter(any),
    integers(0, 200),
    integers(1, 50),
    integers(0, 2**64 - 1),
)
def test_systematic_draws_are_in_proportion_within_a_granule(
    sizes: list[int], choose: int, granularity: int, key: int
) -> None:
    chosen = systematic(np.array(sizes), choose, granularity, key)
    total = sum(sizes)
    assert chosen.sum() == choose
    repeats, left = divmod(choose, total)
    for size, count in zip(sizes, chosen.tolist(), strict=True):
        assert repeats * size <= count <= (repeats + 1) * size
        assert abs(count - repeats * size - size * left / total) < granularity + 1
        extra = count - repeats * size
        assert extra % granularity == 0 or extra == size or granularity > left % granularity


def test_systematic_draws_of_huge_shards_do_not_overflow() -> None:
    sizes = np.array([10**15, 3 * 10**15])
    assert systematic(sizes, 10**15 + 4, 1, 7).tolist() in (
        [250_000_000_000_001, 750_000_000_000_003],
        [250_000_000_000_000, 750_000_000_000_004],
        [250_000_000_000_002, 750_000_000_000_002],
    )


@given(data(), integers(0, 3), booleans(), booleans(), integers(1, 4))
def test_every_sample_is_drawn_as_often_as_its_stream_by_arithmetic(
    draw: Any, epoch: int, is_balanced: bool, use_epoch: bool, granularity: int
) -> None:
    sizes = lists(integers(0, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)
    streams = draw.draw(lists(sizes, min_size=1, max_size=3))
    shares = [Share(draw.draw(integers(0, 40)), 0, 0) for _ in streams]
    sampling = Sampling(
        seed=5,
        epoch=epoch,
        granularity=granularity,
        is_balanced=is_balanced,
        use_epoch=use_epoch,
    )
    table = shard_table(*streams)
    draws = resample_by_arithmetic(table, shares, sampling)
    samples = draws(np.arange(draws.size))
    times = Counter(samples.tolist())
    first = 0
    for stream, share in zip(streams, shares, strict=True):
        total = sum(stream)
        counts = [times[first + i] for i in range(total)]
        assert sum(counts) == share.choose
        assert set(counts) <= {share.choose // total, -(-share.choose // total)}
        first += total
    alone = [
        resample_by_arithmetic(table, shares, sampling, stream) for stream in range(len(streams))
    ]
    joined = [part(np.arange(part.size)) for part in alone]
    assert np.array_equal(np.concatenate(joined), samples)
    assert sum(part.units.sum() for part in alone) == draws.units.sum() == draws.size


def test_drawing_by_arithmetic_from_an_empty_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 samples are to be drawn"):
        resample_by_arithmetic(shard_table([0]), [Share(5, 1.0, 1.0)], Sampling(seed=0, epoch=0))


def test_a_part_of_a_shard_of_2_to_the_32_is_refused() -> None:
    table = shard_table([2**32 + 1])
    sampling = Sampling(seed=0, epoch=0)
    resample_by_arithmetic(table, [Share(2 * (2**32 + 1), 2, 1.0)], sampling)
    with pytest.raises(ConfigError, match="2\\^32 samples are the most"):
        resample_by_arithmetic(table, [Share(7, 0, 1.0)], sampling)


def test_units_know_their_shards() -> None:
    sizes, chosen = np.array([3, 0, 4, 5]), np.array([7, 0, 0, 5])
    choices = HeldChoices(sizes, chosen, 3, in_memory)
    draws = Resample(0, sizes, chosen, choices)
    assert draws.units.tolist() == [3, 3, 1, 5]
    assert draws.of_units(np.array([8, 9, 6, 7])).tolist() == [8, 8, 8, 7]
    whole = Resample(0, sizes, sizes, choices)
    assert whole.of_units(np.array([8, 9, 6, 7])).tolist() == [8, 6, 7]
