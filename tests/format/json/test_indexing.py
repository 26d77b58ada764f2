import json
from pathlib import Path

import pytest

from streaming.errors import ConfigError, DataError, EncodingNameError
from streaming.format.listing import Place
from streaming.shared.plain import PlainData, obtain_plain_index
from tests.common.text import open_plain, read_plain, write


def columns_of(root: Path) -> dict[str, str]:
    found = obtain_plain_index(PlainData(place=Place.parse(root), local=None))
    assert found is not None
    columns: dict[str, str] = found.index.shard(0).extra["columns"]
    return columns


def test_columns_are_inferred_from_the_first_lines_of_all_files(tmp_path: Path) -> None:
    row = {"i": 1, "f": 0.5, "s": "", "b": True, "n": None, "l": [1], "big": 2**80, "mixed": 1}
    write(tmp_path / "a.jsonl", json.dumps(row) + "\n" + json.dumps({**row, "f": 2}))
    assert columns_of(tmp_path) == {
        "i": "int",
        "f": "float",
        "s": "str",
        "b": "bool",
        "n": "json",
        "l": "json",
        "big": "int",
        "mixed": "int",
    }
    write(tmp_path / "b.jsonl", json.dumps({**row, "mixed": "x", "new": 1}))
    assert columns_of(tmp_path) == {
        "i": "int",
        "f": "float",
        "s": "str",
        "b": "bool",
        "n": "json",
        "l": "json",
        "big": "int",
        "mixed": "json",
        "new": "json",
    }


def test_what_comes_after_the_first_lines_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n' * 1000 + '{"a": "x"}\n')
    assert columns_of(tmp_path) == {"a": "int"}
    assert read_plain(tmp_path)[-1] == {"a": "x"}


def test_a_broken_line_among_the_first_is_found_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n\n{"a": 2\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 3 \(byte 10\) is not JSON: Expecting ','"):
        open_plain(tmp_path)


def test_a_file_that_is_one_json_document_is_found_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", json.dumps([{"a": 1}, {"a": 2}], indent=2))
    with pytest.raises(DataError, match=r"line 1 \(byte 0\) is not JSON"):
        open_plain(tmp_path)


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n')
    with pytest.raises(EncodingNameError, match="int64"):
        open_plain(tmp_path, columns={"a": "int64"})


def test_options_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n')
    with pytest.raises(ConfigError, match="no options, but got .*separator"):
        open_plain(tmp_path, separator="|")
