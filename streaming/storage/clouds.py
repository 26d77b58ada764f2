"""The predecessor's classes for downloads and uploads, over the stores.

New code uses `open_store`, `fetch` and `publish`. These names are kept for code that calls them,
and for subclasses: one that is put into `DOWNLOADER_MAPPINGS` under a scheme brings the files of
all datasets with such URLs.
"""

import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from streaming.constant import DEFAULT_TIMEOUT
from streaming.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    OutputExistsError,
    StoreError,
    UnknownNameError,
)
from streaming.storage.store import ObjectInfo, check_key, join_key, part_path, translated
from streaming.util.retrying import Retry

__all__ = [
    "DOWNLOADER_MAPPINGS",
    "UPLOADERS",
    "AlipanDownloader",
    "AlipanUploader",
    "AzureDataLakeDownloader",
    "AzureDataLakeUploader",
    "AzureDownloader",
    "AzureUploader",
    "CloudDownloader",
    "CloudUploader",
    "DBFSDownloader",
    "DBFSUploader",
    "DatabricksUnityCatalogDownloader",
    "DatabricksUnityCatalogUploader",
    "DatabricksUploader",
    "DownloaderStore",
    "GCSAuthentication",
    "GCSDownloader",
    "GCSUploader",
    "HFDownloader",
    "HFUploader",
    "LocalDownloader",
    "LocalUploader",
    "OCIDownloader",
    "OCIUploader",
    "S3Downloader",
    "S3Uploader",
    "SFTPDownloader",
]

logger = logging.getLogger(__name__)

_VOLUMES = "dbfs:/Volumes"


def _scheme(url: str) -> str:
    if url.startswith(_VOLUMES):
        return "dbfs-uc"
    return urlsplit(url).scheme.lower() if ":/" in url else ""


