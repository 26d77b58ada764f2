"""Whose credentials requests carry, how often those are asked for, and where requests go."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import AccessDeniedError, ConfigError
from streaming.storage import StoreOptions, guard, open_store
from streaming.storage.download import fetch
from streaming.storage.stores.credentials import AwsProfile
from streaming.storage.stores.object import ObjectStore
from streaming.storage.upload import publish
from streaming.util.retrying import Retry
from tests.conftest import RunPython
from tests.servers.faulty import FaultyServer, Status
from tests.servers.places import Opened

ONCE = Retry(1)


def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.mark.parametrize(
    "names",
    [
        ["S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        ["AWS_ENDPOINT_URL"],
    ],
)
def test_case_S1_an_endpoint_of_the_environment_gets_reads_and_writes(
    monkeypatch: pytest.MonkeyPatch, names: list[str], tmp_path: Path
) -> None:
    keys(monkeypatch)
    with FaultyServer({"b/x": b"123"}) as server:
        for name in names:
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(names[0], server.url)
        store, _ = open_store("s3://b")
        assert store.read("x") == b"123"
        (tmp_path / "y").write_bytes(b"45")
        publish(store, tmp_path / "y", "y", retry=ONCE)
        assert server.objects["b/y"] == b"45"
        assert "AKIAEXAMPLE" in server.headers[0]["authorization"]


def test_case_S1_an_endpoint_of_the_argument_goes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys(monkeypatch)
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    with FaultyServer({"b/x": b"123"}) as server:
        assert open_store("s3://b", {"endpoint": server.url})[0].read("x") == b"123"


def test_without_credentials_requests_go_unsigned_as_to_public_buckets() -> None:
    with FaultyServer({"b/x": b"123"}) as server:
        store, _ = open_store("s3://b", {"endpoint": server.url})
        assert store.read("x") == store.read("x") == b"123"
        assert not any("authorization" in headers for headers in server.headers)


def test_a_signature_that_is_a_bad_request_is_left_out() -> None:
    with FaultyServer({"b/x": b"123"}) as server:
        server.on_request = lambda method, key: server.faults.__setitem__(
            slice(None), [Status(400)] if "authorization" in server.headers[-1] else []
        )
        options = {"endpoint": server.url, "access_key_id": "old", "secret_access_key": "s"}
        assert open_store("s3://b", options)[0].read("x") == b"123"


def test_requests_for_buckets_in_the_list_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    keys(monkeypatch)
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "a, b")
    with FaultyServer({"b/x": b"1", "c/x": b"2"}) as server:
        monkeypatch.setenv("S3_ENDPOINT_URL", server.url)
        open_store("s3://b")[0].read("x")
        open_store("s3://c")[0].read("x")
        paid = [headers.get("x-amz-request-payer") for headers in server.headers]
        assert paid == ["requester", None]


def test_google_with_hmac_keys_is_spoken_to_as_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer({"b/x": b"123"}) as server:
        for name, value in (("KEY", "GOOGHMAC"), ("SECRET", "s"), ("ENDPOINT_URL", server.url)):
            monkeypatch.setenv(f"GCS_{name}", value)
        assert open_store("gs://b")[0].read("x") == b"123"
        assert "GOOGHMAC" in server.headers[0]["authorization"]
    assert StoreOptions.from_env("gs").region == "auto"


@dataclass(frozen=True)
class Counting:
    """A recipe that notes in a file that it was asked, and by whom."""

    path: Path
    seconds: float

    def __call__(self) -> Any:
        import os

        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        expires_at = datetime.now(UTC) + timedelta(seconds=self.seconds)
        return {"access_key_id": "k", "secret_access_key": "s", "expires_at": expires_at}


def test_case_S3_a_token_is_asked_for_once_a_process_and_life(
    tmp_path: Path, new_bucket: Callable[[], Opened], run_python: RunPython
) -> None:
    place = new_bucket()
    store, prefix = open_store(place.url, place.options)
    (tmp_path / "x").write_bytes(b"x")
    for i in range(200):
        store.put_file(tmp_path / "x", f"{prefix}/{i}")
    script = f"""
