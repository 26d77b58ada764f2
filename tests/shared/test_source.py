import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from streaming.errors import (
    CacheConflictError,
    CacheError,
    IndexFormatError,
    MissingFileError,
    ObjectNotFoundError,
    StreamingError,
)
from streaming.format.index import FileInfo
from streaming.shared.directory import state_path
from streaming.shared.lock import FileLock
from streaming.shared.source import obtain_index
from tests.common.shards import FolderSource, fetches, listing, write_dataset


def test_an_index_is_fetched_once_and_then_found(tmp_path: Path) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"), tmp_path / "log")
    for _ in range(2):
        index, directory = obtain_index(tmp_path / "a" / "local", source)
        assert len(index) == 4
        assert directory.path == tmp_path / "a" / "local"
    assert fetches(tmp_path / "log") == {"index.json": 1}
    assert list(listing(directory.path)) == ["index.json"]


def test_an_index_that_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    local = write_dataset(tmp_path / "local", shards=2)
    source = FolderSource(write_dataset(tmp_path / "remote", shards=3), tmp_path / "log")
    assert len(obtain_index(local, source)[0]) == 2
    assert fetches(tmp_path / "log") == {}


def test_without_a_source_nothing_is_written(tmp_path: Path) -> None:
    local = write_dataset(tmp_path / "local")
    before = sorted(local.rglob("*"))
    obtain_index(local, None)
    assert sorted(local.rglob("*")) == before


@pytest.mark.parametrize("name", ["local", "local/split", "file/local"])
def test_no_index_and_no_source_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingFileError, match="no remote to fetch it from") as caught:
        obtain_index(tmp_path / name, None)
    assert str(tmp_path / name / "index.json") in str(caught.value)
    assert isinstance(caught.value, RuntimeError)  # As the predecessor.
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("content", [b"", b" \n", b'{"shards": [{"samp', b"[]", b"\xff" * 9])
def test_case_F4_a_broken_local_index_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(IndexFormatError, match=r"index.json"):
        obtain_index(tmp_path, None)


def test_case_F4_an_index_without_shards_is_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(b'{"shards": [], "version": 2}')
    assert len(obtain_index(tmp_path, None)[0]) == 0


@pytest.mark.parametrize("content", [b"", b'{"shards": [{"samp'])
def test_case_F4_a_broken_local_index_is_fetched_again(tmp_path: Path, content: bytes) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"), tmp_path / "log")
    local = tmp_path / "local"
    obtain_index(local, source)
    (local / "index.json").write_bytes(content)
    assert len(obtain_index(local, source)[0]) == 4
    assert fetches(tmp_path / "log") == {"index.json": 2}