class CloudDownloader(ABC):
    """Downloads files of one kind of place. Subclass it for a place that no store knows.

    A subclass has `_client_identifier`, `_download_file_impl` and `clean_up`, makes its client when
    it first needs it, and pickles. It is used by one thread at a time.
    """

    @classmethod
    def get(cls, remote_dir: str | None = None) -> "CloudDownloader":
        """A downloader for a URL or path; None: for local paths.

        Raises:
            UnknownNameError: There is none for its scheme.
        """
        scheme = _scheme(os.fspath(remote_dir)) if remote_dir else ""
        if scheme not in DOWNLOADER_MAPPINGS:
            known = ", ".join(f"{name}://" for name in sorted(DOWNLOADER_MAPPINGS) if name)
            raise UnknownNameError(
                f"There is no downloader for {scheme}:// URLs. Known: paths, {known}. More can be "
                f"put into DOWNLOADER_MAPPINGS."
            )
        return DOWNLOADER_MAPPINGS[scheme]()

    @classmethod
    def direct_download(
        cls, remote: str | None, local: str, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Download one file and let go of the client."""
        downloader = cls.get(remote)
        try:
            downloader.download(remote, local, timeout)
        finally:
            downloader.clean_up()

    def download(self, remote: str | None, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Download one file, unless it is there.

        Args:
            remote: URL or path.
            local: The file to become; its directory is made.
            timeout: Seconds without a byte after which the download counts as failed.

        Raises:
            ConfigError: `remote` is empty, or none of this downloader's.
            StoreError: It failed.
        """
        if os.path.exists(local):
            return
        if not remote:
            raise ConfigError(f"{local} is not there, and there is no remote to get it from.")
        with translated(f"Can't make the directory of {local}"):
            Path(local).parent.mkdir(parents=True, exist_ok=True)
        remote = remote.replace("\\", "/") if os.name == "nt" else remote
        self._validate_remote_path(remote)
        self._download_file_impl(remote, local, timeout)

    @staticmethod
    @abstractmethod
    def _client_identifier() -> str:
        """The scheme of its URLs; "" for paths."""

    @abstractmethod
    def clean_up(self) -> None:
        """Let go of the client; the next download makes another."""

    @abstractmethod
    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        """Download a file that is not there."""

    def _validate_remote_path(self, remote: str) -> None:
        """Refuse a URL that is of another kind."""
        if _scheme(remote) != self._client_identifier():
            raise ConfigError(
                f"{type(self).__name__} is for {self._client_identifier()}:// URLs, but was given "
                f"one of {_scheme(remote) or 'no'} scheme."
            )


class _StoreDownloader(CloudDownloader):
    """Downloads through the store of a scheme."""

    _scheme = ""

    @classmethod
    def _client_identifier(cls) -> str:
        return cls._scheme

    def clean_up(self) -> None:
        """Nothing: connections are the process's."""

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        from streaming.storage import open_store
        from streaming.storage.download import fetch

        directory, _, name = remote.rstrip("/").rpartition("/")
        is_path = not _scheme(remote)
        store, prefix = open_store(
            directory or ("/" if remote.startswith("/") else "."),
            None if is_path else {"timeout": timeout},
        )
        try:
            fetch(store, join_key(prefix, name), Path(local), retry=Retry(attempts=1))
        finally:
            store.close()


class LocalDownloader(_StoreDownloader):
    """Copies files."""


class S3Downloader(_StoreDownloader):
    """Downloads from S3 and what speaks it."""

    _scheme = "s3"


class GCSDownloader(_StoreDownloader):
    """Downloads from Google Cloud Storage."""

    _scheme = "gs"


class OCIDownloader(_StoreDownloader):
    """Downloads from Oracle's Object Storage."""

    _scheme = "oci"


class AzureDownloader(_StoreDownloader):
    """Downloads from Azure Blob Storage."""

    _scheme = "azure"


class AzureDataLakeDownloader(_StoreDownloader):
    """Downloads from Azure Data Lake Storage."""

    _scheme = "azure-dl"


class HFDownloader(_StoreDownloader):
    """Downloads from the Hugging Face Hub."""

    _scheme = "hf"


class SFTPDownloader(_StoreDownloader):
    """Downloads over SFTP."""

    _scheme = "sftp"


class DBFSDownloader(_StoreDownloader):
    """Downloads from the Databricks file system."""

    _scheme = "dbfs"


class DatabricksUnityCatalogDownloader(_StoreDownloader):
    """Downloads from volumes of Databricks' Unity Catalog."""

    _scheme = "dbfs-uc"


class AlipanDownloader(_StoreDownloader):
    """Downloads from Alipan."""

    _scheme = "alipan"


# From scheme to class. What users put here goes before the stores of this library.
DOWNLOADER_MAPPINGS: dict[str, type[CloudDownloader]] = {
    kind._client_identifier(): kind for kind in _StoreDownloader.__subclasses__()
}
_OURS = dict(DOWNLOADER_MAPPINGS)


def registered_downloader(scheme: str) -> type[CloudDownloader] | None:
    """The class that a user has put into `DOWNLOADER_MAPPINGS` for a scheme; None if none has."""
    kind = DOWNLOADER_MAPPINGS.get(scheme)
    return None if kind is _OURS.get(scheme) else kind


class DownloaderStore:
    """The place that a user's downloader reads from, as a store. Made by `open_store`.

    Args:
        kind: Class of the downloader.
        url: The place, without a slash at its end.
        timeout: Seconds without a byte after which a download counts as failed.
    """

    def __init__(self, kind: type[CloudDownloader], url: str, timeout: float) -> None:
        self._kind = kind
        self._url = url
        self._timeout = timeout
        self._sizes: dict[str, int] = {}

    def __repr__(self) -> str:
        parts = urlsplit(self._url)
        return f"DownloaderStore({parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path})"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object, which is downloaded whole for it."""
        with tempfile.TemporaryDirectory(prefix="streaming-download-") as directory:
            path = Path(directory, "object")
            self.get_file(key, path)
            with path.open("rb") as file:
                file.seek(start)
                return file.read(-1 if stop is None else max(stop - start, 0))

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        downloader = self._kind()
        try:
            downloader.download(f"{self._url}/{check_key(key)}", str(path), self._timeout)
            self._sizes[key] = path.stat().st_size
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"There is no {key} in {self!r}: {error}") from error
        except PermissionError as error:
            raise AccessDeniedError(f"Can't read {key} in {self!r}: {error}") from error
        except OSError as error:
            raise StoreError(f"Can't read {key} in {self!r}: {error}") from error
        finally:
            downloader.clean_up()

    def stat(self, key: str) -> ObjectInfo:
        """Size of an object, which is downloaded for it unless it was before."""
        if key not in self._sizes:
            self.read(key, 0, 0)
        return ObjectInfo(key, self._sizes[key])

    def put_file(self, path: Path, key: str) -> NoReturn:
        """Refuse: a downloader does not write."""
        raise StoreError(f"Can't write {key} to {self!r}: there is only a downloader for it.")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Refuse: a downloader does not list."""
        raise StoreError(f"Can't list {self!r}: there is only a downloader for it.")

    def delete(self, key: str) -> NoReturn:
        """Refuse: a downloader does not write."""
        raise StoreError(f"Can't delete {key} in {self!r}: there is only a downloader for it.")

    def close(self) -> None:
        """Nothing: each download has a client of its own."""


class GCSAuthentication(Enum):
    """How requests to Google Cloud Storage are signed."""

    HMAC = 1
    SERVICE_ACCOUNT = 2


class CloudUploader:
    """Uploads the files of a local directory to a place.

    Args:
        out: Directory, URL, or (local, remote).
        keep_local: Keep files after they were uploaded.
        progress_bar: Log each upload at the level INFO.
        retry: Attempts for each file.
        exist_ok: Go on if the local directory is not empty.

    Raises:
        ConfigError: `out` is none of these, or its scheme is not known.
        OutputExistsError: The local directory is not empty.
        ObjectNotFoundError: There is no such bucket.
    """

    @classmethod
    def get(
        cls,
        out: Any,
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> "CloudUploader":
        """The uploader for a place; arguments and errors are those of the class."""
        remote = _split(out)[1]
        scheme = _scheme(remote) if remote else ""
        kind = UPLOADERS.get(scheme, CloudUploader)
        return kind(out, keep_local, progress_bar, retry, exist_ok)

    def __init__(
        self,
        out: Any,
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        from streaming.storage import open_store

        local, self.remote = _split(out)
        self.keep_local = keep_local
        self.progress_bar = progress_bar
        self.retry = retry
        if self.remote is not None:
            self._store, self._prefix = open_store(self.remote)
            self._check_place()
        self.local = local or tempfile.mkdtemp(prefix="streaming-upload-")
        with translated(f"Can't make the directory {self.local}"):
            os.makedirs(self.local, exist_ok=True)
            found = os.listdir(self.local)
        if found and not exist_ok:
            raise OutputExistsError(
                f"{self.local} is not empty: it has {found[0]}. Choose another directory, or pass "
                f"exist_ok=True."
            )
        if found:
            logger.warning("%s is not empty; files of the same names are replaced.", self.local)

    def upload_file(self, filename: str) -> None:
        """Upload a file of the local directory, and remove it there unless it is to be kept.

        Args:
            filename: Its path in the directory.

        Raises:
            StoreError: It failed each time.
        """
        from streaming.storage.upload import publish

        path = Path(self.local, filename)
        if self.remote is None:
            return
        key = join_key(self._prefix, filename.replace(os.sep, "/"))
        publish(self._store, path, key, retry=Retry(attempts=max(self.retry, 1)))
        if self.progress_bar:
            logger.info("Uploaded %s to %s.", filename, self.remote)
        self.clear_local(str(path))

    def list_objects(self, prefix: str | None = None) -> list[str] | None:
        """Keys of the objects at the remote place, sorted; without one, paths of the local files.

        Args:
            prefix: What their names in the place begin with.
        """
        if self.remote is None:
            return _list_local(self.local, prefix)
        start = join_key(self._prefix, prefix or "") if self._prefix else prefix or ""
        return [info.key for info in self._store.list(start)]

    def clear_local(self, local: str) -> None:
        """Remove a local file, unless files are to be kept."""
        if not self.keep_local:
            Path(local).unlink(missing_ok=True)

    def check_bucket_exists(self, remote: str) -> None:
        """Make sure that there is a bucket to write to.

        Raises:
            ObjectNotFoundError: There is none.
        """
        from streaming.storage import open_store

        store, prefix = open_store(remote)
        with suppress(AccessDeniedError):  # One may be allowed to write, and not to list.
            next(store.list(join_key(prefix, part_path(Path("probe")).name)), None)

    check_container_exists = check_folder_exists = check_bucket_exists

    def _check_place(self) -> None:
        assert self.remote is not None
        self.check_bucket_exists(self.remote)


class LocalUploader(CloudUploader):
    """Copies files."""

    def _check_place(self) -> None:
        with translated(f"Can't make the directory {self.remote}"):
            os.makedirs(str(self.remote), exist_ok=True)

    def list_objects(self, prefix: str | None = None) -> list[str] | None:
        """Paths of the local files whose names begin with a prefix, sorted."""
        return _list_local(self.local, prefix)


class S3Uploader(CloudUploader):
    """Uploads to S3 and what speaks it."""


class GCSUploader(CloudUploader):
    """Uploads to Google Cloud Storage."""

    @property
    def authentication(self) -> GCSAuthentication:
        """How its requests are signed."""
        options = getattr(self._store, "options", None)
        is_hmac = options is not None and "access_key_id" in options.setting
        return GCSAuthentication.HMAC if is_hmac else GCSAuthentication.SERVICE_ACCOUNT


class OCIUploader(CloudUploader):
    """Uploads to Oracle's Object Storage."""


class AzureUploader(CloudUploader):
    """Uploads to Azure Blob Storage."""


class AzureDataLakeUploader(CloudUploader):
    """Uploads to Azure Data Lake Storage."""


class HFUploader(CloudUploader):
    """Uploads to the Hugging Face Hub."""

    def check_dataset_exists(self) -> None:
        """Make sure that there is a dataset to write to.

        Raises:
            ObjectNotFoundError: There is none.
        """
        assert self.remote is not None
        self.check_bucket_exists(self.remote)


class DatabricksUploader(CloudUploader):
    """Uploads to Databricks."""


class DatabricksUnityCatalogUploader(DatabricksUploader):
    """Uploads to volumes of Databricks' Unity Catalog."""


class DBFSUploader(DatabricksUploader):
    """Uploads to the Databricks file system."""


class AlipanUploader(CloudUploader):
    """Uploads to Alipan."""


UPLOADERS: dict[str, type[CloudUploader]] = {
    "": LocalUploader,
    "s3": S3Uploader,
    "gs": GCSUploader,
    "oci": OCIUploader,
    "azure": AzureUploader,
    "azure-dl": AzureDataLakeUploader,
    "hf": HFUploader,
    "dbfs": DBFSUploader,
    "dbfs-uc": DatabricksUnityCatalogUploader,
    "alipan": AlipanUploader,
}


def _split(out: Any) -> tuple[str | None, str | None]:
    """The local directory and the remote place of `out`."""
    if isinstance(out, (str, os.PathLike)):
        text = os.fspath(out)
        return (None, text) if _scheme(text) else (text, None)
    if not isinstance(out, Sequence) or len(out) != 2:
        raise ConfigError(f"`out` is a directory, a URL or (local, remote), but not {out!r}.")
    local, remote = (os.fspath(part) for part in out)
    return local, remote


def _list_local(root: str, prefix: str | None) -> list[str]:
    start = os.path.join(root, prefix or "")
    return sorted(
        path
        for directory, _, names in os.walk(root)
        for name in names
        if (path := os.path.join(directory, name)).startswith(start)
    )
