"""Plain files below a directory."""

import os
import shutil
from collections.abc import Iterator, Mapping
from errno import ELOOP, ENOENT
from operator import itemgetter
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any
from urllib.parse import unquote

from streaming.errors import ConfigError, ObjectNotFoundError
from streaming.storage.options import StoreOptions, check_unused
from streaming.storage.store import (
    ObjectInfo,
    check_key,
    check_prefix,
    is_part,
    part_path,
    translated,
)

__all__ = ["LocalStore", "open_file_url"]


class LocalStore:
    """The files below a directory, by their relative paths.

    Links are followed, also to outside of it. Directories come into being when they are needed.

    Args:
        root: The directory; it need not exist.

    Raises:
        ConfigError: No path can be like that.
    """

    def __init__(self, root: Path) -> None:
        if "\0" in str(root):
            raise ConfigError(f"{str(root)!r} can't be a path: it holds a NUL.")
        self.root = root

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        size = self.stat(key).size
        stop = size if stop is None else min(stop, size)
        path = self.root / key
        with translated(f"Can't read {path}"), path.open("rb") as file:
            file.seek(start)
            return file.read(max(stop - start, 0))

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        size = self.stat(key).size
        with translated(f"Can't copy {self.root / key} ({size} bytes) to {path}"):
            shutil.copyfile(self.root / key, path)

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        target = self.root / check_key(key)
        part = part_path(target)
        with translated(f"Can't read {path}"):
            size = path.stat().st_size
        with translated(f"Can't copy {path} ({size} bytes) to {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(path, part)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        path = self.root / check_key(key)
        with translated(f"Can't read {path}"):
            found = path.stat()
        if not S_ISREG(found.st_mode):  # A directory, or a pipe, which would block for ever.
            raise ObjectNotFoundError(f"Can't read {path}: it is not a regular file.")
        return _describe(key, found)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        directory, slash, _ = check_prefix(prefix).rpartition("/")
        return self._walk(directory + slash, prefix, frozenset())

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        path = self.root / check_key(key)
        with translated(f"Can't delete {path}"):
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of connections: there are none."""

    def _walk(
        self, directory: str, prefix: str, above: frozenset[tuple[int, int]]
    ) -> Iterator[ObjectInfo]:
        """List a directory ("" or with a slash at its end) that lies in those `above`."""
        path = self.root / directory
        found: list[tuple[str, os.stat_result]] = []
        with translated(f"Can't list {path}"):
            try:
                here = path.stat()
                entries = list(os.scandir(path))
            except (FileNotFoundError, NotADirectoryError):
                return
            for entry in entries:
                try:
                    about = entry.stat()
                except OSError as error:
                    if error.errno in (ENOENT, ELOOP):  # Gone by now, or a link to nothing.
                        continue
                    raise
                # With its slash a directory sorts as the keys below it do: "a.b" < "a/b" < "ab".
                slash = "/" if S_ISDIR(about.st_mode) else ""
                found.append((directory + entry.name + slash, about))
        mark = (here.st_dev, here.st_ino)
        if mark in above:  # A link leads back here.
            return
        for key, about in sorted(found, key=itemgetter(0)):
            if S_ISDIR(about.st_mode) and (key.startswith(prefix) or prefix.startswith(key)):
                yield from self._walk(key, prefix, above | {mark})
            elif S_ISREG(about.st_mode) and key.startswith(prefix) and not is_part(key):
                yield _describe(key, about)


def _describe(key: str, about: os.stat_result) -> ObjectInfo:
    etag = f"{about.st_ino:x}-{about.st_mtime_ns:x}-{about.st_size:x}"
    return ObjectInfo(key, about.st_size, etag)


def open_file_url(
    url: str, options: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[LocalStore, str]:
    """Open what a ``file://`` URL names. Blanks and other characters may be escaped or not.

    Args:
        url: The URL.
        options: Without effect: there is nothing to set.

    Raises:
        ConfigError: It names another host, or no absolute path; or an option is none of any store.
    """
    check_unused(url, options)
    rest = url.partition(":")[2]  # Not urlsplit: "?" and "#" are characters of a path as others.
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host.lower() not in ("", "localhost") or not path:
        raise ConfigError(
            f"A file URL holds an absolute path of this machine, as in file:///data/train, but "
            f"{url!r} has the host {host!r} and the path {path!r}."
        )
    return LocalStore(Path(unquote(path, errors="surrogateescape"))), ""
