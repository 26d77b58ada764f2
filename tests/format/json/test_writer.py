import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streaming
from streaming.errors import (
    ColumnError,
    ConfigError,
    EncodeError,
    EncodeTypeError,
    EncodingNameError,
)
from streaming.format.json.encodings import is_json_encoded, is_json_encoding
from streaming.format.json.writer import JSONEncoder, JSONLWriter, JSONWriter


def small(n: int) -> list[dict[str, Any]]:
    """What the recorded datasets hold."""
    return [{"id": i, "text": f"word{i * i} " * (1 + i % 5), "val": i / 7} for i in range(n)]


COLUMNS = {"id": "int", "text": "str", "val": "float"}
ODD = [{"t": 'é\n"x"', "n": -1, "f": 1e22}, {"t": "", "n": True, "f": float("inf")}]


@pytest.mark.parametrize(
    ("name", "columns", "samples", "options"),
    [
        ("json", COLUMNS, small(40), {"size_limit": 800, "hashes": ["sha256"]}),
        ("json_crlf", {"t": "str", "n": "int", "f": "float"}, ODD, {"newline": "\r\n"}),
    ],
)
def test_the_bytes_are_those_of_the_predecessor(
    name: str,
    columns: dict[str, str],
    samples: list[dict[str, Any]],
    options: dict[str, Any],
    tmp_path: Path,
    golden: Path,
) -> None:
    with JSONWriter(columns=columns, out=tmp_path / "out", **options) as writer:
        for sample in samples:
            writer.write(sample)
    recorded = golden / "datasets" / "formats" / name
    expected = {path.name: path.read_bytes() for path in recorded.iterdir()}
    del expected["expected.json"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == expected


def test_the_other_name_is_in_the_index_and_in_file_names(tmp_path: Path) -> None:
    with streaming.JSONLWriter(columns={"a": "int"}, out=tmp_path) as writer:
        writer.write({"a": 1})
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert shard["format"] == "jsonl"
    assert shard["raw_data"]["basename"] == "shard.00000.jsonl"
    assert shard["raw_meta"]["basename"] == "shard.00000.jsonl.meta"
    assert streaming.JSONWriter is JSONWriter


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ({"x": "int"}, 1.0),
        ({"x": "int"}, "1"),
        ({"x": "int"}, np.int64(1)),
        ({"x": "float"}, 1),
        ({"x": "str"}, b"a"),
        ({"x": "bool"}, 1),
    ],
)
def test_a_value_of_another_type_is_refused(columns: dict[str, str], value: Any) -> None:
    encoder = JSONEncoder(columns, "\n")
    with pytest.raises(EncodeTypeError, match=rf"'x' takes {columns['x']}") as caught:
        encoder.encode({"x": value})
    assert isinstance(caught.value, AttributeError)  # As the predecessor.


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(ColumnError, match=r"'x' \(int\) is missing; the sample has \['y'\]"):
        JSONEncoder({"x": "int"}, "\n").encode({"y": 1})


def test_columns_that_were_not_declared_are_left_out() -> None:
    assert JSONEncoder({"x": "int"}, "\n").encode({"y": object(), "x": 1}) == b'{"x": 1}\n'


@pytest.mark.parametrize("value", [object(), {1j: 0}, float, {1: 2, "a": 3}])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError, match="JSON can't hold the sample"):
        JSONEncoder({"x": "json"}, "\n").encode({"x": value})


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(EncodeError, match="JSON can't hold the sample"):
        JSONEncoder({"x": "json"}, "\n").encode({"x": value})


def test_arrays_become_lists() -> None:
    line = JSONEncoder({"x": "json"}, "\n").encode({"x": [np.arange(3), np.float32(0.5)]})
    assert line == b'{"x": [[0, 1, 2], 0.5]}\n'


def test_an_unknown_encoding_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(EncodingNameError, match="no JSON encoding 'bytes'. Known: str, int") as e:
        JSONWriter(columns={"x": "bytes"}, out=tmp_path / "out")
    assert isinstance(e.value, AssertionError)  # As the predecessor.
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("columns", [{}, {1: "int"}, {"a": int}, ["a"], "a", 5])
def test_columns_that_cannot_be_meant_are_refused(columns: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`columns`"):
        JSONWriter(columns=columns, out=tmp_path / "out")


def test_an_empty_newline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`newline`"):
        JSONLWriter(columns={"x": "int"}, out=tmp_path / "out", newline="")


def test_the_old_functions_know_the_encodings() -> None:
    assert is_json_encoding("str")
    assert not is_json_encoding("bytes")
    assert is_json_encoded("int", True)
    assert not is_json_encoded("float", 1)
    with pytest.raises(ValueError, match="no JSON encoding"):
        is_json_encoded("bytes", b"")
