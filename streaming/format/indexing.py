"""Indexes of data that has none: what is asked for, what was found in each file, and keeping it.

A format that reads such data has a function `index_dataset`, which gives an `Index` of the files
that it is asked about. What it finds in a file is kept, and used again for as long as the file is
the same by its size and version.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from streaming.errors import DataError, ShardCorruptError, StoreError
from streaming.format.index import FileInfo
from streaming.format.listing import DataFile
from streaming.hashing import get_hash
from streaming.storage.store import Store, part_path, translated
from streaming.storage.stores.local import LocalStore

__all__ = [
    "DECODED_FOLDER",
    "MADE_ENDING",
    "Entry",
    "Export",
    "IndexRequest",
    "check_unchanged",
    "drop_changed_copies",
    "find_entries",
    "in_threads",
    "local_path",
]

T = TypeVar("T")
U = TypeVar("U")

_SAVE_SECONDS = 30.0

# Of folders with what readers need besides an index. They go when nobody reads by it any more.
MADE_ENDING = ".made"
# In the cache, of decoded files and of parts of files that they are made of.
DECODED_FOLDER = "decoded"


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRequest:
    """What shall be indexed, and how.

    Attributes:
        where: URL or path of the root of the files, for messages.
        files: In the order of their samples.
        format: Name of their format.
        kept: Directory for what was found; it may hold what was found the last time.
        in_place: The root, if files are read where they are; else they will be fetched.
        columns: Names and encodings that the user declared.
        names: Columns that are wanted; None for all.
        unit: What a shard is, in formats that have a choice: "file", "row_group"; None: the format
            decides.
        options: More of what the user said, by the names that the format has for it.
        retry: How often a download is tried.
        version: Of a table.
        local: Directory that files will be copied to; None if they are read where they are.
        storage_options: How to reach the root.
    """

    where: str
    files: tuple[DataFile, ...]
    format: str
    kept: Path
    in_place: Path | None = None
    columns: Mapping[str, str] | None = None
    names: tuple[str, ...] | None = None
    unit: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    retry: int = 2
    version: int | None = None
    local: Path | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def tag(self) -> str:
        """What tells requests for the same files apart."""
        columns = None if self.columns is None else list(self.columns.items())
        said: tuple[Any, ...] = (self.format, columns, sorted(self.options.items()))
        if self.version is not None:
            said = (*said, self.version, [file.etag for file in self.files])
        return get_hash("xxh3_64", msgspec.json.encode(said))

    @property
    def made(self) -> Path:
        """A folder for what readers need besides the index, as long as somebody reads by it."""
        return self.kept / f"{self.tag}{MADE_ENDING}"

    def describe(self, entry: "Entry") -> tuple[FileInfo, FileInfo | None]:
        """The files of a shard as an index has them: raw, and compressed or None."""
        file = DataFile(entry.key, entry.size, entry.etag)
        name = file.key if self.in_place is None else str(self.in_place / file.key)
        found = FileInfo(name, file.size, {}, file.etag)
        if file.codec is None:
            return found, None
        return FileInfo(file.raw_key, entry.raw_bytes, {}), found


class Entry(msgspec.Struct, frozen=True):
    """What was found in one file.

    Attributes:
        key: Its key, below the root.
        size: Its bytes.
        etag: Mark of its version.
        samples: Samples in it.
        raw_bytes: Its bytes when they are not compressed.
        details: What else the format wants to know, as JSON.
    """

    key: str
    size: int
    etag: str | None
    samples: int
    raw_bytes: int
    details: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Export:
    """A shard as an index that lies beside the data has it.

    Attributes:
        settings: Keys that belong to the format.
        meta: The file that says where the samples are, if the format has one.
    """

    settings: Mapping[str, Any]
    meta: bytes | None = None


class _Document(msgspec.Struct):
    """Entries as they are kept."""

    entries: list[Entry]
    version: Literal[1] = 1


def find_entries(
    request: IndexRequest,
    scan: Callable[[DataFile], Entry],
    *,
    threads: int,
    is_good: Callable[[Entry], bool] = lambda entry: True,
) -> list[Entry]:
    """Find out what is in each file of a request; look at those only that are new or changed.

    What was found is kept now and then, and when something fails: the next try goes on there.

    Args:
        request: The request.
        scan: Looks at one file; called by several threads.
        threads: How many.
        is_good: Whether an entry that was kept is still of use.

    Raises:
        StoreError: What was found can't be kept.
        DataError, StoreError: Whatever `scan` raises.
    """
    path = request.kept / f"{request.tag}.json"
    kept = _load(path, _Document)
    old = kept.entries if kept else []
    known = {(entry.key, entry.size, entry.etag): entry for entry in old if is_good(entry)}
    marks = [(file.key, file.size, file.etag) for file in request.files]
    new = [file for file, mark in zip(request.files, marks, strict=True) if mark not in known]
    saved = time.monotonic()
    try:
        for entry in in_threads(scan, new, threads):
            known[entry.key, entry.size, entry.etag] = entry
            if time.monotonic() - saved > _SAVE_SECONDS:
                _save(path, _Document(list(known.values())))
                saved = time.monotonic()
    except DataError:
        _save(path, _Document(list(known.values())))
        raise
    entries = [known[mark] for mark in marks]
    if entries != old:
        _save(path, _Document(entries))
    return entries


def check_unchanged(path: Path, etag: str) -> None:
    """See that a file of the user's, which is read where it is, is as it was indexed.

    Raises:
        ShardCorruptError: It isn't.
        StoreError: It is gone.
    """
    found = LocalStore(path.parent).stat(path.name)
    if found.etag != etag:
        raise ShardCorruptError(
            f"{path} changed after it was indexed (it has {found.size} bytes now). Make the "
            "dataset anew, and the file is indexed again."
        )


def drop_changed_copies(directory: Path, kept: Path, files: Sequence[DataFile]) -> None:
    """Remove fetched and decompressed files whose origin was replaced or removed.

    A copy is known by its size alone, so one that is stale could look whole.

    Args:
        directory: Where copies lie; never where the files themselves do.
        kept: Where is noted which versions they are of.
        files: The files as they are now.
    """
    path = kept / "versions.json"
    old = _load(path, dict[str, tuple[int, str | None]]) or {}
    now = {file.key: (file.size, file.etag) for file in files}
    if old == now:
        return
    for key, mark in old.items():
        if now.get(key) != mark:
            for name in (key, DataFile(key, mark[0]).raw_key):
                with translated(f"Can't remove {directory / name}, which is stale"):
                    (directory / name).unlink(missing_ok=True)
    _save(path, now)


def local_path(store: Store, prefix: str) -> Path | None:
    """Where a place in a store is on this machine, absolute; None if it is elsewhere."""
    if not isinstance(store, LocalStore):
        return None
    return Path(os.path.abspath(store.root / prefix))


def in_threads(function: Callable[[T], U], items: Sequence[T], threads: int) -> Iterator[U]:
    """Call a function for each of several things; after an error no more calls are begun.

    Yields:
        What it gave, in the order of the things.
    """
    if len(items) < 2 or threads < 2:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="streaming-index")
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _load(path: Path, kind: type[T]) -> T | None:
    """What was kept; None if there is nothing of use."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None  # Found anew, which does no harm.


def _save(path: Path, value: Any) -> None:
    part = part_path(path)
    try:
        with translated(f"Can't keep an index at {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.encode(value))
            part.replace(path)
    except StoreError:
        part.unlink(missing_ok=True)
        raise
