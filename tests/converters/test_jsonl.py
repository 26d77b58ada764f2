"""Columns and samples from JSON lines."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.converters.jsonl import JsonlSource
from streaming.errors import ConfigError, DataError, EmptyDatasetError


def source_of(path: Path, *lines: Any, **columns: str) -> JsonlSource:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return JsonlSource(path, columns)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (["a", "b"], "str"),
        ([1, -(2**63), 2**63 - 1], "int"),
        ([1, 2**63], "json"),
        ([1.5, 2.5], "float64"),
        ([1.5, 2, 2**53], "float64"),
        ([1.5, 2**53 + 1], "json"),
        ([2**53 + 1, 1.5], "json"),
        ([True, False], "json"),
        ([1, True], "json"),
        (["a", 1], "json"),
        (["a", None], "json"),
        ([[1], [2]], "json"),
        ([{"b": 1}], "json"),
    ],
)
def test_the_encoding_follows_from_all_values(path: Path, values: list[Any], encoding: str) -> None:
    source = source_of(path, *({"x": value} for value in values))
    assert source.columns == {"x": encoding}
    assert [row.sample["x"] for row in source] == values


def test_a_key_that_some_lines_lack_reads_as_none_there(path: Path) -> None:
    source = source_of(path, {"a": 1}, {"a": 2, "b": "x"}, {"b": "y"})
    assert source.columns == {"a": "json", "b": "json"}
    assert [row.sample for row in source] == [
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": None, "b": "y"},
    ]


def test_blank_lines_and_a_byte_order_mark_are_no_samples(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n\r\n  \n{"x": 2}')
    assert [row.sample for row in JsonlSource(path)] == [{"x": 1}, {"x": 2}]


def test_numbers_that_only_python_writes_are_read(path: Path) -> None:
    first, second = source_of(path, '{"x": NaN}', '{"x": -Infinity}')
    assert math.isnan(first.sample["x"])
    assert second.sample["x"] == -math.inf


def test_columns_may_be_set_by_hand(path: Path) -> None:
    source = source_of(path, {"a": "ä", "b": [1, 2]}, a="bytes", b="ndarray:int16")
    assert source.columns == {"a": "bytes", "b": "ndarray:int16"}
    [row] = source
    assert row.sample["a"] == "ä".encode()
    assert row.sample["b"].dtype == np.int16
    assert row.sample["b"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2 is not JSON: .* \(column 2\)"),
        ('{"a": 1} x', "line 2 is not JSON: Extra data"),
        ("[1]", "line 2 holds a list; each line must be one JSON object"),
        ("3", "line 2 holds a number"),
        ("[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_a_bad_line_is_named(path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source_of(path, {"a": 1}, line)


def test_bytes_that_are_not_utf8_are_named(path: Path) -> None:
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 1 is not UTF-8 \(byte 7\)"):
        JsonlSource(path)


@pytest.mark.parametrize("text", ["", "\n \n", "{}\n{}\n"])
def test_a_file_without_values_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(EmptyDatasetError, match="holds no"):
        JsonlSource(path)


def test_a_column_that_no_line_has_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has the key 'c'\. There are: a, b"):
        source_of(path, {"a": 1, "b": 1}, c="int")


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl can't be read: No such file"):
        JsonlSource(path)


def test_a_file_that_grows_while_it_is_read_is_refused(path: Path) -> None:
    rows = iter(source_of(path, {"a": 1}, {"a": 2}))
    next(rows)
    with open(path, "a") as file:
        file.write('{"a": 3}\n')
    with pytest.raises(DataError, match="changed while it was read"):
        list(rows)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), min_size=1))
def test_every_value_comes_as_it_stands(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    source = source_of(tmp_path_factory.mktemp("rows") / "rows.jsonl", *rows)
    lacking = dict.fromkeys(source.columns)
    assert [row.sample for row in source] == [{**lacking, **row} for row in rows]
