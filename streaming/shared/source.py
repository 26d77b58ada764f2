"""Which directory holds the files of a source on this node, and its index, fetched once a node."""

import errno
import itertools
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from streaming.errors import (
    CacheConflictError,
    CacheError,
    IndexFormatError,
    MissingFileError,
    from_os_error,
)
from streaming.format.columns import dump_columns, load_columns
from streaming.format.index import FileInfo, Index, get_index_basename, parse_index
from streaming.hashing import get_hash
from streaming.shared.directory import (
    CacheDirectory,
    is_filled,
    is_seen_by_all,
    state_errors,
    state_path,
    sweep_parts,
)
from streaming.shared.files import Source, replacing, target_of_part
from streaming.shared.origin import (
    Origin,
    changed,
    identity_of,
    locked,
    mark_of,
    origin_of,
    public_address,
    write_origin,
)
from streaming.shared.sharing import may_change, write_whole

__all__ = ["has_made_index", "obtain_index", "obtain_made_index", "public_address"]

logger = logging.getLogger(__name__)

_LARGE_INDEX = 1 << 19  # bytes; from here on a copy saves more than its file costs


def obtain_index(local: Path, source: Source | None) -> tuple[Index, CacheDirectory]:
    """Get the index of a dataset, from the local directory or else from its source.

    Any number of processes may ask at once: one fetches, the others find it. An index that is
    there is used as it is; one that is broken is fetched again if there is a source.

    Args:
        local: The directory that the files shall be in. Without a source nothing is written to it.
        source: Where files come from; None if all are there.

    Returns:
        The index, and the directory in which its files are: `local`, or a folder in it if `local`
        holds the files of another source.

    Raises:
        MissingFileError: There is no index, and no source.
        IndexFormatError: The index is broken, also at the source.
        CacheConflictError: `local` holds another source, and no folder can be made in it.
        CacheError: The directory can't be written or locked.
        StoreError: The source failed.
    """
    local = Path(os.path.abspath(local))
    if source is None:
        return _load(local)
    remote = identity_of(source)
    return _in_own_directory(local, remote, lambda directory: _obtain(directory, source, remote))


def obtain_made_index(
    local: Path, identity: str, digest: str, make: Callable[[Path], Index]
) -> tuple[Index, CacheDirectory]:
    """Get the index of data that has none. One process of a node at a time makes one.

    Args:
        local: The directory for files of the data, and for what is known of them.
        identity: What tells the data from others.
        digest: What tells their state from others.
        make: Makes the index, for the directory that it is given; may find there what it left.

    Returns:
        The index, and the directory: `local`, or a folder in it if `local` holds other files.

    Raises:
        CacheConflictError: `local` holds another source, and no folder can be made in it.
        CacheError: The directory can't be written or locked.
        StreamingError: Whatever `make` raises.
    """

    def obtain(directory: Path) -> tuple[Index, CacheDirectory] | None:
        if not _may_fill(directory):
            with state_errors(directory):
                raise PermissionError(errno.EACCES, "this user may not write there", directory)
        with locked(directory):
            owner = origin_of(directory)
            if owner is not None and owner.remote != identity and not _is_vacant(directory):
                return None
            index = make(directory)
            if owner is None or (owner.remote, owner.index) != (identity, digest):
                write_origin(directory, Origin(remote=identity, index=digest, is_made=True))
        return index, CacheDirectory(directory, digest, is_made=True)

    return _in_own_directory(Path(os.path.abspath(local)), identity, obtain)


def has_made_index(local: Path) -> bool:
    """Whether a directory has files of data without an index, by `obtain_made_index`."""
    try:
        owner = origin_of(Path(os.path.abspath(local)))
    except CacheError as error:
        if _is_forbidden(error):
            return False  # Another user's, who lets nobody look: ours will go elsewhere.
        raise
    return owner is not None and owner.is_made


def _in_own_directory(
    local: Path, remote: str, obtain: Callable[[Path], tuple[Index, CacheDirectory] | None]
) -> tuple[Index, CacheDirectory]:
    """What can be obtained in a directory; in a folder, if that is another source's or user's."""
    try:
        return _in_source_directory(local, remote, obtain)
    except CacheError as error:
        if not _is_forbidden(error):
            raise
        refused = error
    name = f"user-{os.getuid()}"
    for folder in (local / name, local.with_name(f"{local.name}-{name}")):
        try:
            found = _in_source_directory(folder, remote, obtain)
        except CacheError as error:
            if not _is_forbidden(error):
                raise
            continue
        logger.warning(
            "%s can't be written by user %d, whose files go to %s. To share the directory, let a "
            "group write to it: chmod g+ws.",
            local,
            os.getuid(),
            folder,
        )
        return found
    try:
        if isinstance(refused, _PartlyFilledError):
            return refused.found
        raise refused
    finally:
        del refused  # It has this frame, and those of all who called: a cycle if it stayed here.


def _in_source_directory(
    local: Path, remote: str, obtain: Callable[[Path], tuple[Index, CacheDirectory] | None]
) -> tuple[Index, CacheDirectory]:
    """The same for directories that this user may write, or that are whole."""
    found = obtain(local)
    if found is not None:
        return found
    folder = local / get_hash("xxh3_64", remote.encode())
    logger.info("%s holds files of another source than %s, which go to %s.", local, remote, folder)
    try:
        found = obtain(folder)
    except CacheError as error:
        raise CacheConflictError(
            f"{local} holds files of another source than {remote}, and there can be no folder for "
            f"the latter in it: {error} Give another `local`."
        ) from error
    if found is None:
        raise CacheConflictError(
            f"{folder}, which is named after {remote}, holds files of another source. Give another "
            f"`local`, or remove the folder."
        )
    return found


