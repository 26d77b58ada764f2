"""The predecessor's names for downloads and uploads."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import streaming.storage
from streaming import StreamingDataset
from streaming.constant import DEFAULT_TIMEOUT
from streaming.errors import ConfigError, StoreError
from streaming.storage.download import DOWNLOADER_MAPPINGS, CloudDownloader, S3Downloader
from streaming.storage.upload import (
    UPLOADERS,
    CloudUploader,
    GCSAuthentication,
    LocalUploader,
    S3Uploader,
)
from tests.common.shards import write_dataset
from tests.servers.places import Opened


@pytest.fixture
def bucket(new_bucket: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch) -> str:
    place = new_bucket()
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    return place.url


@pytest.mark.parametrize(
    ("remote", "name"),
    [
        (None, "LocalDownloader"),
        ("/a/path", "LocalDownloader"),
        ("s3://b/k", "S3Downloader"),
        ("gs://b/k", "GCSDownloader"),
        ("oci://b@n/k", "OCIDownloader"),
        ("azure://a.blob.core.windows.net/c/k", "AzureDownloader"),
        ("azure-dl://c/k", "AzureDataLakeDownloader"),
        ("hf://datasets/o/r/k", "HFDownloader"),
        ("sftp://h/k", "SFTPDownloader"),
        ("dbfs:/Volumes/a/b/c", "DatabricksUnityCatalogDownloader"),
        ("dbfs:/a", "DBFSDownloader"),
        ("alipan:///a", "AlipanDownloader"),
    ],
)
def test_each_scheme_has_its_class(remote: str | None, name: str) -> None:
    assert type(CloudDownloader.get(remote)).__name__ == name
    assert type(CloudDownloader.get(remote)) is getattr(streaming.storage, name)


def test_an_unknown_scheme_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nope://"):
        CloudDownloader.get("nope://x/y")
    with pytest.raises(ValueError, match="nope://"):
        CloudUploader.get("nope://x/y")


def test_a_file_is_uploaded_listed_and_downloaded(bucket: str, tmp_path: Path) -> None:
    uploader = CloudUploader.get((str(tmp_path / "out"), bucket))
    assert type(uploader) is S3Uploader
    (tmp_path / "out" / "a").write_bytes(b"123")
    uploader.upload_file("a")
    assert not (tmp_path / "out" / "a").exists()
    assert uploader.list_objects() == ["some data/a"]
    assert uploader.list_objects("b") == []
    S3Downloader().download(f"{bucket}/a", str(tmp_path / "new" / "a"))
    assert (tmp_path / "new" / "a").read_bytes() == b"123"
    CloudDownloader.direct_download(f"{bucket}/a", str(tmp_path / "b"), timeout=5)
    assert (tmp_path / "b").read_bytes() == b"123"


def test_a_missing_bucket_is_told_at_once(bucket: str) -> None:
    with pytest.raises(StoreError, match="no-such-bucket"):
        CloudUploader.get("s3://no-such-bucket/x")


def test_a_file_that_is_there_is_not_downloaded(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    CloudDownloader.get("s3://b").download("s3://b/x", str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == b"old"


def test_nothing_and_foreign_urls_are_value_errors(tmp_path: Path) -> None:
    for remote in (None, "", "gs://b/x"):
        with pytest.raises(ValueError):
            S3Downloader().download(remote, str(tmp_path / "x"))


def test_a_local_uploader_copies(tmp_path: Path) -> None:
    out = (str(tmp_path / "here"), str(tmp_path / "there" / "deep"))
    uploader = CloudUploader.get(out, keep_local=True)
    assert type(uploader) is LocalUploader
    (tmp_path / "here" / "a").write_bytes(b"123")
    uploader.upload_file("a")
    assert (tmp_path / "there" / "deep" / "a").read_bytes() == b"123"
    assert uploader.list_objects() == [str(tmp_path / "here" / "a")]
    uploader.clear_local(str(tmp_path / "here" / "a"))
    assert (tmp_path / "here" / "a").exists()


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        CloudUploader.get(str(tmp_path))
    assert CloudUploader.get(str(tmp_path), exist_ok=True).local == str(tmp_path)
    assert "not empty" in caplog.text


@pytest.mark.parametrize("out", [("a",), ("a", "b", "c"), 5])
def test_an_out_that_is_none_is_a_value_error(out: Any) -> None:
    with pytest.raises(ValueError, match="`out`"):
        CloudUploader.get(out)


def test_the_tables_name_the_schemes() -> None:
    assert set(DOWNLOADER_MAPPINGS) - {"sftp"} == set(UPLOADERS)
    assert [kind.name for kind in GCSAuthentication] == ["HMAC", "SERVICE_ACCOUNT"]


class MyDownloader(CloudDownloader):
    """Reads from a directory that stands for some service."""

    @staticmethod
    def _client_identifier() -> str:
        return "my"

    def clean_up(self) -> None:
        pass

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        path = "/" + remote.removeprefix("my://")
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        shutil.copyfile(path, local)


@pytest.fixture
def registered() -> Iterator[None]:
    DOWNLOADER_MAPPINGS["my"] = MyDownloader
    yield
    del DOWNLOADER_MAPPINGS["my"]


def test_a_scheme_that_a_user_registers_brings_datasets(registered: None, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data", shards=3)
    dataset = StreamingDataset(
        remote=f"my:/{root}", local=str(tmp_path / "local"), batch_size=4, download_timeout=3
    )
    assert len(list(dataset)) == 15
    with pytest.raises(FileNotFoundError):
        StreamingDataset(remote="my://nowhere", local=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="given one of s3"):
        MyDownloader().download("s3://b/k", str(tmp_path / "x"))
    assert DEFAULT_TIMEOUT == 60
