import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import DataError, StoreError
from streaming.format.text import scan
from streaming.format.text.scan import File, line_starts


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Look at files in pieces of some bytes, so that borders are everywhere."""

    def set_(piece: int, run: int) -> None:
        monkeypatch.setattr(scan, "PIECE", piece)
        monkeypatch.setattr(scan, "RUN", run * piece)

    return set_


def starts_of(path: Path, threads: int = 1) -> list[int]:
    with File(path) as file:
        return [start for piece in line_starts(file, threads=threads) for start in piece.tolist()]


def plain_starts(data: bytes) -> list[int]:
    """The same, line by line."""
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    starts = []
    for line in data[at:].split(b"\n"):
        if line.strip(b" \t\r"):
            starts.append(at)
        at += len(line) + 1
    return starts


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
@given(
    data=st.lists(st.sampled_from([b"a", b"{}", b"\n", b"\n", b" ", b"\r\n", b"\t", b"\r"])),
    is_marked=st.booleans(),
)
@settings(max_examples=120)
def test_the_starts_are_those_of_a_plain_loop(
    data: list[bytes], is_marked: bool, piece: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = b"\xef\xbb\xbf" * is_marked + b"".join(data)
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "PIECE", piece)
        patch.setattr(scan, "RUN", 2 * piece)
        assert starts_of(path) == plain_starts(content)


def test_several_threads_find_the_same(
    tmp_path: Path, small_pieces: Callable[[int, int], None]
) -> None:
    draw = random.Random(0)
    data = b"".join(draw.choice([b"x" * draw.randrange(30), b"\n", b"\r\n"]) for _ in range(5000))
    (tmp_path / "lines").write_bytes(data)
    small_pieces(100, 3)
    assert starts_of(tmp_path / "lines", threads=3) == plain_starts(data)


def test_a_line_of_blanks_longer_than_a_window_is_none(
    tmp_path: Path, small_pieces: Callable[[int, int], None]
) -> None:
    small_pieces(16, 2)
    (tmp_path / "lines").write_bytes(b"a\n" + b" \t" * 5000 + b"\nb\n" + b" " * 5000)
    assert starts_of(tmp_path / "lines") == [0, 10003]


def test_no_thread_is_left_when_nobody_wants_more(
    tmp_path: Path, small_pieces: Callable[[int, int], None]
) -> None:
    small_pieces(10, 2)
    (tmp_path / "lines").write_bytes(b"abc\n" * 1000)
    with File(tmp_path / "lines") as file:
        pieces = line_starts(file, threads=2)
        assert next(pieces).tolist() == [0, 4, 8]
        pieces.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\xff\xfea\0", "UTF-16"),
        (b"\xfe\xff\0a", "UTF-16"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh9", "bzip2"),
        (b"PK\x03\x04", "zip archive"),
        (b"PAR1", "Parquet"),
    ],
)
def test_what_is_no_text_is_called_what_it_is(tmp_path: Path, head: bytes, what: str) -> None:
    (tmp_path / "data.csv").write_bytes(head + b" and more")
    with pytest.raises(DataError, match=rf"data.csv is .*{what}"):
        File(tmp_path / "data.csv")


def test_a_missing_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Can't read the data"):
        File(tmp_path / "none", "the data")


def test_lines_are_counted_up_to_a_place(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\n\nb\nc")
    with File(tmp_path / "lines") as file:
        assert [file.line_of(place) for place in (0, 1, 2, 3, 5)] == [1, 1, 2, 3, 4]
