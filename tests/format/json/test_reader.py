import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import JSONWriter, LocalDataset
from streaming.errors import IndexFormatError, SampleError, ShardCorruptError, UnknownNameError
from streaming.format import open_reader
from streaming.format.json.reader import parse_object
from streaming.format.text.table import pack_table
from tests.common.golden import describe, load_expected, load_index
from tests.common.text import open_plain, read_plain, write


@pytest.mark.parametrize("name", ["json", "json_crlf", "json_zstd", "merged_json"])
def test_a_recorded_dataset_is_read_equal(name: str, tmp_path: Path, golden: Path) -> None:
    root = golden / "datasets" / "formats" / name
    expected = load_expected(root)
    for path in root.rglob("*"):
        if path.is_file():
            write(tmp_path / path.relative_to(root), b"").write_bytes(path.read_bytes())
    dataset = LocalDataset(tmp_path)
    samples = [
        {key: describe(value) for key, value in sample.items()}
        for sample in dataset.__getitems__(range(len(dataset)))
    ]
    assert samples == expected["samples"]
    assert [info.samples for info in load_index(tmp_path)] == expected["samples_per_shard"]


# Whatever Python's own writer and reader agree on.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Ll"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    rows=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=8),
    is_ascii=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n", "\n\n", " \n \t\r\n"]),
    is_ended=st.booleans(),
)
@settings(max_examples=60)
def test_a_file_gives_the_rows_that_python_reads(
    rows: list[dict[str, Any]],
    is_ascii: bool,
    newline: str,
    is_ended: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lines = [json.dumps(row, ensure_ascii=is_ascii) for row in rows]
    text = newline.join(lines) + newline * is_ended
    try:
        data = text.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair, which only an escape can say.
        return
    path = write(tmp_path_factory.getbasetemp() / "a.jsonl", data)
    assert repr(read_plain(path)) == repr([json.loads(line) for line in lines])


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1e400, "b": -1E400, "c": 1.7976931348623159e308}',
        '{"a": NaN, "b": [Infinity, -Infinity]}',
        r'{"a": "\ud800", "\udfff": "\ud83d\ude00", "b": "\u0000\/"}',
        '{"a": -0, "b": -0.0, "c": 1E5, "d": 0.1e-400}',
        '{"a": 18446744073709551616, "b": -9223372036854775809}',
        '{"a": 1, "a": 2}',
        ' \t{ "a" :\t[ ] }\r',
        "{}",
    ],
)
def test_what_decoders_differ_about_is_as_python_reads_it(line: str) -> None:
    assert repr(parse_object(line.encode())) == repr(json.loads(line))


BAD = {
    b"": "Expecting value",
    b"x": "not JSON: Expecting value",
    b'{"a": 1': "not JSON: Expecting ',' delimiter (character 8)",
    b'{"a": 1} {"a": 2}': "not JSON: Extra data",
    b'{"a": 1}{"a": 2}': "not JSON: Extra data",
    b'{"a": 1}, ': "not JSON: Extra data",
    b'{"a": "\xff"}': "not UTF-8: invalid start byte (its byte 7)",
    b'{"a": "\x01"}': "not JSON: Invalid control character",
    b"[1]": "holds a list",
    b'"a"': "holds a text",
    b"1": "holds a number",
    b"null": "holds null",
    b"true": "holds true or false",
    b"[" * 100_000: "nested too deeply",
    b'{"a": ' + b"9" * 5000 + b"}": "can't be decoded: Exceeds the limit",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: repr(line[:20]))
def test_a_broken_line_is_named_with_file_line_and_byte(line: bytes, tmp_path: Path) -> None:
    good = b'{"a": 1}\n'
    path = write(tmp_path / "a.jsonl", good * 3 + b"\n" + b'{"a": 2}\n' + (line or b"!") + b"\n")
    (reader,) = open_plain(path, columns={"a": "json"})
    message = BAD[line]
    for read in (reader.take, reader.take_columns):
        with pytest.raises(SampleError) as caught:
            read(np.arange(5))
        assert f"sample 4 of shard file {path} (line 6, byte 37)" in str(caught.value)
        assert message in str(caught.value)
    with pytest.raises(SampleError, match="line 6, byte 37"):
        reader.get_item(4)
    assert reader.take(np.arange(4)) == [{"a": 1}] * 3 + [{"a": 2}]
    with pytest.raises(SampleError):
        reader.decode_sample(line or b"!")


def test_lines_that_only_together_are_objects_are_not_read(tmp_path: Path) -> None:
    """As many objects as lines, but not one in each."""
    path = write(tmp_path / "a.jsonl", '{"a": 1}{"a": 2}\n{"a":\n3}\n{"a": 4}\n')
    (reader,) = open_plain(path, columns={"a": "int"})
    with pytest.raises(SampleError, match="line 1, byte 0"):
        reader.take(np.arange(4))
    with pytest.raises(SampleError, match="line 2, byte 17"):
        reader.take(np.array([1, 2]))
    assert reader.take(np.array([3])) == [{"a": 4}]


