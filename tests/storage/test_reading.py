"""Servers that can only be read from here: Google's JSON interface by an emulator, and nginx."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streaming import MDSWriter, StreamingDataset
from streaming.errors import ObjectNotFoundError, StoreError
from streaming.storage import Store, join_key, open_store
from streaming.storage.download import fetch
from streaming.util.retrying import Retry
from tests.servers import places
from tests.servers.running import Running

ONCE = Retry(1)


def dataset_files(directory: Path) -> dict[str, bytes]:
    with MDSWriter(out=str(directory), columns={"n": "int"}, size_limit=300) as writer:
        for n in range(50):
            writer.write({"n": n})
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="session")
def gcs(servers: Callable[[str], Running]) -> Running:
    return servers("fake-gcs")


@pytest.fixture(scope="session")
def nginx(servers: Callable[[str], Running]) -> Running:
    return servers("nginx")


def check(store: Store, prefix: str, files: dict[str, bytes], target: Path) -> None:
    for name, content in files.items():
        key = join_key(prefix, name)
        assert store.stat(key).size == len(content)
        assert store.read(key) == content
        assert store.read(key, 3, 9) == content[3:9]
        assert fetch(store, key, target, size=len(content), retry=ONCE) == len(content)
        assert target.read_bytes() == content
    with pytest.raises(ObjectNotFoundError):
        store.read(join_key(prefix, "nothing"))


def check_dataset(url: str, local: Path) -> None:
    dataset = StreamingDataset(remote=url, local=str(local), batch_size=5, shuffle=True)
    loader = DataLoader(dataset, batch_size=5, num_workers=2, timeout=40)
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(50))


def test_google_is_read_listed_and_streamed(
    gcs: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dataset_files(tmp_path / "data")
    place = places.fake_gcs(gcs, {f"a b/ü/{name}": data for name, data in files.items()})
    store, prefix = open_store(f"{place.url}/a b/ü", place.options)
    check(store, prefix, files, tmp_path / "x")
    listed = [info.key for info in store.list(join_key(prefix, ""))]
    assert listed == sorted(join_key(prefix, name) for name in files)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    check_dataset(f"{place.url}/a b/ü", tmp_path / "local")


def test_an_http_server_is_read_and_streamed(nginx: Running, tmp_path: Path) -> None:
    name = secrets.token_hex(6)
    files = dataset_files(nginx.folder / "www" / f"{name} ü")
    url = f"{nginx.url}/{name}%20%C3%BC"
    store, prefix = open_store(url)
    check(store, prefix, files, tmp_path / "x")
    check_dataset(url, tmp_path / "local")
    with pytest.raises(StoreError, match="Can't list"):
        list(store.list())
