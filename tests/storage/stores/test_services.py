"""Stores over stand-ins, and over file systems of fsspec: the same suite as for the others."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import AccessDeniedError, ConfigError, StoreError
from streaming.storage import Store, open_store
from streaming.storage.download import fetch
from streaming.storage.upload import UploadPool, publish
from streaming.util.retrying import Retry
from tests.servers.databricks import Workspace
from tests.servers.hub import Hub
from tests.suites.store import StoreSuite

ONCE = Retry(1)


class TestFilesOfFsspec(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(f"local://{tmp_path}/root")[0]


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    pytest.importorskip("databricks.sdk", reason="needs databricks: pip install databricks-sdk")
    with Workspace() as workspace:
        yield workspace


class TestDatabricks(StoreSuite):
    @pytest.fixture(params=["dbfs:/Volumes/catalog/schema/volume", "dbfs:/mnt"])
    def store(self, request: pytest.FixtureRequest, workspace: Workspace) -> Store:
        url = f"{request.param}/{secrets.token_hex(6)}"
        return open_store(url, {"host": workspace.url, "token": "t", "timeout": 5})[0]


def test_quirk_21_a_path_like_the_scheme_stays_whole(workspace: Workspace, tmp_path: Path) -> None:
    store, _ = open_store("dbfs:/dbfs/fsbd", {"host": workspace.url, "token": "t", "timeout": 5})
    (tmp_path / "sbfd").write_bytes(b"123")
    for _ in range(2):  # The second replaces the first.
        publish(store, tmp_path / "sbfd", "sbfd", retry=ONCE)
    assert workspace.files == {"/dbfs/fsbd/sbfd": b"123"}


def test_a_volume_that_is_none_is_told() -> None:
    pytest.importorskip("databricks.sdk")
    with pytest.raises(ConfigError, match="names no volume"):
        open_store("dbfs:/Volumes/catalog")


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    with Hub("org/data", {"README.md": b"# data"}, token="hf_secret") as hub:
        yield hub


def opened(hub: Hub, place: str = "dir", **options: Any) -> tuple[Store, str]:
    more = {"endpoint": hub.url, "token": "hf_secret", "timeout": 5, **options}
    return open_store(f"hf://datasets/org/data/{place}", more)


class TestHub(StoreSuite):
    @pytest.fixture
    def store(self, hub: Hub) -> Store:
        return opened(hub, secrets.token_hex(6))[0]


def test_case_S5_a_file_of_a_subfolder_goes_to_that_of_the_place(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.mds").write_bytes(b"123")
    store, prefix = opened(hub)
    with UploadPool(store, prefix, retry=ONCE) as pool:
        pool.submit(tmp_path / "sub" / "a.mds", "sub/a.mds")
    assert hub.files["dir/sub/a.mds"] == b"123"
    assert sorted(hub.files) == ["README.md", "dir/sub/a.mds"]


def test_a_large_file_of_the_hub_comes_by_ranges(hub: Hub, tmp_path: Path) -> None:
    content = secrets.token_bytes(1 << 20) * 20
    hub.files["dir/big"] = content
    store, _ = opened(hub)
    assert fetch(store, "big", tmp_path / "x", size=len(content), retry=ONCE) == len(content)
    assert (tmp_path / "x").read_bytes() == content
    assert store.read("big", 7_000_000, 7_000_010) == content[7_000_000:7_000_010]


def test_the_hub_is_found_by_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert open_store("hf://datasets/org/data")[0].read("README.md") == b"# data"


def test_a_wrong_token_is_denied(hub: Hub) -> None:
    with pytest.raises(AccessDeniedError):
        opened(hub, token="hf_wrong")[0].read("x")


def test_a_repository_that_is_not_there_is_told(hub: Hub, tmp_path: Path) -> None:
    options = {"endpoint": hub.url, "token": "hf_secret"}
    store, _ = open_store("hf://datasets/org/other/dir", options)
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(StoreError):
        publish(store, tmp_path / "x", "x", retry=ONCE)
