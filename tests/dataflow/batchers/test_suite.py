"""Each built-in batcher through the suite."""

from typing import Any

from streaming.dataflow import (
    BestFitBatcher,
    BucketBatcher,
    Budget,
    ConcatBatcher,
    PlannedBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
    WindowBatcher,
)
from streaming.dataflow.batchers.pooled import PoolBatcher
from tests.dataflow.batchers.reference import length
from tests.suites.batcher import BatcherSuite


class TestSimple(BatcherSuite):
    def make(self) -> PoolBatcher:
        return SimpleBatcher(4)


class TestPoolPackingClosest(BatcherSuite):
    def make(self) -> PoolBatcher:
        return PoolPackingBatcher(200, 16, 0)


class TestPoolPackingFirst(BatcherSuite):
    def make(self) -> PoolBatcher:
        return PoolPackingBatcher(200, 9, 5, batching_strategy="prefer_first", round_to=8)


class TestSequential(BatcherSuite):
    def make(self) -> PoolBatcher:
        return SequentialPackingBatcher(120, size=length, lookahead_limit=4)


class TestSequentialByCount(BatcherSuite):
    def make(self) -> PoolBatcher:
        return SequentialPackingBatcher(max_samples_per_batch=3, size=length)


class TestBestFit(BatcherSuite):
    def make(self) -> PoolBatcher:
        return BestFitBatcher(120, 20)


class TestWindow(BatcherSuite):
    def make(self) -> PoolBatcher:
        return WindowBatcher(200, 20)


class TestBucket(BatcherSuite):
    def make(self) -> PoolBatcher:
        return BucketBatcher(200, growth=1.5, shortest=4, pool_size=20)


class TestPlanned(BatcherSuite):
    def make(self) -> PoolBatcher:
        return PlannedBatcher(120, 40)


class TestConcat(BatcherSuite):
    cuts = True

    def make(self) -> PoolBatcher:
        return ConcatBatcher(32)


def is_even(sample: dict[str, int]) -> float:
    return sample["i"] % 2 == 0


class WithAllOptions(BatcherSuite):
    """More budgets, lanes, a cap, padding and a rule at once."""

    def options(self) -> dict[str, Any]:
        return {
            "budgets": [Budget("even", 2, is_even)],
            "modality": is_third,
            "max_batch_size": 4,
            "round_to": 8,
            "budget_rule": less_for_long,
        }


def is_third(sample: dict[str, int]) -> bool:
    return sample["i"] % 3 == 0


def less_for_long(longest: float) -> float:
    return 200 if longest < 60 else 104


class TestBestFitWithAll(WithAllOptions):
    def make(self) -> PoolBatcher:
        return BestFitBatcher(200, 20, **self.options())


class TestWindowWithAll(WithAllOptions):
    def make(self) -> PoolBatcher:
        return WindowBatcher(200, 20, **self.options())


class TestBucketWithAll(WithAllOptions):
    def make(self) -> PoolBatcher:
        return BucketBatcher(104, shortest=8, pool_size=20, **self.options())


class TestPlannedWithAll(WithAllOptions):
    def make(self) -> PoolBatcher:
        return PlannedBatcher(200, 20, **self.options())


class TestPoolPackingWithAll(WithAllOptions):
    def make(self) -> PoolBatcher:
        return PoolPackingBatcher(200, 20, **self.options())
