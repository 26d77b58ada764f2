"""A loader that does all by itself collates columns: the same batches as from single samples."""

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from streaming import (
    JSONWriter,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    dataloader,
)
from streaming.format.column import Pieces, merge_columns, merge_stacks, slice_columns

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

COLUMNS = {
    "big": "ndarray:int16:700",
    "bytes": "bytes",
    "flag": "bool",
    "free": "ndarray:float32",
    "json": "json",
    "n": "int",
    "small": "ndarray:float64:2,2",
    "text": "str",
    "u": "uint8",
}
SIZE = 101


def row(i: int) -> dict[str, Any]:
    return {
        "big": np.full(700, i, np.int16),
        "bytes": bytes([i]) * (i % 5),
        "flag": i % 3 == 0,
        "free": np.full((2, 3), i / 2, np.float32),
        "json": {"i": [i, -i]},
        "n": i,
        "small": np.full((2, 2), i / 3),
        "text": "é" * (i % 4) + str(i),
        "u": i % 256,
    }


def write(out: Path, columns: dict[str, str] = COLUMNS, first: int = 0) -> Path:
    with MDSWriter(columns=columns, out=out, size_limit=20_000) as writer:
        for i in range(first, first + SIZE):
            writer.write({name: row(i)[name] for name in columns})
    return out


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("stacked") / "data")


def by_samples(samples: list[Any]) -> Any:
    """Torch's collate by another name: the loader must hand it samples."""
    return default_collate(samples)


def load(root: Path | StreamingDataset, batch_size: int = 8, **options: Any) -> StreamingDataLoader:
    dataset = root if isinstance(root, StreamingDataset) else make(root)
    return StreamingDataLoader(dataset, batch_size=batch_size, **options)


def make(root: Path, **options: Any) -> StreamingDataset:
    options = {"local": str(root), "batch_size": 8, "shuffle": True, **options}
    return StreamingDataset(**options)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 8, 13, 300])
def test_batches_are_those_of_samples(
    root: Path, workers: int, drop_last: bool, batch_size: int
) -> None:
    options: dict[str, Any] = {"num_workers": workers, "drop_last": drop_last}
    stacked = load(root, batch_size, **options)
    single = load(root, batch_size, collate_fn=by_samples, **options)
    for _ in range(2):
        found, expected = list(stacked), list(single)
        assert stacked.num_samples_yielded == single.num_samples_yielded
        assert_same(found, expected)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_arrays_come_from_workers_as_tensors_whatever_their_size(
    root: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataloader, "MAX_SENT_BYTES", most)  # Workers are forks.
    found = list(load(root, num_workers=1, multiprocessing_context="fork"))
    assert_same(found, list(load(root, collate_fn=by_samples)))
    assert found[0]["big"].is_shared() == (most == 0)
    found[0]["n"] += 1  # It can be written to.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_behind_the_last_batch(root: Path, workers: int) -> None:
    loader = load(root, num_workers=workers)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    again = load(root, num_workers=workers)
    assert state is not None
    again.load_state_dict(state)
    assert_same(list(again), rest)


def test_a_tensor_has_memory_of_its_own(root: Path) -> None:
    first, second = list(load(root))[:2]
    for name in ("big", "n", "small"):
        before = second[name].clone()
        assert first[name].untyped_storage().nbytes() == first[name].nbytes
        first[name].zero_()
        assert torch.equal(second[name], before)


def test_what_was_registered_with_torch_is_asked(root: Path) -> None:
    original = default_collate_fn_map[int]
    default_collate_fn_map[int] = lambda batch, *, collate_fn_map: sum(batch)
    try:
        assert_same(list(load(root)), list(load(root, collate_fn=by_samples)))
        assert isinstance(next(iter(load(root)))["n"], int)
    finally:
        default_collate_fn_map[int] = original


