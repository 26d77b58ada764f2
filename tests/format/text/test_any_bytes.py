"""Any bytes as files of text: what comes is what Python's modules give, or an error of ours."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import StreamingError
from streaming.format import Sample, ShardReader
from streaming.format.text import scan
from tests.common.text import open_plain, write

MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"
# Whole lines and pieces of them, and characters that somebody takes for newlines.
COMMON = [b"\n", b"\n", b"\r\n", b"\r", b" ", b"\t", b"\xff", b"\0", MARK, b"\xe2\x80\xa8", b"\x1c"]
JSON = [
    *(b'{"a": 1}', b"{}", b"{", b"}", b'"', b"1", b",", b"[1]", b'{"a": 1}{"b": 2}'),
    *(b'{"a": [{"b": NaN}]}', b'{"a": 1e999, "\xc3\xa9": 12345678901234567890123}'),
    *(b'{"a": "\\ud800"}', b'{"a":\n1}', b'{"b": "x"}\n{"b": "y"}\n'),
]
TEXT = [b"a", b",", b",", b'"', b'"', b'""', b"1", b"1.5", b"007", b"\xc3\xa9", b"x\n1,2\n3,4\n"]
TEXT += [b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"]


def pieces(of: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(of + COMMON), max_size=20).map(b"".join)


def read_all_ways(reader: ShardReader) -> list[Sample] | None:
    """The samples, the same in every way; None for an error, which then comes in every way."""
    places = np.arange(len(reader))

    def attempt(read: Callable[[], Any]) -> list[Sample] | None:
        try:
            return list(read())
        except StreamingError:
            return None

    single = attempt(lambda: [reader.get_item(i) for i in places.tolist()])
    others = [
        attempt(lambda: reader.take(places)),
        attempt(lambda: reader.take(places[::-1])[::-1]),
        attempt(lambda: [reader.decode_sample(bytes(reader.read_raw(i))) for i in places.tolist()]),
    ]
    assert all(repr(other) == repr(single) for other in others)
    attempt(lambda: reader.take_columns(places))
    return single


def read_file(path: Path, columns: dict[str, str] | None, **options: Any) -> list[Sample] | None:
    try:
        readers = open_plain(path, columns=columns, **options)
    except StreamingError:
        return None
    samples: list[Sample] = []
    for reader in readers:
        found = read_all_ways(reader)
        if found is None:
            return None
        samples += found
    return samples


def python_json(data: bytes) -> list[Sample] | None:
    lines = [line.strip(BLANKS) for line in data.removeprefix(MARK).split(b"\n")]
    try:
        rows = [json.loads(line.decode()) for line in lines if line]
    except ValueError:
        return None
    return rows if all(type(row) is dict for row in rows) else None


def python_csv(data: bytes) -> list[Sample] | None:
    text = io.StringIO(data.removeprefix(MARK).decode(), newline="")
    names, *rows = [row for row in csv.reader(text, strict=True) if row]
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.fixture(params=[3, 64])
def small_windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PIECE", request.param)
    monkeypatch.setattr(scan, "RUN", 2 * request.param)


@pytest.mark.usefixtures("small_windows")
def test_any_bytes_as_lines_of_json_are_what_python_reads(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"

    @given(data=pieces(JSON))
    @settings(max_examples=100)
    def check(data: bytes) -> None:
        write(path, data)
        assert repr(read_file(path, None) or None) == repr(python_json(data) or None)
        read_file(path, {"a": "json"})

    check()


@pytest.mark.usefixtures("small_windows")
def test_any_bytes_as_separated_text_are_what_python_reads_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.csv"

    @given(
        head=st.sampled_from([b"x,y\n", b"x\n", b"x\r\n", b"x,y\r", MARK + b'"x","y"\n', b""]),
        data=pieces(TEXT),
    )
    @settings(max_examples=100)
    def check(head: bytes, data: bytes) -> None:
        write(path, head + data)
        names = ["x", "y"] if b"y" in head else ["x"]
        found = read_file(path, dict.fromkeys(names, "str"))
        if found and b"\0" not in data and head:  # The csv module does not like a zero.
            assert found == python_csv(head + data)
        read_file(path, None)
        read_file(path, None, quoting=False)

    check()
