"""Reading one MDS shard whose bytes are right, wrong, or from somebody who means harm."""

import pickle
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import (
    MissingExtraError,
    SampleError,
    ShardCorruptError,
    StreamingError,
    UnsafeTypeError,
)
from streaming.format import BytesColumn, FileInfo, ShardInfo, open_reader
from streaming.format.mds import MDSReader
from streaming.format.mds.encodings import Str, encodings
from tests.common.golden import load_index

FORMATS = Path(__file__).parents[2] / "golden" / "datasets" / "formats"


def shard(
    directory: Path, columns: dict[str, tuple[str, int | None]], records: list[bytes]
) -> tuple[ShardInfo, list[Path]]:
    """Write a shard of records as they are."""
    offsets = [4 + 4 * (len(records) + 1)]
    for record in records:
        offsets.append(offsets[-1] + len(record))
    data = struct.pack(f"<I{len(offsets)}I", len(records), *offsets) + b"".join(records)
    return described(directory, columns, len(records), data)


def described(
    directory: Path, columns: dict[str, tuple[str, int | None]], samples: int, data: bytes
) -> tuple[ShardInfo, list[Path]]:
    path = directory / "shard.00007.mds"
    path.write_bytes(data)
    extra = {
        "column_names": list(columns),
        "column_encodings": [kind for kind, _ in columns.values()],
        "column_sizes": [size for _, size in columns.values()],
    }
    files = ((FileInfo(path.name, len(data), {}), None),)
    return ShardInfo("mds", samples, files, None, extra), [path]


INT: dict[str, tuple[str, int | None]] = {"a": ("int", 8)}
STR: dict[str, tuple[str, int | None]] = {"s": ("str", None)}


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def with_offset(data: bytes, at: int, value: int) -> bytes:
    return data[: 4 + 4 * at] + struct.pack("<I", value) + data[8 + 4 * at :]


