import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import CSVWriter, LocalDataset, XSVWriter
from streaming.errors import (
    EncodingNameError,
    IndexFormatError,
    SampleError,
    ShardCorruptError,
    UnknownNameError,
)
from streaming.format import BytesColumn, open_reader
from tests.common.golden import describe, load_expected, load_index
from tests.common.text import open_plain, read_plain, write


@pytest.mark.parametrize("name", ["csv", "csv_gz", "tsv", "xsv_pipes", "xsv_unicode"])
def test_a_recorded_dataset_is_read_equal(name: str, tmp_path: Path, golden: Path) -> None:
    root = golden / "datasets" / "formats" / name
    expected = load_expected(root)
    for path in root.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    dataset = LocalDataset(tmp_path)
    samples = [
        {key: describe(value) for key, value in sample.items()}
        for sample in dataset.__getitems__(range(len(dataset)))
    ]
    assert samples == expected["samples"]
    assert [info.samples for info in load_index(tmp_path)] == expected["samples_per_shard"]


BAD = {
    b"1": "has 1 fields, but there are 2 columns",
    b"1,2,3": "has 3 fields, but there are 2 columns",
    b"x,2": r"Column 'a' of .* should be int, but is 'x'",
    b",2": r"Column 'a' of .* should be int, but is ''",
    b"1.0,2": r"Column 'a' of .* should be int, but is '1.0'",
    b"1,\xff": "is not UTF-8: invalid start byte",
    b'1,"a"b': "can't be taken apart: at character 6 a field goes on after its closing quote",
    b"9" * 5000 + b",1": r"Column 'a' of .* should be int, but is '999",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: repr(line[:20]))
def test_a_broken_line_is_named_with_file_line_and_byte(line: bytes, tmp_path: Path) -> None:
    good = b'a,b\r\n1,2\r\n\r\n3,"4\r\n"\r\n'
    path = write(tmp_path / "a.csv", good + line + b"\r\n5,6\r\n")
    (reader,) = open_plain(path, columns={"a": "int", "b": "str"})
    for read in (reader.take, reader.take_columns):
        with pytest.raises(SampleError, match=BAD[line]) as caught:
            read(np.arange(4))
        assert f"sample 2 of shard file {path} (line 6, byte 21)" in str(caught.value)
    with pytest.raises(SampleError, match="line 6, byte 21"):
        reader.get_item(2)
    with pytest.raises(SampleError):
        reader.decode_sample(line)
    rows = [{"a": 1, "b": "2"}, {"a": 3, "b": "4\r\n"}, {"a": 5, "b": "6"}]
    assert reader.take(np.array([0, 1, 3])) == rows


def test_one_line_too_long_and_one_too_short_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2,3\n4\n5,6\n")
    (reader,) = open_plain(path, columns={"a": "str", "b": "str"})
    with pytest.raises(SampleError, match=r"line 2, byte 4\) has 3 fields"):
        reader.take(np.arange(3))


def test_mixed_newlines_blank_lines_and_a_missing_last_one_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeff\r\na,b\n1,x\r\n\n\n2,y\r3,z\r\r4,"\r\n\n"\n\n5,w')
    values = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}, {"a": 4, "b": "\r\n\n"}]
    assert read_plain(path) == [*values, {"a": 5, "b": "w"}]


@pytest.mark.parametrize("rest", ["b\x1cc\n", "b\n\n", "b\u2028\r"])
def test_a_last_line_without_newline_does_not_go_on_in_the_line_read_after_it(
    rest: str, tmp_path: Path
) -> None:
    """With what only seems to be a second line, there would be as many as were asked for."""
    path = write(tmp_path / "a.csv", f"x\n{rest}a")
    (reader,) = open_plain(path, columns={"x": "str"})
    rows = [{"x": "a"}, {"x": rest.rstrip("\r\n")}]
    assert reader.take(np.array([1, 0])) == rows
    assert reader.take(np.array([1, 0, 1])) == [*rows, rows[0]]


def test_a_quote_within_a_field_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'a,b\n5" pipe,"x"\na"b"c,"""d"""\n')
    assert read_plain(path) == [{"a": '5" pipe', "b": "x"}, {"a": 'a"b"c', "b": '"d"'}]


def test_quotes_may_have_no_meaning(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'a\tb\n"x\ty"\n"\t"\n')
    assert read_plain(path, quoting=False) == [{"a": '"x', "b": 'y"'}, {"a": '"', "b": '"'}]


