import os
from pathlib import Path

import pytest

from streaming.errors import ConfigError, DataError, ObjectNotFoundError, UnknownNameError
from streaming.format.listing import Place, choose_format, list_files
from streaming.storage import open_store
from tests.common.text import write


def keys(place: object, format: str | None = None) -> list[str]:
    """The keys of the files that would be read."""
    chosen = choose_format(list_files(Place.parse(place)), format)  # type: ignore[arg-type]
    return [file.key for file in chosen[1]] if chosen else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.jsonl", "a.jsonl.gz", "sub/c.ndjson.zst", "sub/deep/d.JSONL.BZ2", "README.md", "x.txt",
        "_tmp/e.jsonl", ".hidden/f.jsonl", "_SUCCESS", ".g.jsonl", "sub/_h.jsonl", "data.bin",
    ):  # fmt: skip
        write(tmp_path / name, b"{}\n")
    return tmp_path


def test_a_folder_is_searched_in_the_order_of_keys(folder: Path) -> None:
    files = ["a.jsonl.gz", "b.jsonl", "sub/c.ndjson.zst", "sub/deep/d.JSONL.BZ2"]
    assert keys(folder) == files
    assert keys(f"{folder}/") == files
    assert keys(folder / "sub") == ["c.ndjson.zst", "deep/d.JSONL.BZ2"]


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("*.jsonl", ["b.jsonl"]),
        ("*.jsonl*", ["a.jsonl.gz", "b.jsonl"]),
        ("?.jsonl", ["b.jsonl"]),
        ("[ab].jsonl*", ["a.jsonl.gz", "b.jsonl"]),
        ("[!a].jsonl*", ["b.jsonl"]),
        ("**/*.zst", ["sub/c.ndjson.zst"]),
        ("**/*jsonl*", ["a.jsonl.gz", "b.jsonl"]),
        ("*/*", ["sub/c.ndjson.zst"]),
        ("s*/**", ["sub/c.ndjson.zst", "sub/deep/d.JSONL.BZ2"]),
        ("b.jsonl", ["b.jsonl"]),
    ],
)
def test_a_pattern_says_which_files(folder: Path, pattern: str, files: list[str]) -> None:
    assert keys(f"{folder}/{pattern}") == files


@pytest.mark.parametrize("place", [".", "./", "sub/..", "sub/deep/../..", ["."], ["sub/.."]])
def test_the_current_directory_is_a_folder_however_it_is_spelled(
    place: str | list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert keys(place) == keys(folder)
    monkeypatch.chdir(folder / "sub")
    assert keys("..") == keys([".."]) == keys(folder)


@pytest.mark.parametrize("head", ["", "./", ".//", "sub/../", "{cwd}/", "{cwd}//", "/{cwd}/"])
def test_a_list_names_files_of_several_folders_however_each_is_spelled(
    head: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "other" / "b.jsonl", b"{}\n")
    monkeypatch.chdir(folder)
    head = head.format(cwd=folder)
    first = head if head[:1] == "/" else ""
    named = [f"{first}sub/deep/d.JSONL.BZ2", f"{head}other/b.jsonl", f"{head}sub/*.zst"]
    listing = list_files(Place.parse(named))
    found = [os.path.relpath(Path(listing.root, file.key)) for file in listing.files]
    assert found == ["sub/deep/d.JSONL.BZ2", "other/b.jsonl", "sub/c.ndjson.zst"]
    listing = list_files(Place.parse([f"{first}b.jsonl", f"{head}sub/**/*.BZ2"]))
    found = [os.path.relpath(Path(listing.root, file.key)) for file in listing.files]
    assert found == ["b.jsonl", "sub/deep/d.JSONL.BZ2"]


def test_a_pattern_reads_below_its_directory(folder: Path) -> None:
    listing = list_files(Place.parse(f"{folder}/sub/*/*"))
    assert listing.root == f"{folder}/sub"
    assert [file.key for file in listing.files] == ["deep/d.JSONL.BZ2"]


def test_a_list_keeps_its_order(folder: Path) -> None:
    place: list[str | Path] = [
        f"{folder}/sub/c.ndjson.zst",
        folder / "b.jsonl",
        f"{folder}/*.jsonl.gz",
    ]
    listing = list_files(Place.parse(place))
    assert listing.root == str(folder)
    assert [file.key for file in listing.files] == ["sub/c.ndjson.zst", "b.jsonl", "a.jsonl.gz"]


def test_a_list_may_have_folders_and_a_file_twice(folder: Path) -> None:
    place: list[str | Path] = [f"{folder}/b.jsonl", f"{folder}/sub", f"{folder}/b.jsonl"]
    assert keys(place) == ["b.jsonl", "sub/c.ndjson.zst", "sub/deep/d.JSONL.BZ2"]


def test_one_file_is_read_whatever_it_is_called_if_the_format_is_said(folder: Path) -> None:
    assert keys(folder / "x.txt", "csv") == ["x.txt"]
    assert keys(folder / "x.txt") == []
    assert keys(folder / ".g.jsonl") == [".g.jsonl"]


def test_a_folder_called_like_a_file_is_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl" / "part-0.jsonl", b"{}\n")
    assert keys(tmp_path / "a.jsonl") == ["part-0.jsonl"]


def test_a_path_that_exists_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "run[1]*" / "a.jsonl", b"{}\n")
    assert keys(tmp_path / "run[1]*") == ["a.jsonl"]


