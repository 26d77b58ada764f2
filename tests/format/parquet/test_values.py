"""What samples hold for every type that Parquet files can have."""

import datetime as dt
import io
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming.format import BytesColumn  # noqa: E402
from streaming.format.column import ArrowColumn  # noqa: E402
from tests.common.parquet import open_files, read_files, same_values  # noqa: E402

NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
A_UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def types() -> list[Any]:
    """Names, Arrow types, values to write, and those to read if they are others."""
    spread = dt.timezone(dt.timedelta(hours=2))
    return [
        ("int8", pa.int8(), [-128, 127], None),
        ("int64", pa.int64(), [-(2**63), 2**63 - 1], None),
        ("uint32", pa.uint32(), [0, 2**32 - 1], None),
        ("uint64", pa.uint64(), [0, 2**64 - 1], None),
        ("float16", pa.float16(), [np.float16(1.5), np.float16(-0.0)], None),
        ("float32", pa.float32(), [1.5, float("nan")], None),
        ("float64", pa.float64(), [0.1, float("inf")], None),
        ("bool", pa.bool_(), [True, False], None),
        ("decimal128", pa.decimal128(20, 3), [Decimal("1.250"), Decimal("-99999.999")], None),
        ("decimal256", pa.decimal256(60, 0), [Decimal(10**59), Decimal(-1)], None),
        ("string", pa.string(), ["", "zwölf \U0001f600"], None),
        ("large_string", pa.large_string(), ["a", "b" * 300], None),
        ("string_view", pa.string_view(), ["short", "longer than twelve bytes"], None),
        ("binary", pa.binary(), [b"", b"\x00\xff"], None),
        ("large_binary", pa.large_binary(), [b"1", b"22"], None),
        ("fixed_binary", pa.binary(3), [b"abc", b"\x00\x01\x02"], None),
        ("date32", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], None),
        ("date64", pa.date64(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29)], None),
        ("time32", pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999000)], None),
        ("time64", pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)], None),
        (
            "time_ns",
            pa.time64("ns"),
            [0, 86_399_999_999_999],
            [dt.time(0), np.timedelta64(86_399_999_999_999, "ns")],
        ),
        ("timestamp_s", pa.timestamp("s"), [dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1)], None),
        ("timestamp_us", pa.timestamp("us"), [NOON, dt.datetime(9999, 12, 31)], None),
        (
            "timestamp_ns",
            pa.timestamp("ns"),
            [1, -(2**62)],
            [np.datetime64(1, "ns"), np.datetime64(-(2**62), "ns")],
        ),
        (
            "zoned",
            pa.timestamp("us", "UTC"),
            [NOON.replace(tzinfo=spread), NOON.replace(tzinfo=dt.UTC)],
            None,
        ),
        (
            "far",
            pa.timestamp("ms"),
            [10**15, 0],
            [np.datetime64(10**15, "ms"), np.datetime64(0, "ms")],
        ),
        ("duration", pa.duration("us"), [dt.timedelta(-1), dt.timedelta(5, 6, 7)], None),
        ("duration_ns", pa.duration("ns"), [1, 2], [np.timedelta64(i, "ns") for i in (1, 2)]),
        ("dictionary", pa.dictionary(pa.int8(), pa.string()), ["a", "b"], None),
        ("null", pa.null(), [None, None], None),
        ("list", pa.list_(pa.int32()), [[], [1, 2, 3]], None),
        ("list_of_lists", pa.list_(pa.list_(pa.string())), [[["a"], []], []], None),
        ("large_list", pa.large_list(pa.float64()), [[0.5], []], None),
        ("fixed_list", pa.list_(pa.int16(), 2), [[1, 2], [3, 4]], None),
        ("fixed_texts", pa.list_(pa.string(), 2), [["a", "b"], ["c", None]], None),
        (
            "struct",
            pa.struct([("x", pa.int8()), ("y", pa.string())]),
            [{"x": 1, "y": "a"}, {"x": None, "y": "b"}],
            None,
        ),
        ("map", pa.map_(pa.string(), pa.int8()), [{"a": 1, "b": None}, {}], None),
        (
            "deep",
            pa.list_(pa.struct([("m", pa.map_(pa.int8(), pa.list_(pa.timestamp("ns"))))])),
            [[{"m": {1: [7, None]}}], []],
            [[{"m": {1: [np.datetime64(7, "ns"), None]}}], []],
        ),
        ("uuid", pa.uuid(), [A_UUID.bytes, uuid.UUID(int=0).bytes], [A_UUID, uuid.UUID(int=0)]),
        (
            "tensor",
            pa.fixed_shape_tensor(pa.float32(), (2, 2)),
            [[1, 2, 3, 4], [5, 6, 7, 8]],
            [np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)],
        ),
    ]


