import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import CSVWriter, LocalDataset, TSVWriter, XSVWriter
from streaming.errors import (
    ColumnError,
    ConfigError,
    EncodeError,
    EncodeTextError,
    EncodeTypeError,
    EncodingNameError,
)
from streaming.format.xsv.encodings import is_xsv_encoding, xsv_decode, xsv_encode
from streaming.format.xsv.writer import XSVEncoder

COLUMNS = {"id": "int", "text": "str", "val": "float"}


def small(n: int) -> list[dict[str, Any]]:
    """What the recorded datasets hold."""
    return [{"id": i, "text": f"word{i * i} " * (1 + i % 5), "val": i / 7} for i in range(n)]


@pytest.mark.parametrize(
    ("name", "writer", "columns", "samples", "options"),
    [
        ("csv", CSVWriter, COLUMNS, small(40), {"size_limit": 700}),
        ("tsv", TSVWriter, COLUMNS, small(40), {"newline": "\r\n"}),
        ("xsv_pipes", XSVWriter, COLUMNS, small(12), {"separator": "||", "newline": ";\n"}),
        (
            "xsv_unicode",
            XSVWriter,
            {"b": "str", "a": "str", "é": "float"},
            [{"b": "x,y\tz", "a": "", "é": -0.0}, {"b": "\u4f60", "a": '"', "é": 1e-7}],
            {"separator": "\u2192", "newline": "\u00b6"},
        ),
    ],
)
def test_the_bytes_are_those_of_the_predecessor(
    name: str,
    writer: Callable[..., XSVWriter],
    columns: dict[str, str],
    samples: list[dict[str, Any]],
    options: dict[str, Any],
    tmp_path: Path,
    golden: Path,
) -> None:
    with writer(columns=columns, out=tmp_path / "out", **options) as out:
        for sample in samples:
            out.write(sample)
    recorded = golden / "datasets" / "formats" / name
    expected = {path.name: path.read_bytes() for path in recorded.iterdir()}
    del expected["expected.json"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == expected


@pytest.mark.parametrize("value", [",", "a,b", "\n", "a\nb"])
def test_a_value_that_would_not_be_read_back_is_refused(value: str) -> None:
    encoder = XSVEncoder({"x": "str", "y": "str"}, separator=",", format="csv")
    with pytest.raises(EncodeTextError, match=r"'x' holds what separates.*quoting=True") as caught:
        encoder.encode({"x": value, "y": ""})
    assert isinstance(caught.value, AssertionError)  # As the predecessor.
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("separator", "x", "y"),
    [("||", "a|", "b"), ("||", "a", "|b"), ("aba", "ab", ""), ("aa", "a", "b")],
)
def test_a_part_of_a_separator_that_its_neighbour_completes_is_refused(
    separator: str, x: str, y: str
) -> None:
    """Neither value holds the separator, but a reader would find it earlier than it stands."""
    encoder = XSVEncoder({"x": "str", "y": "str"}, separator=separator)
    line = f"{x}{separator}{y}"
    if line.split(separator) == [x, y]:
        assert encoder.encode({"x": x, "y": y}) == f"{line}\n".encode()
    else:
        with pytest.raises(EncodeTextError):
            encoder.encode({"x": x, "y": y})


