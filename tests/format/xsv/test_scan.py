import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import DataError
from streaming.format.text import scan
from streaming.format.text.scan import File
from streaming.format.xsv.scan import record_starts


def starts_of(path: Path, separator: bytes, quoting: bool, threads: int = 1) -> list[int]:
    with File(path) as file:
        pieces = record_starts(file, separator, quoting=quoting, threads=threads)
        return [start for piece in pieces for start in piece.tolist()]


def plain_starts(data: bytes, separator: bytes, quoting: bool) -> list[int] | None:
    """The same, byte by byte; None if a quote is never closed."""
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    starts: list[int] = []
    is_line_start = is_field_start = True
    while at < len(data):
        char = data[at : at + 1]
        if char in b"\r\n":
            at, is_line_start, is_field_start = at + 1, True, True
            continue
        if is_line_start:
            starts.append(at)
        is_line_start = False
        if quoting and is_field_start and char == b'"':
            at = data.find(b'"', at + 1)
            while data[at + 1 : at + 2] == b'"' and at >= 0:
                at = data.find(b'"', at + 2)
            if at < 0:
                return None
            at, is_field_start = at + 1, False
        elif data.startswith(separator, at):
            at, is_field_start = at + len(separator), True
        else:
            at, is_field_start = at + 1, False
    return starts


@pytest.mark.parametrize(("piece", "run"), [(1, 1), (2, 2), (3, 1), (5, 3), (100, 1)])
@given(
    parts=st.lists(st.sampled_from(['"', '"', ",", "a", "\n", "\r", '""', "||", '"\n', "|", "b"])),
    separator=st.sampled_from([b",", b"|", b"||", b"ab"]),
    quoting=st.sampled_from([True, True, True, False]),
    is_marked=st.booleans(),
)
@settings(max_examples=200)
def test_the_starts_are_those_of_a_plain_loop(
    parts: list[str],
    separator: bytes,
    quoting: bool,
    is_marked: bool,
    piece: int,
    run: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = b"\xef\xbb\xbf" * is_marked + "".join(parts).encode()
    path = tmp_path_factory.getbasetemp() / "records"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "PIECE", piece)
        patch.setattr(scan, "RUN", run * piece)
        try:
            found: list[int] | None = starts_of(path, separator, quoting)
        except DataError:
            found = None
    assert found == plain_starts(data, separator, quoting)


def test_several_threads_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    fields = ["a", '"b"', '"c\n,d"', '"e""f"', '5" pipe', '""']
    lines = [",".join(draw.choices(fields, weights=[9, 9, 9, 9, 1, 9], k=3)) for _ in range(3000)]
    data = "\r\n".join(lines).encode()
    (tmp_path / "records").write_bytes(data)
    monkeypatch.setattr(scan, "PIECE", 100)
    monkeypatch.setattr(scan, "RUN", 300)
    expected = plain_starts(data, b",", True)
    assert expected is not None
    assert len(expected) == 3000
    assert starts_of(tmp_path / "records", b",", True, threads=3) == expected


@pytest.mark.parametrize("quote", ['"', 'a,"', '"b""'])
def test_a_quote_that_is_never_closed_is_named_with_line_and_byte(
    quote: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f'1,2\n"3\n",4\n\n{quote}5,6\n7,8\n')
    with pytest.raises(DataError, match=r"a.csv, a field of the record at line 5 \(byte 12\)"):
        starts_of(tmp_path / "a.csv", b",", True)
    assert len(starts_of(tmp_path / "a.csv", b",", False)) == 5
