"""States that were changed, cut or mixed up: one error that says so, or a run that goes on."""

import copy
import json
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, Literal

import pytest

from streaming.dataflow import (
    BatchCollator,
    BestFitBatcher,
    ConcatBatcher,
    DataDistributor,
    DataflowLoader,
    ExpandProcessor,
    IterableDistributor,
    JointDataflowLoader,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
    merge_states,
)
from streaming.errors import StateError

LENGTHS = [3, 9, 5, 1, 8, 2, 7]
SOURCE = ("streams", "0", "source")
WRONG: list[Any] = [
    *(None, True, -1, 2**21, 2**53, 2**62, 2**64, 1.5, float("nan"), "", "x"),
    *([], [[]], [1], [-1], [None], [0, -1], [0, 2**62], [2**64, 0], {}, {"a": 1}, {"-1": {}}),
]


class AsList(BatchCollator):
    def collate(self, samples: list[Any]) -> Any:
        return list(samples)


class Rows:
    """Keeps no place, and comes to an end."""

    def __init__(self, count: int = 60) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(rows(self.count))


class Endless(Rows):
    """Goes on for ever, like what is made up or comes from a queue."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return cycle(rows(self.count))


class Streamed(DataDistributor):
    """A user's own, which has the one method that it must have."""

    def stream(self, *coordinates: int) -> Iterator[dict[str, Any]]:
        return iter(Endless())


class Placed:
    """Keeps a place of its own, under a name of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < 60:
            self.at += 1
            yield rows(60)[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = int(state["at"])


def rows(count: int) -> list[dict[str, Any]]:
    return [{"i": i, "input_ids": [i] * LENGTHS[i % len(LENGTHS)]} for i in range(count)]


def packed(distributor: DataDistributor, **options: Any) -> DataflowLoader:
    return DataflowLoader(
        distributor, batcher=BestFitBatcher(16, pool_size=8), collator=AsList(), **options
    )


def concatenated() -> DataflowLoader:
    return DataflowLoader(
        MapDistributor(rows(60)),
        ExpandProcessor(lambda item: [item] * (item["i"] % 3)),
        ConcatBatcher(16),
        AsList(),
    )


def mixture(draws: Literal["python", "hash"] = "hash") -> MixtureDistributor:
    return MixtureDistributor(
        {"a": (MapDistributor(rows(60)), 1), "b": (MapDistributor(rows(60)), 2)}, draws=draws
    )


LOADERS: dict[str, Callable[[], DataflowLoader]] = {
    "map": lambda: packed(MapDistributor(rows(60), shuffle="scatter")),
    "concat": concatenated,
    "iterable": lambda: packed(IterableDistributor(Rows())),
    "endless": lambda: packed(IterableDistributor(Endless())),
    "streamed": lambda: packed(Streamed()),
    "placed": lambda: packed(IterableDistributor(Placed())),
    "mixture": lambda: packed(mixture()),
    "drawn again": lambda: packed(mixture("python")),
    "ranked": lambda: packed(
        RankPartitionedDistributor({"a": {"dataset": MapDistributor(rows(60)), "ratio": 1}})
    ),
}


def saved(loader: DataflowLoader) -> dict[str, Any]:
    """A state in which samples wait, as it comes out of a file."""
    list(islice(loader, 4))
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    assert state["streams"]["0"]["pending"]
    return state


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a state: in lists only what stands first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.deepcopy(state)
    parent = copied
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return copied


@pytest.mark.parametrize("name", LOADERS)
def test_whatever_stands_in_a_state_it_is_refused_or_gone_on_from(name: str) -> None:
    make = LOADERS[name]
    state = saved(make())
    refused = 0
    for path in places(state):
        if path[:1] == ("fingerprint",) and len(path) > 2:
            continue  # Compared as a whole.
        for value in WRONG:
            if value == 2**21 and name in ("endless", "iterable", "streamed"):
                continue  # So many items would be read again.
            loader = make()
            try:
                loader.load_state_dict(changed(state, path, value))
                next(iter(loader), None)  # An own place may be at the end.
            except StateError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("map", (), None, "is a dict, or a list of them, .* but this is a NoneType"),
        ("map", ("num_streams",), 2**31, "damaged: Expected `int` <= 1048576"),
        ("map", ("num_streams",), -1, "damaged: Expected `int` >= 1"),
        ("map", ("streams", "0", "source"), [0, 99], "Place 99 of epoch 0 is not in a part of 60"),
        ("map", ("streams", "0", "source"), [0], r"is damaged: it is \[0\]"),
        ("map", ("streams", "0", "pending"), [[0, 60]], "Place 60 of epoch 0 is not in a part"),
        ("map", ("streams", "0", "pending"), [[0, -1]], r"is damaged: it is \(0, -1\)"),
        ("map", ("streams", "0", "pending"), [{}], r"logical stream 0 by \{\}, which is no token"),
        ("concat", ("streams", "0", "pending"), [7], "names sample 7, which lacks its number"),
        ("concat", ("streams", "0", "batcher"), 2**31, "of which 2147483648 tokens are used, but"),
        ("placed", ("streams", "0", "source", "source"), {}, "Placed does not take the place"),
        ("mixture", ("streams", "0", "pending"), [["c", [0, 1]]], "of source 'c'; this .* a, b"),
        ("mixture", ("streams", "0", "source", "draws"), "1", "The place in a mixture"),
        ("drawn again", (*SOURCE, "draws"), 2**53, "after 9007199254740992 draws, which would"),
        ("endless", SOURCE, {"pass": 0, "number": 2**53, "index": 2**53}, "items, which would"),
        ("endless", (*SOURCE, "index"), 2**53, "of which 9007199254740992 are of this logical"),
        ("endless", ("streams", "0", "replay"), 2**53, "9007199254740992 items are to be read"),
        ("endless", ("streams", "0", "replay"), 0, "can't fetch single ones"),
        ("streamed", SOURCE, [0, 1], r"a Streamed in the state is damaged: it is \[0, 1\]"),
        ("streamed", SOURCE, {"pass": 0}, "a Streamed in the state is damaged"),
        ("streamed", (*SOURCE, "number"), 2**53, "behind 9007199254740992 items, which would"),
    ],
)
def test_what_is_wrong_in_a_state_is_named(
    name: str, path: tuple[Any, ...], value: Any, message: str
) -> None:
    state = changed(saved(LOADERS[name]()), path, value)
    loader = LOADERS[name]()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
        next(iter(loader))


def test_a_place_behind_the_end_of_an_iterable_is_refused() -> None:
    loader = packed(IterableDistributor(Rows(60)))
    state = saved(loader)
    other = packed(IterableDistributor(Rows(5)))
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"Rows gave 5 items, but the state is of a place behind"):
        next(iter(other))


def test_states_that_are_none_are_not_merged() -> None:
    with pytest.raises(StateError, match="not a state of a DataflowLoader"):
        merge_states([None])  # type: ignore[list-item]


@pytest.mark.parametrize("state", [None, [], {}, {"step": "1", "loaders": {}}, {"loaders": {}}])
def test_what_is_no_state_of_a_joint_loader_is_refused(state: Any) -> None:
    loader = JointDataflowLoader({"a": {"dataloader": [1, 2], "ratio": 1}})
    with pytest.raises(StateError, match="is a dict with the number of steps, 'step'"):
        loader.load_state_dict(state)