def _obtain(directory: Path, source: Source, remote: str) -> tuple[Index, CacheDirectory] | None:
    """The index, in this directory; None if the directory is another source's."""
    owner = origin_of(directory)
    if not _may_fill(directory):
        return _obtain_as_it_is(directory, owner, remote)
    if owner is not None and owner.remote == remote:
        try:
            index, found = _load(directory)
        except (MissingFileError, IndexFormatError):
            pass  # Whoever gets the lock first sees to it.
        else:
            sweep_parts(found, index)
            return index, found
    try:
        with locked(directory):
            owner = origin_of(directory)
            if owner is not None and owner.remote != remote and not _is_vacant(directory):
                return None
            return _load_or_fetch(directory, source, remote)
    except CacheError:
        if owner is None and (directory / get_index_basename()).exists():
            return _load(directory)  # Read-only, and filled by somebody else: used as it is.
        raise


class _PartlyFilledError(CacheError):
    """Shards are missing in a directory that can't be written. What there is can be read."""

    def __init__(self, directory: Path, found: tuple[Index, CacheDirectory]) -> None:
        super().__init__(f"Shards are missing in {directory}, which this user may not write.")
        self.found = found


def _obtain_as_it_is(
    directory: Path, owner: Origin | None, remote: str
) -> tuple[Index, CacheDirectory] | None:
    """The index of a directory that this user can't write; None if it is another source's."""
    if owner is not None and owner.remote != remote:
        return None
    refused = PermissionError(errno.EACCES, "this user may not write there", str(directory))
    try:
        found = _load(directory)
    except (MissingFileError, IndexFormatError):
        with state_errors(directory):
            raise refused from None
    if not is_filled(found[1], found[0]):
        raise _PartlyFilledError(directory, found) from refused
    return found


def _may_fill(directory: Path) -> bool:
    return may_change(directory) and may_change(state_path(directory))


def _is_forbidden(error: BaseException | None) -> bool:
    """Whether what went wrong is that this user may not write somewhere."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return True
        error = error.__cause__
    return False


def _load_or_fetch(directory: Path, source: Source, remote: str) -> tuple[Index, CacheDirectory]:
    """The index, whose lock is held, from the directory if it is there and good."""
    try:
        found = _load(directory, keep_copy=True)
    except MissingFileError:
        return _fetch(directory, source, remote)
    except IndexFormatError as error:
        logger.warning("%s It is fetched again.", str(error))
        return _fetch(directory, source, remote)
    if origin_of(directory) is None:
        write_origin(directory, Origin(remote=remote, index=found[1].digest))
    return found


def _fetch(directory: Path, source: Source, remote: str) -> tuple[Index, CacheDirectory]:
    name = get_index_basename()
    _remove_parts(directory)
    before = origin_of(directory)
    mark = mark_of(source)  # Before the index: one that is replaced meanwhile shows as changed.
    with replacing(directory / name) as part:
        source.fetch(FileInfo(name, -1, {}), part)
        found = _parse(part.read_bytes(), directory, source.url(name), keep_copy=True)
        if before is not None and before.remote == remote and before.index != found[1].digest:
            _check_holds_none(directory, found[0], remote)
        # Before the index gets its name: an index that is there always says whose it is.
        write_origin(directory, Origin(remote=remote, index=found[1].digest, mark=mark))
    return found


def _check_holds_none(directory: Path, index: Index, remote: str) -> None:
    """See that a directory has no shards of another version of its source."""
    names = itertools.chain.from_iterable(index.basenames("raw") + index.basenames("zip"))
    if any((directory / name).exists() for name in names):
        raise CacheConflictError(changed(directory, remote))


def _load(directory: Path, *, keep_copy: bool = False) -> tuple[Index, CacheDirectory]:
    path = directory / get_index_basename()
    try:
        if path.exists() and not path.is_file():
            raise IndexFormatError(f"The index {path} is a directory or a device, not a file.")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"There is no index {path}, and no remote to fetch it from. Check `local` and `split`, "
            f"or give `remote`."
        ) from None
    except OSError as error:
        raise from_os_error(error, f"Can't read the index {path}") from error
    return _parse(data, directory, str(path), keep_copy=keep_copy)


def _parse(
    data: bytes, directory: Path, where: str, *, keep_copy: bool
) -> tuple[Index, CacheDirectory]:
    """Make an index of a document, or map the copy of it that a process has left, if it is large.

    Args:
        data: The document.
        directory: Where its files are.
        where: Its path or URL, for messages.
        keep_copy: Leave a copy if there is none. For the holder of the lock.
    """
    digest = get_hash("xxh3_128", data)
    path = state_path(directory) / "index.columns"
    is_large = len(data) >= _LARGE_INDEX
    index = _load_copy(path, digest, where) if is_large else None
    if index is None:
        index = parse_index(data, where)
        if is_large and keep_copy:
            with state_errors(directory):
                write_whole(path, dump_columns(index, digest))
    return index, CacheDirectory(directory, digest)


def _load_copy(path: Path, digest: str, where: str) -> Index | None:
    """The index by its binary copy; None if there is no good one of this document."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: it is empty.
        return None
    return load_columns(data, digest, where)


def _is_vacant(directory: Path) -> bool:
    """Whether nothing is there but the state, and what an index that never came has left."""
    state = state_path(directory).name
    return all(name == state or _is_part(name, directory) for name in os.listdir(directory))


def _remove_parts(directory: Path) -> None:
    """Remove what killed processes have left of an index. For the holder of its lock."""
    for name in os.listdir(directory) if directory.exists() else ():
        if _is_part(name, directory):
            (directory / name).unlink(missing_ok=True)


def _is_part(name: str, directory: Path) -> bool:
    target = target_of_part(name, any_node=is_seen_by_all(directory))
    return target == get_index_basename()
