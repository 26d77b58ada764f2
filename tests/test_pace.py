"""How far to look ahead, from rates that are told."""

from hypothesis import given
from hypothesis.strategies import floats, integers, lists

from streaming.pace import Pace


def run(pace: Pace, *, rate: float, seconds: float, moves: int = 20) -> None:
    """Let a reader take so many slots a second, and shards come in so many seconds."""
    for move in range(moves):
        pace.moved(int(rate * move), float(move))
        pace.brought(seconds)


def test_all_is_looked_ahead_to_as_long_as_nothing_is_known() -> None:
    pace = Pace(800)
    assert pace.ahead(1) == 800
    pace.moved(0, 0.0)
    pace.brought(0.1)
    assert pace.ahead(1) == 800


def test_as_far_as_the_reader_comes_twice_while_a_shard_comes() -> None:
    pace = Pace(800)
    run(pace, rate=100, seconds=2.0)
    assert pace.ahead(1) == 2 * 200
    assert pace.ahead(2) == 800  # One has to be brought before.


def test_never_less_than_an_eighth_nor_more_than_told() -> None:
    for seconds, expected in ((0.001, 100), (100.0, 800)):
        pace = Pace(800)
        run(pace, rate=100, seconds=seconds)
        assert pace.ahead(1) == expected


def test_the_slowest_of_the_latest_shards_counts() -> None:
    pace = Pace(3000)
    run(pace, rate=100, seconds=2.0)
    pace.brought(8.0)
    assert pace.ahead(1) == 1600


def test_a_wait_makes_shards_come_earlier() -> None:
    pace = Pace(3000)
    run(pace, rate=100, seconds=2.0)
    pace.waited(1.0)
    assert pace.ahead(1) == 800


def test_time_that_the_reader_stood_still_is_not_its_own() -> None:
    pace = Pace(8000)
    for move in range(20):
        pace.moved(100 * move, 10.0 * move)
        pace.waited(9.0)
        pace.brought(100.0)
    assert pace.ahead(1) == 8000


@given(
    most=integers(0, 10_000),
    places=lists(integers(0, 1000), max_size=30),
    times=lists(floats(0, 1e6), max_size=30),
    rounds=integers(1, 100),
)
def test_whatever_is_told_it_stays_within_bounds(
    most: int, places: list[int], times: list[float], rounds: int
) -> None:
    pace = Pace(most)
    for place, seconds in zip(sorted(places), times, strict=False):
        pace.moved(place, sum(times[:3]))
        pace.waited(seconds)
        pace.brought(seconds)
    assert most // 8 <= pace.ahead(rounds) <= most
