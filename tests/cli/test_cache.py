"""`streaming cache` and `streaming clean` on caches in use, damaged, and left by the dead."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from streaming import StreamingDataset
from streaming.cache import ShardCache
from streaming.cli import main
from streaming.shared.lock import FileLock
from streaming.surveying import survey
from tests.common.caches import values
from tests.common.shards import FolderSource, open_part, write_dataset


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A cache with three of six shards."""
    remote = write_dataset(tmp_path / "remote", 6, hashes=["xxh64"])
    cache = ShardCache([open_part(tmp_path / "local", FolderSource(remote))])
    for shard in range(3):
        values(cache, shard)
    cache.close()
    return tmp_path / "local"


def test_a_cache_is_shown(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", local) == 0
    shown = capsys.readouterr().out
    assert "3 of 6" in shown
    assert "remote/index.json" in shown


def test_users_and_holders_are_shown(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = open_part(local, FolderSource(local.parent / "remote"))
    cache = ShardCache([part])
    cache.prepare(3)
    with FileLock(local / ".streaming" / "lock.05").exclusive():
        assert run("cache", local, "--json") == 0
    cache.close()
    (found,) = json.loads(capsys.readouterr().out)["caches"]
    assert found["present"] == 4
    assert found["misses"] == 4
    if Path("/proc/locks").exists():
        assert [user["pid"] for user in found["users"]] == [os.getpid()]
        assert [(one["pid"], one["lock"]) for one in found["holders"]] == [(os.getpid(), "lock.05")]


def test_other_sources_in_a_directory_are_shown_as_well(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_part(local, FolderSource(write_dataset(local.parent / "other")))
    assert run("cache", local, "--json") == 0
    remotes = [found["remote"] for found in json.loads(capsys.readouterr().out)["caches"]]
    assert [Path(remote).parent.name for remote in remotes] == ["remote", "other"]


def test_a_damaged_file_is_found_by_its_digest_and_a_cut_one_at_once(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cache", local, "--verify") == 0
    whole, cut = local / "shard.00000.mds", local / "shard.00001.mds"
    whole.write_bytes(bytes(whole.stat().st_size))
    cut.write_bytes(b"cut")
    assert survey(local)[0].wrong_size == ("shard.00001.mds",)
    capsys.readouterr()
    assert run("cache", local, "--verify", "--json") == 1
    assert json.loads(capsys.readouterr().out)["damaged"] == [str(whole), str(cut)]


def test_a_folder_that_is_no_cache_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cache", tmp_path) == 1
    assert "There is no cache" in capsys.readouterr().err


def test_a_dry_run_shows_what_cleaning_would_remove(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary = Path(tempfile.gettempdir())
    dead = temporary / f"streaming-run-{os.getuid()}-dead"
    dead.mkdir()
    (dead / "lease").touch()
    lock = temporary / "000123_barrier_filelock"
    lock.touch()
    part = local / "shard.00004.mds.0123abcd-0123456789abcdef.part"
    part.touch()
    assert run("clean", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert f"would remove {dead}" in shown
    assert f"would remove {lock}" in shown
    assert dead.exists()
    assert lock.exists()
    assert run("clean", local) == 0
    assert not dead.exists()
    assert not lock.exists()
    assert not part.exists()
    assert sorted(path.name for path in local.glob("*.mds"))[0] == "shard.00000.mds"
    capsys.readouterr()
    assert run("clean") == 0
    assert "Nothing to remove" in capsys.readouterr().out


def test_cleaning_leaves_a_cache_in_use_alone(local: Path) -> None:
    part = local / "shard.00004.mds.0123abcd-0123456789abcdef.part"
    cache = ShardCache([open_part(local, FolderSource(local.parent / "remote"))])
    cache.prepare(3)
    part.touch()
    run("clean", local)
    assert part.exists()
    cache.close()
    run("clean", local)
    assert not part.exists()


def test_a_directory_that_is_not_there_can_t_be_cleaned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--dry-run"]):
        assert run("clean", *options, tmp_path / "nope") == 1
        assert "There is no directory" in capsys.readouterr().err


def test_files_of_data_without_an_index_are_counted_and_not_called_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, local = tmp_path / "data", tmp_path / "local"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.jsonl").write_text('{"id": 1}\n' * 5)
    assert len(list(StreamingDataset(remote=str(data), local=str(local), batch_size=1))) == 15
    assert run("cache", local) == 0
    shown = capsys.readouterr().out
    assert "3; no index" in shown
    assert f"{data} " in shown
    assert f"{data}:" not in shown
    (found,) = survey(local)
    assert (found.files, found.raw_bytes) == (3, 150)
    assert run("cache", local, "--verify") == 2
    shown = capsys.readouterr().out
    assert "Not compared: 3 files" in shown
    assert "No file is damaged" not in shown


def test_what_was_compared_is_said(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", local, "--verify") == 0
    assert "Compared: 3 files by digest, 0 by size alone." in capsys.readouterr().out