@given(
    values=st.lists(
        st.fixed_dictionaries({"a": st.text(',|"\n\r ;ab'), "b": st.text(',|"\n\r ;ab')}),
        min_size=1,
        max_size=5,
    ),
    separator=st.sampled_from([",", "|", "||", "ab", ";|", "\x02"]),
    newline=st.sampled_from(["\n", "\r\n", ";", "aa", "\n\n"]),
    quoting=st.booleans(),
)
@settings(max_examples=60)
def test_no_value_is_ever_read_back_changed(
    values: list[dict[str, str]],
    separator: str,
    newline: str,
    quoting: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    out = tmp_path_factory.getbasetemp() / "never-changed"
    written = []
    try:
        writer = XSVWriter(
            columns={"a": "str", "b": "str"},
            separator=separator,
            newline=newline,
            quoting=quoting,
            out=out,
            exist_ok=True,
        )
    except ConfigError:  # Quotes can't be told from such a newline.
        return
    except EncodeTextError:  # A name holds the newline.
        return
    with writer:
        for value in values:
            try:
                writer.write(value)
            except EncodeTextError:
                assert not quoting
            else:
                written.append(value)
    if written:
        dataset = LocalDataset(out)
        assert dataset.__getitems__(range(len(dataset))) == written
        assert [dataset[i] for i in range(len(dataset))] == written


def test_quoted_shards_have_a_key_that_others_do_not_know(tmp_path: Path) -> None:
    with CSVWriter(columns={"a": "str"}, out=tmp_path, quoting=True) as writer:
        writer.write({"a": 'a "b", c\n'})
        writer.write({"a": ""})
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert shard["quoting"] is True
    assert "separator" not in shard
    data = (tmp_path / "shard.00000.csv").read_bytes()
    assert data == b'a\n"a ""b"", c\n"\n""\n'
    assert list(csv.reader(data.decode().splitlines(keepends=True))) == [
        ["a"],
        ['a "b", c\n'],
        [""],
    ]


def test_unquoted_shards_have_no_such_key(tmp_path: Path) -> None:
    with XSVWriter(columns={"a": "str"}, separator="|", out=tmp_path) as writer:
        writer.write({"a": '"'})
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert "quoting" not in shard
    assert shard["separator"] == "|"
    assert LocalDataset(tmp_path)[0] == {"a": '"'}


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", "1"), ("int", 1.0), ("int", True), ("int", np.int64(1)), ("float", 1), ("str", 1)],
)
def test_a_value_of_another_type_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(EncodeTypeError, match=rf"Column 'x': {kind} takes ") as caught:
        XSVEncoder({"x": kind}, separator=",").encode({"x": value})
    assert isinstance(caught.value, AttributeError)


def test_a_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(EncodeError, match="not Unicode"):
        XSVEncoder({"x": "str"}, separator=",").encode({"x": "\ud800"})


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(EncodeError, match="too many digits"):
        XSVEncoder({"x": "int"}, separator=",").encode({"x": 10**5000})


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(ColumnError, match=r"'x' is missing; the sample has \['y'\]"):
        XSVEncoder({"x": "int"}, separator=",").encode({"y": 1})


def test_a_name_that_holds_the_separator_is_refused_or_quoted(tmp_path: Path) -> None:
    columns = {"a,b": "int", 'c"': "int"}
    with pytest.raises(EncodeTextError, match="'a,b' holds what separates"):
        CSVWriter(columns=columns, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with CSVWriter(columns=columns, out=tmp_path / "out", quoting=True) as writer:
        writer.write({"a,b": 1, 'c"': 2})
    assert LocalDataset(tmp_path / "out")[0] == {"a,b": 1, 'c"': 2}


@pytest.mark.parametrize(
    "options",
    [
        {"separator": ""},
        {"separator": ",", "newline": ""},
        {"separator": '"', "quoting": True},
        {"separator": "\n", "quoting": True},
        {"separator": ",", "newline": ";,", "quoting": True},
        {"separator": ",", "newline": '"', "quoting": True},
    ],
)
def test_separators_that_cannot_be_meant_are_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        XSVWriter(columns={"a": "int"}, out=tmp_path / "out", **options)


@pytest.mark.parametrize("columns", [{}, {1: "int"}, {"a": int}, ["a"], "a", 5])
def test_columns_that_cannot_be_meant_are_refused(columns: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`columns`"):
        CSVWriter(columns=columns, out=tmp_path / "out")


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncodingNameError, match="no encoding 'bool' of separated text") as caught:
        TSVWriter(columns={"x": "bool"}, out=tmp_path / "out")
    assert isinstance(caught.value, AssertionError)


def test_the_old_functions_know_the_encodings() -> None:
    assert is_xsv_encoding("int")
    assert not is_xsv_encoding("json")
    assert xsv_encode("float", np.float64(0.1)) == "0.1"
    assert xsv_decode("int", "-12") == -12
    with pytest.raises(ValueError, match="no encoding"):
        xsv_decode("json", "{}")
