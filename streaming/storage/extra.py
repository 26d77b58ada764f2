"""What is neither a download nor an upload: listing, looking, waiting, deleting; by URL or path."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.errors import ConfigError, ObjectNotFoundError, StoreTimeoutError
from streaming.storage import ObjectInfo, Store, join_key, open_store
from streaming.storage.download import fetch
from streaming.storage.store import find
from streaming.storage.stores.local import LocalStore
from streaming.util.pretty import normalize_bytes, normalize_duration
from streaming.util.retrying import Retry
from streaming.util.waiting import wait_for_file_to_exist

__all__ = [
    "delete",
    "exists",
    "file_exists",
    "list_dataset_files",
    "list_objects",
    "normalize_local_path",
    "normalize_path",
    "smart_download_file",
    "stat",
    "wait_for",
    "wait_for_file_to_exist",
    "walk_dir",
    "walk_prefix",
]

Keep: TypeAlias = "str | re.Pattern[str] | Callable[[str], bool] | None"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@contextmanager
def _opened(place: str | os.PathLike[str]) -> Iterator[tuple[Store, str]]:
    store, prefix = open_store(place)
    try:
        yield store, prefix
    finally:
        store.close()


@contextmanager
def _opened_file(place: str | os.PathLike[str]) -> Iterator[tuple[Store, str]]:
    """A store and the key of one object in it."""
    text = os.fspath(place).rstrip("/")
    directory, slash, name = text.rpartition("/")
    if not name:
        raise ConfigError(f"{text!r} names no file.")
    with _opened(directory or slash or ".") as (store, prefix):
        yield store, join_key(prefix, name)


def stat(place: str | os.PathLike[str]) -> ObjectInfo:
    """Size and version mark of one object.

    Raises:
        ObjectNotFoundError: There is none.
    """
    with _opened_file(place) as (store, key):
        return store.stat(key)


def exists(place: str | os.PathLike[str]) -> bool:
    """Whether there is an object, or a regular file."""
    try:
        stat(place)
    except ObjectNotFoundError:
        return False
    return True


def delete(place: str | os.PathLike[str]) -> None:
    """Remove one object, or file; one that is not there is no error."""
    with _opened_file(place) as (store, key):
        store.delete(key)


def list_objects(
    place: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> Iterator[ObjectInfo]:
    """The objects below a directory, in the order of their keys, which are relative to it.

    Args:
        place: URL or path of the directory.
        options: How to reach it; see `open_store`.
    """
    store, prefix = open_store(place, options)
    try:
        cut = len(join_key(prefix, ""))
        for info in store.list(join_key(prefix, "")):
            yield ObjectInfo(info.key[cut:], info.size, info.etag)
    finally:
        store.close()


def wait_for(
    place: str | os.PathLike[str],
    timeout: float | str | None = DEFAULT_TIMEOUT,
    *,
    interval: float = 1.0,
    sleep: Callable[[float], object] = time.sleep,
) -> ObjectInfo:
    """Wait until there is an object.

    Args:
        place: Its URL or path.
        timeout: Seconds, or a text such as "2m". None: for ever.
        interval: Seconds between two looks.
        sleep: Waits.

    Raises:
        StoreTimeoutError: It did not come in time, or may not be seen.
    """
    limit = None if timeout is None else normalize_duration(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    with _opened_file(place) as (store, key):
        while True:
            found = find(store, key)
            if found is not None:
                return found
            if deadline is not None and time.monotonic() + interval > deadline:
                raise StoreTimeoutError(
                    f"{key} in {store!r} did not come within {limit:g} s, or may not be seen."
                )
            sleep(interval)


def walk_prefix(prefix: str) -> list[str]:
    """What lies below a directory, or has names that begin with a text.

    Args:
        prefix: Path or URL. A local directory stands for all below it; anything else is the
            beginning of names, and the result is relative to the last directory in it.

    Returns:
        Relative paths, sorted.
    """
    with _opened(prefix) as (store, key):
        if isinstance(store, LocalStore):
            if store.root.is_dir():
                return sorted(info.key for info in store.list())
            store = LocalStore(store.root.parent)
            return sorted(info.key for info in store.list(Path(prefix).name))
        if prefix.endswith("/") or not key:
            return _relative(store, join_key(key, "") if key else "")
        below = _relative(store, join_key(key, ""))
        if below:
            return below
        cut = len(key.rpartition("/")[0]) + 1 if "/" in key else 0
        return sorted(info.key[cut:] for info in store.list(key))


def walk_dir(root: str) -> list[str]:
    """All files below a directory, local or remote.

    Returns:
        Paths relative to it, sorted.

    Raises:
        ConfigError: A local `root` is no directory.
    """
    with _opened(root) as (store, key):
        if isinstance(store, LocalStore) and not store.root.is_dir():
            raise ConfigError(f"{root} is no directory.")
        return _relative(store, join_key(key, "") if key else "")


def _relative(store: Store, prefix: str) -> list[str]:
    return sorted(info.key[len(prefix) :] for info in store.list(prefix))


def list_dataset_files(
    *,
    local: str,
    remote: str | None = None,
    split: str | None = None,
    paths: Sequence[str] | None = None,
    keep: Keep = None,
) -> list[str]:
    """The files of a dataset.

    Args:
        local: Directory on this node.
        remote: Where they come from, if anywhere.
        split: Sub-directory of both.
        paths: Files, relative to these. None: all that lie in `remote`, or else in `local`.
        keep: Which of them: a pattern matched at the beginning of the path, or a predicate.

    Returns:
        Relative paths; sorted if they were listed, or in the order of `paths`.

    Raises:
        ConfigError: Of `paths`, some are neither all in `local` nor all in `remote`.
    """
    here = normalize_path(local, split)
    there = normalize_path(remote, split) if remote else None
    wanted = _predicate(keep)
    if paths is None:
        return [path for path in walk_dir(there or here) if wanted(path)]
    kept = [path for path in paths if wanted(path)]
    missing = [path for path in kept if not exists(normalize_path(here, path))]
    if missing and there is not None:
        missing = [path for path in kept if not exists(normalize_path(there, path))]
    if missing:
        raise ConfigError(
            f"Of {len(paths)} files, {len(kept) - len(missing)} are in {there or here}, "
            f"{len(missing)} are missing there, such as {missing[0]}, and "
            f"{len(paths) - len(kept)} were left out by `keep`."
        )
    return kept


def _predicate(keep: Keep) -> Callable[[str], bool]:
    if keep is None:
        return lambda path: True
    if isinstance(keep, (str, re.Pattern)):
        pattern = re.compile(keep)
        return lambda path: pattern.match(path) is not None
    return keep


def smart_download_file(
    *,
    remote: str | None,
    local: str,
    timeout: float | str | None = DEFAULT_TIMEOUT,
    retry: int = DEFAULT_RETRY,
    size: int | str | None = None,
    max_size: int | str | None = "200mb",
    hashes: Mapping[str, str] | None = None,
    check_hashes: str | Sequence[str] | None = None,
) -> int:
    """Download a file, unless it is there, and check it.

    Args:
        remote: URL or path. None, or the same as `local`: nothing to do.
        local: The file to become.
        timeout: Seconds without a byte after which an attempt counts as failed, or "2m". None: a
            day.
        retry: How often to try again.
        size: Bytes that it must have, or "2mb".
        max_size: Bytes that it may have at most. None: any.
        hashes: Digests by name, as far as known.
        check_hashes: Name of a hash, or several: the first whose digest is known is checked.

    Returns:
        Bytes of the file.

    Raises:
        ConfigError: Something else lies at `local`, the file is too large, or no digest is known.
        ShardCorruptError: It has another size or digest.
        StoreError: It can't be had.
    """
    wanted = None if size is None else normalize_bytes(size)
    most = None if max_size is None else normalize_bytes(max_size)
    digest = _choose_digest(hashes or {}, check_hashes)
    path = Path(local)
    _check_most(local, wanted, most)
    if remote is None or remote == local or path.is_file():
        return path.stat().st_size if path.exists() else 0
    if path.exists():
        raise ConfigError(f"{local} is there, and no regular file.")
    seconds = 86_400.0 if timeout is None else normalize_duration(timeout)
    options = {"timeout": seconds} if _SCHEME.match(remote) else None
    directory, slash, name = remote.rpartition("/")
    store, prefix = open_store(directory or slash or ".", options)
    try:
        key = join_key(prefix, name)
        if wanted is None and most is not None:
            wanted = store.stat(key).size
            _check_most(remote, wanted, most)
        return fetch(store, key, path, size=wanted, digest=digest, retry=Retry(1 + max(retry, 0)))
    finally:
        store.close()


def _check_most(what: str, size: int | None, most: int | None) -> None:
    if size is not None and most is not None and size > most:
        raise ConfigError(f"{what} has {size} bytes, and at most {most} are allowed.")


def _choose_digest(
    known: Mapping[str, str], wanted: str | Sequence[str] | None
) -> tuple[str, str] | None:
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if len(set(names)) < len(names):
        raise ConfigError(f"`check_hashes` names a hash twice: {names}.")
    for name in names:
        if name in known:
            return name, known[name]
    if names:
        raise ConfigError(
            f"None of the hashes {names} is known of the file, but only {sorted(known) or 'none'}."
        )
    return None


def file_exists(
    *, path: str, local: str, remote: str | None = None, split: str | None = None
) -> bool:
    """Whether a file of a dataset is on this node, or at its remote."""
    if exists(normalize_path(normalize_path(local, split), path)):
        return True
    return remote is not None and exists(normalize_path(normalize_path(remote, split), path))


def normalize_path(path: str, *parts: str | None) -> str:
    """A path or URL without slashes at its end, and parts added to it."""
    scheme = _SCHEME.match(path)
    kept = path.rstrip("/") or "/"
    if scheme is not None and scheme[0].lower() == "file:/":
        with _opened(path) as (store, _):
            assert isinstance(store, LocalStore)
            kept = str(store.root)
    more = [part.strip("/") for part in parts if part]
    return "/".join([kept.rstrip("/") if more else kept, *more])


def normalize_local_path(path: str, *parts: str | None) -> str:
    """The same for a path of this machine.

    Raises:
        ConfigError: It is a URL of another place.
    """
    found = normalize_path(path, *parts)
    if _SCHEME.match(found):
        raise ConfigError(f"{found!r} is no local path.")
    return found