def make_array(kind: Any, values: list[Any]) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(pa.array(values, kind.storage_type))
    if isinstance(kind, pa.DictionaryType):
        return pa.array(values).dictionary_encode().cast(kind)
    if pa.types.is_map(kind):
        values = [list(x.items()) if x is not None else None for x in values]
    if isinstance(kind, pa.lib.ListType) and pa.types.is_struct(kind.value_type):
        values = [x and [{k: list(m.items()) for k, m in row.items()} for row in x] for x in values]
    return pa.array(values, kind)


@pytest.mark.parametrize("name", [entry[0] for entry in types()])
def test_each_type_gives_natural_values_with_and_without_nulls(name: str, tmp_path: Path) -> None:
    _, kind, values, expected = next(entry for entry in types() if entry[0] == name)
    expected = values if expected is None else expected
    for nulls in (False, True):
        written = [values[0], None, values[1], None] if nulls else values
        wanted = [expected[0], None, expected[1], None] if nulls else expected
        path = tmp_path / f"{nulls}" / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"x": make_array(kind, written)}), path)
        found = [row["x"] for row in read_files(path, tmp_path / f"cache-{nulls}")]
        assert same_values(found, wanted)
        assert {type(x) for x in found if x is not None} <= {
            np.ndarray if name == "fixed_list" else type(x) for x in wanted
        }


def test_a_row_of_many_columns_is_whole(tmp_path: Path) -> None:
    arrays = {entry[0]: make_array(entry[1], entry[2]) for entry in types()}
    pq.write_table(pa.table(arrays), tmp_path / "a.parquet")
    rows = read_files(tmp_path / "a.parquet", tmp_path / "cache")
    assert list(rows[0]) == list(arrays)
    wide = pa.table({f"column {i}": [i, i] for i in range(200)})
    pq.write_table(wide, tmp_path / "wide.parquet")
    assert read_files(tmp_path / "wide.parquet", tmp_path / "other") == wide.to_pylist()