def test_case_F4_an_index_that_is_broken_at_its_source_never_gets_its_name(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote")
    (remote / "index.json").write_bytes(b'{"shards"')
    source = FolderSource(remote, tmp_path / "log")
    with pytest.raises(IndexFormatError, match=r"remote/index.json"):
        obtain_index(tmp_path / "local", source)
    assert listing(tmp_path / "local") == {}
    assert fetches(tmp_path / "log") == {"index.json": 1}


class _MissingSource(FolderSource):
    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        path.write_bytes(b"a part of it")
        raise ObjectNotFoundError(f"There is no {self.url(file.basename)}.")


def test_a_wrong_address_leaves_the_directory_to_the_right_one(tmp_path: Path) -> None:
    local = tmp_path / "local"
    with pytest.raises(ObjectNotFoundError):
        obtain_index(local, _MissingSource(tmp_path / "remoet"))
    assert listing(local) == {}
    source = FolderSource(write_dataset(tmp_path / "remote"))
    assert obtain_index(local, source)[1].path == local


def test_another_source_gets_a_folder_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = FolderSource(write_dataset(tmp_path / "train", shards=3))
    val = FolderSource(write_dataset(tmp_path / "val", shards=2))
    local = tmp_path / "local"
    with caplog.at_level(logging.INFO, "streaming"):
        assert obtain_index(local, train)[1].path == local
        assert caplog.records == []
        index, directory = obtain_index(local, val)
    assert len(index) == 2
    assert directory.path.parent == local
    assert len(caplog.records) == 1
    assert obtain_index(local, val)[1] == directory
    assert len(obtain_index(local, train)[0]) == 3


def test_a_source_whose_index_was_removed_keeps_its_directory(tmp_path: Path) -> None:
    train = FolderSource(write_dataset(tmp_path / "train"))
    val = FolderSource(write_dataset(tmp_path / "val"))
    local = tmp_path / "local"
    obtain_index(local, train)
    (local / "shard.00000.mds").write_bytes(b"of train")
    (local / "index.json").unlink()
    assert obtain_index(local, val)[1].path != local
    assert obtain_index(local, train)[1].path == local


def test_an_empty_directory_is_free_for_any_source(tmp_path: Path) -> None:
    local = tmp_path / "local"
    obtain_index(local, FolderSource(write_dataset(tmp_path / "train")))
    (local / "index.json").unlink()
    assert obtain_index(local, FolderSource(write_dataset(tmp_path / "val")))[1].path == local


def test_a_directory_filled_by_hand_belongs_to_who_comes_first(tmp_path: Path) -> None:
    local = write_dataset(tmp_path / "local")
    train = FolderSource(write_dataset(tmp_path / "train"))
    val = FolderSource(write_dataset(tmp_path / "val"))
    assert obtain_index(local, train)[1].path == local
    assert obtain_index(local, val)[1].path != local


def test_no_folder_for_another_source_is_a_conflict(tmp_path: Path) -> None:
    local = tmp_path / "local"
    obtain_index(local, FolderSource(write_dataset(tmp_path / "train")))
    val = FolderSource(write_dataset(tmp_path / "val"))
    folder = obtain_index(local, val)[1].path
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()
    folder.touch()
    with pytest.raises(CacheConflictError, match="Give another `local`"):
        obtain_index(local, val)


def test_a_password_in_an_address_is_not_written_down(tmp_path: Path) -> None:
    address = "sftp://user:secret@host:22/data"
    source = FolderSource(write_dataset(tmp_path / "remote"), address=address)
    obtain_index(tmp_path / "local", source)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*.json"))
    assert b"sftp://user@host:22/data/index.json" in written
    assert b"secret" not in written


def test_a_directory_that_cannot_hold_the_state_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMING_STATE_DIR", str(tmp_path / "file"))
    local = write_dataset(tmp_path / "local")
    source = FolderSource(tmp_path / "local")
    before = sorted(local.rglob("*"))
    assert len(obtain_index(local, source)[0]) == 4
    assert sorted(local.rglob("*")) == before
    with pytest.raises(CacheError, match="set STREAMING_STATE_DIR to a directory"):
        obtain_index(tmp_path / "empty", source)


def test_the_state_can_be_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMING_STATE_DIR", str(tmp_path / "state"))
    local = tmp_path / "local"
    train = FolderSource(write_dataset(tmp_path / "train"))
    obtain_index(local, train)
    assert [path.name for path in local.iterdir()] == ["index.json"]
    assert (state_path(local) / "source.json").is_relative_to(tmp_path / "state")
    val = FolderSource(write_dataset(tmp_path / "val"))
    assert obtain_index(local, val)[1].path != local


def test_an_unreadable_owner_is_an_error_that_says_what_to_remove(tmp_path: Path) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"))
    local = tmp_path / "local"
    obtain_index(local, source)
    (local / ".streaming" / "source.json").write_bytes(b"{")
    with pytest.raises(CacheError, match="Remove that file"):
        obtain_index(local, source)


def test_what_a_killed_process_left_of_an_index_goes_with_the_next_one(tmp_path: Path) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"))
    local = tmp_path / "local"
    local.mkdir()
    (local / "index.json.0123abcd-0123456789abcdef.part").touch()
    (local / "index.json.0123abcd-0123456789abcdef.part.77.part").touch()
    (local / "index.json.part").touch()  # Not ours.
    obtain_index(local, source)
    assert sorted(listing(local)) == ["index.json", "index.json.part"]


def _obtain(local: Path, source: FolderSource) -> None:
    index, directory = obtain_index(local, source)
    os._exit(0 if len(index) == 4 and directory.path == local else 1)


def test_case_H11_S17_many_processes_fetch_one_index(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote")
    source = FolderSource(remote, tmp_path / "log", gate=tmp_path / "gate")
    context = multiprocessing.get_context("fork")
    with FileLock(tmp_path / "gate").exclusive():
        processes = [
            context.Process(target=_obtain, args=(tmp_path / "local", source)) for _ in range(32)
        ]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 32
    assert fetches(tmp_path / "log") == {"index.json": 1}
    assert list(listing(tmp_path / "local")) == ["index.json"]


def test_every_error_is_ours(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(StreamingError, match=r"index.json"):
        obtain_index(tmp_path, None)
