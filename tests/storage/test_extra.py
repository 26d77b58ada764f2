import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.errors import ConfigError, ObjectNotFoundError, ShardCorruptError, StoreTimeoutError
from streaming.hashing import get_hash
from streaming.storage import open_store
from streaming.storage.extra import (
    delete,
    exists,
    file_exists,
    list_dataset_files,
    list_objects,
    normalize_local_path,
    normalize_path,
    smart_download_file,
    stat,
    wait_for,
    walk_dir,
    walk_prefix,
)
from tests.servers.places import Opened

FILES = {"a.txt": b"1", "dir/b.mds": b"22", "dir/c.txt": b"333", "dirt": b"4"}


@pytest.fixture(params=["local", "memory", "s3"])
def root(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    new_bucket: Callable[[], Opened],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A place with some files."""
    url = f"memory://{request.node.name}/x"
    if request.param == "local":
        url = str(tmp_path / "root")
    if request.param == "s3":
        place = new_bucket()
        url = place.url
        for name, value in place.env.items():
            monkeypatch.setenv(name, value)
    store, prefix = open_store(url)
    for name, content in FILES.items():
        (tmp_path / "to-put").write_bytes(content)
        store.put_file(tmp_path / "to-put", f"{prefix}/{name}" if prefix else name)
    return url


def test_a_directory_is_walked(root: str) -> None:
    assert walk_dir(root) == sorted(FILES)
    assert walk_dir(f"{root}/dir") == ["b.mds", "c.txt"]
    assert [info.key for info in list_objects(root)] == sorted(FILES)
    assert [info.size for info in list_objects(f"{root}/dir")] == [2, 3]


def test_a_prefix_is_walked(root: str) -> None:
    assert walk_prefix(f"{root}/dir") == ["b.mds", "c.txt"]
    assert walk_prefix(f"{root}/a.") == ["a.txt"]
    assert walk_prefix(f"{root}/dir/b") == ["b.mds"]
    assert walk_prefix(f"{root}/nothing") == []


def test_one_file_is_looked_at_and_deleted(root: str) -> None:
    assert stat(f"{root}/dir/c.txt").size == 3
    assert exists(f"{root}/a.txt")
    assert not exists(f"{root}/dir/nothing")
    delete(f"{root}/a.txt")
    delete(f"{root}/a.txt")
    assert not exists(f"{root}/a.txt")
    with pytest.raises(ObjectNotFoundError):
        stat(f"{root}/a.txt")


def test_a_local_root_that_is_no_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        walk_dir(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "keep", [r".*\.txt$", re.compile(r".*\.txt"), lambda path: path.endswith(".txt")]
)
def test_the_files_of_a_dataset_are_listed_and_filtered(
    root: str, tmp_path: Path, keep: str | re.Pattern[str] | Callable[[str], bool]
) -> None:
    here = str(tmp_path / "here")
    assert list_dataset_files(local=here, remote=root, keep=keep) == ["a.txt", "dir/c.txt"]
    found = list_dataset_files(local=here, remote=root, paths=["dirt", "a.txt"], keep=None)
    assert found == ["dirt", "a.txt"]
    with pytest.raises(ConfigError, match="2 are missing .*, such as x.txt, and 1 were left out"):
        paths = ["x.txt", "y.txt", "dirt", "a.txt"]
        list_dataset_files(local=here, remote=root, paths=paths, keep=keep)


def test_files_that_are_here_need_no_remote(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "x").write_bytes(b"x")
    assert list_dataset_files(local=str(tmp_path), split="train") == ["x"]
    assert list_dataset_files(local=str(tmp_path), split="train", paths=["x"]) == ["x"]
    assert file_exists(path="x", local=str(tmp_path), split="train")
    assert not file_exists(path="y", local=str(tmp_path), split="train")


def test_a_file_is_downloaded_once_and_checked(root: str, tmp_path: Path) -> None:
    target = str(tmp_path / "new" / "c")
    hashes = {"sha1": get_hash("sha1", b"333"), "md5": "unknown"}
    size = smart_download_file(
        remote=f"{root}/dir/c.txt",
        local=target,
        timeout="5s",
        size="3b",
        hashes=hashes,
        check_hashes=["xxh64", "sha1", "md5"],
    )
    assert size == 3
    assert Path(target).read_bytes() == b"333"
    assert smart_download_file(remote=f"{root}/nothing", local=target) == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": 4}, ShardCorruptError),
        ({"max_size": "2b"}, ConfigError),
        ({"size": 500, "max_size": 400}, ConfigError),
        ({"hashes": {"sha1": "0"}, "check_hashes": "sha1"}, ShardCorruptError),
        ({"hashes": {"sha1": "0"}, "check_hashes": ["md5"]}, ConfigError),
        ({"check_hashes": ["md5", "md5"]}, ConfigError),
    ],
)
def test_a_file_that_is_not_as_expected_does_not_come(
    root: str, tmp_path: Path, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        smart_download_file(
            remote=f"{root}/dir/c.txt",
            local=str(tmp_path / "c"),
            retry=0,
            **options,  # type: ignore[arg-type]
        )
    assert not (tmp_path / "c").exists()


def test_without_a_remote_there_is_nothing_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    assert smart_download_file(remote=None, local=path) == 0
    assert smart_download_file(remote=path, local=path) == 0
    (tmp_path / "d").mkdir()
    with pytest.raises(ConfigError, match="no regular file"):
        smart_download_file(remote=path, local=str(tmp_path / "d"))


def test_what_is_waited_for_comes(tmp_path: Path) -> None:
    tries: list[float] = []

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            (tmp_path / "x").write_bytes(b"12")

    assert wait_for(str(tmp_path / "x"), None, interval=0.5, sleep=sleep).size == 2
    assert tries == [0.5] * 3


def test_what_never_comes_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreTimeoutError, match="did not come within 0.05 s"):
        wait_for(str(tmp_path / "x"), 0.05, interval=0.01, sleep=threading.Event().wait)


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("a/b/",), "a/b"),
        (("/",), "/"),
        (("/", "x"), "/x"),
        (("s3://b/k/", "/train/"), "s3://b/k/train"),
        (("a", None), "a"),
        (("file:///data/x/", "y"), "/data/x/y"),
    ],
)
def test_paths_are_put_right(parts: tuple[str, ...], path: str) -> None:
    assert normalize_path(*parts) == path


def test_a_url_is_no_local_path() -> None:
    assert normalize_local_path("a/", "b") == "a/b"
    with pytest.raises(ConfigError, match="no local path"):
        normalize_local_path("s3://b")
