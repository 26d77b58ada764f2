"""Indexes of data that came without one: made once a node, kept, and made anew on change."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streaming.errors import ConfigError
from streaming.format.index import Index
from streaming.format.indexing import IndexRequest, drop_changed_copies, local_path
from streaming.format.listing import DataFile, Place, choose_format, list_files
from streaming.format.registry import formats
from streaming.hashing import get_hash
from streaming.shared.directory import CacheDirectory, state_path
from streaming.shared.source import obtain_made_index, public_address
from streaming.storage import open_store

__all__ = ["PlainData", "PlainIndex", "default_directory", "obtain_plain_index"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainData:
    """Data that has no index, and what the user said of it. Plain data.

    Attributes:
        place: Where it is.
        local: Directory that files are copied to; None: they are local, and read where they are.
        format: Name of the format; None: what the endings of the files say.
        columns: Names and encodings that were declared.
        options: More of what was said, by the names that the format has for it.
        storage_options: How to reach the place.
        retry: How often a download is tried.
    """

    place: Place
    local: Path | None
    format: str | None = None
    columns: Mapping[str, str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    retry: int = 2


@dataclass(frozen=True, slots=True)
class PlainIndex:
    """The index of such data, the directory of its cache, and the URL or path of its root."""

    index: Index
    directory: CacheDirectory
    root: str


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
    if data.local is not None:
        files = _leave_out_copies(files, listing.root, data.local, data.storage_options)
    index_dataset = formats.get(name).index_dataset
    if index_dataset is None:
        raise ConfigError(f"{name} data can't be read without an index, and {data.place} has none.")
    identity = f"{name} files of {public_address(listing.root)}: {' '.join(data.place.names)}"
    digest = get_hash("xxh3_128", msgspec.json.encode(files))

    def make(directory: Path) -> Index:
        kept = state_path(directory) / "index"
        drop_changed_copies(directory, kept, files)
        store, prefix = open_store(listing.root, data.storage_options)
        try:
            request = IndexRequest(
                where=listing.root,
                files=files,
                format=name,
                kept=kept,
                in_place=local_path(store, prefix) if data.local is None else None,
                columns=data.columns,
                options=data.options,
                retry=data.retry,
            )
            return index_dataset(store, prefix, request)
        finally:
            store.close()

    local = Path(default_directory(identity)) if data.local is None else data.local
    index, directory = obtain_made_index(local, identity, digest, make)
    return PlainIndex(index, directory, listing.root)


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
