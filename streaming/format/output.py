"""Where a writer's files go: what `out` means, and how a place is made ready."""

import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streaming.errors import ConfigError, OutputExistsError, StoreError
from streaming.format.index import get_index_basename
from streaming.storage import Store, join_key, open_store
from streaming.storage.store import find, part_path, translated
from streaming.storage.stores.local import LocalStore

__all__ = [
    "Out",
    "check_local",
    "clear_local",
    "clear_remote",
    "open_remote",
    "remove_if_empty",
    "split_out",
    "write_file",
    "write_new_file",
]

logger = logging.getLogger(__name__)

Out = str | os.PathLike[str] | tuple[str | os.PathLike[str] | None, str | os.PathLike[str]]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # Two letters or more: "C:/" is a drive.


def split_out(out: Out) -> tuple[Path | None, str | None]:
    """Local directory (None: a temporary one) and URL (None: there is none) of a writer's `out`."""
    parts = out if isinstance(out, (tuple, list)) else [out]
    if not all(part is None or isinstance(part, (str, os.PathLike)) for part in parts):
        raise ConfigError(f"`out` is a path, a URL or (local, remote), but not {out!r}.")
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ConfigError(f"`out` is a path, a URL or (local, remote), but not {out!r}.")
        local, remote = (None if part is None else os.fspath(part) for part in out)
        if remote is None:
            raise ConfigError(
                f"`out` is (local, remote), but remote is None. Give {local!r} alone."
            )
    else:
        if out is None:
            raise ConfigError("`out` is a path, a URL or (local, remote), but not None.")
        local, remote = os.fspath(out), None
        if _URL.match(local):
            local, remote = None, local
    if remote is not None and not _URL.match(remote):
        remote = os.path.expanduser(remote)
    for part in (local, remote):
        if part is not None and (not part.strip() or "\0" in part):
            # "" would be the current directory, and exist_ok=True would empty that.
            raise ConfigError(f"`out` names no directory: {out!r}. For the current one, say '.'.")
    return (None if local is None else Path(os.path.expanduser(local))), remote


def open_remote(
    remote: str, local: Path | None, options: Mapping[str, Any] | None = None
) -> tuple[Store, str] | None:
    """Open the store of a remote, unless it is the local directory itself.

    "Uploading" a file to itself would end with its removal.

    Args:
        remote: URL or path.
        local: The local directory, if one was named.
        options: How to reach the remote; see `open_store`.
    """
    store, prefix = open_store(remote, options)
    if isinstance(store, LocalStore) and local is not None:
        here, there = local.resolve(), (store.root / prefix).resolve()
        if here == there:
            store.close()
            return None
    return store, prefix


def check_local(local: Path, exist_ok: bool) -> None:
    """See whether the directory can be used, without changing it."""
    if local.exists() and not local.is_dir():
        raise OutputExistsError(f"{local} is a file; `out` must be a directory.")
    found = next(local.iterdir(), None) if local.exists() else None
    if found and not exist_ok:
        raise OutputExistsError(
            f"{local} is not empty: it has {found.name}. Choose another directory, or pass "
            "exist_ok=True to have everything in it deleted first."
        )


def clear_local(local: Path) -> None:
    """Make the directory, or empty it."""
    with translated(f"Can't make ready {local}"):
        local.mkdir(parents=True, exist_ok=True)
        found = list(local.iterdir())
        if found:
            logger.warning("Deleting what is in %s, because of exist_ok=True.", local)
        # The index first: if this is cut short, what is left must not look whole.
        for path in sorted(found, key=lambda path: path.name != get_index_basename()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def clear_remote(store: Store, prefix: str, url: str, exist_ok: bool) -> None:
    """See to it that no index of an older dataset stands beside new shards."""
    key = join_key(prefix, get_index_basename())
    if find(store, key) is None:
        return
    if not exist_ok:
        raise OutputExistsError(
            f"{url} has a dataset already. Choose another place, or pass exist_ok=True to have it "
            "replaced."
        )
    logger.warning("Replacing the dataset at %s, because of exist_ok=True.", url)
    store.delete(key)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that has its name only once it is whole."""
    part = part_path(path)
    try:
        with translated(f"Can't write {len(data)} bytes to {path}"):
            part.write_bytes(data)
            part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file whose name nobody has taken, and that has it only once it is whole.

    Raises:
        StoreError: It can't be written, or its name is taken: somebody else writes here, too, and
            a dataset would be made of the files of both.
    """
    part = part_path(path)
    try:
        with translated(f"Can't write {len(data)} bytes to {path}"):
            part.write_bytes(data)
            _give_name(part, path)
    finally:
        part.unlink(missing_ok=True)


def _give_name(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # Unlike a rename it replaces nothing.
        return
    except FileExistsError:
        is_taken = True
    except OSError:  # This file system has no second names for a file.
        is_taken = path.exists()
    if is_taken:
        raise StoreError(
            f"Can't write {path}, for it is there already. The directory was empty at first, so "
            "somebody else writes to it, too, such as another rank. Give each writer its own."
        )
    part.replace(path)


def remove_if_empty(path: Path) -> None:
    """Remove a directory from which all was uploaded, unless somebody put something there."""
    try:
        path.rmdir()
    except OSError:
        logger.info("%s stays: there is something else in it.", path)
