"""One index for datasets that were written side by side."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, MDSWriter
from streaming.errors import ConfigError, IndexFormatError, ObjectNotFoundError
from streaming.util import merge_index


def write(root: Path, name: str, first: int = 0, count: int = 4) -> str:
    with MDSWriter(out=str(root / name), columns={"i": "int"}, sample_limit=3) as out:
        for i in range(first, first + count):
            out.write({"i": i})
    return str(root / name / "index.json")


def values(root: Path) -> list[int]:
    return [each["i"] for each in LocalDataset(str(root))]


def names(root: Path) -> list[str]:
    shards = json.loads((root / "index.json").read_text())["shards"]
    return [shard["raw_data"]["basename"] for shard in shards]


@pytest.mark.parametrize("name", ["merged", "merged_json"])
def test_merged_indexes_are_byte_for_byte_the_predecessors(
    tmp_path: Path, golden: Path, name: str
) -> None:
    source, root = golden / "datasets" / "formats" / name, tmp_path / name
    shutil.copytree(source, root)
    (root / "index.json").unlink()
    if name == "merged_json":
        merge_index([str(root / part / "index.json") for part in "ab"], str(root))
    else:
        merge_index(str(root))
    assert (root / "index.json").read_bytes() == (source / "index.json").read_bytes()


def test_folders_come_in_the_order_of_their_names_as_text(tmp_path: Path) -> None:
    for i, name in enumerate(["0", "1", "10", "2"]):
        write(tmp_path, name, 10 * i, 1)
    merge_index(str(tmp_path))
    assert values(tmp_path) == [0, 10, 20, 30]


def test_a_list_decides_the_order_and_counts_each_index_once(tmp_path: Path) -> None:
    b, a = write(tmp_path, "b", 0, 1), write(tmp_path, "a", 5, 1)
    merge_index([b, f" {a}/ ", b], str(tmp_path))
    assert values(tmp_path) == [0, 5]


def test_nested_folders_keep_their_whole_path(tmp_path: Path) -> None:
    for i, name in enumerate(["x/0", "y/0"]):
        write(tmp_path, name, 10 * i, 2)
    merge_index(str(tmp_path))
    assert names(tmp_path) == ["x/0/shard.00000.mds", "y/0/shard.00000.mds"]
    assert values(tmp_path) == [0, 1, 10, 11]


def test_other_json_files_are_no_indexes(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / "a" / "notes.json").write_text("[]")
    merge_index(str(tmp_path))
    assert values(tmp_path) == [0, 1, 2, 3]


def test_merging_again_replaces_the_index(tmp_path: Path) -> None:
    write(tmp_path, "a")
    merge_index(str(tmp_path))
    write(tmp_path, "b", 9, 1)
    merge_index(str(tmp_path))
    assert values(tmp_path) == [0, 1, 2, 3, 9]


def test_all_arguments_may_be_given_by_name(tmp_path: Path) -> None:
    url = write(tmp_path, "a")
    merge_index(index_file_urls=[url], out=str(tmp_path), keep_local=True, download_timeout=5)
    merge_index(out=str(tmp_path))
    assert values(tmp_path) == [0, 1, 2, 3]


def test_the_index_goes_to_the_remote_and_shards_stay(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    for name in ("0", "1"):
        write(local, name)
        shutil.copytree(local / name, remote / name)
    (remote / "0" / "shard.00000.mds").unlink()  # Not uploaded yet: here is the only copy.
    merge_index((str(local), str(remote)), keep_local=False)
    assert names(remote) == names(remote) != []
    left = sorted(str(path.relative_to(local)) for path in local.rglob("*") if path.is_file())
    assert left == [f"{i}/shard.{j:05}.mds" for i in "01" for j in range(2)]


def test_a_local_folder_that_is_empty_then_goes(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    write(remote, "0")
    (local / "0").mkdir(parents=True)
    shutil.copy(remote / "0" / "index.json", local / "0")
    merge_index((str(local), str(remote)), keep_local=False)
    assert (remote / "index.json").exists()
    assert not local.exists()


def test_without_a_remote_nothing_is_removed(tmp_path: Path) -> None:
    write(tmp_path, "a")
    with pytest.raises(ConfigError, match="no remote"):
        merge_index(str(tmp_path), False)
    assert (tmp_path / "a" / "shard.00000.mds").exists()


def test_indexes_that_are_only_remote_are_fetched(tmp_path: Path) -> None:
    write(tmp_path / "remote", "0")
    merge_index((str(tmp_path / "local"), str(tmp_path / "remote")))
    assert names(tmp_path / "local") == names(tmp_path / "remote")


def test_a_mismatch_of_local_and_remote_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    write(local, "0")
    write(remote, "0")
    write(remote, "1")
    merge_index((str(local), str(remote)))
    assert "has 1 indexes" in caplog.text
    assert len(names(remote)) == 4


def test_a_pair_is_read_where_it_is(tmp_path: Path) -> None:
    url = write(tmp_path, "a")
    merge_index([(str(tmp_path / "not" / "index.json"), url)], str(tmp_path))
    assert values(tmp_path) == [0, 1, 2, 3]


def test_the_same_shards_twice_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/0")
    merge_index(str(tmp_path / "a"))
    with pytest.raises(IndexFormatError):
        merge_index(str(tmp_path))
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("/nowhere/at/all",), {}),
        (([], "out"), {}),
        (("a/index.json", "out"), {}),
        ((3,), {}),
        ((["a"], 3), {}),
        ((["a", 3], "out"), {}),
        ((["a"], ("x", "y", "z")), {}),
        ((["a"], "out", "yes"), {}),
        (("out",), {"keep": True}),
    ],
)
def test_case_F10_wrong_arguments_are_told_what_is_accepted(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"merge_index\(index_file_urls, out\)"):
        merge_index(*args, **kwargs)


def test_an_index_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"nothing/index.json"):
        merge_index([str(tmp_path / "nothing" / "index.json")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    path = Path(write(tmp_path, "a"))
    path.write_text("{")
    with pytest.raises(IndexFormatError, match=r"a/index.json"):
        merge_index(str(tmp_path))
