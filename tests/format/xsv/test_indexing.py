import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import ConfigError, DataError, EncodingNameError, UnknownNameError
from tests.common.text import open_plain, read_plain, write

FIELDS = st.text(st.sampled_from('a1,;"\n\r\t é\x1c\u2028'), max_size=6)


@given(
    rows=st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=8),
    style=st.fixed_dictionaries(
        {
            "lineterminator": st.sampled_from(["\n", "\r\n"]),
            "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
            "delimiter": st.sampled_from([",", "\t", ";"]),
        }
    ),
)
@settings(max_examples=40)
def test_a_file_of_the_csv_module_gives_its_rows(
    rows: list[list[str]], style: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if style["lineterminator"] == "\n":  # Then it puts no quotes around a carriage return.
        rows = [[field.replace("\r", "") for field in row] for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, **style).writerows([["x", "y"], *rows])
    path = write(tmp_path_factory.getbasetemp() / "of-csv.csv", text.getvalue())
    found = read_plain(path, columns={"x": "str", "y": "str"}, separator=style["delimiter"])
    assert [list(row.values()) for row in found] == rows


@pytest.mark.parametrize("quoting_style", ["needed", "all_valid"])
def test_a_file_of_pyarrow_gives_the_rows_that_it_reads(quoting_style: str, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    arrow_csv = pytest.importorskip("pyarrow.csv")
    table = arrow.table(
        {
            "i": [1, -(2**60), 3],
            "f": [0.1, 1e300, -2.5],
            "t": ['a "b", c', "é\n", ""],
            "flag": [True, False, True],
        }
    )
    path = tmp_path / "a.csv"
    arrow_csv.write_csv(table, path, arrow_csv.WriteOptions(quoting_style=quoting_style))
    options = arrow_csv.ParseOptions(newlines_in_values=True)
    expected = arrow_csv.read_csv(path, parse_options=options).to_pylist()
    found = read_plain(path)
    assert [{**row, "flag": row["flag"] == "true"} for row in found] == expected


def test_lines_of_json_give_the_rows_that_pyarrow_reads(tmp_path: Path) -> None:
    arrow_json = pytest.importorskip("pyarrow.json")
    rows = [{"i": i, "f": i / 3, "t": "é" * i, "l": [i], "d": {"a": None}} for i in range(9)]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_plain(path) == arrow_json.read_json(path).to_pylist() == rows


def test_files_of_polars_give_the_rows_that_it_reads(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"i": [1, 2], "f": [0.5, -1.25], "t": ['a,"b"\n', "é"]})
    frame.write_csv(tmp_path / "a.csv")
    frame.write_ndjson(tmp_path / "a.ndjson")
    assert read_plain(tmp_path / "a.csv") == polars.read_csv(tmp_path / "a.csv").to_dicts()
    assert read_plain(tmp_path / "a.ndjson") == frame.to_dicts()


def test_encodings_are_inferred_from_the_first_lines_of_all_files(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", f"i,f,s,code,gap,big\n1,0.5,x,007,1,{2**70}\n2,3,4,1,,1\n")
    row = {"i": 1, "f": 0.5, "s": "x", "code": "007", "gap": "1", "big": 2**70}
    assert read_plain(tmp_path)[0] == row
    write(tmp_path / "b.csv", "i,f,s,code,gap,big\nno,1,,1,1,0.5\n")
    assert read_plain(tmp_path)[0] == {**row, "i": "1", "big": str(2**70)}


def test_a_file_without_header_has_the_names_that_were_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,x\n2,y\n")
    rows = [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]
    assert read_plain(path, header=False, columns={"n": "int", "t": "str"}) == rows
    assert read_plain(path, header=False, names=["n", "t"]) == rows


def test_names_replace_those_of_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ",a,a\n1,2,3\n")
    assert read_plain(path, names=["x", "y", "z"]) == [{"x": 1, "y": 2, "z": 3}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,a\n1,2,3\n", r"The header of .*a.csv has the name 'a' twice"),
        (",b\n1,2\n", r"The header of .*a.csv has a column without a name"),
        (
            "a,b\n1,2\n\n3\n",
            r"a.csv, line 4 \(byte 9\) has 1 fields, but there are 2 columns: a, b",
        ),
        ('a,b\n"1"x,2\n', r"a.csv, line 2 \(byte 4\) can't be taken apart: at character 4"),
        ('a,b\n"1,2\n', r"a.csv, .* line 2 \(byte 4\) begins with a quote that is never closed"),
        ('"a,b\n1,2\n', r"line 1 \(byte 0\) begins with a quote that is never closed"),
    ],
)
def test_what_is_wrong_with_the_first_lines_is_found_at_once(
    text: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(DataError, match=message):
        open_plain(path)


def test_a_header_that_is_not_utf8_is_found_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"a,\xe9\n1,2\n")
    with pytest.raises(DataError, match=r"line 1 \(byte 0\) is not UTF-8: invalid continuation"):
        open_plain(path)


def test_files_with_other_columns_are_refused_with_the_difference(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "y,x\n1,2\n")
    with pytest.raises(DataError, match=r"a.csv has \['x', 'y'\], and b.csv has \['y', 'x'\]"):
        open_plain(tmp_path)


def test_files_without_lines_have_no_samples(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "")
    write(tmp_path / "b.csv", "\n\r\n")
    write(tmp_path / "c.csv", "another,header\n")
    write(tmp_path / "d.csv", "x\n1\n")
    assert read_plain(tmp_path) == [{"x": 1}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"header": "no"}, "`header` must be True or False, but is 'no'"),
        ({"quoting": "no"}, "`quoting` must be True or False, but is 'no'"),
        ({"names": "ab"}, "`names` must be a list of names, but is 'ab'"),
        ({"sep": "|"}, "options separator, quoting, header, names, but not sep"),
        ({"separator": ""}, "`separator` must be a text"),
        ({"separator": '"'}, "can't be separated by"),
        ({"separator": "\n"}, "can't be separated by"),
        ({"header": False}, "without a header need `names`"),
        ({"names": ["a", "a"]}, "`names` has the name 'a' twice"),
        ({"format": "xsv"}, "Say what separates the fields"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with pytest.raises(ConfigError, match=message):
        open_plain(path, **options)


def test_declared_columns_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with pytest.raises(UnknownNameError, match=r"no column 'c' in .* Known: a, b"):
        open_plain(path, columns={"c": "int"})
    with pytest.raises(EncodingNameError, match="int64"):
        open_plain(path, columns={"a": "int64"})