class Doubling(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        sample = super().get_item(sample_id)
        return {**sample, "n": 2 * sample["n"]}


class Chosen(StreamingDataset):
    def __iter__(self) -> Iterator[Any]:
        return (sample for sample in super().__iter__() if sample["n"] % 2)


@pytest.mark.parametrize("kind", [Doubling, Chosen])
def test_a_subclass_sees_each_sample(root: Path, kind: Any) -> None:
    batches = list(load(kind(local=str(root), batch_size=8)))
    numbers = sorted(number for batch in batches for number in batch["n"].tolist())
    assert numbers == ([2 * i for i in range(SIZE)] if kind is Doubling else list(range(1, 101, 2)))


def test_other_formats_and_mixed_ones_are_collated_from_samples(tmp_path: Path) -> None:
    columns = {"n": "int", "text": "str"}
    with JSONWriter(columns=columns, out=str(tmp_path / "json")) as writer:
        for i in range(SIZE):
            writer.write({"n": i, "text": str(i)})
    write(tmp_path / "mds", columns, SIZE)
    streams = [Stream(local=str(tmp_path / name)) for name in ("json", "mds")]
    for given in ({"streams": streams}, {"local": str(tmp_path / "json")}):
        found = load(StreamingDataset(batch_size=8, shuffle=True, **given))
        single = load(StreamingDataset(batch_size=8, shuffle=True, **given), collate_fn=by_samples)
        assert_same(list(found), list(single))


def test_streams_with_other_types_are_collated_from_samples(tmp_path: Path) -> None:
    write(tmp_path / "a", {"u": "uint8"})
    write(tmp_path / "b", {"u": "int16"})
    streams = [Stream(local=str(tmp_path / name)) for name in "ab"]
    options: dict[str, Any] = {"streams": streams, "batch_size": 8}
    found = list(load(StreamingDataset(**options)))
    assert_same(found, list(load(StreamingDataset(**options), collate_fn=by_samples)))


def test_what_torch_can_not_collate_is_its_error(tmp_path: Path) -> None:
    with MDSWriter(columns={"d": "date"}, out=str(tmp_path)) as writer:
        writer.write({"d": date(2020, 1, 1)})
    with pytest.raises(TypeError, match="default_collate"):
        list(load(tmp_path))


ROWS: dict[str, list[Any]] = {
    "fine": [1, 2, 3, 4],
    "hole": [1, None, 3, None],
    "ragged": [[1], [1, 2], [1], [1]],
    "when": [datetime(2020, 1, day) for day in range(1, 5)],
    "price": [Decimal(i) for i in range(4)],
    "nested": [{"a": i, "b": [i, None]} for i in range(4)],
}
FAULTS = {
    "hole": (r"`hole` \((int in 2, None in 2|None in 2, int in 2) of 4 samples\)", RuntimeError),
    "ragged": (r"`ragged` \(list of length 1 in 3, list of length 2 in 1 of 4", RuntimeError),
    "when": (r"`when` \(datetime\.datetime in 4 of 4", TypeError),
    "price": (r"`price` \(decimal\.Decimal in 4 of 4", TypeError),
    "nested": (r"`nested\.b\[1\]` \(None in 4 of 4", TypeError),
}


class Rows(Dataset[Any]):
    """Samples of some of the columns above."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {name: ROWS[name][i] for name in self.columns}


@pytest.mark.parametrize("column", FAULTS)
def test_an_error_of_torchs_collate_names_column_value_and_remedy(column: str) -> None:
    fault, kind = FAULTS[column]
    loader = StreamingDataLoader(Rows("fine", column), batch_size=4)
    with pytest.raises(kind, match=fault) as caught:
        next(iter(loader))
    assert type(caught.value.__cause__) is kind
    for remedy in ("`columns=`", "`collate_fn`", "`get_item`"):
        assert remedy in str(caught.value)
    assert "fine" not in str(caught.value)


def test_an_error_of_torchs_collate_names_all_columns_at_fault() -> None:
    loader = StreamingDataLoader(Rows("when", "fine", "ragged"), batch_size=4)
    with pytest.raises(TypeError, match=r"`when` \(.*\); `ragged` \("):
        next(iter(loader))


def test_a_column_that_some_samples_lack_is_named() -> None:
    class Lacking(Rows):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"fine": i} if i == 2 else {"fine": i, "extra": i}

    with pytest.raises(KeyError, match=r"`extra` \(missing in 1 of 4 samples\)"):
        next(iter(StreamingDataLoader(Lacking(), batch_size=4)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_stacked", [True, False])
def test_a_streamed_column_that_torch_refuses_is_named(
    workers: int, is_stacked: bool, tmp_path: Path
) -> None:
    columns = {"n": "int", "d": "date", "free": "ndarray:float32"}
    with MDSWriter(columns=columns, out=str(tmp_path)) as writer:
        for i in range(8):
            array = np.zeros(1 + i % 2, np.float32)
            writer.write({"n": i, "d": date(2020, 1, 1), "free": array})
    dataset = make(tmp_path) if is_stacked else Seeing(local=str(tmp_path), batch_size=8)
    assert dataset.can_stack == is_stacked
    found = r"`d` \(datetime.date in 8 of 8 samples\); `free` \(float32 array of shape \([12],\) in"
    with pytest.raises(TypeError, match=found):
        list(load(dataset, num_workers=workers))


class Seeing(StreamingDataset):
    """Sees each sample."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return super().get_item(sample_id)


def pieces(numbers: list[int], dtype: str = "<i4") -> Pieces:
    data = b"".join(np.full(3, number, dtype).tobytes() for number in numbers)
    starts = np.arange(len(numbers)) * np.dtype(dtype).itemsize * 3
    which = np.zeros(len(numbers), np.intp)
    return Pieces([memoryview(data)], which, starts, np.dtype(dtype), (3,))


def test_pieces_are_copied_to_where_they_belong() -> None:
    places = np.array([3, 0, 2, 1])
    (merged,) = (
        merge_stacks([{"a": pieces([1, 2])}, {"a": pieces([3, 4])}], places) or {}
    ).values()
    assert isinstance(merged, Pieces)
    assert merged.to_array()[:, 0].tolist() == [2, 4, 3, 1]
    assert merged[1:3].to_array().tolist() == [[4] * 3, [3] * 3]
    out = np.empty((2, 3), np.int32)
    assert merged[:2].to_array(out) is out
    columns = merge_columns([{"a": pieces([1, 2])}, {"a": pieces([3, 4])}], places)
    assert np.asarray(slice_columns(columns, 1, 4)["a"])[:, 2].tolist() == [4, 3, 1]
    assert pieces([])[:0].to_array().shape == (0, 3)


def test_pieces_of_other_types_are_put_together_one_by_one() -> None:
    parts = [{"a": pieces([1])}, {"a": pieces([2], "<i8")}]
    assert merge_stacks(parts, np.array([1, 0])) is None
    first, second = merge_columns(parts, np.array([1, 0]))["a"]
    assert (first.dtype, second.dtype) == (np.int64, np.int32)
