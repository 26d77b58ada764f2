"""The four roles, plans, and what can be had without torch."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import integers

import streaming.dataflow
from streaming.dataflow import (
    BatchCollator,
    DataDistributor,
    RawItemProcessor,
    SampleBatcher,
    StreamPlan,
)
from streaming.dataflow.base import as_token, open_cursor
from streaming.dataflow.schedule import Schedule, usable_workers
from streaming.dataflow.seeding import generator, hashed_fraction
from streaming.errors import ConfigError, StateError
from tests.conftest import RunPython

ROLES = (DataDistributor, RawItemProcessor, SampleBatcher, BatchCollator)
# What upstream's package exports.
UPSTREAM = """
    DataDistributor RawItemProcessor SampleBatcher BatchCollator IterableDistributor MapDistributor
    RankPartitionedDistributor MixtureDistributor IdentityProcessor SimpleBatcher
    PoolPackingBatcher SequentialPackingBatcher DefaultBatchCollator VFMListCollator
    CosmosDataLoader JointCosmosDataLoader
""".split()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_not_be_made_as_it_is(role: type) -> None:
    with pytest.raises(TypeError):
        role()


def test_a_role_that_has_only_what_it_must_has_no_state_and_no_sizes() -> None:
    class Distributor(DataDistributor):
        def stream(
            self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
        ) -> Iterator[Any]:
            return iter(())

    class Batcher(SampleBatcher):
        def batches(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
            return iter(())

    assert Distributor().state_dict() == {}
    assert Distributor().load_state_dict({"a": 1}) is None  # type: ignore[func-returns-value]
    with pytest.raises(NotImplementedError, match="Batcher"):
        Batcher().sample_size({})


def test_every_public_name_is_there_and_so_are_upstream_s() -> None:
    for name in streaming.dataflow.__all__:
        assert getattr(streaming.dataflow, name) is getattr(streaming.dataflow, name)
    assert set(UPSTREAM) <= set(streaming.dataflow.__all__) <= set(dir(streaming.dataflow))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = streaming.dataflow.Nothing


def test_only_what_needs_torch_asks_for_it(run_python: RunPython) -> None:
    code = """
import sys
sys.modules["torch"] = None
import streaming.dataflow
missing = []
for name in streaming.dataflow.__all__:
    try:
        getattr(streaming.dataflow, name)
    except ImportError as error:
        assert 'pip install "goldenspike[torch]"' in str(error)
        missing.append(name)
print(*missing)
"""
    assert run_python(code).stdout.split() == [
        "CosmosDataLoader",
        "DataflowLoader",
        "DefaultBatchCollator",
        "VFMListCollator",
    ]


class Remembering(DataDistributor):
    """A user's distributor with a place of its own."""

    def __init__(self) -> None:
        self.number = 0
        self.read = 0

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[int]:
        while True:
            self.number += 1
            yield self.number - 1

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


def test_a_distributor_s_own_state_is_used_and_is_each_stream_s_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    distributor, plan = Remembering(), StreamPlan.of(1, 2)
    first, second = (open_cursor(distributor, stream, plan) for stream in range(2))
    assert [next(first)[1] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert next(second) == ((0, 0), 0)
    again = open_cursor(Remembering(), 0, plan)
    again.load_state_dict(first.state_dict())
    assert next(again) == ((0, 5), 5)
    assert caplog.records == []


@given(ranks=integers(1, 9), workers=integers(1, 9))
def test_units_and_streams_are_inverse_and_a_first_start_is_upstream_s(
    ranks: int, workers: int
) -> None:
    plan = StreamPlan.of(ranks, workers)
    assert [plan.stream(plan.unit(s)) for s in range(ranks * workers)] == list(
        range(ranks * workers)
    )
    for rank in range(ranks):
        for worker in range(workers):
            streams = Schedule(plan.num_streams, rank, ranks).streams(worker, workers)
            assert [plan.coordinates(stream) for stream in streams] == [
                (rank, ranks, worker, workers)
            ]


@given(ranks=integers(1, 8), per_rank=integers(1, 8), workers=integers(1, 8), start=integers(0, 99))
def test_each_micro_batch_is_made_once_and_workers_share_no_stream(
    ranks: int, per_rank: int, workers: int, start: int
) -> None:
    workers = usable_workers(ranks * per_rank, ranks, workers)
    schedules = [Schedule(ranks * per_rank, rank, ranks, start) for rank in range(ranks)]
    made = [schedule.stream(turn) for turn in range(20) for schedule in schedules]
    assert made == [(start + m) % (ranks * per_rank) for m in range(20 * ranks)]
    for schedule in schedules:
        parts = [schedule.streams(worker, workers) for worker in range(workers)]
        for turn in range(20):
            assert schedule.stream(turn) in parts[turn % workers]
        assert sorted(s for part in parts for s in part) == sorted(schedule.streams())


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(StateError, match="They can by 1, 2, 3, 4, 6, 12"):
        Schedule(12, 0, 5)
    with pytest.raises(ConfigError, match="no data-parallel rank 4 of 4"):
        Schedule(12, 4, 4)
    with pytest.raises(ConfigError, match="at least one"):
        StreamPlan(0, (1, 1))


def test_tokens_come_back_from_json() -> None:
    assert as_token(["a", [1, [2, "b"]]]) == ("a", (1, (2, "b")))
    assert as_token(5) == 5


def test_random_numbers_follow_from_the_key() -> None:
    assert generator(1, 2, (3, 4)).integers(1 << 60) == generator(1, 2, [3, 4]).integers(1 << 60)
    fractions = [hashed_fraction("a", i) for i in range(2000)]
    assert len(set(fractions)) == 2000
    assert 0.47 < sum(fractions) / 2000 < 0.53
    assert 0 <= min(fractions) and max(fractions) < 1