def test_numbers_texts_and_the_rest_become_columns(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {
        "a": ("int", 8),
        "f": ("ndarray:float32:2", 8),
        "j": ("json", None),
        "s": ("str", None),
    }
    head = struct.pack("<II", 2, 1)
    record = head + struct.pack("<q2f", 5, 0.5, 1.5) + b"{}" + b"x"
    reader = open_reader(*shard(tmp_path, columns, [record] * 3))
    got = reader.take_columns(np.array([2, 0]))
    assert isinstance(got["a"], np.ndarray)
    assert got["a"].dtype == np.int64
    assert got["a"].tolist() == [5, 5]
    assert isinstance(got["f"], np.ndarray)
    assert got["f"].shape == (2, 2)
    assert got["j"] == [{}, {}]
    assert isinstance(got["s"], BytesColumn)
    assert got["s"].to_pylist() == ["x", "x"]


def test_a_column_of_an_empty_block_keeps_its_type(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"f": ("ndarray:float32:2,3", 24)}
    reader = open_reader(*shard(tmp_path, columns, [bytes(24)]))
    got = reader.take_columns(np.empty(0, np.int64))["f"]
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (np.dtype(np.float32), (0, 2, 3))


def test_a_shard_without_samples_is_read(tmp_path: Path) -> None:
    for columns in (INT, STR):
        reader = open_reader(*shard(tmp_path, columns, []))
        assert len(reader) == 0
        assert list(reader) == reader.take(np.empty(0, np.int64)) == []


def test_no_columns_at_all_give_empty_samples(tmp_path: Path) -> None:
    info, paths = shard(tmp_path, INT, [bytes(8)] * 3)
    reader = open_reader(info, paths, [])
    assert reader.take(np.arange(3)) == [{}, {}, {}]
    assert reader.take_columns(np.arange(3)) == {}
    assert open_reader(*shard(tmp_path, {}, [b"", b""])).take(np.arange(2)) == [{}, {}]


def test_a_hundred_columns_are_read(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {f"c{i}": ("uint8", 1) for i in range(100)}
    reader = open_reader(*shard(tmp_path, columns, [bytes(range(100))] * 2))
    (sample,) = reader.take(np.array([1]))
    assert sample == {f"c{i}": i for i in range(100)} == reader[1]


def test_a_column_may_be_called_anything(tmp_path: Path) -> None:
    names = ["", "'", '"""', "\\", "\n", "import os", "0", "__class__", "é"]
    columns: dict[str, tuple[str, int | None]] = dict.fromkeys(names, ("uint8", 1))
    reader = open_reader(*shard(tmp_path, columns, [bytes(range(9))]))
    assert reader.take(np.array([0])) == [dict(zip(names, range(9), strict=True))]


class TestCaseF3:
    """Offsets that don't lie in the file."""

    def data(self, tmp_path: Path) -> bytes:
        _, (path,) = shard(tmp_path, STR, [text(b"abc")] * 4)
        return path.read_bytes()

    def test_case_F3_an_end_past_the_file_names_shard_and_sample(self, tmp_path: Path) -> None:
        data = self.data(tmp_path)
        for end in (len(data) + 1, 2**32 - 1):
            info, paths = described(tmp_path, STR, 4, with_offset(data, 4, end))
            with pytest.raises(ShardCorruptError, match=r"Sample 3 of .*shard\.00007\.mds"):
                open_reader(info, paths)

    def test_case_F3_a_file_cut_short_names_shard_and_bytes(self, tmp_path: Path) -> None:
        data = self.data(tmp_path)
        info, paths = described(tmp_path, STR, 4, data)
        for size in range(len(data)):
            paths[0].write_bytes(data[:size])
            with pytest.raises(ShardCorruptError, match=rf"shard\.00007\.mds has {size} bytes"):
                open_reader(info, paths)

    def test_case_F3_a_cut_file_with_an_index_to_match_is_found_too(self, tmp_path: Path) -> None:
        data = self.data(tmp_path)
        for size in range(len(data)):
            info, paths = described(tmp_path, STR, 4, data[:size])
            with pytest.raises(ShardCorruptError, match=r"shard\.00007\.mds"):
                open_reader(info, paths)

    @pytest.mark.parametrize(("at", "value"), [(0, 0), (0, 23), (1, 24), (2, 25), (0, 2**31)])
    def test_offsets_out_of_order_are_found(self, tmp_path: Path, at: int, value: int) -> None:
        data = with_offset(self.data(tmp_path), at, value)
        with pytest.raises(ShardCorruptError, match=r"Sample \d of .*shard\.00007\.mds"):
            open_reader(*described(tmp_path, STR, 4, data))

    @pytest.mark.parametrize("samples", [0, 3, 5])
    def test_another_count_than_the_index_is_found(self, tmp_path: Path, samples: int) -> None:
        info, paths = described(tmp_path, STR, 4, self.data(tmp_path))
        with pytest.raises(ShardCorruptError, match="4 samples, but the index says"):
            open_reader(replace(info, samples=samples), paths)


def test_case_F4_a_shard_of_no_bytes_says_so(tmp_path: Path) -> None:
    info, paths = shard(tmp_path, INT, [bytes(8)])
    paths[0].write_bytes(b"")
    with pytest.raises(ShardCorruptError, match=r"shard\.00007\.mds has 0 bytes.*index says"):
        open_reader(info, paths)
    with pytest.raises(ShardCorruptError, match="can't hold"):
        open_reader(*described(tmp_path, INT, 1, b""))


@pytest.mark.parametrize("size", [2, 4, 2**32 - 1])
def test_sizes_that_do_not_add_up_name_the_sample(tmp_path: Path, size: int) -> None:
    bad = struct.pack("<I", size) + b"abc"
    info, paths = shard(tmp_path, STR, [text(b"abc"), bad, text(b"abc")])
    reader = open_reader(info, paths)
    assert reader.take(np.array([0, 2])) == [{"s": "abc"}] * 2
    for read in (reader.take, reader.take_columns):
        with pytest.raises(ShardCorruptError, match=r"sample 1 of shard file .*shard\.00007\.mds"):
            read(np.array([0, 2, 1]))
    with pytest.raises(ShardCorruptError, match="sample 1"):
        reader.get_item(1)
    with pytest.raises(SampleError, match="the bytes given"):
        reader.decode_sample(bad)


def test_two_sizes_that_wrap_around_are_found(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"a": ("str", None), "b": ("str", None)}
    # Their sum is right modulo 2**32.
    bad = struct.pack("<II", 2**32 - 1, 3) + b"xy"
    reader = open_reader(*shard(tmp_path, columns, [bad]))
    for read in (reader.take, reader.take_columns):
        with pytest.raises(ShardCorruptError, match="sample 0"):
            read(np.array([0]))


@pytest.mark.parametrize(
    ("kind", "size", "bad"),
    [
        *(
            ("str", None, b"\xff"),
            ("json", None, b"{"),
            ("str_int", None, b"x"),
            ("bool", 1, b"\2"),
        ),
        *(("png", None, b"no png"), ("list[int]", None, b"123"), ("ndarray:bool:2", 2, b"\1\2")),
        *(("json", None, b"[" * 50_000), ("ndarray", None, b""), ("pkl", None, b"junk")),
        ("timestamp", 8, b"\xff" * 7 + b"\x7f"),
    ],
)
def test_a_value_that_can_not_be_decoded_names_sample_and_column(
    tmp_path: Path, kind: str, size: int | None, bad: bytes
) -> None:
    pytest.importorskip("PIL")
    columns: dict[str, tuple[str, int | None]] = {"bad": (kind, size), "n": ("int", 8)}
    record = (text(bad) if size is None else bad) + bytes(8)
    if size is None:
        record = struct.pack("<I", len(bad)) + bad + bytes(8)
    reader = open_reader(*shard(tmp_path, columns, [record]), allow_unsafe_types=True)
    calls: list[Any] = [
        lambda: reader.take(np.array([0])),
        lambda: reader.take_columns(np.array([0])),
        lambda: reader.get_item(0),
    ]
    for call in calls:
        with pytest.raises(SampleError, match=r"'bad' of sample 0 of .*shard\.00007\.mds"):
            call()


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "ran"))