def test_chosen_columns_are_none_where_a_line_lacks_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": [2]}\n{"c": 3}\n')
    assert read_plain(path, choose=["b", "a"]) == [{"b": [2], "a": 1}, {"b": None, "a": None}]
    assert read_plain(path, choose=[]) == [{}, {}]
    with pytest.raises(UnknownNameError, match="no column 'd'. Known: a, b, c. .* declared"):
        open_plain(path, choose=["d"])


def test_declared_columns_have_their_types(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": 2, "c": null, "d": true, "e": "x"}\n')
    columns = {"b": "float", "a": "int", "c": "json", "d": "bool", "f": "json"}
    (row,) = read_plain(path, columns=columns)
    assert row == {"b": 2.0, "a": 1, "c": None, "d": True, "f": None}
    assert list(row) == list(columns)
    assert type(row["b"]) is float
    (reader,) = open_plain(path, columns=columns)
    kinds = {
        name: getattr(col, "dtype", list)
        for name, col in reader.take_columns(np.array([0])).items()
    }
    assert kinds == {"b": np.float64, "a": np.int64, "c": list, "d": np.bool_, "f": list}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "true"),
        ("int", "1.0"),
        ("int", "null"),
        ("float", "true"),
        ("float", str(2**60 + 1)),
        ("float", "1" + "0" * 400),
        ("str", "1"),
        ("bool", "0"),
    ],
)
def test_a_value_of_another_type_than_declared_is_an_error(
    kind: str, value: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", f'{{}}\n{{"a": {value}}}\n')
    (reader,) = open_plain(path, columns={"a": kind})
    with pytest.raises(SampleError, match=rf"'a' was declared as {kind}, but is .*line 2, byte 3"):
        reader.take(np.array([1]))
    with pytest.raises(SampleError, match=r"but is missing\. .* sample 0 of"):
        reader.take(np.array([0, 1]))


def test_columns_are_arrays_where_all_values_fit(tmp_path: Path) -> None:
    rows: list[Mapping[str, Any]] = [
        {"i": 1, "f": 1, "s": "é", "b": True, "j": None},
        {"i": 2, "f": 0.5, "s": "", "b": False, "j": [1]},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (reader,) = open_plain(path)
    columns = reader.take_columns(np.array([1, 0]))
    assert {name: list(column) for name, column in columns.items()} == {
        name: [rows[1][name], rows[0][name]] for name in rows[0]
    }
    kinds = [getattr(columns[name], "dtype", None) for name in "ifb"]
    assert kinds == [np.int64, np.float64, np.bool_]


def test_a_line_of_100_mb_is_read(tmp_path: Path) -> None:
    text = "x" * 100_000_000
    path = write(tmp_path / "a.jsonl", f'{{"a": 1, "t": ""}}\n{{"a": 2, "t": "{text}"}}\n')
    (reader,) = open_plain(path)
    assert len(reader.get_item(1)["t"]) == len(text)
    assert [row["a"] for row in reader.take(np.array([1, 0]))] == [2, 1]


@pytest.mark.parametrize("columns", [None, [], {"a": 1}, "a"])
def test_an_index_whose_columns_are_broken_is_refused(columns: Any, tmp_path: Path) -> None:
    with JSONWriter(columns={"a": "int"}, out=tmp_path) as writer:
        writer.write({"a": 1})
    document = json.loads((tmp_path / "index.json").read_text())
    document["shards"][0]["columns"] = columns
    (tmp_path / "index.json").write_text(json.dumps(document))
    with pytest.raises(IndexFormatError, match="`columns` of shard.00000.json should be"):
        LocalDataset(tmp_path)


@pytest.mark.parametrize("width", [0, 3, "4", None])
def test_an_index_with_offsets_of_another_size_is_refused(width: Any, tmp_path: Path) -> None:
    with JSONWriter(columns={"a": "int"}, out=tmp_path) as writer:
        writer.write({"a": 1})
    document = json.loads((tmp_path / "index.json").read_text())
    document["shards"][0]["offset_bytes"] = width
    (tmp_path / "index.json").write_text(json.dumps(document))
    with pytest.raises(IndexFormatError, match="`offset_bytes` of shard.00000"):
        LocalDataset(tmp_path)


def test_a_table_that_points_out_of_the_file_is_corrupt(tmp_path: Path) -> None:
    with JSONWriter(columns={"a": "int"}, out=tmp_path) as writer:
        writer.write({"a": 1})
        writer.write({"a": 2})
    info = load_index(tmp_path).shard(0)
    paths = [tmp_path / raw.basename for raw, _ in info.files]
    config = paths[0].read_bytes()[16:]
    paths[0].write_bytes(pack_table(np.array([0, 9, 99]), config))
    with pytest.raises(ShardCorruptError, match=r"sample 1 lies at \[9, 99\) of a file of 18"):
        open_reader(info, paths)
