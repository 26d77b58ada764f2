"""Files of Alipan (Aliyun Drive), by AliPCS-Py. Not run against the service."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streaming.errors import ConfigError, ObjectNotFoundError, StoreError
from streaming.storage.guard import kept
from streaming.storage.options import SETTINGS, StoreOptions
from streaming.storage.store import ObjectInfo, check_key, check_prefix, join_key, translated
from streaming.storage.stores.failures import from_any, from_status
from streaming.util.importing import lazy

__all__ = ["AlipanStore", "open_alipan_url"]

_STATUS = re.compile(r"status_code: (\d{3})")
_ENCRYPTIONS = ("Simple", "ChaCha20", "AES256CBC")


class AlipanStore:
    """Objects below a directory of a drive. Plain data, as `ObjectStore` is.

    Args:
        root: The directory.
        settings: "refresh_token", and "encrypt_password" and "encrypt_type" if files are encrypted.
    """

    def __init__(self, root: str, settings: Mapping[str, str]) -> None:
        self.root = root
        self._settings = tuple(sorted(settings.items()))

    def __repr__(self) -> str:
        return f"AlipanStore('alipan://{self.root}')"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        with self._using("read", key) as api:
            found = self._find(api, key)
            if not found.size or (stop is not None and stop <= start):
                return b""  # The client takes no size for 0.
            stream = api.file_stream(found.file_id, **self._password())
            if self._password():  # Two of the three ciphers can only be read from the beginning.
                return bytes(stream.read())[start:stop]
            if start >= found.size:
                return b""
            stream.seek(start)
            end = found.size if stop is None else min(stop, found.size)
            return bytes(stream.read(end - start))

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        with self._using("read", key) as api:
            found = self._find(api, key)
            pieces: Iterator[bytes] = iter(())
            if found.size:
                pieces = api.file_stream(found.file_id, **self._password()).read_iter()
            with translated(f"Can't write {path}"):
                file = path.open("xb")
            with file:
                for piece in pieces:
                    with translated(f"Can't write {path}"):
                        file.write(piece)

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        target = posixpath.join(self.root, check_key(key))
        with translated(f"Can't read {path}"):
            path.stat()
        upload = lazy("alipcs_py.commands.upload", "alipan")
        kinds = lazy("alipcs_py.common.io", "alipan").EncryptType
        settings = dict(self._settings)
        kind = getattr(kinds, settings["encrypt_type"]) if "encrypt_type" in settings else kinds.No
        with self._using("write", key) as api:
            upload.upload_file(
                api,
                (str(path), target),
                "overwrite",
                encrypt_password=settings.get("encrypt_password", "").encode(),
                encrypt_type=kind,
            )

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        with self._using("look at", key) as api:
            found = self._find(api, key)
            info = _describe(key, found)
            if not self._password() or not found.size:
                return info
            # What is stored is longer than what was put, and one cipher does not say by how much.
            pieces = api.file_stream(found.file_id, **self._password()).read_iter()
            return ObjectInfo(key, sum(map(len, pieces)), info.etag)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        directory = check_prefix(prefix).rpartition("/")[0]
        with self._using("list", directory) as api:
            start = api.get_file(remotepath=self._path(directory))
            found = [] if start is None else list(self._walk(api, start.file_id, directory))
        return iter(sorted((i for i in found if i.key.startswith(prefix)), key=lambda i: i.key))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        check_key(key)
        with self._using("delete", key) as api:
            found = api.get_file(remotepath=self._path(key))
            if found is not None and found.is_file:
                api.remove(found.file_id)

    def close(self) -> None:
        """Nothing: connections are the process's, which keeps them for the next store like this."""

    def _walk(self, api: Any, file_id: str, prefix: str) -> Iterator[ObjectInfo]:
        for item in api.list_iter(file_id):
            key = join_key(prefix, item.name)
            if item.is_dir:
                yield from self._walk(api, item.file_id, key)
            else:
                yield _describe(key, item)

    def _find(self, api: Any, key: str) -> Any:
        found = api.get_file(remotepath=self._path(check_key(key)))
        if found is None or not found.is_file:
            raise ObjectNotFoundError(f"There is no {key} in {self!r}.")
        return found

    def _path(self, key: str) -> str:
        return posixpath.join(self.root, key).rstrip("/") or "/"

    def _password(self) -> dict[str, bytes]:
        password = dict(self._settings).get("encrypt_password")
        return {"encrypt_password": password.encode()} if password else {}

    @contextmanager
    def _using(self, verb: str, key: str) -> Iterator[Any]:
        api = kept(("alipan", self._settings), self._make)
        try:
            yield api
        except StoreError:
            raise
        except Exception as error:
            what = f"Can't {verb} {key} in {self!r}"
            if status := _STATUS.search(str(error)):  # Only the text has it.
                raise from_status(int(status[1]), what) from error
            raise from_any(error, what) from error

    def _make(self) -> Any:
        module = lazy("alipcs_py.alipcs.api", "alipan")
        return module.AliPCSApi(dict(self._settings)["refresh_token"])


def _describe(key: str, item: Any) -> ObjectInfo:
    digests = item.rapid_upload_info
    return ObjectInfo(key, item.size or 0, digests and digests.content_hash)


def open_alipan_url(
    url: str, changes: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[AlipanStore, str]:
    """Open what an ``alipan:///...`` URL names.

    Args:
        url: The URL, without a host.
        changes: Options that take the place of those from the environment; see `StoreOptions`.

    Raises:
        ConfigError: The URL has a host, there is no token, or a setting is not known.
        MissingExtraError: The package is not installed.
    """
    lazy("alipcs_py", "alipan")
    host, _, path = url.partition("://")[2].partition("/")
    if host:
        raise ConfigError(f"{url!r} names a host; write it as alipan:///PATH.")
    options = StoreOptions.from_env("alipan").updated(changes)
    settings = options.checked("alipan://", SETTINGS["alipan"]).setting
    if "refresh_token" not in settings:
        raise ConfigError("alipan:// URLs need a token: set ALIPAN_WEB_REFRESH_TOKEN.")
    kind = settings.get("encrypt_type", "Simple")
    if kind not in _ENCRYPTIONS:
        raise ConfigError(
            f"ALIPAN_ENCRYPT_TYPE is {kind!r}, but must be one of {', '.join(_ENCRYPTIONS)}."
        )
    return AlipanStore("/" + path.strip("/"), settings), ""
