"""Whose files a directory holds, as `source.json` says, and whether their source is the same."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from streaming.errors import CacheConflictError, CacheError, StoreError
from streaming.format.index import FileInfo, get_index_basename
from streaming.hashing import get_hash
from streaming.shared.directory import CacheDirectory, state_errors, state_path
from streaming.shared.files import Source, VersionedSource
from streaming.shared.lock import FileLock
from streaming.shared.sharing import make_directory, write_whole

__all__ = [
    "Origin",
    "changed",
    "check_origin",
    "check_unchanged",
    "identity_of",
    "locked",
    "mark_of",
    "origin_of",
    "public_address",
    "restore_origin",
    "write_origin",
]

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0  # how long what was found out of a source is believed


class Origin(msgspec.Struct, kw_only=True):
    """The content of `source.json`: whose files a directory holds.

    Attributes:
        remote: Address of the index.
        index: Its digest.
        version: Of this file.
        is_made: Whether the index was made here: it lies in the state, not in the directory.
        mark: What its source calls the version of the index; None if it was not asked.
    """

    remote: str
    index: str
    version: int = 1
    is_made: bool = False
    mark: str | None = None


def identity_of(source: Source) -> str:
    """The address of the source's index, without a password, which belongs in no file."""
    return public_address(source.url(get_index_basename()))


def public_address(url: str) -> str:
    """A URL without a password, or a path as an absolute one."""
    parts = urlsplit(url)
    if not parts.scheme:
        return os.path.abspath(url)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host))


def origin_of(directory: Path) -> Origin | None:
    """Whose files a directory holds; None if nobody said so.

    Raises:
        CacheError: It can't be read.
    """
    path = state_path(directory) / "source.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Origin)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CacheError(
            f"Whose files {directory} holds can't be read from {path}: {error}. Remove that file, "
            f"if they come from the source that is asked for."
        ) from error


def write_origin(directory: Path, origin: Origin) -> None:
    """Say whose files the directory holds. For the holder of the lock."""
    with state_errors(directory):
        write_whole(state_path(directory) / "source.json", msgspec.json.encode(origin))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock under which a directory's index and origin change."""
    lock = FileLock(state_path(directory) / "index.lock")
    with state_errors(directory):
        make_directory(lock.path.parent)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check_unchanged(directory: CacheDirectory, source: Source) -> None:
    """Make sure that a source still has the dataset whose shards a directory holds.

    To be called before more of it is fetched. Asks the source once in ten seconds and node.

    Args:
        directory: The directory.
        source: Where its files come from.

    Raises:
        CacheConflictError: The index at the source is another one.
    """
    if not isinstance(source, VersionedSource):
        return
    checked = state_path(directory.path) / "checked"
    if _is_recent(checked):
        return
    with locked(directory.path):
        if _is_recent(checked):
            return  # Another process was quicker.
        owner = origin_of(directory.path)
        if owner is None or owner.is_made or owner.remote != identity_of(source):
            return
        if owner.index != directory.digest and not directory.is_chosen:
            raise CacheConflictError(changed(directory.path, owner.remote))
        mark = mark_of(source)
        if mark is not None and mark != owner.mark:
            _check_index(directory, source, owner, mark)
        with state_errors(directory.path):
            write_whole(checked, b"")


def _is_recent(path: Path) -> bool:
    try:
        age = time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return False
    return 0 <= age < _CHECK_SECONDS  # Below 0 if the clock was set back.


def _check_index(directory: CacheDirectory, source: Source, owner: Origin, mark: str) -> None:
    """Compare the index at the source with the one that is here. Its lock is held."""
    path = state_path(directory.path) / "index.now"
    path.unlink(missing_ok=True)  # Of one who was killed.
    try:
        source.fetch(FileInfo(get_index_basename(), -1, {}), path)
        digest = get_hash("xxh3_128", path.read_bytes())
    finally:
        path.unlink(missing_ok=True)
    if digest != owner.index:
        if owner.mark is not None:
            raise CacheConflictError(changed(directory.path, owner.remote))
        logger.warning(
            "%s is not the index that was put into %s by hand. Shards that are missing there are "
            "fetched all the same; if they are of another version of the dataset, remove the "
            "directory.",
            owner.remote,
            directory.path,
        )
    owner.mark = mark
    write_origin(directory.path, owner)


def mark_of(source: Source) -> str | None:
    """What a source calls the version of its index; None if it can't say."""
    if not isinstance(source, VersionedSource):
        return None
    try:
        return source.version(get_index_basename())
    except StoreError as error:  # What is wrong shows when something is fetched.
        logger.debug("The version of %s is unknown: %s", identity_of(source), error)
        return None


def check_origin(directory: CacheDirectory, source: Source) -> None:
    """See that a directory holds files of a source, if anybody said whose it holds.

    Raises:
        CacheConflictError: It was removed under this run, and others have put theirs there since.
    """
    owner, remote = origin_of(directory.path), identity_of(source)
    if owner is None or owner.is_made:
        return
    if owner.remote != remote:
        raise CacheConflictError(
            f"{directory.path} was removed under this run, which reads {remote}, and holds files "
            f"of {owner.remote} now. Nothing is mixed: go on from a state, with another `local`."
        )
    if owner.index != directory.digest and not directory.is_chosen:
        raise CacheConflictError(changed(directory.path, remote))


def restore_origin(directory: CacheDirectory, source: Source | None) -> None:
    """Say again whose files a directory holds, whose state was removed under a run.

    Raises:
        CacheConflictError: As for `check_origin`.
    """
    if source is None:
        return
    with locked(directory.path):
        check_origin(directory, source)
        if origin_of(directory.path) is None:
            origin = Origin(remote=identity_of(source), index=directory.digest, mark="")
            write_origin(directory.path, origin)


def changed(directory: Path, remote: str) -> str:
    """What to say when a source has another dataset than the one in a directory."""
    return (
        f"{remote} was replaced since shards were fetched to {directory}, which holds some of the "
        f"dataset as it was before. Nothing is mixed: remove that directory, or give another "
        f"`local`, to go on with what is there now."
    )
