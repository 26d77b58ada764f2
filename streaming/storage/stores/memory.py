"""Objects in a dict."""

import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from streaming.errors import ObjectNotFoundError
from streaming.storage.options import StoreOptions, check_unused
from streaming.storage.store import ObjectInfo, check_key, check_prefix, translated

__all__ = ["MemoryStore", "open_memory_url"]


class MemoryStore:
    """Objects in the memory of this process, for tests and for things made on the spot.

    Args:
        objects: Keys, and their bytes, to begin with.
    """

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self._objects = {check_key(key): bytes(value) for key, value in (objects or {}).items()}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "MemoryStore()"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        with self._lock:
            try:
                return self._objects[check_key(key)][start:stop]
            except KeyError:
                raise ObjectNotFoundError(f"There is no object {key!r} in {self!r}.") from None

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        value = self.read(key)
        with translated(f"Can't write {path} ({len(value)} bytes)"):
            path.write_bytes(value)

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        check_key(key)
        with translated(f"Can't read {path}"):
            value = path.read_bytes()
        with self._lock:
            self._objects[key] = value

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        return _describe(key, self.read(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        check_prefix(prefix)
        with self._lock:
            found = sorted(item for item in self._objects.items() if item[0].startswith(prefix))
        return (_describe(key, value) for key, value in found)

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        with self._lock:
            self._objects.pop(check_key(key), None)

    def close(self) -> None:
        """Let go of connections: there are none."""


def open_memory_url(
    url: str, options: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[MemoryStore, str]:
    """Open what a ``memory://NAME/PATH`` URL names: the store NAME of this process.

    Args:
        url: The URL.
        options: Without effect: there is nothing to set.

    Raises:
        ConfigError: An option is none of any store.
    """
    check_unused(url, options)
    name, _, path = url.partition("://")[2].partition("/")
    path = path.strip("/")
    return _named(name), check_key(path) if path else ""


@cache
def _named(name: str) -> MemoryStore:
    return MemoryStore()


def _describe(key: str, value: bytes) -> ObjectInfo:
    return ObjectInfo(key, len(value), xxhash.xxh3_64_hexdigest(value))