def test_separators_of_more_characters_are_read_with_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", 'a||b\n1||"x||\n""y"""\n2||z|\n')
    rows = [{"a": 1, "b": 'x||\n"y"'}, {"a": 2, "b": "z|"}]
    assert read_plain(path, format="xsv", separator="||") == rows


def test_columns_can_be_chosen_and_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b,c\n1,2,3\n")
    assert read_plain(path, choose=["c", "a"]) == [{"c": 3, "a": 1}]
    assert read_plain(path, choose=[]) == [{}]
    assert read_plain(path, columns={"c": "str", "b": "float"}) == [{"c": "3", "b": 2.0}]
    with pytest.raises(UnknownNameError, match="no column 'a'. Known: c"):
        open_plain(path, columns={"c": "str"}, choose=["a"])


@pytest.mark.parametrize("late", ["02139", "1_0", " 1", "+1", "-0", "", "1.5", "nan"])
def test_what_only_looks_like_a_number_is_no_number_of_an_inferred_column(
    late: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", "code\n" + "1\n" * 1000 + f'2\n"{late}"\n')
    (reader,) = open_plain(path)
    assert reader.take(np.arange(1001))[-1] == {"code": 2}
    for read in (reader.take, reader.take_columns):
        with pytest.raises(SampleError, match=r"line 1003, .* should be int, but is '.*declare it"):
            read(np.arange(1002))
    with pytest.raises(SampleError, match="declare it as str"):
        reader.get_item(1001)
    assert read_plain(path, columns={"code": "str"})[-1] == {"code": late}


def test_columns_are_arrays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i,f,s,big\n1,0.5,é,1\n-2,-0.0,,99999999999999999999\n")
    (reader,) = open_plain(path)
    columns = reader.take_columns(np.array([1, 0]))
    assert isinstance(columns["i"], np.ndarray)
    assert isinstance(columns["f"], np.ndarray)
    assert isinstance(columns["s"], BytesColumn)
    assert columns["i"].tolist() == [-2, 1]
    assert str(columns["f"].tolist()) == "[-0.0, 0.5]"
    assert columns["s"].to_pylist() == ["", "é"]
    assert columns["big"] == [99999999999999999999, 1]


def test_a_field_of_100_mb_is_read(tmp_path: Path) -> None:
    text = "x" * 100_000_000
    path = write(tmp_path / "a.csv", f'a,t\n1,""\n2,"{text}"\n')
    (reader,) = open_plain(path, columns={"a": "int", "t": "str"})
    assert [len(row["t"]) for row in reader.take(np.array([1, 0]))] == [len(text), 0]


def test_a_shard_with_another_header_is_corrupt(tmp_path: Path) -> None:
    with CSVWriter(columns={"a": "int", "b": "int"}, out=tmp_path) as writer:
        writer.write({"a": 1, "b": 2})
    info = load_index(tmp_path).shard(0)
    paths = [tmp_path / raw.basename for raw, _ in info.files]
    assert paths[1].read_bytes() == b"a,b\n1,2\n"
    paths[1].write_bytes(b"b,a\n1,2\n")
    with pytest.raises(ShardCorruptError, match=r"begins with b'b,a.n', but by the index"):
        open_reader(info, paths)


def test_a_line_without_its_newline_is_an_error(tmp_path: Path) -> None:
    with CSVWriter(columns={"a": "int"}, out=tmp_path) as writer:
        writer.write({"a": 12})
    info = load_index(tmp_path).shard(0)
    paths = [tmp_path / raw.basename for raw, _ in info.files]
    paths[1].write_bytes(b"a\n123")
    reader = open_reader(info, paths)
    for read in (reader.take, reader.take_columns):
        with pytest.raises(SampleError, match="does not end with '.n'"):
            read(np.array([0]))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("column_names", None, "should be lists of texts"),
        ("column_names", ["a", 1], "should be lists of texts"),
        ("column_names", ["a", "a"], "don't match, or one comes twice"),
        ("column_names", ["a"], "don't match, or one comes twice"),
        ("column_encodings", ["int"], "don't match, or one comes twice"),
        ("column_encodings", ["int", "uint8"], "no encoding 'uint8'"),
        ("separator", "", "can't be read: `separator`"),
        ("separator", 1, "should be a text, a text or null"),
        ("separator", {}, "should be a text, a text or null"),
        ("newline", 1, "should be a text, a text or null"),
        ("newline", [], "should be a text, a text or null"),
        ("quoting", "false", "should be a text, a text or null"),
        ("newline", "", "can't be read: `newline`"),
        ("declared", ["c"], "Not all of"),
        ("declared", "a", "should be lists of texts"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    with XSVWriter(columns={"a": "int", "b": "int"}, separator="|", out=tmp_path) as writer:
        writer.write({"a": 1, "b": 2})
    document = json.loads((tmp_path / "index.json").read_text())
    document["shards"][0][key] = value
    (tmp_path / "index.json").write_text(json.dumps(document))
    with pytest.raises((IndexFormatError, EncodingNameError), match=message):
        LocalDataset(tmp_path)
