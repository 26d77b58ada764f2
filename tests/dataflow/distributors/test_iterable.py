"""What IterableDistributor does with sources of each kind."""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streaming.dataflow import DataflowLoader, IterableDistributor, StreamPlan
from streaming.dataflow.distributors.workers import seen_as_worker
from streaming.errors import ConfigError
from tests.dataflow.distributors.sources import Plain, Sharded, write_numbers

ALL = list(range(48))


def sharded(shards: int) -> Sharded:
    return Sharded([ALL[start::shards] for start in range(shards)])


def read_with_loader(source: Any, workers: int, epochs: int = 1) -> list[dict[str, Any]]:
    distributor = IterableDistributor(source, epochs=epochs)
    loader = DataflowLoader(distributor, batch_size=1, num_workers=workers)
    return [{key: int(value) for key, value in batch.items()} for batch in loader]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("shards", "workers"), [(4, 0), (4, 2), (1, 2), (8, 4), (3, 2)])
def test_case_P14_a_stream_that_shards_itself_is_not_sharded_twice(
    shards: int, workers: int
) -> None:
    items = [item["i"] for item in read_with_loader(sharded(shards), workers)]
    assert sorted(items) == ALL


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("shards", "workers"), [(4, 0), (4, 2), (1, 2), (8, 4), (3, 2)])
def test_a_stream_of_hugging_face_is_not_sharded_twice(shards: int, workers: int) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package `datasets`")
    source = datasets.IterableDataset.from_generator(
        generate, gen_kwargs={"shards": [ALL[start::shards] for start in range(shards)]}
    )
    items = [item["i"] for item in read_with_loader(source, workers)]
    assert sorted(items) == ALL


def generate(shards: list[list[int]]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for i in shard:
            yield {"i": i}


def test_case_P14_each_item_of_a_sharded_source_is_read_once() -> None:
    source, plan = sharded(12), StreamPlan.of(2, 3)
    distributor = IterableDistributor(source, epochs=1)
    for stream in range(6):
        list(distributor.open(stream, plan))
    assert sorted(source.read) == ALL


def test_case_P14_streams_that_share_a_shard_read_no_other() -> None:
    source, plan = sharded(3), StreamPlan.of(2, 3)
    distributor = IterableDistributor(source, epochs=1)
    for stream in range(6):
        list(distributor.open(stream, plan))
    assert len(source.read) == 2 * len(ALL)


def test_case_P14_reading_all_in_every_stream_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, plan = Plain(48), StreamPlan.of(2, 3)
    distributor = IterableDistributor(source, epochs=1)
    items = [item for stream in range(6) for _, item in distributor.open(stream, plan)]
    assert sorted(items) == ALL
    assert len(source.read) == 6 * 48
    assert "6 times the reading" in caplog.text
    assert len(caplog.records) == 1


def test_one_stream_of_a_plain_source_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert list(IterableDistributor(Plain(3), epochs=1).stream(0, 1, 0, 1)) == [0, 1, 2]
    assert caplog.records == []


def test_each_pass_is_told_to_the_source() -> None:
    found = read_with_loader(sharded(2), 0, epochs=3)
    assert [item["epoch"] for item in found] == [0] * 48 + [1] * 48 + [2] * 48


def test_it_is_endless_unless_told_otherwise() -> None:
    items = IterableDistributor([1, 2, 3]).stream(0, 1, 0, 1)
    assert list(islice(items, 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_an_empty_part_ends_though_it_is_endless() -> None:
    assert list(IterableDistributor([1, 2]).stream(2, 3, 0, 1)) == []


def test_none_leaves_it_to_the_source_and_tells_it_its_worker() -> None:
    pytest.importorskip("torch.utils.data")
    distributor = IterableDistributor(sharded(4), sharding="none", epochs=1)
    plan = StreamPlan.of(1, 2)
    parts = [{item["i"] for _, item in distributor.open(stream, plan)} for stream in range(2)]
    assert sorted(parts[0] | parts[1]) == ALL
    assert not parts[0] & parts[1]


def test_what_torch_tells_of_workers_is_put_back() -> None:
    data = pytest.importorskip("torch.utils.data")
    with seen_as_worker(1, 3):
        assert (data.get_worker_info().id, data.get_worker_info().num_workers) == (1, 3)
        with seen_as_worker(0, 1):
            assert data.get_worker_info() is None
        assert data.get_worker_info().id == 1
    assert data.get_worker_info() is None


def test_a_place_of_a_source_with_a_state_is_found_without_reading_again() -> None:
    source = sharded(4)
    cursor = IterableDistributor(source, epochs=1).open(0, StreamPlan.of(1, 1))
    for _ in range(30):
        next(cursor)
    state = json.loads(json.dumps(cursor.state_dict()))
    fresh = sharded(4)
    again = IterableDistributor(fresh, epochs=1).open(0, StreamPlan.of(1, 1))
    again.load_state_dict(state)
    assert len(list(again)) == 18
    assert len(fresh.read) == 18


def test_a_place_of_another_source_is_found_by_reading_again_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cursor = IterableDistributor(Plain(20), epochs=1).open(0, StreamPlan.of(1, 1))
    for _ in range(12):
        next(cursor)
    source = Plain(20)
    again = IterableDistributor(source, epochs=1).open(0, StreamPlan.of(1, 1))
    again.load_state_dict(cursor.state_dict())
    assert [item for _, item in again] == list(range(12, 20))
    assert "after 12 items by reading them again" in caplog.text


class Faulty:
    """Fails once, and can go on."""

    def __iter__(self) -> Iterator[int]:
        return Numbers()


class Numbers(Iterator[int]):
    def __init__(self) -> None:
        self.number = 0

    def __next__(self) -> int:
        self.number += 1
        if self.number == 3:
            raise OSError("no such luck")
        if self.number > 5:
            raise StopIteration
        return self.number


def test_what_came_before_a_fault_is_given_and_what_comes_behind_it_too() -> None:
    cursor = IterableDistributor(Faulty(), epochs=1).open(0, StreamPlan.of(1, 1))
    assert cursor.take(10) == ([(0, 0), (0, 1)], [1, 2])
    with pytest.raises(OSError, match="no such luck"):
        cursor.take(10)
    assert cursor.take(10) == ([(0, 2), (0, 3)], [4, 5])


def test_an_iterator_is_for_one_stream(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="read only once"):
        IterableDistributor(iter(ALL)).open(0, StreamPlan.of(1, 2))
    with caplog.at_level(logging.WARNING):
        assert list(IterableDistributor(iter(ALL)).stream(0, 1, 0, 1)) == ALL
    assert "no second pass" in caplog.text


class AlreadySplit(Sharded):
    _distributed = object()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (5, {}, "needs an iterable"),
        ([1], {"sharding": "twice"}, "sharding"),
        ([1], {"sharding": "native"}, "num_shards"),
        ([1], {"epochs": 0}, "epochs"),
        (AlreadySplit([[1]]), {}, "split_dataset_by_node"),
    ],
    ids=["number", "sharding", "native", "epochs", "split"],
)
def test_what_cannot_be_meant_is_refused(source: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IterableDistributor(source, **options)


def test_a_streaming_dataset_is_sent_to_its_own_distributor(tmp_path: Path) -> None:
    dataset = pytest.importorskip("streaming.dataset")
    local = str(write_numbers(tmp_path / "data", 5))
    with pytest.raises(ConfigError, match="StreamingDistributor"):
        IterableDistributor(dataset.StreamingDataset(local=local, batch_size=1))
