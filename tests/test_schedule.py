"""Weights that change: what a schedule says, and what streams have given by when."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import composite, floats, integers, lists, sampled_from

from streaming.errors import ConfigError
from streaming.sampling import Weight, describe_shares, weigh
from streaming.schedule import Course, Schedule


@composite
def schedules(draw) -> Schedule:  # type: ignore[no-untyped-def]  # hypothesis's own type is private
    places = sorted(draw(lists(integers(0, 900), min_size=1, max_size=4, unique=True)))
    weights = [draw(floats(0.001, 9)) for _ in places]
    kind = draw(sampled_from(["steps", "linear"]))
    return Schedule(tuple(zip(places, weights, strict=True)), kind)


def test_steps_jump_and_lines_do_not() -> None:
    steps, linear = (make({10: 1.0, 20: 3.0}) for make in (Schedule.steps, Schedule.linear))
    assert [steps.at(seen) for seen in (0, 10, 19, 20, 99)] == [
        (1, 1),
        (1, 1),
        (1, 1),
        (1, 3),
        (3, 3),
    ]
    assert [linear.at(seen)[0] for seen in (0, 10, 15, 20, 99)] == [1, 1, 2, 3, 3]


def test_a_schedule_goes_through_json() -> None:
    schedule = Schedule.linear({0: 1.5, 10**6: 0})
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@pytest.mark.parametrize(
    ("points", "kind", "message"),
    [
        ((), "steps", "at least one point"),
        (((1, 2.0),), "curve", "'steps' or 'linear', not 'curve'"),
        (((5, 1.0), (5, 2.0)), "steps", "must ascend"),
        (((5, 1.0), (4, 2.0)), "steps", "must ascend"),
        (((-1, 1.0),), "steps", "from 0 or more"),
        (((2**53, 1.0),), "steps", "below 2\\^53"),
        (((0, -1.0),), "steps", "zero or a positive number, but is -1.0 at 0 samples"),
        (((0, float("nan")),), "steps", "but is nan"),
        ((1, 2), "steps", "made of points"),
        (((0, "a"),), "steps", "made of points"),
    ],
)
def test_impossible_schedules_are_refused(points: Any, kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(points, kind)


def test_json_of_something_else_is_refused() -> None:
    not_schedules: list[Any] = [[], {"points": [], "more": 1}, {"kind": "steps"}]
    for obj in not_schedules:
        with pytest.raises(ConfigError):
            Schedule.from_json(obj)


@given(lists(schedules(), min_size=1, max_size=5), integers(0, 900), integers(1, 900))
def test_streams_together_give_all_and_none_takes_back(
    some: list[Schedule], start: int, length: int
) -> None:
    course = Course(some, start, length)
    places = np.arange(length + 9.0)
    given = course(places)
    assert np.abs(given.sum(axis=1) - places).max() < 1e-6
    assert (np.diff(given, axis=0) >= 0).all()
    assert (given[0] == 0).all()


@given(lists(schedules(), min_size=1, max_size=4), integers(0, 900), integers(1, 300))
def test_what_is_given_is_the_area_under_the_shares(
    some: list[Schedule], start: int, length: int
) -> None:
    course = Course(some, start, length)
    knots = {start, start + length, *(place for s in some for place, _ in s.points)}
    inside = sorted(knot for knot in knots if start <= knot <= start + length)
    area = np.zeros(len(some))
    for low, high in itertools.pairwise(inside):
        after = np.array([s.at(low)[1] for s in some])
        before = np.array([s.at(high)[0] for s in some])
        area += (after / after.sum() + before / before.sum()) / 2 * (high - low)
        assert course(np.array([float(high - start)]))[0] == pytest.approx(area)


def test_larger_batches_come_less_often() -> None:
    course = Course([Schedule(((0, 1.0),))] * 2, 0, 100, sizes=np.array([1.0, 3.0]))
    assert course(np.array([100.0]))[0].tolist() == [75, 25]


def test_a_place_where_nobody_gives_is_refused() -> None:
    both = [Schedule.steps({0: 1, 50: 0}), Schedule.steps({0: 2, 40: 0})]
    with pytest.raises(ConfigError, match="0 at 50 samples"):
        weigh([Weight(proportion=s) for s in both], [9, 9], 30, 0)
    line = [Schedule.linear({0: 1, 50: 0}), Schedule.linear({0: 1, 50: 0})]
    with pytest.raises(ConfigError, match="0 at 50 samples"):
        Course(line, 0, 60)


def test_weights_with_a_schedule_make_an_epoch_of_its_size() -> None:
    moving, still = Schedule.linear({0: 0, 100: 2}), 1.0
    shares, total = weigh(
        [Weight(proportion=moving), Weight(proportion=still)], [50, 50], 100, 9176
    )
    assert total == sum(share.choose for share in shares) == 100
    # The line goes from 0 of 1 to 2 of 3.
    assert shares[0].choose == 33
    assert shares[0].schedule == moving
    assert shares[1].schedule == Schedule(((0, 1.0),))


def test_a_schedule_for_a_stream_without_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="Stream 1 has no samples"):
        weigh([Weight(proportion=1), Weight(proportion=Schedule.steps({0: 0, 9: 1}))], [9, 0], 9, 0)


def test_a_schedule_and_another_kind_of_weight_are_refused() -> None:
    with pytest.raises(ConfigError, match="proportion and repeat are given"):
        Weight(proportion=Schedule(((0, 1.0),)), repeat=1)


@pytest.mark.parametrize("size", [0, -3, 1.5, True, 2**63, "a"])
def test_an_impossible_batch_size_of_a_stream_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="`batch_size` of a stream must be"):
        Weight(batch_size=size)


def test_weights_are_described_for_users_to_compare() -> None:
    weights = [Weight(proportion=Schedule.steps({0: 1, 5: 2})), Weight(proportion=1, batch_size=7)]
    shares, _ = weigh(weights, [10, 10], 20, 0)
    text = describe_shares(shares)
    assert '"points":[[0,1.0],[5,2.0]]' in text
    assert text.endswith("in batches of 7")
    many = describe_shares(weigh([Weight()] * 999, [10] * 999, None, 0)[0])
    assert many.startswith("999 weights with digest ")
