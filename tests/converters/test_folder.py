"""Samples from the files of a folder."""

import os
from pathlib import Path

import pytest

from streaming.converters.folder import FIELDS, FolderSource, find_files
from streaming.errors import ConfigError, EncodeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {"b.txt": b"b", "a/z.txt": b"zz", "a/empty": b"", ".git/x": b"x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    return tmp_path


def names_of(root: Path, pattern: str = "*") -> list[str]:
    return [path.relative_to(root).as_posix() for path in find_files(root, pattern)]


def test_files_come_in_the_order_of_their_paths_without_hidden_ones(root: Path) -> None:
    (root / ".hidden").write_bytes(b"h")
    assert names_of(root) == ["a/empty", "a/z.txt", "b.txt"]


def test_a_pattern_chooses_files(root: Path) -> None:
    assert names_of(root, "*.txt") == ["a/z.txt", "b.txt"]
    assert names_of(root, "a/*") == ["a/empty", "a/z.txt"]


def test_what_is_no_regular_file_is_left_out(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "dead").symlink_to("nowhere")
    (root / "round").symlink_to(root, target_is_directory=True)
    (root / "good").symlink_to(root / "b.txt")
    assert names_of(root) == ["a/empty", "a/z.txt", "b.txt", "good"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing can't be listed: No such file"):
        find_files(tmp_path / "nothing")


def test_a_file_is_path_text_and_size(root: Path) -> None:
    rows = list(FolderSource(root, find_files(root)))
    assert [row.sample for row in rows] == [
        {"path": "a/empty", "text": b"", "size": 0},
        {"path": "a/z.txt", "text": b"zz", "size": 2},
        {"path": "b.txt", "text": b"b", "size": 1},
    ]


def test_empty_files_have_no_tokens_and_are_left_out(root: Path) -> None:
    first, _ = FolderSource(root, find_files(root), FIELDS)
    assert first.sample["path"] == "a/z.txt"
    assert first.sample["tokens"].tolist() == list(b"zz")


def test_text_that_is_not_utf8_fits_bytes_only(root: Path) -> None:
    (root / "b.txt").write_bytes(b"ab\xff")
    files = [root / "b.txt"]
    [row] = FolderSource(root, files)
    assert row.sample["text"] == b"ab\xff"
    with pytest.raises(EncodeError, match=r"b.txt is not UTF-8 \(byte 2\).* Use 'bytes'"):
        list(FolderSource(root, files, {"text": "str"}))


def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), b"a\xff"), "wb"):
        pass
    [row] = FolderSource(tmp_path, find_files(tmp_path))
    assert row.sample["path"] == r"a\xff"


def test_an_unknown_field_is_refused(root: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no field 'label'\. There are: path, text, size, tokens"
    ):
        FolderSource(root, [], {"label": "int"})
