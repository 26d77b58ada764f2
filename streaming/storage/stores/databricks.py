"""Files of Databricks: volumes of the Unity Catalog, and DBFS, by its SDK."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streaming.errors import ConfigError, ObjectNotFoundError, StoreError
from streaming.storage.guard import FetchHelper, kept
from streaming.storage.options import StoreOptions
from streaming.storage.store import (
    Buffer,
    ObjectInfo,
    check_key,
    check_prefix,
    join_key,
    translated,
    write_pieces,
)
from streaming.storage.stores.failures import from_any
from streaming.util.checking import parameters
from streaming.util.importing import lazy

__all__ = ["DatabricksStore", "open_databricks_url"]

PIECE = 1 << 20  # bytes; the most that DBFS gives at a time


class DatabricksStore:
    """Objects below a directory of a workspace. Plain data, as `ObjectStore` is.

    Args:
        root: The directory: "/Volumes/CATALOG/SCHEMA/VOLUME/..." for volumes, else one of DBFS.
        settings: Arguments of the SDK's client, beside its own configuration.
        timeout: Seconds without an answer after which a request counts as failed.
    """

    def __init__(self, root: str, settings: Mapping[str, str], timeout: float) -> None:
        self.root = root
        self._settings = tuple(sorted(settings.items()))
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"DatabricksStore('dbfs:{self.root}')"

    @property
    def _is_volume(self) -> bool:
        return self.root.startswith("/Volumes")

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        _, pieces = self.stream(key, start, stop)
        return b"".join(pieces)

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        write_pieces(self.stream(key)[1], path)

    def stream(
        self, key: str, start: int = 0, stop: int | None = None
    ) -> tuple[ObjectInfo, Iterator[Buffer]]:
        """Ask for the bytes [start, stop) of an object."""
        info = self.stat(key)
        return info, self._pieces(key, start, info.size if stop is None else min(stop, info.size))

    def helper(self) -> FetchHelper | None:
        """Nobody: what this process makes for itself is of no harm to those forked from it."""
        return None

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        target = self._path(check_key(key))
        with (
            translated(f"Can't read {path}"),
            path.open("rb") as file,
            self._using("write", key) as client,
        ):
            if self._is_volume:
                client.files.create_directory(target.rpartition("/")[0])
                client.files.upload(target, file, overwrite=True)
            else:
                client.dbfs.upload(target, file, overwrite=True)

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        path = self._path(check_key(key))
        with self._using("look at", key) as client:
            if self._is_volume:
                found = client.files.get_metadata(path)
                return ObjectInfo(key, found.content_length or 0, _text(found.last_modified))
            status = client.dbfs.get_status(path)
        if status.is_dir:
            raise ObjectNotFoundError(f"Can't look at {self._url(key)}: it is a directory.")
        return ObjectInfo(key, status.file_size or 0, _text(status.modification_time))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        directory = check_prefix(prefix).rpartition("/")[0]
        cut = len(self.root.rstrip("/")) + 1
        found: list[ObjectInfo] = []
        with suppress(ObjectNotFoundError), self._using("list", directory) as client:
            for path, size, mark in self._walk(client, self._path(directory)):
                key = path.removeprefix("dbfs:")[cut:]
                if key.startswith(prefix):
                    found.append(ObjectInfo(key, size or 0, _text(mark)))
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        with suppress(ObjectNotFoundError):
            self.stat(key)
            with self._using("delete", key) as client:
                (client.files if self._is_volume else client.dbfs).delete(self._path(key))

    def close(self) -> None:
        """Nothing: connections are the process's, which keeps them for the next store like this."""

    def _pieces(self, key: str, start: int, stop: int) -> Iterator[Buffer]:
        if start >= stop:
            return
        path = self._path(key)
        with self._using("read", key) as client:
            if not self._is_volume:
                with client.dbfs.open(path, read=True) as file:
                    file._offset = start  # The SDK has no other way to begin anywhere else.
                    while start < stop and (piece := file.read(PIECE)):
                        yield piece[: stop - start]
                        start += len(piece)
                return
            with client.files.download(path).contents as contents:
                at = 0
                while at < stop and (piece := contents.read(PIECE)):
                    yield piece[max(start - at, 0) : stop - at]
                    at += len(piece)

    def _walk(self, client: Any, path: str) -> Iterator[tuple[str, int | None, object]]:
        """Path, bytes and mark of all files below a directory."""
        if not self._is_volume:
            for item in client.dbfs.list(path, recursive=True):
                yield item.path, item.file_size, item.modification_time
            return
        for item in client.files.list_directory_contents(path):
            if item.is_directory:
                yield from self._walk(client, item.path)
            else:
                yield item.path, item.file_size, item.last_modified

    def _path(self, key: str) -> str:
        return join_key(self.root.rstrip("/"), key) if key else self.root

    def _url(self, key: str) -> str:
        return f"dbfs:{self._path(key)}"

    @contextmanager
    def _using(self, verb: str, key: str) -> Iterator[Any]:
        """The client of this process, and its errors in our words."""
        client = kept(("databricks", self._settings, self._timeout), self._make)
        try:
            yield client
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            raise from_any(error, f"Can't {verb} {self._url(key)}") from error

    def _make(self) -> Any:
        sdk = lazy("databricks.sdk", "databricks")
        core = lazy("databricks.sdk.core", "databricks")
        seconds = max(1, round(self._timeout))
        limits = {"http_timeout_seconds": seconds, "retry_timeout_seconds": seconds}
        return sdk.WorkspaceClient(config=core.Config(**{**limits, **dict(self._settings)}))


def _text(mark: object) -> str | None:
    return None if mark is None else str(mark)


def open_databricks_url(
    url: str, changes: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[DatabricksStore, str]:
    """Open what a ``dbfs:/...`` URL names.

    Args:
        url: The URL.
        changes: Options that take the place of those from the environment; see `StoreOptions`. Its
            `settings` are arguments of the SDK's configuration, such as "host" and "token".

    Raises:
        ConfigError: The URL is broken, or an option is not known.
        MissingExtraError: The SDK is not installed.
    """
    config = lazy("databricks.sdk.core", "databricks").Config
    path = "/" + url.partition(":")[2].strip("/")
    if path.startswith("/Volumes") and path.count("/") < 4:
        raise ConfigError(
            f"{url!r} names no volume; write it as dbfs:/Volumes/CATALOG/SCHEMA/VOLUME/PATH."
        )
    known = {item.name for item in config.attributes()} | parameters(config.__init__)
    options = StoreOptions.from_env("dbfs").updated(changes).checked(f"dbfs:{path}", known)
    return DatabricksStore(path, options.setting, options.timeout), ""
