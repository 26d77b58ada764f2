import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streaming.cache import CachePart
from streaming.errors import CacheError
from streaming.shared.directory import CacheDirectory, DirectoryState, state_path, sweep_parts
from streaming.shared.files import target_of_part
from tests.common.shards import FolderSource, open_part, sizes, write_dataset

Open = Callable[[CachePart], DirectoryState]


@pytest.fixture
def open_state() -> Iterator[Open]:
    states = []

    def open_(part: CachePart) -> DirectoryState:
        states.append(DirectoryState(part.directory, part.index))
        return states[-1]

    yield open_
    for state in states:
        state.close()


@pytest.fixture
def part(tmp_path: Path) -> CachePart:
    remote = write_dataset(tmp_path / "remote", compression="zstd")
    return open_part(tmp_path / "local", FolderSource(remote))


def make(part: CachePart, state: DirectoryState, shard: int, *, keep_zip: bool = True) -> None:
    """Bring a shard here, and leave its compressed file."""
    files = part.files(shard)
    files.make(state.claims(shard, keep_zip=keep_zip))
    state.record(shard, files)


def test_the_table_is_built_from_what_lies_there(part: CachePart, open_state: Open) -> None:
    raw = sizes(part.directory.path)[0]
    (part.directory.path / "shard.00002.mds").write_bytes(b"x" * raw)
    (part.directory.path / "shard.00003.mds.zstd").write_bytes(b"123")
    state = open_state(part)
    assert state.has_raw(np.arange(4)).tolist() == [False, False, True, False]
    assert state.used(zips=False) == raw
    assert state.used(zips=True) == raw + 3
    assert state.own_bytes().tolist() == [0, 0, 0, 0]


def test_what_this_library_made_stays_its_own_over_restarts(
    part: CachePart, open_state: Open
) -> None:
    state = open_state(part)
    make(part, state, 1)
    state.touch(1)
    own, last_use = state.own_bytes(), state.last_use_ns()
    assert own[1] == part.index.shard(1).raw_bytes + part.index.shard(1).zip_bytes
    state.close()
    state = open_state(part)
    assert state.own_bytes().tolist() == own.tolist()
    assert state.last_use_ns().tolist() == last_use.tolist()


def test_a_file_that_was_removed_by_hand_is_no_longer_counted(
    part: CachePart, open_state: Open
) -> None:
    state = open_state(part)
    make(part, state, 1)
    state.close()
    (part.directory.path / "shard.00001.mds").unlink()
    (part.directory.path / "shard.00001.mds.zstd").unlink()
    state = open_state(part)
    assert state.used(zips=True) == 0
    # Whoever puts it there again, it is not this library's.
    (part.directory.path / "shard.00001.mds").write_bytes(b"x")
    state.record(1, part.files(1))
    assert state.own_bytes().tolist() == [0, 0, 0, 0]


def test_history_of_another_index_does_not_count(part: CachePart, open_state: Open) -> None:
    state = open_state(part)
    make(part, state, 1)
    state.close()
    other = CachePart(CacheDirectory(part.directory.path, "other"), part.index, part.source)
    state = open_state(other)
    assert state.used(zips=True) > 0
    assert state.own_bytes().tolist() == [0, 0, 0, 0]


def test_a_broken_table_is_made_anew(part: CachePart, open_state: Open) -> None:
    open_state(part).close()
    (state_path(part.directory.path) / "shards.tbl").write_bytes(b"half")
    assert open_state(part).used(zips=True) == 0


def test_two_who_use_a_directory_see_the_same(part: CachePart, open_state: Open) -> None:
    first, second = open_state(part), open_state(part)
    make(part, first, 3)
    assert second.has_raw(np.arange(4)).tolist() == [False, False, False, True]
    assert second.own_bytes().tolist() == first.own_bytes().tolist()


def test_a_promise_counts_until_the_shard_is_recorded(part: CachePart, open_state: Open) -> None:
    state, info = open_state(part), part.index.shard(0)
    state.promise(0, part.files(0))
    assert state.used(zips=True) == info.raw_bytes + info.zip_bytes
    state.record(0, part.files(0))
    assert state.used(zips=True) == 0


def test_who_is_alone_removes_what_killed_processes_left(part: CachePart, open_state: Open) -> None:
    ours = "shard.00000.mds.zstd.01234567-0123456789abcdef.part"
    theirs = ["notes.part", "other.mds.01234567-0123456789abcdef.part", "shard.00000.mds.part"]
    for name in (ours, f"{ours}.4711.part", *theirs):
        (part.directory.path / name).touch()
    open_state(part)
    left = {path.name for path in part.directory.path.iterdir()} - {"index.json", ".streaming"}
    assert left == set(theirs)


def test_who_is_alone_removes_compressed_files_that_nobody_wanted_kept(
    part: CachePart, open_state: Open
) -> None:
    state = open_state(part)
    make(part, state, 0, keep_zip=False)  # Killed here, before the compressed file was removed.
    make(part, state, 1, keep_zip=True)
    raw, total = state.used(zips=False), state.used(zips=True)
    sweep_parts(part.directory, part.index)
    assert state.used(zips=True) == total
    state.close()
    sweep_parts(part.directory, part.index)
    left = sorted(path.name for path in part.directory.path.glob("shard*"))
    assert left == ["shard.00000.mds", "shard.00001.mds", "shard.00001.mds.zstd"]
    zip_bytes = part.index.shard(1).zip_bytes
    assert open_state(part).used(zips=True) == raw + zip_bytes


def test_who_is_not_alone_removes_nothing(part: CachePart, open_state: Open) -> None:
    open_state(part)
    ours = part.directory.path / "shard.00000.mds.zstd.01234567-0123456789abcdef.part"
    ours.touch()
    open_state(part)
    assert ours.exists()


def test_a_state_elsewhere_tells_nothing_of_other_nodes(
    part: CachePart, open_state: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMING_STATE_DIR", str(tmp_path / "state"))
    others = part.directory.path / "shard.00000.mds.zstd.01234567-0123456789abcdef.part"
    others.touch()
    open_state(part)
    assert others.exists()
    assert target_of_part(others.name, any_node=True) == "shard.00000.mds.zstd"
    assert target_of_part(others.name, any_node=False) is None


def test_files_in_folders_are_found(tmp_path: Path, open_state: Open) -> None:
    remote = write_dataset(tmp_path / "remote")
    index = (remote / "index.json").read_bytes().replace(b'"shard.', b'"a/b/shard.')
    (remote / "index.json").write_bytes(index)
    part = open_part(tmp_path / "local", FolderSource(remote))
    folder = part.directory.path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "shard.00001.mds").write_bytes(b"12345")
    (folder / "shard.00001.mds.01234567-0123456789abcdef.part").touch()
    assert open_state(part).used(zips=True) == 5
    assert [path.name for path in folder.iterdir()] == ["shard.00001.mds"]


def test_a_directory_that_cannot_hold_the_state_is_an_error_with_a_way_out(
    part: CachePart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMING_STATE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="set STREAMING_STATE_DIR to a directory on a local disk"):
        DirectoryState(part.directory, part.index)


def test_a_description_pickles_and_a_state_does_not(part: CachePart, open_state: Open) -> None:
    assert pickle.loads(pickle.dumps(part)).directory == part.directory
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(open_state(part))
