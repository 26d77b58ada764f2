"""alipan:// over a stand-in of the service, with the library that speaks to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ConfigError, StoreError, TransientStoreError
from streaming.storage import Store, open_store
from streaming.storage.download import fetch
from streaming.storage.upload import publish
from streaming.util.retrying import Retry
from tests.servers.alipan import TOKEN, Alipan
from tests.suites.store import StoreSuite

pytest.importorskip("alipcs_py", reason='needs AliPCS-Py: pip install "goldenspike[alipan]"')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ONCE = Retry(1)


@pytest.fixture
def alipan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Alipan]:
    from alipcs_py.alipcs import pcs

    with Alipan(page=2) as server:
        # The library has no other place for the address of the service.
        monkeypatch.setattr(pcs, "ALIYUNDRIVE_COM_API", server.url)
        monkeypatch.setenv("ALIPAN_WEB_REFRESH_TOKEN", TOKEN)
        yield server


class TestAlipan(StoreSuite):
    @pytest.fixture(params=["alipan:///some/data", "alipan:///"])
    def store(self, request: pytest.FixtureRequest, alipan: Alipan) -> Store:
        return open_store(request.param)[0]


@pytest.mark.parametrize("kind", ["Simple", "ChaCha20", "AES256CBC"])
def test_what_is_encrypted_comes_back(
    alipan: Alipan, monkeypatch: pytest.MonkeyPatch, kind: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALIPAN_ENCRYPT_PASSWORD", "secret")
    monkeypatch.setenv("ALIPAN_ENCRYPT_TYPE", kind)
    content = bytes(range(256)) * 100 + b"the end"
    (tmp_path / "x").write_bytes(content)
    store, _ = open_store("alipan:///data")
    publish(store, tmp_path / "x", "x", retry=ONCE)
    key = alipan.find("/data/x")
    assert key is not None and content not in alipan.items[key]["content"]
    assert fetch(store, "x", tmp_path / "y", size=len(content), retry=ONCE) == len(content)
    assert (tmp_path / "y").read_bytes() == content
    assert store.read("x", 7, 300) == content[7:300]


def test_a_server_that_fails_is_asked_again(alipan: Alipan, tmp_path: Path) -> None:
    alipan.add(alipan.add("root", "data", None), "x", b"123")
    store, _ = open_store("alipan:///data")
    alipan.faults = [503]
    assert fetch(store, "x", tmp_path / "x", size=3, retry=Retry(2, base=0.01, jitter=0)) == 3
    alipan.faults = [503] * 9
    with pytest.raises(TransientStoreError, match="503"):
        fetch(store, "x", tmp_path / "y", size=3, retry=ONCE)


def test_a_service_that_is_not_there_is_told(
    alipan: Alipan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alipcs_py.alipcs import pcs

    monkeypatch.setattr(pcs, "ALIYUNDRIVE_COM_API", "http://127.0.0.1:9")
    with pytest.raises(TransientStoreError, match="connection failed"):
        open_store("alipan:///data")[0].read("x")


def test_a_token_that_is_none_is_told(alipan: Alipan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIPAN_WEB_REFRESH_TOKEN", "another")
    with pytest.raises(StoreError, match="RefreshToken"):
        open_store("alipan:///data")[0].read("x")


def test_what_can_not_be_meant_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="need a token"):
        open_store("alipan:///data")
    monkeypatch.setenv("ALIPAN_WEB_REFRESH_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="names a host"):
        open_store("alipan://host/data")
    settings: dict[str, Any] = {"encrypt_type": "None"}
    with pytest.raises(ConfigError, match="must be one of"):
        open_store("alipan:///data", settings)
