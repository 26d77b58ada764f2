"""Turns: at any of them each stream has had its due, and any of them can be had at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import composite, floats, integers, lists

from streaming.idmap import Ids
from streaming.mixing import Due, Turns, fixed_due
from streaming.schedule import Course, Schedule


@composite
def courses(draw) -> tuple[Course, int]:  # type: ignore[no-untyped-def]  # hypothesis's own type
    """A course of some streams, and how long it is."""
    length = draw(integers(1, 700))
    weights = floats(0, 5)
    lines = lists(weights, min_size=2, max_size=2).filter(lambda ws: sum(ws) > 0.1)
    pairs = draw(lists(lines, min_size=1, max_size=6))
    linear = [Schedule.linear({0: low + 0.001, 400: high + 0.001}) for low, high in pairs]
    return Course(linear, draw(integers(0, 300)), length), length


@given(courses(), integers(0, 5))
def test_counts_add_up_and_never_fall(course: tuple[Course, int], key: int) -> None:
    due, length = course
    turns = Turns(due, due.num_streams, np.array([length]), key)
    counts = turns.counts(np.arange(length + 1))
    assert np.array_equal(counts.sum(axis=1), np.arange(length + 1))
    assert (np.diff(counts, axis=0) >= 0).all()
    should = due(np.arange(length + 1.0))
    # Each within one of its own due, and the due within a few turns of all.
    assert np.abs(counts - should).max() < 3


@given(lists(integers(0, 90), min_size=1, max_size=7).filter(any), integers(0, 5))
def test_fixed_counts_are_met_exactly_and_evenly(wanted: list[int], key: int) -> None:
    total = sum(wanted)
    turns = Turns(fixed_due(np.array(wanted)), len(wanted), np.array([total]), key)
    assert turns.totals().tolist() == wanted
    half = turns.counts(np.array([total // 2]))[0]
    assert np.abs(half - np.array(wanted) / 2).max() <= 3
    streams, before = all_turns(turns, [total])
    assert np.bincount(streams, minlength=len(wanted)).tolist() == wanted
    check_order(streams, before)


@given(courses(), integers(1, 100), integers(1, 3), integers(0, 5))
def test_any_turn_can_be_had_at_once(
    course: tuple[Course, int], window: int, lanes: int, key: int
) -> None:
    due, length = course
    totals = [max(length - lane, 0) for lane in range(lanes)]

    def make() -> Turns:
        return Turns(due, due.num_streams, np.array(totals), key, window)

    streams, before = all_turns(make(), totals)
    start = 0
    for total in totals:
        lane = slice(start, start + total)
        check_order(streams[lane], before[lane])
        found = np.bincount(streams[lane], minlength=due.num_streams)
        assert np.array_equal(found, make().counts(np.array([total]))[0])
        start += total
    assert np.array_equal(np.bincount(streams, minlength=due.num_streams), make().totals())
    which = np.random.default_rng(key).integers(0, len(streams), 40)
    lane_of = np.repeat(np.arange(lanes), totals)[which]
    turn = np.concatenate([np.arange(total) for total in totals])[which]
    some_streams, some_before = make()(lane_of, turn)
    assert np.array_equal(some_streams, streams[which])
    assert np.array_equal(some_before, before[which])


def all_turns(turns: Turns, totals: list[int]) -> tuple[Ids, Ids]:
    lanes = np.repeat(np.arange(len(totals)), totals)
    return turns(lanes, np.concatenate([np.arange(total) for total in totals]))


def check_order(streams: Ids, before: Ids) -> None:
    for stream in np.unique(streams):
        mine = before[streams == stream]
        assert np.array_equal(mine, np.arange(len(mine)))


def test_lanes_have_their_turns_in_different_orders() -> None:
    turns = Turns(fixed_due(np.array([50, 50])), 2, np.array([100, 100]), 1)
    streams, _ = all_turns(turns, [100, 100])
    assert not np.array_equal(streams[:100], streams[100:])


def test_windows_are_in_random_order_and_long_runs_are_rare() -> None:
    turns = Turns(fixed_due(np.array([2048, 2048])), 2, np.array([4096]), 1)
    streams, _ = all_turns(turns, [4096])
    assert 1900 < (np.diff(streams) != 0).sum() < 2200


def test_a_turn_far_ahead_costs_no_more() -> None:
    due: Due = Course([Schedule.linear({0: 1, 10**12: 3}), Schedule(((0, 2.0),))], 0, 10**12)
    turns = Turns(due, 2, np.array([10**12]), 7)
    streams, before = turns(np.zeros(3, np.int64), np.array([0, 10**11, 10**12 - 1]))
    counts = turns.counts(np.array([10**12]))[0]
    assert before[2] == pytest.approx(counts[streams[2]], abs=5000)


def test_only_the_newest_windows_are_kept() -> None:
    turns = Turns(fixed_due(np.array([10**8])), 1, np.array([10**8]), 7, window=1 << 18)
    for window in range(12):
        turns(np.zeros(1, np.int64), np.array([window << 18]))
    assert len(turns._windows) == 4