def test_case_F7_pickled_values_need_consent(tmp_path: Path) -> None:
    root = FORMATS / "mds_pickle"
    info = load_index(root).shard(0)
    paths = [root / info.files[0][0].basename]
    with pytest.raises(UnsafeTypeError, match=r"'x'.*allow_unsafe_types=True"):
        open_reader(info, paths)
    reader = open_reader(info, paths, allow_unsafe_types=True)
    assert [sample["x"] for sample in reader] == [{"a": (1, 2)}, None, [1, "b"]]


def test_a_pickle_does_not_run_without_consent(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    data = pickle.dumps(Bomb(witness))
    columns: dict[str, tuple[str, int | None]] = {"p": ("pkl", None), "x": ("str", None)}
    record = struct.pack("<II", len(data), 1) + data + b"x"
    info, paths = shard(tmp_path, columns, [record])
    with pytest.raises(UnsafeTypeError):
        open_reader(info, paths)
    reader = open_reader(info, paths, ["x"])  # The other columns are free to be read.
    assert reader.take(np.array([0])) == [reader[0]] == [{"x": "x"}]
    assert not witness.exists()
    open_reader(info, paths, allow_unsafe_types=True)
    assert not witness.exists()


def test_a_missing_package_is_not_taken_for_bad_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    columns: dict[str, tuple[str, int | None]] = {"i": ("png", None)}
    reader = open_reader(*shard(tmp_path, columns, [text(b"png")]))
    with pytest.raises(MissingExtraError, match=r"goldenspike\[image\]"):
        reader.take(np.array([0]))


def test_an_array_that_is_kept_does_not_keep_its_block(tmp_path: Path) -> None:
    for width in (4, 2000):
        kind = f"ndarray:uint8:{width}"
        columns: dict[str, tuple[str, int | None]] = {"a": (kind, width)}
        reader = open_reader(*shard(tmp_path, columns, [bytes(width)] * 50))
        for sample in reader.take(np.arange(50)):
            array = sample["a"]
            array += 1
            assert array.base is None or len(memoryview(array.base)) == width
        assert reader[0]["a"].tolist() == [0] * width


def test_opening_takes_little_more_than_the_table(tmp_path: Path) -> None:
    info, paths = shard(tmp_path, INT, [bytes(8)] * 100_000)
    open_reader(info, paths)
    tracemalloc.start()
    try:
        reader = open_reader(info, paths)
        # Comparing offsets takes as much again; nothing of it stays.
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
    assert len(reader) == 100_000


SMALL: dict[str, tuple[str, int | None]] = {
    "a": ("int", 8),
    "j": ("json", None),
    "l": ("list[str]", None),
    "n": ("ndarray", None),
    "s": ("str", None),
}


@settings(max_examples=200)
@given(data=st.binary(max_size=100), samples=st.integers(0, 4))
def test_random_bytes_are_a_shard_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, samples: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    data = struct.pack("<I", samples) + data
    try:
        reader = open_reader(*described(directory, SMALL, samples, data))
        reader.take(np.arange(samples))
    except StreamingError:
        pass


@settings(max_examples=200)
@given(records=st.lists(st.binary(min_size=24, max_size=60), min_size=1, max_size=4))
def test_random_records_are_samples_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes]
) -> None:
    directory = tmp_path_factory.getbasetemp()
    reader = open_reader(*shard(directory, SMALL, records))
    for i in range(len(records)):
        try:
            reader.take(np.array([i]))
        except StreamingError as error:
            assert f"sample {i} of shard file" in str(error)


def test_a_small_number_of_numpy_is_a_place_like_any_other(tmp_path: Path) -> None:
    reader = open_reader(*shard(tmp_path, INT, [struct.pack("<q", i) for i in range(256)]))
    assert reader.get_item(np.uint8(200))["a"] == 200  # type: ignore[arg-type]
    assert reader.take(np.array([200], np.uint8))[0]["a"] == 200


def test_an_encoding_put_in_the_place_of_another_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, paths = shard(tmp_path, STR, [text(b"abc")])
    assert open_reader(info, paths)[0] == {"s": "abc"}

    class Upper(Str):
        def decode(self, data: bytes) -> str:
            return super().decode(data).upper()

    monkeypatch.setitem(encodings.table, "str", Upper)
    reader = open_reader(info, paths)
    assert reader[0] == reader.take(np.array([0]))[0] == {"s": "ABC"}


def test_the_reader_is_registered() -> None:
    root = FORMATS / "mds_limit_None"
    info = load_index(root).shard(0)
    assert isinstance(open_reader(info, [root / info.files[0][0].basename]), MDSReader)
