from pathlib import Path

import pytest

from streaming import MDSWriter, Stream
from streaming.errors import ConfigError, MissingExtraError, UnknownNameError
from streaming.storage import Store, open_store, stores
from streaming.storage.clouds import DOWNLOADER_MAPPINGS, CloudDownloader
from streaming.storage.options import SETTINGS
from streaming.storage.store import join_key
from streaming.storage.stores.filesystem import FsspecStore
from streaming.storage.stores.local import LocalStore
from streaming.storage.stores.memory import MemoryStore
from streaming.storage.stores.object import ObjectStore, _takes
from streaming.util.merging import merge_index
from tests.conftest import RunPython


@pytest.mark.parametrize("path", ["/data/a b", "data%20x", "./s3:/x", "C:/data", "a:b", "~/x", ""])
def test_a_path_is_taken_as_it_is(path: str) -> None:
    store, prefix = open_store(path)
    assert isinstance(store, LocalStore)
    assert (store.root, prefix) == (Path(path), "")


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path


def test_case_F15_a_file_url_with_blanks_is_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "a b ü").mkdir()
    (tmp_path / "a b ü" / "x").write_bytes(b"x")
    for name in ("a b ü", "a%20b%20ü", "a%20b%20%C3%BC"):
        assert open_store(f"file://{tmp_path}/{name}")[0].read("x") == b"x"


@pytest.mark.parametrize(
    ("url", "place", "key"),
    [
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("S3://bucket", "s3://bucket", ""),
        ("gs://bucket/a/", "gs://bucket", "a"),
        ("azure://acc.blob.core.windows.net/cont/a/b", None, "a/b"),
        ("azure://cont/a/b", "azure://cont", "a/b"),
        ("az://cont", "az://cont", ""),
        ("azure-dl://acc.dfs.core.windows.net/fs/a", None, "a"),
        ("azure-dl://fs/a", "azure-dl://fs", "a"),
        ("abfss://fs@acc.dfs.core.windows.net/a", "abfss://fs@acc.dfs.core.windows.net", "a"),
        ("https://example.org/a/b", "https://example.org", "a/b"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80", ""),
    ],
)
def test_a_url_of_objects_is_a_place_and_a_key(url: str, place: str | None, key: str) -> None:
    store, prefix = open_store(url, {"anonymous": True})
    assert isinstance(store, ObjectStore)
    assert prefix == key
    assert store.place.root == (place or url.removesuffix(f"/{key}"))


@pytest.mark.parametrize(
    ("url", "account", "bucket"),
    [
        ("azure://acc.blob.core.windows.net/cont/a", "acc", "cont"),
        ("azure-dl://acc.dfs.core.windows.net/cont/a", "acc", "cont"),
        ("abfss://cont@acc.dfs.core.windows.net/a", "acc", "cont"),
        ("azure://cont/a", None, "cont"),
    ],
)
def test_both_forms_of_azure_addresses_are_known(
    url: str, account: str | None, bucket: str
) -> None:
    store, _ = open_store(url, {"anonymous": True})
    assert isinstance(store, ObjectStore)
    assert (store.place.account, store.place.bucket) == (account, bucket)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///key",
        "s3://b/a//b",
        "s3://b/../x",
        "gs://",
        "azure://acc.blob.core.windows.net",
        "http://",
        "https://host/a?token=x",
        "file://otherhost/x",
        "sftp:///path",
        "sftp://host/path?query",
        "sftp://host/path#fragment",
    ],
)
def test_a_broken_url_is_told_before_any_request(url: str) -> None:
    if url.startswith("sftp"):
        pytest.importorskip("paramiko")
    with pytest.raises(ConfigError):
        open_store(url)


def test_a_memory_url_is_one_store_a_name() -> None:
    store, prefix = open_store("memory://one/a/b/")
    assert isinstance(store, MemoryStore)
    assert prefix == "a/b"
    assert open_store("memory://one")[0] is store
    assert open_store("memory://two")[0] is not store


def test_what_fsspec_knows_is_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123")
    store, prefix = open_store(f"local://{tmp_path}")
    assert isinstance(store, FsspecStore)
    assert store.read(join_key(prefix, "x"), 1, 3) == b"12"


def test_a_scheme_that_needs_an_unknown_package_says_which() -> None:
    with pytest.raises(MissingExtraError, match="webdav://.*webdav4"):
        open_store("webdav://host/x")


@pytest.mark.parametrize("url", ["nope://user:secret@host/x", "Nope:/x"])
def test_an_unknown_scheme_is_named_with_those_that_are_known(url: str) -> None:
    with pytest.raises(UnknownNameError, match="nope:.*Known: paths,.* s3:") as caught:
        open_store(url)
    assert isinstance(caught.value, ConfigError)
    assert "secret" not in str(caught.value)


