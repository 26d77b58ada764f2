"""One index for datasets that were written side by side, below one directory."""

import inspect
import json
import logging
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.errors import ConfigError, IndexFormatError, ObjectNotFoundError
from streaming.format.index import VERSION, get_index_basename, parse_index
from streaming.format.output import Out, split_out, write_file
from streaming.storage import Store, join_key, open_store
from streaming.storage.store import find
from streaming.storage.upload import publish
from streaming.util.retrying import Retry

__all__ = ["merge_index"]

logger = logging.getLogger(__name__)

_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
_WANTED = (
    "It is merge_index(out) for the indexes below `out`, or merge_index(index_file_urls, out) for "
    "a list of indexes, each a path, a URL or (local, remote). `out` is a directory, a URL or "
    "(local, remote). Both forms take `keep_local`, `download_timeout` and `storage_options`."
)


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write one index for several datasets, without touching their shards.

    In two forms: ``merge_index(out)`` finds the indexes in all folders below `out`, and
    ``merge_index(index_file_urls, out)`` takes those it is given. The order of samples is that of
    the list, or of the folders' names as text: "10" comes before "2". An index that is there is
    replaced.

    Args:
        args: `index_file_urls` (only in the second form), `out`, `keep_local`, `download_timeout`,
            `storage_options`, in this order, or by name. `index_file_urls` has paths, URLs or
            (local, remote), of which the local one is read if it is there. `out` is the directory
            above all of them, a URL, or (local, remote). Without `keep_local` (True) the local
            index is removed after it was uploaded. `download_timeout` (60) is in seconds.
            `storage_options` say how URLs are reached, as for `Stream`.
        kwargs: The same.

    Raises:
        ConfigError: The arguments are none of these forms, or there is nothing to merge.
        ObjectNotFoundError: An index of the list is not there.
        IndexFormatError: An index is broken, or two have the same shard.
        StoreError: An index can't be read or written.
    """
    call = _Call.parse(args, kwargs)
    local, remote = split_out(call.out)
    if remote is None and not call.keep_local:
        raise ConfigError("`keep_local=False` would remove the only index: `out` has no remote.")
    places = [os.fspath(place) for place in (local, remote) if place is not None]
    if call.urls is None:
        parts = _find(places, call.reach)
    else:
        parts = [_read_listed(url, places, call.reach) for url in call.urls]
    data = _merge(parts, where=f"made of {len(parts)} indexes for {places[-1]}")
    with _directory(local) as directory:
        path = directory / get_index_basename()
        write_file(path, data)
        if remote is not None:
            with _opened(remote, call.reach) as (store, prefix):
                key = join_key(prefix, path.name)
                publish(store, path, key, retry=Retry(DEFAULT_RETRY))
                if local is not None and not call.keep_local:
                    _remove_uploaded(local, [part.prefix for part in parts], store, prefix)


@dataclass(frozen=True)
class _Call:
    """The arguments of `merge_index`; `urls` is None in the form that finds the indexes."""

    urls: Sequence[Any] | None
    out: Out
    keep_local: bool
    timeout: float
    storage_options: Mapping[str, Any] | None

    @property
    def reach(self) -> Mapping[str, Any]:
        """How URLs are reached."""
        return {"timeout": self.timeout, **(self.storage_options or {})}

    @classmethod
    def parse(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "_Call":
        def listed(
            index_file_urls: Any,
            out: Any,
            keep_local: bool = True,
            download_timeout: float = DEFAULT_TIMEOUT,
            storage_options: Mapping[str, Any] | None = None,
        ) -> _Call:
            return cls(index_file_urls, out, keep_local, download_timeout, storage_options)

        def found(
            out: Any,
            keep_local: bool = True,
            download_timeout: float = DEFAULT_TIMEOUT,
            storage_options: Mapping[str, Any] | None = None,
        ) -> _Call:
            return cls(None, out, keep_local, download_timeout, storage_options)

        has_list = "index_file_urls" in kwargs or (
            bool(args) and ("out" in kwargs or (len(args) > 1 and not isinstance(args[1], bool)))
        )
        form = listed if has_list else found
        try:
            inspect.signature(form).bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(f"`merge_index` can't be called so: {error}. {_WANTED}") from None
        call = form(*args, **kwargs)
        call._check()
        return call

    def _check(self) -> None:
        if not _is_place(self.out):
            raise ConfigError(f"`out` of merge_index can't be {self.out!r}. {_WANTED}")
        if not isinstance(self.keep_local, bool):
            raise ConfigError(f"`keep_local` must be True or False: {self.keep_local!r}. {_WANTED}")
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise ConfigError(f"`storage_options` are names and values. {_WANTED}")
        if self.urls is None:
            return
        if isinstance(self.urls, str | bytes) or not isinstance(self.urls, Sequence):
            raise ConfigError(f"`index_file_urls` must be a list: {self.urls!r}. {_WANTED}")
        if not self.urls:
            raise ConfigError(f"`index_file_urls` is empty: there is nothing to merge. {_WANTED}")
        for url in self.urls:
            if not _is_place(url):
                raise ConfigError(f"{url!r} in `index_file_urls` is no index. {_WANTED}")


@dataclass(frozen=True)
class _Part:
    """One of the indexes.

    Attributes:
        prefix: Its directory, relative to that of the merged index; "" is the same.
        where: Its path or URL.
        data: The document.
    """

    prefix: str
    where: str
    data: bytes


def _is_place(value: Any) -> bool:
    """Whether it is a path, a URL or (local, remote)."""
    if isinstance(value, tuple | list):
        return len(value) == 2 and all(isinstance(part, str | os.PathLike) for part in value)
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))


def _find(places: Sequence[str], reach: Mapping[str, Any]) -> list[_Part]:
    """The indexes below the local directory and below the remote: if as many, the local ones."""
    found = [_list(place, reach) for place in places]
    prefixes, place = found[-1], places[-1]
    if len(found) == 2 and len(found[0]) == len(found[1]):
        prefixes, place = found[0], places[0]
    if len(found) == 2 and found[0] != found[1]:
        logger.warning(
            "%s has %d indexes, and %s has %d, or under other names; those of %s are merged.",
            places[0],
            len(found[0]),
            places[1],
            len(found[1]),
            place,
        )
    if not prefixes:
        raise ConfigError(
            f"There is no {get_index_basename()} in any folder below {' or '.join(places)}, so "
            f"there is nothing to merge. {_WANTED}"
        )
    with _opened(place, reach) as (store, prefix):
        keys = [posixpath.join(name, get_index_basename()) for name in prefixes]
        return [
            _Part(name, f"{place}/{key}", store.read(join_key(prefix, key)))
            for name, key in zip(prefixes, keys, strict=True)
        ]


def _list(place: str, reach: Mapping[str, Any]) -> list[str]:
    """The folders below a place, at any depth, that have an index; in the order of their names."""
    with _opened(place, reach) as (store, prefix):
        root = f"{prefix}/" if prefix else ""
        keys = [item.key.removeprefix(root) for item in store.list(root)]
    tail = f"/{get_index_basename()}"
    return sorted(key.removesuffix(tail) for key in keys if key.endswith(tail))


def _read_listed(url: Any, places: Sequence[str], reach: Mapping[str, Any]) -> _Part:
    """An index that was named."""
    choices = [_tidy(each) for each in (url if isinstance(url, tuple | list) else (url,))]
    for choice in choices:
        directory, name = posixpath.split(choice)
        try:
            with _opened(directory or ".", reach) as (store, prefix):
                data = store.read(join_key(prefix, name))
        except ObjectNotFoundError:
            if choice is choices[-1]:
                raise
            continue
        return _Part(_relative(directory, places), choice, data)
    raise AssertionError("the last one returned or raised")


def _tidy(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url).strip().rstrip("/")
    return text if _is_url(text) else os.path.expanduser(text)


def _relative(directory: str, places: Sequence[str]) -> str:
    """The directory of an index, seen from the place of the merged one; else its last name."""
    for place in places:
        root = place.rstrip("/")
        if not _is_url(directory) and not _is_url(root):
            root, directory = os.path.abspath(root), os.path.abspath(directory)
        if directory == root:
            return ""
        if directory.startswith(root + "/"):
            return directory.removeprefix(root + "/")
    return posixpath.basename(directory)


def _is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text) is not None


def _merge(parts: Sequence[_Part], where: str) -> bytes:
    """The document of a merged index. The same index twice counts once."""
    shards = []
    homes: dict[str, str] = {}  # name of a shard's file: the index that has it
    for part in {(part.prefix, part.where): part for part in parts}.values():
        parse_index(part.data, part.where)
        for entry in json.loads(part.data)["shards"]:
            for key in _FILES:
                if entry.get(key) is not None:
                    name = posixpath.join(part.prefix, entry[key]["basename"])
                    entry[key] = {**entry[key], "basename": name}
            shards.append(entry)
            name = entry["raw_data"]["basename"]
            if homes.setdefault(name, part.where) != part.where:
                raise IndexFormatError(
                    f"{homes[name]} and {part.where} both have the shard {name}. One of them is "
                    f"made of others, it seems: give a list of the indexes to merge."
                )
    # Not sorted, as in the predecessor's merged indexes.
    data = json.dumps({"version": VERSION, "shards": shards}).encode()
    parse_index(data, where)
    return data


def _remove_uploaded(local: Path, prefixes: Sequence[str], store: Store, prefix: str) -> None:
    """Remove the indexes of the local directory that are in the store too, and what is empty."""
    for name in ["", *prefixes]:
        path = local / name / get_index_basename()
        key = join_key(prefix, posixpath.join(name, path.name))
        found = find(store, key) if path.is_file() else None
        if found is not None and found.size == path.stat().st_size:
            path.unlink()
    for folder in sorted({local, *(local / name for name in prefixes)}, reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _directory(local: Path | None) -> Iterator[Path]:
    """The local directory, or one for now."""
    if local is not None:
        local.mkdir(parents=True, exist_ok=True)
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="streaming-") as temporary:
        yield Path(temporary)


@contextmanager
def _opened(place: str, reach: Mapping[str, Any]) -> Iterator[tuple[Store, str]]:
    store, prefix = open_store(place, reach)
    try:
        yield store, prefix
    finally:
        store.close()
