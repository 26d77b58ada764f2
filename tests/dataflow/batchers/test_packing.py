"""Budgets, caps, padding, and what becomes of samples that are too large."""

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from streaming.dataflow import (
    BestFitBatcher,
    BucketBatcher,
    Budget,
    PackingBatcher,
    PlannedBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    WindowBatcher,
)
from streaming.errors import ConfigError, SampleError
from tests.dataflow.batchers.reference import length
from tests.dataflow.recorded import numbers, sized

Make = Callable[..., PackingBatcher]


def sequential(max_tokens: int, **options: Any) -> PackingBatcher:
    return SequentialPackingBatcher(max_tokens + 1, size=length, **options)


def uncapped(max_tokens: int, **options: Any) -> PackingBatcher:
    options.setdefault("max_batch_size", 0)
    return PoolPackingBatcher(max_tokens, **options)


SUMMING: dict[str, Make] = {"best fit": BestFitBatcher, "planned": PlannedBatcher}
PADDING: dict[str, Make] = {
    "window": WindowBatcher,
    "bucket": BucketBatcher,
    "pool packing": uncapped,
}
ALL = {**SUMMING, **PADDING, "sequential": sequential}


def each(batchers: dict[str, Make]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", batchers.values(), ids=batchers.keys())


def groups_of(batcher: PackingBatcher, sizes: list[int]) -> list[list[int]]:
    return [numbers(group) for group in batcher.batches(iter(sized(sizes)))]


def random_sizes(seed: int, count: int = 300, most: int = 100) -> list[int]:
    draw = random.Random(seed)
    return [min(1 + int(draw.lognormvariate(3, 1)), most) for _ in range(count)]


@each({**SUMMING, **PADDING})
def test_case_P1_no_group_has_more_samples_than_the_cap(make: Make) -> None:
    groups = groups_of(make(1000, max_batch_size=8), [10] * 50)
    assert max(map(len, groups)) == 8
    assert sorted(i for group in groups for i in group) == list(range(50))


def fill(batcher: PackingBatcher, sizes: list[int], budget: int) -> float:
    return sum(sizes) / (budget * len(groups_of(batcher, sizes)))


def test_case_P2_best_fit_fills_more_than_first_fit_and_always_alike() -> None:
    sizes = random_sizes(1, 2000)
    first_fit: list[int] = []
    for size in sizes:
        place = next((i for i, used in enumerate(first_fit) if used + size <= 128), None)
        if place is None:
            first_fit.append(size)
        else:
            first_fit[place] += size
    assert fill(BestFitBatcher(128), sizes, 128) >= sum(sizes) / (128 * len(first_fit))
    assert groups_of(BestFitBatcher(128), sizes) == groups_of(BestFitBatcher(128), sizes)


def test_planning_ahead_fills_most() -> None:
    sizes = random_sizes(2, 4000)
    assert fill(PlannedBatcher(128), sizes, 128) > fill(BestFitBatcher(128, 16), sizes, 128)
    assert fill(PlannedBatcher(128), sizes, 128) > 0.995


def test_a_window_wastes_less_than_the_pool() -> None:
    sizes = random_sizes(3, 2000)
    window, pool = WindowBatcher(256), uncapped(256, pool_size=256, oversize="alone")
    assert fill(window, sizes, 256) > fill(pool, sizes, 256)


@each(SUMMING)
def test_a_sum_is_at_most_the_budget(make: Make) -> None:
    sizes = random_sizes(4)
    sums = [sum(sizes[i] for i in group) for group in groups_of(make(128), sizes)]
    assert max(sums) == 128


@each(PADDING)
def test_a_padded_group_is_at_most_the_budget(make: Make) -> None:
    sizes = random_sizes(5)
    for group in groups_of(make(256), sizes):
        assert max(sizes[i] for i in group) * len(group) <= 256


@each(SUMMING)
def test_padding_of_the_row_counts_in_a_sum(make: Make) -> None:
    sizes = random_sizes(6, most=96)
    for group in groups_of(make(100, round_to=16), sizes):
        assert sum(sizes[i] for i in group) <= 96


@each(PADDING)
def test_padding_of_rows_counts_in_a_rectangle(make: Make) -> None:
    sizes = random_sizes(7)
    for group in groups_of(make(256, round_to=16), sizes):
        assert -(-max(sizes[i] for i in group) // 16) * 16 * len(group) <= 256


@each(ALL)
def test_a_group_is_within_all_budgets(make: Make) -> None:
    sizes = random_sizes(8)
    images = Budget("images", 3, lambda sample: sample["i"] % 3)
    seconds = Budget("seconds", 1.0, lambda sample: len(sample["input_ids"]) ** 2 / 10_000)
    groups = groups_of(make(256, budgets=[images, seconds]), sizes)
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    for group in groups:
        assert sum(i % 3 for i in group) <= 3
        assert sum(sizes[i] ** 2 / 10_000 for i in group) <= 1.0 + 1e-9
    assert max(map(len, groups)) > 1


@each(ALL)
def test_samples_of_two_modalities_never_share_a_group(make: Make) -> None:
    groups = groups_of(make(256, modality=lambda sample: sample["i"] % 2), random_sizes(9))
    assert all(len({i % 2 for i in group}) == 1 for group in groups)
    assert max(map(len, groups)) > 1


@each({**SUMMING, "window": WindowBatcher, "pool packing": uncapped})
def test_a_rule_gives_the_budget_by_the_longest(make: Make) -> None:
    sizes = random_sizes(10)
    batcher = make(256, budget_rule=lambda longest: 128 if longest >= 50 else 256)
    for group in groups_of(batcher, sizes):
        if len(group) > 1 and make in SUMMING.values():
            rule = 128 if max(sizes[i] for i in group) >= 50 else 256
            assert sum(sizes[i] for i in group) <= rule


SIZES = [10, 500, 20, 30]


@each(ALL)
def test_case_P7_too_large_a_sample_raises_and_the_others_stay(make: Make) -> None:
    batcher = make(100, oversize="raise")
    pool = batcher.open()
    with pytest.raises(SampleError, match=r"sample 1: size 500, where the budget is 10[01]"):
        pool.add(range(4), sized(SIZES))
    assert pool.pending() == [0, 2, 3]


@each(ALL)
def test_case_P7_too_large_a_sample_is_dropped_counted_and_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = make(100, oversize="drop")
    pool = batcher.open()
    pool.add(range(4), sized(SIZES))
    pool.add(range(4, 6), sized([600, 700]))
    groups = []
    while (group := pool.choose(True)) is not None:
        groups.append(list(group.tokens or ()))
    assert sorted(token for group in groups for token in group) == [0, 2, 3]  # type: ignore[type-var]
    assert pool.dropped == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "size 500" in caplog.text


@each(ALL)
def test_case_P7_too_large_a_sample_goes_alone(make: Make) -> None:
    groups = groups_of(make(100, oversize="alone"), SIZES)
    assert [1] in groups
    assert sorted(i for group in groups for i in group) == [0, 1, 2, 3]


def halves(sample: dict[str, Any]) -> list[dict[str, Any]]:
    ids = sample["input_ids"]
    return [{**sample, "input_ids": ids[at : at + 100]} for at in range(0, len(ids), 100)]


@each(ALL)
def test_case_P7_too_large_a_sample_is_cut(make: Make) -> None:
    batcher = make(100, oversize="split", split=halves)
    found = [sample for group in batcher.batches(iter(sized(SIZES))) for sample in group]
    assert sorted(sample["i"] for sample in found) == [0, 1, 1, 1, 1, 1, 2, 3]


def test_a_piece_that_is_too_large_raises() -> None:
    batcher = BestFitBatcher(50, oversize="split", split=halves)
    with pytest.raises(SampleError, match="size 100"):
        list(batcher.batches(iter(sized(SIZES))))


@each(ALL)
def test_too_much_of_another_budget_raises_with_its_name(make: Make) -> None:
    batcher = make(100, budgets=[Budget("images", 2, lambda sample: 5)], oversize="raise")
    with pytest.raises(SampleError, match="5 images, where the budget is 2"):
        list(batcher.batches(iter(sized([10]))))


def test_the_oldest_is_in_the_next_group() -> None:
    for make in (BestFitBatcher, WindowBatcher):
        left = set(range(200))
        for group in groups_of(make(128, 20), random_sizes(11, 200)):
            assert min(left) in group
            left -= set(group)


def test_groups_carry_sizes_and_a_size_may_be_any_number() -> None:
    batcher = BestFitBatcher(1.0, size=lambda sample: len(sample["input_ids"]) / 100)
    groups = list(batcher.batches(iter(sized([70, 40, 30, 55]))))
    assert [numbers(group) for group in groups] == [[0, 2], [1, 3]]
    assert groups[0].sizes == [0.7, 0.3]  # type: ignore[attr-defined]


def test_a_subclass_may_give_sizes() -> None:
    class ByNumber(BestFitBatcher):
        def sample_size(self, sample: Any) -> float:
            return float(sample["i"] + 1)

    assert groups_of(ByNumber(4), [9, 9, 9]) == [[0, 2], [1]]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_batch_size": -1},
        {"round_to": 0},
        {"oversize": "cut"},
        {"oversize": "split"},
        {"split": halves},
        {"pool_size": 0},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BestFitBatcher(**{"max_tokens": 10, **options})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (SequentialPackingBatcher, {"max_samples_per_batch": 0}),
        (PoolPackingBatcher, {"max_tokens": 10, "pool_size": -1}),
        (BucketBatcher, {"max_tokens": 10, "edges": []}),
        (BucketBatcher, {"max_tokens": 10, "edges": [5, 5]}),
        (BucketBatcher, {"max_tokens": 10, "edges": [5, 20]}),
        (BucketBatcher, {"max_tokens": 10, "growth": 1.0}),
        (PlannedBatcher, {"max_tokens": 10, "window": 0}),
    ],
    ids=str,
)
def test_each_batcher_refuses_what_cannot_be_meant(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**options)


def test_a_full_bucket_goes_out_with_its_edge() -> None:
    batcher = BucketBatcher(100, edges=[10, 50])
    groups = list(batcher.batches(iter(sized([10] * 10 + [11, 50]))))
    assert [(numbers(group), group.pad_to) for group in groups] == [  # type: ignore[attr-defined]
        (list(range(10)), 10),
        ([10, 11], 50),
    ]


def test_a_bucket_does_not_wait_for_ever() -> None:
    batcher = BucketBatcher(100, edges=[10, 50], pool_size=4)
    groups = groups_of(batcher, [40] + [5] * 9)
    assert groups[0] == [0]


def test_edges_grow_up_to_the_budget() -> None:
    assert BucketBatcher(100, growth=2, shortest=10).edges == [10, 20, 40, 80, 100]
    assert BucketBatcher(96, growth=1.01, shortest=94).edges == [94, 95, 96]
    assert BucketBatcher(96, edges=[10, 90], round_to=16).edges == [16, 96]