def test_names_may_be_anything(tmp_path: Path) -> None:
    names = ["a.b", "a", 'x"y', "{0}", "", "é\n"]
    table = pa.table([[1], [2], [3], [4], [5], [6]], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_files(tmp_path / "a.parquet", tmp_path / "cache") == table.to_pylist()
    rows = read_files(tmp_path / "a.parquet", tmp_path / "other", choose=["a", "a.b"])
    assert rows == [{"a": 2, "a.b": 1}]


def test_columns_are_numpy_and_arrow_without_an_object_a_value(tmp_path: Path) -> None:
    rows = 5000
    table = pa.table(
        {
            "number": pa.array(range(rows), pa.int16()),
            "flag": pa.array([i % 2 == 0 for i in range(rows)]),
            "text": pa.array([f"é {i}" for i in range(rows)]),
            "vector": pa.array([[i, 1] for i in range(rows)], pa.list_(pa.float32(), 2)),
            "day": pa.array(range(rows), pa.date32()),
            "at": pa.array(range(rows), pa.timestamp("us")),
            "list": pa.array([[i] * (i % 3) for i in range(rows)]),
            "maybe": pa.array([None if i == 7 else i for i in range(rows)]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    (reader,) = open_files(tmp_path / "a.parquet", tmp_path / "cache")
    columns = reader.take_columns(np.arange(5, 2000))
    part = table.slice(5, 1995)
    arrays: list[tuple[str, Any, tuple[int, ...]]] = [
        ("number", np.int16, (1995,)),
        ("flag", np.bool_, (1995,)),
        ("vector", np.float32, (1995, 2)),
        ("day", "M8[D]", (1995,)),
        ("at", "M8[us]", (1995,)),
    ]
    for name, dtype, shape in arrays:
        column = columns[name]
        assert isinstance(column, np.ndarray)
        assert column.dtype == np.dtype(dtype)
        assert (column.shape, column.flags.writeable) == (shape, True)
    text, maybe = columns["text"], columns["maybe"]
    assert isinstance(text, BytesColumn)
    assert text.to_arrow().cast(pa.string()).equals(part["text"].combine_chunks())
    assert isinstance(maybe, ArrowColumn)
    assert maybe.to_arrow().equals(part["maybe"].combine_chunks())
    assert list(columns["list"]) == part["list"].to_pylist()


@pytest.fixture
def picture() -> bytes:
    image = pytest.importorskip("PIL.Image", reason="needs the extra `image`")
    buffer = io.BytesIO()
    image.new("RGB", (4, 3), (255, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_features_of_hugging_face_are_what_they_are_there(picture: bytes, tmp_path: Path) -> None:
    features = {
        "image": {"_type": "Image"},
        "images": {"feature": {"_type": "Image"}, "_type": "Sequence"},
        "sound": {"sampling_rate": 16000, "_type": "Audio"},
        "grid": {"shape": [2, 3], "dtype": "float32", "_type": "Array2D"},
        "frames": {"shape": [None, 2], "dtype": "int32", "_type": "Array2D"},
        "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
    }
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    one = {"bytes": picture, "path": "a.png"}
    grid = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    table = pa.table(
        {
            "image": pa.array([one, None], file),
            "images": pa.array([[one, one], []], pa.list_(file)),
            "sound": pa.array([{"bytes": b"RIFF", "path": None}] * 2, file),
            "grid": pa.array([grid, None], pa.list_(pa.list_(pa.float32()))),
            "frames": pa.array([[[1, 2]], [[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int32()))),
            "label": pa.array([1, 0]),
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = open_files(tmp_path / "a.parquet", tmp_path / "cache")[0]
    assert first["image"].size == (4, 3)
    assert first["image"].getpixel((0, 0)) == (255, 0, 0)
    assert [image.size for image in first["images"]] == [(4, 3), (4, 3)]
    assert (second["image"], second["images"]) == (None, [])
    assert first["sound"] == {"bytes": b"RIFF", "path": None}
    assert first["grid"].dtype == np.float32
    assert first["grid"].tolist() == grid
    assert second["grid"] is None
    assert second["frames"].tolist() == [[1, 2], [3, 4]]
    assert (first["label"], second["label"]) == (1, 0)


def test_decoders_get_the_bytes_of_texts_bytes_and_images(tmp_path: Path) -> None:
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "image": pa.array([{"bytes": b"picture", "path": None}, None], file),
            "text": pa.array(["é", None]),
            "data": pa.array([b"123", b""]),
            "number": pa.array([1, 2]),
        }
    ).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (reader,) = open_files(tmp_path / "a.parquet", tmp_path / "cache")
    reader.use_decoders({"image": bytes.upper, "text": bytes.decode, "data": len})
    assert list(reader) == [
        {"image": b"PICTURE", "text": "é", "data": 3, "number": 1},
        {"image": None, "text": None, "data": 0, "number": 2},
    ]
    with pytest.raises(ValueError, match="'number', but values of type int64 are not stored as"):
        reader.use_decoders({"number": len})
    with pytest.raises(KeyError, match="no column 'other' to decode"):
        reader.use_decoders({"other": len})
