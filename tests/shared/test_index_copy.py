"""The binary copy that a node keeps of a large index: used by later starts, never blindly."""

import json
import shutil
from pathlib import Path

import pytest

from streaming.format.index import Index
from streaming.shared.directory import state_path
from streaming.shared.source import obtain_index
from tests.common.shards import FolderSource, write_dataset

COUNT = 4000  # shards; their index is over the size from which on a copy is kept


def make(root: Path, samples: int = 3) -> FolderSource:
    """An index of many shards, of which there are no files."""
    write_dataset(root, shards=1)
    document = json.loads((root / "index.json").read_bytes())
    (shard,) = document["shards"]
    document["shards"] = [
        {**shard, "samples": samples, "raw_data": {**shard["raw_data"], "basename": f"{i}.mds"}}
        for i in range(COUNT)
    ]
    (root / "index.json").write_text(json.dumps(document))
    return FolderSource(root, root.parent / "log")


def is_mapped(index: Index) -> bool:
    """Whether it is of a copy: a file that is mapped can't be written to."""
    return not index.table.samples.flags.writeable


def test_a_later_start_maps_the_copy(tmp_path: Path) -> None:
    source, local = make(tmp_path / "remote"), tmp_path / "local"
    first, directory = obtain_index(local, source)
    assert not is_mapped(first)
    later, again = obtain_index(local, source)
    assert is_mapped(later)
    assert list(later) == list(first)
    assert directory == again
    assert is_mapped(obtain_index(local, None)[0])  # All the same where the source is not named.


def test_a_small_index_has_no_copy(tmp_path: Path) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"), tmp_path / "log")
    obtain_index(tmp_path / "local", source)
    assert not list(state_path(tmp_path / "local").glob("index.columns*"))


def test_a_copy_of_a_replaced_index_is_not_used(tmp_path: Path) -> None:
    source, local = make(tmp_path / "remote", samples=3), tmp_path / "local"
    obtain_index(local, source)
    shutil.copy(make(tmp_path / "other", samples=2).root / "index.json", local / "index.json")
    index, _ = obtain_index(local, source)
    assert not is_mapped(index)
    assert index.samples == 2 * COUNT


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "directory"])
def test_a_damaged_copy_is_not_used(damage: str, tmp_path: Path) -> None:
    source, local = make(tmp_path / "remote"), tmp_path / "local"
    expected, _ = obtain_index(local, source)
    path = state_path(local) / "index.columns"
    data = path.read_bytes()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    else:
        changed = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        path.write_bytes({"empty": b"", "cut": data[:1000], "changed": changed}[damage])
    index, _ = obtain_index(local, source)
    assert not is_mapped(index)
    assert list(index) == list(expected)