def test_a_scheme_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_it(url: str) -> tuple[Store, str]:
        return MemoryStore({"x": b"1"}), ""

    monkeypatch.setitem(stores.table, "mine", open_it)
    assert open_store("mine://x")[0].read("x") == b"1"


def test_a_key_without_prefix_stays() -> None:
    assert join_key("", "a/b") == "a/b"
    assert join_key("x/y", "a/b") == "x/y/a/b"


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("hf://datasets/o/r", "huggingface_hub", "goldenspike[hf]"),
        ("sftp://host/x", "paramiko", "goldenspike[sftp]"),
        ("oci://bucket@namespace/x", "ocifs", "goldenspike[oci]"),
        ("dbfs:/Volumes/c/s/v", "databricks", "goldenspike[databricks]"),
        ("alipan:///x", "alipcs_py", "goldenspike[alipan]"),
        ("s3://bucket/x", "obstore", "pip install obstore"),
    ],
)
def test_case_S16_local_data_need_no_sdk_and_a_scheme_says_what_it_needs(
    run_python: RunPython, tmp_path: Path, url: str, missing: str, extra: str
) -> None:
    (tmp_path / "x").write_bytes(b"here")
    script = """
import sys
sys.modules[sys.argv[2]] = None
from streaming.storage import guard, open_store
guard.stay_single()
print(open_store(sys.argv[1])[0].read("x"))
try:
    open_store(sys.argv[3])[0].read("x")
except ImportError as error:
    print(type(error).__name__, error)
"""
    output = run_python(script, tmp_path, missing, url).stdout
    assert output.startswith("b'here'\nMissingExtraError")
    assert extra in output


class Mine(CloudDownloader):
    @staticmethod
    def _client_identifier() -> str:
        return "mine"

    def clean_up(self) -> None:
        pass

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        pass


@pytest.mark.parametrize(
    "url",
    [
        *("s3://b/x", "gs://b/x", "azure://c/x", "https://h/x", "ftp://h/x", "hf://datasets/a/b"),
        *("sftp://h/x", "dbfs:/Volumes/a/b/c", "oci://b/x", "alipan:///x"),
        *("/data", "file:///data", "memory://NAME/x", "mine://x"),
    ],
)
def test_an_option_with_a_slip_is_told_with_the_names_that_are_known(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOWNLOADER_MAPPINGS, "mine", Mine)
    monkeypatch.setenv("ALIPAN_WEB_REFRESH_TOKEN", "t")
    try:
        open_store(url, {"timeout": 3})
    except MissingExtraError as error:
        pytest.skip(str(error))
    message = r"'endpont'.*Did you mean 'endpoint'\? Known: .*timeout"
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url, {"endpont": "http://x"})
    assert url.partition(":")[0] in str(caught.value)


def test_what_is_like_no_option_is_told_by_a_file_system_that_hands_on_nothing() -> None:
    for url in ("s3://b", "https://h", "/data"):
        with pytest.raises(ConfigError, match="'nonsense', which means nothing there"):
            open_store(url, {"nonsense": "x"})
    open_store("ftp://host/x", {"nonsense": "x"})  # Who knows what it hands on.


@pytest.mark.parametrize("service", ["s3", "gs", "az"])
def test_what_is_said_to_be_known_is_known_to_the_client(service: str) -> None:
    hmac = {"access_key_id", "secret_access_key"} if service == "gs" else set()
    url = {"s3": "s3://b", "gs": "gs://b", "az": "azure://c"}[service]
    known = dict.fromkeys(SETTINGS[service], "x")
    open_store(url, known)
    for name in SETTINGS[service] - hmac:
        assert _takes(service, name), name


def test_the_client_knows_longer_spellings_and_settings_of_its_own() -> None:
    open_store("s3://b", {"AWS_ACCESS_KEY_ID": "x", "aws_default_region": "y", "proxy_url": "z"})
    open_store("gs://b", {"google_service_account": "x"})
    open_store("gs://b", {"access_key_id": "x", "secret_access_key": "y", "session_token": "z"})
    open_store("/data", {"aws_region": "x", "secret_access_key": "y", "host": "z"})
    with pytest.raises(ConfigError, match="aws_region"):
        open_store("gs://b", {"aws_region": "x"})


def test_streams_and_writers_tell_a_slip_when_they_are_made(tmp_path: Path) -> None:
    here, slip = str(tmp_path), {"endpont": "x"}
    for place in ({"remote": "s3://b/x"}, {"remote": here}, {"local": here}):
        with pytest.raises(ConfigError, match="endpont"):
            Stream(**place, storage_options=slip)  # type: ignore[arg-type]
    for out in ("s3://b/x", str(tmp_path / "new")):
        with pytest.raises(ConfigError, match="endpont"):
            MDSWriter(out=out, columns={"x": "int"}, storage_options=slip)
    with pytest.raises(ConfigError, match="endpont"):
        merge_index(here, storage_options=slip)