def test_a_relative_path_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert keys("sub") == ["c.ndjson.zst", "deep/d.JSONL.BZ2"]
    assert keys("b.jsonl") == ["b.jsonl"]
    assert keys("*.jsonl") == ["b.jsonl"]
    assert keys(["b.jsonl", "sub"]) == ["b.jsonl", "sub/c.ndjson.zst", "sub/deep/d.JSONL.BZ2"]


def test_any_store_is_searched() -> None:
    store, _ = open_store("memory://listing")
    for key in ("a/x.csv", "a/y.csv.gz", "a/b/z.csv", "other.csv"):
        path = Path(os.devnull)
        store.put_file(path, key)
    assert keys("memory://listing/a") == ["b/z.csv", "x.csv", "y.csv.gz"]
    assert keys("memory://listing/a/*.csv") == ["x.csv"]
    assert keys("memory://listing/a/y.csv.gz") == ["y.csv.gz"]
    assert keys(["memory://listing/other.csv", "memory://listing/a/b"]) == [
        "other.csv",
        "a/b/z.csv",
    ]
    assert keys("memory://listing") == ["a/b/z.csv", "a/x.csv", "a/y.csv.gz", "other.csv"]


@pytest.mark.parametrize("place", ["none.jsonl", "none", "none/*.jsonl"])
def test_nothing_is_there(place: str, tmp_path: Path) -> None:
    path = tmp_path / place
    if "*" in place:
        with pytest.raises(ObjectNotFoundError, match=r"There is nothing at .*none/\*.jsonl"):
            keys(path)
    else:
        assert keys(path) == []
    with pytest.raises(ObjectNotFoundError, match="There is nothing at"):
        keys([path])


def test_several_formats_are_refused_unless_one_is_said(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"{}\n")
    write(tmp_path / "b.csv", b"x\n")
    write(tmp_path / "c.csv", b"x\n")
    write(tmp_path / "d.json", b"{}\n")
    with pytest.raises(ConfigError, match=r'several formats \(2 csv, 1 json\).*format="csv"'):
        keys(tmp_path)
    assert keys(tmp_path, "csv") == ["b.csv", "c.csv"]
    assert keys(tmp_path, "jsonl") == ["a.jsonl", "d.json"]
    with pytest.raises(UnknownNameError, match="no shard format 'xml'"):
        keys(tmp_path, "xml")


def test_a_file_that_is_there_raw_and_compressed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"{}\n")
    write(tmp_path / "a.jsonl.gz", b"{}\n")
    with pytest.raises(ConfigError, match="has a.jsonl more than once, raw or compressed"):
        keys(tmp_path)
    assert keys(tmp_path / "*.gz") == ["a.jsonl.gz"]


def test_shards_without_their_index_are_no_data_of_their_own(tmp_path: Path) -> None:
    """A writer that was stopped must not leave what reads as a whole dataset."""
    write(tmp_path / "shard.00000.jsonl", b"{}\n")
    write(tmp_path / "shard.00000.jsonl.meta", b"")
    with pytest.raises(DataError, match="shard.00000.jsonl in .* is a shard of a dataset that has"):
        keys(tmp_path)
    assert keys(tmp_path, "jsonl") == ["shard.00000.jsonl"]


@pytest.mark.skipif(os.name != "posix", reason="such names are not possible")
@pytest.mark.parametrize("name", [b"a\xff.jsonl", b"a\n.jsonl", b"a\\b.jsonl"])
def test_names_that_no_dataset_can_have_are_refused(name: bytes, tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), name), "wb"):
        pass
    with pytest.raises(DataError, match="can't be the name of a file of a dataset"):
        keys(tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ([], "must name one at least"),
        (["s3://a/x.csv", "s3://b/x.csv"], "must lie in one store"),
        (["s3://a/x.csv", "gs://a/x.csv"], "must lie in one store"),
        (["s3://a/x.csv", "/a/x.csv"], "must lie in one store"),
        (["/a/x.csv", "x.csv"], "all absolute or all relative"),
    ],
)
def test_lists_that_cannot_be_meant_are_refused(place: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Place.parse(place)


def test_a_broken_pattern_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"{}\n")
    with pytest.raises(ConfigError, match="is no pattern"):
        keys(f"{tmp_path}/[z-a].jsonl")


def test_a_query_of_a_web_address_is_no_pattern() -> None:
    place = Place.parse("https://host/a/x.csv?version=[1]")
    assert place == Place("https://host/a/x.csv?version=[1]")
