"""The binary copy of an index: the same index, or none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import IndexFormatError
from streaming.format import Index, parse_index
from streaming.format.columns import dump_columns, load_columns


def index(**change: Any) -> Index:
    shard = {
        "format": "mds",
        "version": 2,
        "samples": 3,
        "compression": "zstd",
        "column_names": ["é"],
        "column_encodings": ["int"],
        "column_sizes": [8],
        "raw_data": {"basename": "a/é.mds", "bytes": 100, "hashes": {"sha1": "x"}},
        "zip_data": {"basename": "a/é.mds.zstd", "bytes": 50, "hashes": {}},
    }
    plain = {**shard, "compression": None, "zip_data": None, "samples": 5, **change}
    document = json.dumps({"version": 2, "shards": [shard, plain, shard]}).encode()
    return parse_index(document, "here")


def test_a_copy_is_the_index(golden: Path) -> None:
    paths = sorted((golden / "datasets" / "formats").glob("*/index.json"))
    found = [parse_index(path.read_bytes(), str(path)) for path in paths]
    assert len(found) > 20
    for one in [*found, index()]:
        copy = load_columns(dump_columns(one, "d"), "d", one.where)
        assert copy is not None
        assert list(copy) == list(one)
        assert copy.samples == one.samples
        assert copy.basenames("raw") == one.basenames("raw")
        for name in ("samples", "raw_bytes", "zip_bytes", "stream"):
            expected = getattr(one.table, name)
            assert getattr(copy.table, name).dtype == expected.dtype
            assert getattr(copy.table, name).tolist() == expected.tolist()


def test_a_copy_of_another_document_is_none() -> None:
    assert load_columns(dump_columns(index(), "one"), "other", "here") is None


@given(st.data())
def test_a_copy_with_any_byte_changed_is_none(data: st.DataObject) -> None:
    copy = bytearray(dump_columns(index(), "d"))
    at = data.draw(st.integers(0, len(copy) - 1))
    copy[at] ^= data.draw(st.integers(1, 255))
    assert load_columns(bytes(copy), "d", "here") is None


@given(st.integers(0, 2000))
def test_a_copy_that_was_cut_is_none(size: int) -> None:
    copy = dump_columns(index(), "d")
    assert load_columns(copy[: min(size, len(copy) - 1)], "d", "here") is None


@pytest.mark.parametrize("name", ["../a.mds", "/a.mds", "", "a/../b", "index.json", ".streaming/x"])
def test_a_forged_copy_cant_name_files_outside(name: str) -> None:
    kinds, columns = index().to_columns()
    changed = dict(columns)
    names = [name.encode(), b"b", b"c"]
    changed["raw_data.names"] = np.frombuffer(b"".join(names), np.uint8)
    changed["raw_data.names.offsets"] = np.cumsum([0, *map(len, names)])
    with pytest.raises(IndexFormatError):
        Index.from_columns("here", kinds, changed)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("samples", [-1, 5, 3]),
        ("samples", [3, 5]),
        ("samples", [3, 2**50, 3]),
        ("kind", [0, 1, 2]),
        ("kind", [0, -1, 0]),
        ("raw_bytes", [1, 1, 1]),
        ("zip_bytes", [50, 1, 50]),
        ("raw_data.bytes", [100, 2**60, 100]),
        ("raw_data.bytes", [100, -1, 100]),
        ("raw_data.names.offsets", [0, 50, 3, 4]),
        ("raw_data.names.offsets", [0, 1]),
        ("zip_data.hashes.offsets", [-1, 0, 0, 0]),
    ],
)
def test_a_forged_copy_that_contradicts_itself_is_refused(name: str, values: list[int]) -> None:
    kinds, columns = index().to_columns()
    changed = {**columns, name: np.array(values, columns[name].dtype)}
    with pytest.raises(IndexFormatError):
        Index.from_columns("here", kinds, changed)


def test_names_are_given_as_columns() -> None:
    assert index().basenames("raw") == [["a/é.mds", "a/é.mds", "a/é.mds"]]
    assert index().basenames("zip") == [["a/é.mds.zstd", "", "a/é.mds.zstd"]]
