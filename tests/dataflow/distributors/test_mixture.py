"""Mixtures and rank partitions beside what is recorded."""

from itertools import islice
from typing import Any

import pytest

from streaming.dataflow import (
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
    StreamPlan,
)
from streaming.errors import ConfigError, EmptyDatasetError, StateError
from tests.dataflow.distributors.sources import Plain, Sharded

ONE = StreamPlan.of(1, 1)


def mixture(ratio: float = 3, **options: Any) -> MixtureDistributor:
    many, few = MapDistributor(list(range(100)), seed=1), MapDistributor([-1, -2], seed=2)
    return MixtureDistributor({"many": (many, ratio), "few": (few, 1)}, **options)


def test_tokens_name_the_source() -> None:
    cursor = mixture().open(0, ONE)
    for token, item in islice(cursor, 50):
        assert isinstance(token, tuple)
        assert token[0] == ("few" if item < 0 else "many")
        assert cursor.fetch(token) == item


@pytest.mark.parametrize("draws", ["python", "hash"])
def test_draws_follow_the_ratios(draws: Any) -> None:
    items = [item for _, item in islice(mixture(draws=draws).open(0, ONE), 4000)]
    assert 0.22 < sum(item < 0 for item in items) / 4000 < 0.28


def test_logical_streams_draw_for_themselves() -> None:
    plan = StreamPlan.of(1, 2)
    for draws in ("python", "hash"):
        distributor = mixture(draws=draws)
        names = [
            [token[0] for token, _ in islice(distributor.open(s, plan), 40)]  # type: ignore[index]
            for s in range(2)
        ]
        assert names[0] != names[1]


def test_ratios_may_change_on_the_way_and_places_stay() -> None:
    cursor = mixture().open(0, ONE)
    seen = [item for _, item in islice(cursor, 30) if item >= 0]
    again = mixture(ratio=0).open(0, ONE)
    again.load_state_dict(cursor.state_dict())
    assert all(item < 0 for _, item in islice(again, 5))
    back = mixture(ratio=1e9).open(0, ONE)
    back.load_state_dict(again.state_dict())
    assert sorted(seen + [item for _, item in islice(back, 100 - len(seen))]) == list(range(100))
    assert mixture().fingerprint() == mixture(ratio=5).fingerprint()


def test_a_source_that_ends_is_begun_again() -> None:
    sources = {"a": (IterableDistributor(Plain(3), epochs=1), 1)}
    cursor = MixtureDistributor(sources).open(0, ONE)
    assert [item for _, item in islice(cursor, 7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_source_without_items_is_an_error() -> None:
    cursor = MixtureDistributor({"a": (MapDistributor([]), 1)}).open(0, ONE)
    with pytest.raises(EmptyDatasetError, match="'a' of a mixture ended twice"):
        next(cursor)


def test_a_state_of_other_sources_is_refused() -> None:
    other = MixtureDistributor({"x": (MapDistributor([1]), 1)})
    with pytest.raises(StateError, match="mixture of x; this one is of few, many"):
        mixture().open(0, ONE).load_state_dict(other.open(0, ONE).state_dict())


@pytest.mark.parametrize(
    ("ratios", "options", "message"),
    [
        ({"a": 0.0, "b": 0.0}, {}, "ratio above 0"),
        ({}, {}, "0 sources"),
        ({"a": -1.0}, {}, "negative"),
        ({"a": float("nan")}, {}, "negative"),
        ({"a": 1.0}, {"draws": "dice"}, "draws"),
    ],
    ids=["zero", "none", "negative", "nan", "draws"],
)
def test_what_cannot_be_meant_is_refused(
    ratios: dict[str, float], options: Any, message: str
) -> None:
    sources = {name: (MapDistributor([1]), ratio) for name, ratio in ratios.items()}
    with pytest.raises(ConfigError, match=message):
        MixtureDistributor(sources, **options)


def ranked() -> RankPartitionedDistributor:
    return RankPartitionedDistributor(
        {
            "low": {"dataset": MapDistributor(list(range(20)), epochs=1), "ratio": 1},
            "off": {"dataset": None, "ratio": 0},
            "high": {"dataset": make_high, "ratio": 3},
        }
    )


def make_high() -> MapDistributor:
    return MapDistributor(list(range(20, 50)), epochs=1)


def test_a_rank_reads_one_dataset_and_its_workers_share_it() -> None:
    distributor, plan = ranked(), StreamPlan.of(4, 2)
    for rank in range(4):
        streams = [plan.stream(rank * 2 + worker) for worker in range(2)]
        items = [item for s in streams for _, item in distributor.open(s, plan)]
        assert len(set(items)) == (20 if rank == 0 else 10)
        assert max(items) < 20 if rank == 0 else min(items) >= 20


def test_a_stream_keeps_its_dataset_whatever_ranks_there_are_later() -> None:
    plan = StreamPlan(8, (4, 2))
    names = {s: next(ranked().open(s, plan))[0][0] for s in range(8)}  # type: ignore[index]
    assert [names[s] for s in range(8)] == ["low", "high", "high", "high"] * 2


def test_an_iterable_that_shards_itself_gets_a_copy_with_its_rank() -> None:
    source = Sharded([[1], [2]])
    distributor = RankPartitionedDistributor({"a": {"dataset": source, "ratio": 1}})
    next(distributor.stream(1, 2, 0, 1))
    assert not hasattr(source, "shard_rank")


def test_a_dataset_that_cannot_shard_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="Wrap it"):
        RankPartitionedDistributor({"a": {"dataset": [1, 2], "ratio": 1}})
    with pytest.raises(ConfigError, match='"dataset" and a "ratio"'):
        RankPartitionedDistributor({"a": {"ratio": 1}})
    made = RankPartitionedDistributor({"a": {"dataset": lambda: [1], "ratio": 1}})
    with pytest.raises(ConfigError, match="made a list"):
        next(made.stream(0, 1, 0, 1))


def test_a_place_behind_many_draws_is_found_by_making_them_again() -> None:
    cursor = mixture().open(0, ONE)
    names = [token[0] for token, _ in islice(cursor, 70_010)]  # type: ignore[index]
    again = mixture().open(0, ONE)
    again.load_state_dict({**cursor.state_dict(), "draws": 70_000})
    assert [token[0] for token, _ in islice(again, 10)] == names[-10:]  # type: ignore[index]
