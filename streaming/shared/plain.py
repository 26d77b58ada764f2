"""Indexes of data that came without one: made once a node, kept, and made anew on change."""

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streaming.errors import CacheConflictError, ConfigError, ObjectNotFoundError, StreamingError
from streaming.format.index import Index
from streaming.format.indexing import IndexRequest, drop_changed_copies, local_path
from streaming.format.listing import DataFile, Place, choose_format, list_files
from streaming.format.registry import formats
from streaming.format.tables import (
    TableFormat,
    TablePlace,
    VersionLike,
    find_marker,
    parse_version,
)
from streaming.hashing import get_hash
from streaming.shared.directory import CacheDirectory, state_errors, state_path
from streaming.shared.lock import FileLock
from streaming.shared.origin import changed
from streaming.shared.pin import Pin, sweep_made
from streaming.shared.shelf import CachePart
from streaming.shared.source import obtain_made_index, public_address
from streaming.storage import join_key, open_store
from streaming.storage.stores.local import LocalStore

__all__ = [
    "PlainData",
    "PlainIndex",
    "default_directory",
    "describe_change",
    "describe_lack",
    "find_table",
    "find_version",
    "obtain_plain_index",
    "remake_plain_index",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainData:
    """Data that has no index, and what the user said of it. Plain data.

    Attributes:
        place: Where it is.
        local: Directory that files are copied to; None: they are local, and read where they are.
        format: Name of the format; None: what the endings of the files say.
        columns: Names and encodings that were declared.
        names: Columns that are wanted; None for all.
        unit: What a shard is, in formats that have a choice; see `IndexRequest`.
        options: More of what was said, by the names that the format has for it.
        storage_options: How to reach the place.
        retry: How often a download is tried.
        version: Of a table; None: the newest.
    """

    place: Place
    local: Path | None
    format: str | None = None
    columns: Mapping[str, str] | None = None
    names: tuple[str, ...] | None = None
    unit: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    retry: int = 2
    version: VersionLike | None = None


@dataclass(frozen=True, slots=True)
class PlainIndex:
    """The index of such data, and what there is to know of them.

    Attributes:
        index: The index.
        directory: The directory of the cache.
        root: URL or path of the root of the data.
        is_in_place: Whether files are read where they are.
        version: Of a table, the number of the version; None for other data.
        pin: Keeps what readers need besides; None if there is nothing.
    """

    index: Index
    directory: CacheDirectory
    root: str
    is_in_place: bool
    version: int | None = None
    pin: Pin | None = None


def obtain_plain_index(data: PlainData) -> PlainIndex | None:
    """Get the index of data that has none.

    The place is listed; what was found in a file before is used again if the file has the size and
    version that it had. One process of a node looks through files, others wait for it.

    Returns:
        None if there is nothing that could be read without an index.

    Raises:
        ConfigError: There are files of several formats, or an option can't be meant as it is.
        DataError: A file is not what it should be.
        CacheConflictError: `local` holds another source, and no folder can be made in it.
        CacheError: The directory can't be written or locked.
        ObjectNotFoundError: Something that was named is not there.
        StoreError: The store failed.
    """
    name = find_table(data)
    if name is not None:
        return _obtain_table(data, name)
    if data.version is not None:
        raise ConfigError(
            f"`version` is {data.version!r}, but there is no table at {data.place}: only tables "
            "have versions."
        )
    listing = list_files(data.place, data.storage_options)
    if listing.has_index and data.format is None:
        return None  # It is a dataset, or there are some in it.
    chosen = choose_format(listing, data.format)
    if chosen is None and data.place.names:
        raise ConfigError(
            f"The endings of the files at {data.place} say no format that is read without an "
            'index. Say it, as in format="csv".'
        )
    if chosen is None:
        return None
    name, files = chosen
    if data.format is not None:
        _warn_of_table(data, name)
    if data.local is not None:
        files = _leave_out_copies(files, listing.root, data.local, data.storage_options)
    identity = f"{name} files of {public_address(listing.root)}: {' '.join(data.place.names)}"
    return _obtain(data, name, listing.root, files, identity)


def remake_plain_index(data: PlainData, directory: CacheDirectory) -> Pin | None:
    """Make an index anew, of which something was removed under a run, in its directory.

    Returns:
        What keeps it, as `PlainIndex.pin`.

    Raises:
        CacheConflictError: The data are others by now.
        CacheError, DataError, StoreError: As for `obtain_plain_index`.
    """
    found = obtain_plain_index(data)
    if found is None or found.directory != directory:
        raise CacheConflictError(changed(directory.path, str(data.place)))
    return found.pin


def _warn_of_table(data: PlainData, name: str) -> None:
    """Say so if files are read past the log of a table, which is what `format` asks for."""
    found = find_marker(data.place.root, data.storage_options)
    about = None if found is None else formats.get(found)
    if about is not None and about.table is not None and about.reader is formats.get(name).reader:
        logger.warning(
            "%s is a %s, and format=%r reads all its files past its log: also rows that were "
            "deleted or replaced. Leave `format` out to have a version of the table.",
            data.place.root,
            about.table.name,
            name,
        )


def _obtain(
    data: PlainData,
    name: str,
    root: str,
    files: tuple[DataFile, ...],
    identity: str,
    version: int | None = None,
) -> PlainIndex:
    """Get the index of files of a format, or of a version of a table, of whose log they are."""
    index_dataset, decode = formats.get(name).index_dataset, formats.get(name).decode
    if index_dataset is None:
        raise ConfigError(f"{name} data can't be read without an index, and {data.place} has none.")
    said: list[Any] = [] if decode is None else [data.names, data.unit]
    said += [] if version is None else [version, data.columns]
    said += [sorted(data.options.items())] if said else []
    digest = get_hash("xxh3_128", msgspec.json.encode([files, *said]))
    store, _ = open_store(root, data.storage_options)
    with closing(store):
        # What is decoded has another form in the cache anyway: there is no need to copy it first.
        is_in_place = data.local is None or (decode is not None and isinstance(store, LocalStore))

    pin: Pin | None = None

    def make(directory: Path) -> Index:
        nonlocal pin
        kept = state_path(directory) / "index"
        if version is None:  # Files of tables never change.
            drop_changed_copies(directory, kept, files)
        store, prefix = open_store(root, data.storage_options)
        try:
            request = IndexRequest(
                where=root,
                files=files,
                format=name,
                kept=kept,
                in_place=local_path(store, prefix) if is_in_place else None,
                columns=data.columns,
                names=data.names,
                unit=data.unit,
                options=data.options,
                retry=data.retry,
                version=version,
                local=None if is_in_place else directory,
                storage_options=data.storage_options,
            )
            index = index_dataset(store, prefix, request)
        finally:
            store.close()
        pin = Pin(request.made) if request.made.is_dir() else None
        sweep_made(kept, request.made)
        if decode is not None:
            _drop_stale_files(directory, index)
        return index

    local = Path(default_directory(identity)) if data.local is None else data.local
    index, directory = obtain_made_index(local, identity, digest, make)
    return PlainIndex(index, directory, root, is_in_place, version, pin)


def _drop_stale_files(directory: Path, index: Index) -> None:
    """Remove what was decoded of files that have changed since, or with other columns.

    Only when nobody is at work there: another process may want just these.
    """
    names = [*index.basenames("raw"), *index.basenames("zip")]
    known = {name for column in names for name in column}
    folders = {name.rpartition("/")[0] for name in index.basenames("raw")[0]} if names else set()
    lease = FileLock(state_path(directory) / "lease")
    with state_errors(directory):
        if not lease.acquire(blocking=False):
            return
    try:
        for folder in folders:
            with suppress(FileNotFoundError), os.scandir(directory / folder) as entries:
                for entry in entries:
                    if f"{folder}/{entry.name}" not in known:
                        Path(entry.path).unlink(missing_ok=True)
    finally:
        lease.release()


def find_version(data: PlainData) -> int | None:
    """The number of the version that is meant now; None if the data are no table.

    Raises:
        ConfigError: There is no such version.
        ObjectNotFoundError: There is no table.
        StoreError: The store failed.
    """
    name = find_table(data)
    table = None if name is None else formats.get(name).table
    if table is None:
        return None
    place = TablePlace.at(data.place.root, data.storage_options)
    return table.resolve(place, parse_version(data.version))


def describe_change(before: CachePart, after: CachePart) -> str:
    """What is new in a version of a table, in a sentence."""
    old, new = (set(part.index.basenames("raw")[-1]) for part in (before, after))
    samples = after.index.samples - before.index.samples
    return (
        f"{after.index.where} went from version {before.version} to {after.version}: {samples:+d} "
        f"samples, which makes {after.index.samples}; {len(new - old)} files are new and "
        f"{len(old - new)} are gone."
    )


def describe_lack(data: PlainData) -> str:
    """Why data can't be read without an index, as a sentence; "" if that can't be seen."""
    root = data.place.root
    try:
        store, prefix = open_store(root, data.storage_options)
        with closing(store):
            path = local_path(store, prefix)
        if path is not None and not path.exists():
            return f"There is no folder or file {path}."
        listing = list_files(data.place, data.storage_options)
    except (StreamingError, OSError):  # OSError: this user may not look there.
        return ""
    if listing.has_index and data.format is None:
        return f"Folders in {root} have an index: choose one, as by `split`."
    asked = [*formats] if data.format is None else [data.format]
    endings = [ending for name in asked for ending in formats.get(name).endings]
    if data.format is not None:
        endings += formats.get(data.format).more_endings
    known = ", ".join(dict.fromkeys(endings)) or "none"
    return f"No file in {root} has an ending that is read without an index: {known}."


def find_table(data: PlainData) -> str | None:
    """Name of the format of the table that is at a place; None if there is none.

    Raises:
        ConfigError: Files are named, where a table is a folder.
    """
    if data.format is not None:
        about = formats.get(data.format)
        if about.table is None:
            return None
        if data.place.names:
            raise ConfigError(
                f"{about.table.name} is a folder, whose log says which files count, but here are "
                f"names of files: {data.place}."
            )
        return data.format
    return None if data.place.names else find_marker(data.place.root, data.storage_options)


def _obtain_table(data: PlainData, name: str) -> PlainIndex:
    """Get the index of a version of a table; see `obtain_plain_index`."""
    table, root = formats.get(name).table, data.place.root
    assert table is not None
    asked = parse_version(data.version)
    place = TablePlace.at(root, data.storage_options)
    version = asked if isinstance(asked, int) else table.resolve(place, asked)
    record = _find_record(data, table, version)
    return _obtain(data, name, root, (record,), f"{name} of {public_address(root)}", version)


def _find_record(data: PlainData, table: TableFormat, version: int) -> DataFile:
    """The file that made a version: by its mark, a table is told from an older one of its name.

    Where it is not there any more, as logs are cut off at their old end, the name alone counts.
    """
    store, prefix = open_store(data.place.root, data.storage_options)
    try:
        for key in table.keys(version):
            try:
                found = store.stat(join_key(prefix, key))
            except ObjectNotFoundError:
                continue
            return DataFile(key, found.size, found.etag)
    finally:
        store.close()
    return DataFile(table.keys(version)[0], 0)


def _leave_out_copies(
    files: tuple[DataFile, ...], root: str, local: Path, options: Mapping[str, Any]
) -> tuple[DataFile, ...]:
    """Those files that are not copies of others, in a directory for copies among them.

    Raises:
        ConfigError: Each would be a copy of itself.
    """
    store, prefix = open_store(root, options)
    path = local_path(store, prefix)
    store.close()
    if path is None:
        return files
    path, local = path.resolve(), local.resolve()
    if path == local:
        raise ConfigError(
            f"`local` is {local}, where the files themselves are. Leave it out to have them read "
            "there, or give another directory for copies of them."
        )
    if not local.is_relative_to(path):
        return files
    head = local.relative_to(path).as_posix() + "/"
    return tuple(file for file in files if not file.key.startswith(head))


def default_directory(name: str) -> str:
    """A directory for the files of a source on this node, found again by the next run."""
    digest = hashlib.blake2s(name.encode(), digest_size=16).hexdigest()
    return os.path.join(tempfile.gettempdir(), f"streaming-cache-{os.getuid()}", digest)
