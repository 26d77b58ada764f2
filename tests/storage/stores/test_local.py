import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from streaming.errors import ConfigError, ObjectNotFoundError, StoreError
from streaming.storage.store import part_path
from streaming.storage.stores.local import LocalStore, open_file_url
from tests.suites.store import StoreSuite


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a root" / "of stores"


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, root: Path) -> LocalStore:
        return LocalStore(root)


def test_a_put_that_fails_leaves_the_old_object_and_nothing_else(
    root: Path, tmp_path: Path
) -> None:
    store = LocalStore(root)
    (tmp_path / "old").write_bytes(b"old")
    store.put_file(tmp_path / "old", "a")
    (tmp_path / "new").write_bytes(b"x" * 100_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # A real failure in the middle of the copy: files may not grow over this.
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with pytest.raises(StoreError, match=r"100000 bytes.*a"):
            store.put_file(tmp_path / "new", "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.read("a") == b"old"
    assert os.listdir(root) == ["a"]


def test_a_full_disk_is_told_with_path_and_bytes(root: Path, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not (full.exists() and stat.S_ISCHR(full.stat().st_mode)):
        pytest.skip("needs /dev/full, which Linux has")
    root.mkdir(parents=True)
    (root / "a").write_bytes(b"x" * 1000)
    (tmp_path / "target").symlink_to(full)
    with pytest.raises(StoreError, match=r"1000 bytes.*target.*no space left on device") as caught:
        LocalStore(root).get_file("a", tmp_path / "target")
    assert caught.value.errno == errno.ENOSPC
    assert type(caught.value) is StoreError  # Not one of those that are retried.


def test_a_file_that_is_not_whole_yet_is_not_listed(root: Path) -> None:
    root.mkdir(parents=True)
    part_path(root / "a").write_bytes(b"x")
    (root / "b.part").write_bytes(b"x")
    assert [info.key for info in LocalStore(root).list()] == ["b.part"]


def test_a_pipe_is_no_object_and_does_not_block(root: Path) -> None:
    root.mkdir(parents=True)
    os.mkfifo(root / "pipe")
    with pytest.raises(ObjectNotFoundError, match="regular file"):
        LocalStore(root).read("pipe")
    assert list(LocalStore(root).list()) == []


def test_links_are_followed_but_not_in_circles(root: Path, tmp_path: Path) -> None:
    (root / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"x")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "a" / "up").symlink_to(root)
    (root / "self").symlink_to("self")
    (root / "dead").symlink_to("nothing")
    assert [info.key for info in LocalStore(root).list()] == ["link/x"]


def test_names_that_are_not_text_are_listed_and_read(root: Path) -> None:
    root.mkdir(parents=True)
    (root / os.fsdecode(b"\xff.mds")).write_bytes(b"x")
    (info,) = LocalStore(root).list()
    assert LocalStore(root).read(info.key) == b"x"


def test_a_name_that_is_too_long_is_our_error(root: Path) -> None:
    root.mkdir(parents=True)
    with pytest.raises(StoreError, match="too long"):
        LocalStore(root).read("x" * 300)


def test_a_root_with_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        LocalStore(Path("a\0b"))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///data/train", "/data/train"),
        ("file:///data/train/", "/data/train"),
        ("file://localhost/data", "/data"),
        ("file:/data", "/data"),
        ("FILE:///data", "/data"),
        ("file:///my%20data/a b", "/my data/a b"),
        ("file:///d%C3%BC/日本", "/dü/日本"),
        ("file:///a?b#c;d", "/a?b#c;d"),
        ("file:///100%", "/100%"),
        ("file:///a%2520b", "/a%20b"),
        ("file:///%FF", "/\udcff"),
    ],
)
def test_a_file_url_names_a_path(url: str, path: str) -> None:
    store, prefix = open_file_url(url)
    assert (store.root, prefix) == (Path(path), "")


@pytest.mark.parametrize("url", ["file://host/data", "file://", "file://data", "file://./data"])
def test_a_file_url_of_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="absolute path of this machine"):
        open_file_url(url)
