"""The fast batchers beside the plain ones: the same choices for whatever comes."""

from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy, booleans, integers, lists, sampled_from

from streaming.dataflow import (
    BestFitBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    WindowBatcher,
)
from tests.dataflow.batchers import reference
from tests.dataflow.recorded import numbers, sized

# Few sizes, so that there are many of the same; around the length from which budgets are halved.
SIZES: SearchStrategy[list[int]] = lists(
    sampled_from([1, 2, 3, 5, 8, 13, 20, 21, 40, 99, 100, 101, 998, 999, 1000, 1001, 2000, 4000]),
    max_size=60,
)
KINDS = sampled_from(["text", "image", "video"])


@settings(max_examples=300)
@given(
    sizes=SIZES,
    kinds=lists(KINDS, min_size=60, max_size=60),
    mixed=booleans(),
    max_tokens=sampled_from([1, 40, 100, 999, 2000, 4001, 16000]),
    pool_size=integers(0, 20),
    cap=sampled_from([None, 0, 1, 2, 5]),
    threshold=sampled_from([3, 100, 1000, 6400]),
    strategy=sampled_from(["prefer_first", "prefer_closest"]),
    halving=booleans(),
)
def test_pool_packing_makes_the_reference_choices(
    sizes: list[int],
    kinds: list[str],
    mixed: bool,
    max_tokens: int,
    pool_size: int,
    cap: int | None,
    threshold: int,
    strategy: Any,
    halving: bool,
) -> None:
    samples = sized(sizes, kinds if mixed else None)
    arguments = (max_tokens, pool_size, cap, threshold, strategy, halving)
    expected = reference.pool_packing(iter(samples), *arguments)
    found = PoolPackingBatcher(*arguments).batches(iter(samples))
    assert list(map(numbers, found)) == list(map(numbers, expected))


@given(sizes=SIZES, budget=integers(1, 3000), lookahead=integers(0, 6))
def test_sequential_packing_makes_the_reference_choices(
    sizes: list[int], budget: int, lookahead: int
) -> None:
    samples = sized(sizes)
    expected = reference.sequential(iter(samples), budget, lookahead_limit=lookahead)
    batcher = SequentialPackingBatcher(budget, lookahead_limit=lookahead, size=reference.length)
    assert list(map(numbers, batcher.batches(iter(samples)))) == list(map(numbers, expected))


@given(sizes=SIZES, count=integers(1, 6), lookahead=integers(0, 6))
def test_sequential_counting_makes_the_reference_choices(
    sizes: list[int], count: int, lookahead: int
) -> None:
    samples = sized(sizes)
    expected = reference.sequential(iter(samples), None, count, lookahead)
    batcher = SequentialPackingBatcher(
        max_samples_per_batch=count, lookahead_limit=lookahead, size=reference.length
    )
    assert list(map(numbers, batcher.batches(iter(samples)))) == list(map(numbers, expected))


@given(
    sizes=SIZES, budget=integers(4000, 9000), pool_size=integers(1, 20), cap=sampled_from([0, 1, 3])
)
def test_best_fit_makes_the_reference_choices(
    sizes: list[int], budget: int, pool_size: int, cap: int
) -> None:
    batcher = BestFitBatcher(budget, pool_size, max_batch_size=cap)
    found = list(map(numbers, batcher.batches(iter(sized(sizes)))))
    assert found == reference.best_fit(sizes, budget, pool_size, cap)


@given(
    sizes=SIZES,
    budget=integers(4000, 20000),
    pool_size=integers(1, 20),
    cap=sampled_from([0, 1, 3]),
)
def test_window_makes_the_reference_choices(
    sizes: list[int], budget: int, pool_size: int, cap: int
) -> None:
    batcher = WindowBatcher(budget, pool_size, max_batch_size=cap)
    found = list(map(numbers, batcher.batches(iter(sized(sizes)))))
    assert found == reference.window(sizes, budget, pool_size, cap)


@given(sizes=SIZES, budget=integers(4000, 9000), pool_size=integers(1, 20))
def test_the_long_way_round_makes_the_same_choices(
    sizes: list[int], budget: int, pool_size: int
) -> None:
    samples = sized(sizes)
    for make in (BestFitBatcher, WindowBatcher):
        short = make(budget, pool_size)
        long = make(budget, pool_size, budget_rule=lambda longest: budget)
        found = list(map(numbers, long.batches(iter(samples))))
        assert found == list(map(numbers, short.batches(iter(samples))))
