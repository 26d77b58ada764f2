"""Batches of columns: the samples of an epoch in its order, without a dict a sample."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import ConfigError, DataError, StreamingError
from streaming.format import BytesColumn
from streaming.world import World
from tests.suites.format import rows_of

COLUMNS = {"j": "json", "n": "int", "t": "str", "v": "ndarray:int32:2"}
SIZE = 137


def row(i: int) -> dict[str, Any]:
    return {"j": {"i": i}, "n": i, "t": "é" * (i % 4) + str(i), "v": np.array([i, -i], np.int32)}


def write(out: Path, columns: dict[str, str] = COLUMNS, count: int = SIZE) -> Path:
    with MDSWriter(columns=columns, out=out, size_limit=700) as writer:
        for i in range(count):
            writer.write({name: row(i)[name] for name in columns})
    return out


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("batched") / "data")


def make(root: Path, batched: bool = True, batch_size: int = 8, **options: Any) -> StreamingDataset:
    options = {"shuffle": True, "shuffle_block_size": 50, **options}
    return StreamingDataset(local=str(root), batch_size=batch_size, batched=batched, **options)


def text(sample: dict[str, Any]) -> str:
    return str({k: v.item() if isinstance(v, np.generic) else v for k, v in sample.items()})


def numbers(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["n"]).tolist() for batch in batches]


@pytest.mark.parametrize("batch_size", [1, 8, 100, 500])
@pytest.mark.parametrize("shuffle", [False, True])
def test_they_are_the_samples_in_full_batches(root: Path, batch_size: int, shuffle: bool) -> None:
    batches = list(make(root, True, batch_size, shuffle=shuffle))
    assert [len(batch["n"]) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    rows = [sample for batch in batches for sample in rows_of(batch)]
    expected = list(make(root, False, batch_size, shuffle=shuffle))
    assert list(map(text, rows)) == list(map(text, expected))


def test_columns_are_arrays_texts_and_lists(root: Path) -> None:
    first = next(iter(make(root, shuffle=False)))
    assert list(first) == ["j", "n", "t", "v"]
    assert first["n"].dtype == np.int64
    assert first["v"].shape == (8, 2)
    assert isinstance(first["t"], BytesColumn)
    assert first["j"] == [{"i": i} for i in range(8)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_loader_gives_the_batches_of_dicts(root: Path, workers: int) -> None:
    columns = StreamingDataLoader(make(root), num_workers=workers)
    dicts = StreamingDataLoader(
        make(root, False), batch_size=8, num_workers=workers, collate_fn=lambda rows: rows
    )
    for _ in range(2):
        expected = [[sample["n"] for sample in batch] for batch in dicts]
        found = []
        for batch in columns:
            assert isinstance(batch["v"], torch.Tensor)
            found.append(batch["n"].tolist())
        assert found == expected


def test_a_tensor_is_the_array_itself(root: Path) -> None:
    batch = next(iter(make(root)))
    tensor = torch.as_tensor(batch["v"])
    assert tensor.data_ptr() == batch["v"].ctypes.data


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 5, 17])
def test_a_state_goes_on_at_the_very_batch(root: Path, workers: int, stop: int) -> None:
    def load(batched: bool) -> StreamingDataLoader:
        size = {} if batched else {"batch_size": 8}
        return StreamingDataLoader(make(root, batched), num_workers=workers, **size)

    whole = numbers(load(True))
    loader = load(True)
    iterator = iter(loader)
    assert [next(iterator)["n"].tolist() for _ in range(stop)] == whole[:stop]
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()  # type: ignore[attr-defined]  # a generator
    assert state["sample_in_epoch"] == sum(map(len, whole[:stop]))
    found = []
    for batched in (True, False):
        resumed = load(batched)
        resumed.load_state_dict(state)
        found.append(numbers(resumed))
    assert found[0] == found[1]
    rest = [n for batch in whole[stop:] for n in batch]
    assert sorted(n for batch in found[0] for n in batch) == sorted(rest)


def test_ranks_of_a_batch_make_up_the_epoch(root: Path) -> None:
    found = []
    for rank in range(3):
        world = World(ranks_per_node=3, worker=rank)
        found += [n for batch in numbers(make(root, world=world)) for n in batch]
    assert set(found) == set(range(SIZE))
    assert len(found) == 3 * -(-SIZE // 3)


def test_any_samples_can_be_had_as_columns(root: Path) -> None:
    ids = [5, -1, 100, 5, 0]
    for dataset in (make(root), LocalDataset(root)):
        found = rows_of(dataset.take_columns(ids))
        assert list(map(text, found)) == [text(row(i % SIZE)) for i in ids]
        assert dataset.take_columns([]) == {}
        with pytest.raises(IndexError, match=rf"not all in \[-{SIZE}, {SIZE}\)"):
            dataset.take_columns([0, SIZE])


def test_streams_with_other_columns_are_refused(root: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"n": "int"}, 20)
    streams = [Stream(local=str(root)), Stream(local=str(other))]
    dataset = StreamingDataset(streams=streams, batch_size=8, shuffle=True, batched=True)
    with pytest.raises(DataError, match="must have the same"):
        list(dataset)


def test_columns_stored_in_different_ways_become_lists(root: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {**COLUMNS, "t": "json", "n": "int16"})
    streams = [Stream(local=str(root)), Stream(local=str(other))]
    found = StreamingDataset(streams=streams).take_columns([3, SIZE + 3])
    assert found["t"] == ["ééé3", "ééé3"]
    assert found["n"] == [3, 3]
    assert isinstance(found["v"], np.ndarray)


def test_it_needs_a_batch_size_and_no_get_item(root: Path) -> None:
    class Own(StreamingDataset):
        def get_item(self, sample_id: int, retry: int = 7) -> Any:
            return super().get_item(sample_id)

    with pytest.raises(ConfigError, match="batched=True needs"):
        StreamingDataset(local=str(root), batched=True)
    with pytest.raises(ConfigError, match="batched=True needs"):
        Own(local=str(root), batched=True, batch_size=4)


def test_a_loader_refuses_to_batch_the_batches(root: Path) -> None:
    for arguments in ({"batch_size": 8}, {"batch_size": 1}):
        with pytest.raises(ConfigError, match="gives whole batches"):
            StreamingDataLoader(make(root), **arguments)
    assert len(list(StreamingDataLoader(make(root), batch_size=None))) == -(-SIZE // 8)
    assert len(list(DataLoader(make(root), batch_size=None))) == -(-SIZE // 8)


@pytest.mark.parametrize("batched", [False, True])
def test_an_iteration_that_failed_is_over(batched: bool, tmp_path: Path) -> None:
    """Whoever goes on after an error must not be given what comes behind a gap."""
    with MDSWriter(out=str(tmp_path), columns={"n": "int", "t": "str"}, size_limit=2000) as out:
        for i in range(1000):
            out.write({"n": i, "t": f"text {i}"})
    shards = sorted(tmp_path.glob("*.mds"))
    damaged = shards[len(shards) // 5]  # So that blocks come behind it.
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")  # No UTF-8.
    rows = iter(StreamingDataset(local=str(tmp_path), batch_size=16, batched=batched))
    with pytest.raises(StreamingError):
        for _ in rows:
            pass
    assert list(rows) == []
