"""Several users of one machine and one cache directory; real ones, so only root can run this."""

import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming import StreamingDataset
from streaming.cache import ShardCache
from streaming.errors import CacheError
from streaming.format.index import parse_index
from tests.common.caches import expected, values
from tests.common.shards import FolderSource, fetches, open_part, write_dataset
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become other users")

ANNA, BORIS, LAB = 61001, 61002, 61003
SHARDS = 6


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all users can reach, with a dataset in it that all can read."""
    path = Path(tempfile.mkdtemp(prefix="users-", dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("TMPDIR")
    write_dataset(path / "remote", SHARDS)
    (path / "log").touch()
    (path / "log").chmod(0o666)
    yield path
    shutil.rmtree(path)


def as_user(user: int, action: Callable[..., None], *args: Any, umask: int = 0o022) -> None:
    """Do something in a process of a user, who is of the group LAB beside his own."""

    def act() -> None:
        os.setgroups([LAB])
        os.setgid(user)
        os.setuid(user)
        os.umask(umask)
        try:
            action(*args)
        except BaseException:  # noqa: BLE001 It is shown, and the exit code says so.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=act)
    process.start()
    process.join()
    assert process.exitcode == 0


def read(
    place: Path, local: Path, shards: range, limit: int | None = None, damage: int | None = None
) -> None:
    source = FolderSource(place / "remote", place / "log")
    part = open_part(local, source)
    if damage is not None:
        (part.directory.path / f"shard.{damage:05}.mds").write_bytes(b"\xff" * 143)
    cache = ShardCache([part], limit)
    for shard in shards:
        assert values(cache, shard) == expected(shard)
    if limit is not None:
        assert cache.usage() <= limit
    cache.close()


def read_whole(place: Path, local: Path, limit: int | None) -> None:
    """Read everything as a dataset does, within a limit that is far below what there is."""
    tempfile.tempdir = str(place)
    dataset = StreamingDataset(
        remote=str(place / "remote"), local=str(local), batch_size=2, cache_limit=limit
    )
    assert len(list(dataset)) == SHARDS * 5


def count(place: Path) -> int:
    return sum(fetches(place / "log").values())


def make(path: Path, mode: int, user: int = 0, group: int = 0) -> Path:
    path.mkdir()
    os.chown(path, user, group)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o2775, 0o775, 0o777])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_directory_that_others_may_write_is_shared(place: Path, mode: int, umask: int) -> None:
    local = make(place / "local", mode, ANNA, LAB)
    as_user(ANNA, read, place, local, range(3), umask=umask)
    as_user(BORIS, read, place, local, range(SHARDS), umask=umask)
    as_user(ANNA, read, place, local, range(SHARDS), umask=umask)
    assert count(place) == 1 + SHARDS  # Each file once.
    for path in local.glob("*.mds"):
        assert path.stat().st_mode & stat.S_IRGRP


def test_users_who_share_a_directory_keep_a_limit_together(place: Path) -> None:
    local = make(place / "local", 0o2775, ANNA, LAB)
    shard = (place / "remote" / "shard.00000.mds").stat().st_size
    for user in (ANNA, BORIS, ANNA):
        as_user(user, read, place, local, range(SHARDS), 3 * shard)
        assert len(list(local.glob("*.mds"))) <= 3


def test_a_damaged_file_of_another_user_is_replaced(place: Path) -> None:
    local = make(place / "local", 0o2775, ANNA, LAB)
    as_user(ANNA, read, place, local, range(SHARDS))
    path = local / "shard.00002.mds"
    path.write_bytes(b"\xff" * path.stat().st_size)
    as_user(BORIS, read, place, local, range(SHARDS))
    assert path.stat().st_uid == BORIS


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_each_user_has_a_folder_of_his_own_where_others_may_not_write(
    place: Path, mode: int
) -> None:
    place.chmod(0o1777)
    local = make(place / "local", mode, ANNA, ANNA)
    as_user(ANNA, read, place, local, range(3))
    as_user(BORIS, read, place, local, range(SHARDS))
    as_user(BORIS, read, place, local, range(SHARDS))
    assert count(place) == (1 + 3) + (1 + SHARDS)
    own = local / f"user-{BORIS}" if mode == 0o1777 else place / f"local-user-{BORIS}"
    assert len(list(own.glob("*.mds"))) == SHARDS
    assert len(list(local.glob("*.mds"))) == 3


def test_a_directory_in_a_sticky_one_is_not_open_to_all(place: Path) -> None:
    place.chmod(0o1777)
    as_user(ANNA, read, place, place / "local", range(1))
    assert stat.S_IMODE((place / "local").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "local" / ".streaming").stat().st_mode) == 0o755


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_whole_cache_of_another_user_is_read_as_it_is(place: Path, limit: int | None) -> None:
    local = make(place / "local", 0o755, ANNA, ANNA)
    as_user(ANNA, read, place, local, range(SHARDS))
    place.chmod(0o1777)
    as_user(BORIS, read_whole, place, local, limit)
    assert count(place) == 1 + SHARDS
    assert sorted(path.name for path in place.iterdir()) == ["local", "log", "remote"]


def test_a_read_only_directory_that_was_filled_before_is_read_as_it_is(place: Path) -> None:
    local = place / "filled"
    shutil.copytree(place / "remote", local)
    as_user(BORIS, read, place, local, range(SHARDS))
    assert count(place) == 0
    assert not (local / ".streaming").exists()


def test_what_there_is_of_a_read_only_directory_is_read_and_the_rest_an_error(place: Path) -> None:
    local = place / "filled"
    shutil.copytree(place / "remote", local)
    (local / "shard.00004.mds").unlink()

    def read_all() -> None:
        read(place, local, range(4))
        with pytest.raises(CacheError, match=r"can't be kept and locked.*STREAMING_STATE_DIR"):
            read(place, local, range(SHARDS))

    as_user(BORIS, read_all)
    assert count(place) == 0


def test_case_H10_files_of_others_that_nobody_may_open_change_nothing(place: Path) -> None:
    """Temporary files and locks of another user, with mode 700, lie in all places there are."""
    place.chmod(0o1777)
    names = ["000000_barrier_filelock", f"streaming-run-{BORIS}-0", f"streaming-run-{ANNA}-0"]
    for name in names:
        make(place / name, 0o700, ANNA, ANNA)
    local = make(place / "local", 0o1777)
    make(local / ".streaming", 0o700, ANNA, ANNA)
    code = f"""
import tempfile
from streaming import StreamingDataset
from streaming.util import clean_stale_shared_memory
assert tempfile.gettempdir() == {str(place)!r}
clean_stale_shared_memory()
dataset = StreamingDataset(remote={str(place / "remote")!r}, local={str(local)!r}, batch_size=2)
assert len([*dataset]) == {SHARDS * 5}
"""
    run_as(BORIS, code, place)
    assert all((place / name).is_dir() for name in names)
    assert len(list((local / f"user-{BORIS}").glob("*.mds"))) == SHARDS


def run_as(user: int, code: str, temporary: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_index_stays_readable_to_those_who_share(place: Path) -> None:
    local = make(place / "local", 0o2770, ANNA, LAB)
    as_user(ANNA, read, place, local, range(1), umask=0o077)
    assert parse_index((local / "index.json").read_bytes(), "").samples
    assert stat.S_IMODE((local / "index.json").stat().st_mode) == 0o640
    assert (local / ".streaming").stat().st_gid == LAB
