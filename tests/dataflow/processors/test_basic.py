"""Processors of functions, and chains of processors."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streaming.dataflow import (
    BatchCollator,
    Chain,
    DataflowLoader,
    ExpandProcessor,
    FilterProcessor,
    IdentityProcessor,
    MapDistributor,
    MapProcessor,
    RawItemProcessor,
    SkipItem,
)
from streaming.dataflow.base import wants_rng


def test_identity_gives_the_item_itself() -> None:
    item = object()
    assert IdentityProcessor().process(item) is item


def test_a_filter_drops_with_none() -> None:
    keep_even = FilterProcessor(lambda item: item % 2 == 0)
    assert [keep_even.process(i) for i in (1, 2)] == [None, 2]


def test_a_chain_goes_through_all_and_stops_where_one_drops() -> None:
    seen = []

    def note(item: int) -> int:
        seen.append(item)
        return item * 10

    chain = Chain(FilterProcessor(lambda item: item > 1), MapProcessor(note))
    assert [chain.process(i) for i in (1, 2)] == [None, 20]
    assert seen == [2]
    assert chain.expand is None


def test_a_chain_in_which_one_expands_expands() -> None:
    chain = Chain(
        ExpandProcessor(lambda n: range(n)),
        FilterProcessor(lambda i: i != 1),
        MapProcessor(lambda i: -i),
    )
    assert chain.expand is not None
    assert list(chain.expand(4)) == [0, -2, -3]
    assert list(chain.expand(0)) == []
    assert ExpandProcessor(lambda n: range(n)).process(3) == 0


class Noise(RawItemProcessor):
    def process(self, item: int, rng: Any = None) -> float:
        return item + float(rng.random())


class Skipping(RawItemProcessor):
    def process(self, item: int) -> int:
        raise SkipItem


def test_random_numbers_are_wanted_only_where_they_are_used() -> None:
    assert wants_rng(Noise())
    assert not wants_rng(IdentityProcessor())
    assert wants_rng(Chain(IdentityProcessor(), Noise()))
    assert not wants_rng(Chain(IdentityProcessor()))
    found = Chain(IdentityProcessor(), Noise()).process(1, rng=np.random.default_rng(0))
    assert 1 <= found < 2  # type: ignore[operator]


@pytest.mark.parametrize(
    "processor",
    [
        MapProcessor(lambda item, rng: item + rng.random()),
        ExpandProcessor(lambda item, *, rng=None: [item + rng.random() for _ in range(2)]),
        FilterProcessor(lambda item, rng: rng.random() < 0.5),
    ],
)
def test_a_function_with_a_parameter_for_it_gets_a_generator(processor: RawItemProcessor) -> None:
    def take(count: int, state: Any = None) -> list[Any]:
        loader = DataflowLoader(
            MapDistributor(range(100), shuffle=False),
            Chain(processor),
            batch_size=1,
            collator=Joined(),
        )
        if state is not None:
            loader.load_state_dict(state)
        return [*islice(loader, count), loader.state_dict()]

    assert wants_rng(processor)
    *found, _ = take(20)
    assert found != list(range(20))
    *begun, state = take(7)
    assert begun + take(13, state)[:-1] == found


class Joined(BatchCollator):
    def collate(self, samples: list[Any]) -> Any:
        (sample,) = samples
        return sample


def test_a_function_without_a_signature_gets_the_item_alone() -> None:
    for function in (dict, int, str.upper, max):
        assert not wants_rng(MapProcessor(function))
    assert MapProcessor(dict).process([("a", 1)]) == {"a": 1}


def test_a_signal_to_skip_drops_in_a_chain() -> None:
    assert Chain(Skipping(), Noise()).process(1, rng=np.random.default_rng(0)) is None


def test_the_size_of_a_chain_is_that_of_its_first() -> None:
    sized = MapProcessor(lambda item: item, size=lambda item: 7)
    assert Chain(sized, IdentityProcessor()).size is sized.size
    assert Chain(IdentityProcessor(), sized).size is None
    assert Chain().size is None


class Duck:
    """A processor that is of no class of ours."""

    def process(self, item: int) -> int:
        return item + 1

    def expand(self, item: int) -> Iterator[int]:
        yield from (item, item)


def test_anything_with_the_methods_will_do() -> None:
    processor: Any = Duck()
    assert not wants_rng(processor)
    chain = Chain(processor)
    assert chain.expand is not None
    assert list(chain.expand(3)) == [3, 3]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_empty_chain_is_the_identity(count: int) -> None:
    assert Chain(*[IdentityProcessor()] * count).process("x") == "x"
