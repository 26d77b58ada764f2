"""oci:// over a stand-in of the service, with the libraries that speak to it."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.errors import AccessDeniedError, TransientStoreError
from streaming.storage import Store, open_store
from streaming.storage.download import fetch
from streaming.storage.upload import publish
from streaming.util.retrying import Retry
from tests.servers.oracle import NAMESPACE, Oracle, write_config
from tests.suites.store import StoreSuite

pytest.importorskip("ocifs", reason='needs ocifs: pip install "goldenspike[oci]"')
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ONCE = Retry(1)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("oci"))


@pytest.fixture
def oracle(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Oracle]:
    monkeypatch.setenv("OCI_CONFIG_FILE", str(config))
    with Oracle(page=2) as server:
        yield server


def opened(oracle: Oracle, url: str) -> Store:
    return open_store(url, {"endpoint": oracle.url, "timeout": 5})[0]


class TestOracle(StoreSuite):
    @pytest.fixture(params=[f"bucket@{NAMESPACE}/data", "bucket/data", f"bucket@{NAMESPACE}"])
    def store(self, request: pytest.FixtureRequest, oracle: Oracle) -> Store:
        return opened(oracle, f"oci://{request.param}")


def test_a_throttled_request_is_tried_again_and_a_refused_one_is_not(
    oracle: Oracle, tmp_path: Path
) -> None:
    store = opened(oracle, "oci://bucket/data")
    oracle.objects["bucket", "data/x"] = b"123"
    retry = Retry(2, base=0.01, jitter=0)
    oracle.faults = [429]
    assert fetch(store, "x", tmp_path / "x", size=3, retry=retry) == 3
    oracle.faults = [503, 503]
    with pytest.raises(TransientStoreError, match=r"slow down.*503.*tried 2 times"):
        fetch(store, "x", tmp_path / "y", size=3, retry=retry)
    oracle.faults = [401, 401, 401]
    with pytest.raises(AccessDeniedError, match="status 401"):
        fetch(store, "x", tmp_path / "y", size=3, retry=retry)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_large_file_goes_up_in_parts(oracle: Oracle, tmp_path: Path) -> None:
    content = secrets.token_bytes(1 << 20) * 12
    (tmp_path / "big").write_bytes(content)
    publish(opened(oracle, "oci://bucket/data"), tmp_path / "big", "big", retry=ONCE)
    assert oracle.objects["bucket", "data/big"] == content
    assert oracle.uploads == {}
    assert any(method == "PUT" and "/u/" in path for method, path in oracle.requests)


def test_a_listing_comes_by_pages_not_by_folders(oracle: Oracle) -> None:
    for number in range(5):
        oracle.objects["bucket", f"data/{number}/x"] = b"1"
    store = opened(oracle, f"oci://bucket@{NAMESPACE}/data")
    assert [info.key for info in store.list()] == [f"{number}/x" for number in range(5)]
    assert len(oracle.requests) == 3
