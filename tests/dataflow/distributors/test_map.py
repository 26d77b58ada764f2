"""What MapDistributor does beside what is recorded."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from streaming.dataflow import MapDistributor, StreamPlan
from streaming.dataflow.distributors.epochs import Places, cut
from streaming.dataflow.distributors.permutation import Scatter, torch_permutation
from streaming.errors import ConfigError, StateError

ONE = StreamPlan.of(1, 1)


class Batched:
    """Knows how many calls it took."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        if index == 5:
            raise ValueError("bad item")
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        if 5 in indices:
            raise ValueError("bad items")
        return indices


def test_items_are_read_together_where_the_dataset_can() -> None:
    dataset = Batched()
    cursor = MapDistributor(dataset, shuffle=False).open(0, ONE)
    assert cursor.take(4)[1] == [0, 1, 2, 3]
    assert dataset.calls == [[0, 1, 2, 3]]


def test_an_item_that_cannot_be_read_costs_no_other() -> None:
    cursor = MapDistributor(Batched(), shuffle=False).open(0, ONE)
    cursor.load_state_dict([0, 3])
    assert cursor.take(4)[1] == [3, 4]
    with pytest.raises(ValueError, match="bad item"):
        cursor.take(4)
    assert cursor.take(2)[1] == [6, 7]


def test_a_block_never_reaches_into_the_next_epoch() -> None:
    cursor = MapDistributor(list(range(5)), shuffle=False).open(0, ONE)
    tokens, items = cursor.take(9)
    assert (list(tokens), items) == ([(0, i) for i in range(5)], list(range(5)))
    assert list(cursor.take(2)[0]) == [(1, 0), (1, 1)]


def test_a_place_of_other_data_is_refused() -> None:
    with pytest.raises(StateError, match="Place 25 of epoch 1 is not in a part of 10 items"):
        MapDistributor(list(range(10))).open(0, ONE).load_state_dict([1, 25])


def test_streams_of_a_process_share_the_order_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def count(size: int, seed: int) -> Any:
        made.append(seed)
        return torch_permutation(size, seed)

    monkeypatch.setattr("streaming.dataflow.distributors.map.torch_permutation", count)
    distributor = MapDistributor(list(range(30)), seed=7)
    cursors = [distributor.open(stream, StreamPlan.of(1, 3)) for stream in range(3)]
    for _ in range(15):
        for cursor in cursors:
            next(cursor)
    assert made == [7, 8]


def test_blocks_are_runs_of_neighbours() -> None:
    distributor = MapDistributor(list(range(10)), shuffle=False, partition="block", epochs=1)
    plan = StreamPlan.of(1, 3)
    parts = [[item for _, item in distributor.open(stream, plan)] for stream in range(3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert distributor.counts(plan) == [3, 3, 4]


@given(size=integers(1, 3000), seed=integers(0, 2**70), epoch=integers(0, 99))
def test_scatter_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    order = Scatter(size, seed, epoch)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


def test_scatter_moves_items_about_and_differs_by_epoch() -> None:
    first, second = (Scatter(10_000, 0, epoch)(np.arange(10_000)) for epoch in (0, 1))
    assert np.mean(first == second) < 0.01
    assert abs(np.corrcoef(np.arange(10_000), first)[0, 1]) < 0.05
    neighbours = np.abs(np.diff(first))
    assert abs(neighbours.mean() / (10_000 / 3) - 1) < 0.05  # As of numbers drawn at random.


def test_scatter_needs_no_table() -> None:
    places = np.array([0, 10**12, 10**15 - 1])
    assert len(set(Scatter(10**15, 1, 0)(places).tolist())) == 3


@given(size=integers(0, 50), units=integers(1, 9))
def test_cuts_are_whole_and_differ_by_one(size: int, units: int) -> None:
    parts = [cut(size, unit, units) for unit in range(units)]
    assert [place for part in parts for place in part] == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_tokens_are_made_when_they_are_asked_for() -> None:
    places = Places(2, range(3, 8))
    assert (len(places), places[1], list(places[3:])) == (5, (2, 4), [(2, 6), (2, 7)])
    assert list(places) == [(2, 3), (2, 4), (2, 5), (2, 6), (2, 7)]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (iter([1]), {}, "length and indexing"),
        ([1], {"shuffle": "well"}, "shuffle"),
        ([1], {"partition": "half"}, "partition"),
        ([1], {"epochs": 0}, "epochs"),
    ],
    ids=["iterator", "shuffle", "partition", "epochs"],
)
def test_what_cannot_be_meant_is_refused(dataset: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MapDistributor(dataset, **options)