import multiprocessing, os, sys
from pathlib import Path
from streaming.storage import open_store
from tests.storage.test_credentials import Counting

def work(i):
    store, prefix = open_store({place.url!r}, {{
        "endpoint": {place.options["endpoint"]!r}, "credentials": Counting(Path(sys.argv[1]), 3600)
    }})
    for j in range(25):
        assert open_store({place.url!r}, store.options)[0].read(f"{{prefix}}/{{8 * j + i}}") == b"x"

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(i,), daemon=True) for i in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(50)
        assert process.exitcode == 0
"""
    run_python(script, tmp_path / "asked")
    asked = Counter((tmp_path / "asked").read_text().split())
    assert len(asked) == 8
    assert set(asked.values()) == {1}


def test_credentials_that_expired_are_asked_for_anew(tmp_path: Path) -> None:
    body = "<Error><Code>ExpiredToken</Code></Error>"
    with FaultyServer({"b/x": b"123"}, [Status(403, body=body, times=1, skip=1)]) as server:
        credentials = Counting(tmp_path / "asked", 3600)
        store, _ = open_store("s3://b", {"endpoint": server.url, "credentials": credentials})
        for _ in range(3):
            fetch(store, "x", tmp_path / "x", retry=ONCE)
    assert len((tmp_path / "asked").read_text().split()) == 2


def test_a_token_is_shared_by_the_buckets_of_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """AWS's own chain, from a profile."""
    pytest.importorskip("boto3")
    (tmp_path / "config").write_text("[profile p]\nregion = eu-west-3\n")
    (tmp_path / "credentials").write_text(
        "[p]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert StoreOptions.from_env("s3").credentials == AwsProfile("p")
    guard.end_helper()  # So that one is started that has this environment.
    with FaultyServer({"a/x": b"1", "b/x": b"2"}) as server:
        monkeypatch.setenv("S3_ENDPOINT_URL", server.url)
        assert [open_store(f"s3://{name}")[0].read("x") for name in "ab"] == [b"1", b"2"]
        signed = [headers["authorization"] for headers in server.headers]
    assert all("PROFILEKEY" in text and "eu-west-3" in text for text in signed)


def test_a_profile_without_the_sdk_says_what_to_install(run_python: RunPython) -> None:
    script = """
import sys
sys.modules["boto3"] = None
from streaming.storage import guard, open_store
guard.stay_single()
try:
    open_store("s3://b", {"endpoint": "http://127.0.0.1:9"})[0].read("x")
except ImportError as error:
    print(error)
"""
    output = run_python(script, env={"AWS_PROFILE": "p"}).stdout
    assert 'pip install "goldenspike[aws]"' in output


def test_options_show_no_secrets_and_travel() -> None:
    import pickle

    options = StoreOptions().updated({"secret_access_key": "hush", "region": "eu"})
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    store = ObjectStore(open_store("s3://b", options)[0].place, options)  # type: ignore[attr-defined]
    assert "hush" not in repr(store)
    assert pickle.loads(pickle.dumps(store)).options == options


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        open_store("s3://b", {"timeout": timeout})


def test_a_setting_that_the_client_does_not_know_is_told() -> None:
    options = {"endpoint": "http://127.0.0.1:9", "access_key_id": "a", "nonsense": "x"}
    with pytest.raises(ConfigError, match="nonsense"):
        open_store("s3://b", options)[0].read("x")


def test_an_account_that_nobody_named_is_told() -> None:
    with pytest.raises(ConfigError, match="AZURE_ACCOUNT_NAME"):
        open_store("azure://container/x", {"account_key": "eA=="})[0].read("y")


def test_denied_credentials_are_named_by_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys(monkeypatch)
    with FaultyServer({}, [Status(403)]) as server:
        monkeypatch.setenv("S3_ENDPOINT_URL", server.url)
        with pytest.raises(AccessDeniedError, match="came from AWS_ACCESS_KEY_ID") as caught:
            open_store("s3://b")[0].read("x")
        assert "secret" not in str(caught.value).replace("secret_access", "")
