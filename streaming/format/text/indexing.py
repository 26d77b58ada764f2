"""Indexing files of text: bring one here, look through it, keep a table of its records."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming.compression import decompress_file
from streaming.errors import DataError
from streaming.format.index import Index, ShardInfo, build_index
from streaming.format.indexing import Entry, Export, IndexRequest, find_entries
from streaming.format.listing import DataFile
from streaming.format.text.columns import SAMPLE_BYTES, SAMPLE_RECORDS
from streaming.format.text.scan import File
from streaming.format.text.table import MAX_U32, write_table
from streaming.hashing import get_hash
from streaming.storage import Store, join_key
from streaming.storage.download import fetch
from streaming.storage.store import translated
from streaming.util.retrying import Retry

__all__ = ["Look", "export_table", "index_text", "read_records"]

Ints = NDArray[np.int64]

_LOCAL_THREADS = min(4, os.cpu_count() or 1)  # More are not faster: half of the work is Python's.
_REMOTE_THREADS = 8  # Each has one file on the local disk while it looks through it.


class Look(Protocol):
    """How a format looks through one file. Made for the file; used by one thread."""

    def starts(self, file: File, threads: int) -> Iterator[Ints]:
        """Where its records start, piece by piece."""
        ...

    def describe(self, file: File, head: Ints) -> Any:
        """What else there is to know of it, as a JSON value.

        Args:
            file: The file, when all its starts are known.
            head: Where its first records start, and where the last of these ends; or empty.
        """
        ...


class _Details(msgspec.Struct):
    """What an entry says of a file of text."""

    table: str  # name of the file with the table
    table_bytes: int
    width: int  # bytes of a number in it
    look: msgspec.Raw  # what `Look.describe` gave


def index_text(
    store: Store,
    prefix: str,
    request: IndexRequest,
    look: Callable[[], Look],
    combine: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> Index:
    """Make an index of files of text.

    Args:
        store: Where they are.
        prefix: Key of their root.
        request: What is asked for.
        look: Makes what looks through a file.
        combine: Makes the keys of the index that belong to the format from what was said of each
            file that has records, by its key.

    Raises:
        DataError: A file is not what it should be.
        StoreError: A file can't be had.
    """
    with translated(f"Can't make {request.kept}"):
        request.kept.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(request.kept)
    most = _LOCAL_THREADS if request.in_place is not None else _REMOTE_THREADS
    threads = max(1, min(most, len(request.files)))

    def scan(file: DataFile) -> Entry:
        with _raw_file(store, prefix, request, file) as path:
            return _scan(request, file, path, look(), max(1, _LOCAL_THREADS // threads))

    def is_good(entry: Entry) -> bool:
        try:
            details = msgspec.json.decode(entry.details, type=_Details)
        except msgspec.MsgspecError:
            return False
        return _size_of(request.kept / details.table) == details.table_bytes

    found = [
        (entry, msgspec.json.decode(entry.details, type=_Details))
        for entry in find_entries(request, scan, threads=threads, is_good=is_good)
    ]
    _remove_others(request, {details.table for _, details in found})
    found = [(entry, details) for entry, details in found if entry.samples]
    extra = combine({entry.key: msgspec.json.decode(details.look) for entry, details in found})
    shards = [_describe(request, entry, extra) for entry, _ in found]
    tables = [
        {"table": (str(request.kept / details.table), details.table_bytes, details.width)}
        for _, details in found
    ]
    return build_index(request.where, shards, tables)


def read_records(file: File, head: Ints) -> list[bytes]:
    """The first records of a file, whole, with what ends them."""
    if not len(head):
        return []
    first, bounds = int(head[0]), head.tolist()
    data = file.read(first, bounds[-1])
    return [data[start - first : stop - first] for start, stop in pairwise(bounds)]


def export_table(info: ShardInfo, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Export:
    """A shard that was indexed as an index beside its data has it.

    Args:
        info: The shard.
        settings: Keys that belong to the format.
        config: What the meta file says for people, beside these.
    """
    path, _, width = info.extra["table"]
    shown = {**settings, **({"offset_bytes": width} if width != 4 else {})}
    with translated(f"Can't read {path}"):
        table = Path(path).read_bytes()
    text = msgspec.json.encode({**config, **shown}, order="sorted")
    return Export(shown, table + text)


def _describe(request: IndexRequest, entry: Entry, extra: Mapping[str, Any]) -> ShardInfo:
    codec = DataFile(entry.key, entry.size).codec
    return ShardInfo(request.format, entry.samples, (request.describe(entry),), codec, extra)


def _scan(request: IndexRequest, file: DataFile, path: Path, look: Look, threads: int) -> Entry:
    """Look through one raw file, and write its table."""
    mark = get_hash("xxh3_128", msgspec.json.encode((file.key, file.size, file.etag)))
    table = f"{request.tag}-{mark}.starts"
    with File(path, f"{request.where.rstrip('/')}/{file.key}") as opened:
        if file.codec is None and opened.size != file.size:
            raise DataError(
                f"{opened.name} is being written to: it had {file.size} bytes, and now has "
                f"{opened.size}. Wait until it is finished."
            )
        width = 4 if opened.size <= MAX_U32 else 8
        head = _Head()
        starts = head.watch(look.starts(opened, threads))
        samples = write_table(request.kept / table, starts, opened.size, b"", width=width)
        said = msgspec.json.encode(look.describe(opened, head.bounds(opened.size)))
        details = _Details(table, width * (samples + 2), width, msgspec.Raw(said))
        return Entry(
            file.key,
            file.size,
            file.etag,
            samples,
            opened.size,
            msgspec.Raw(msgspec.json.encode(details)),
        )


class _Head:
    """Remembers where the first records of a file start while all starts pass by."""

    def __init__(self) -> None:
        self._starts: list[int] = []

    def watch(self, pieces: Iterator[Ints]) -> Iterator[Ints]:
        """Pass on all pieces."""
        for piece in pieces:
            missing = SAMPLE_RECORDS + 1 - len(self._starts)
            if missing > 0:
                self._starts += piece[:missing].tolist()
            yield piece

    def bounds(self, size: int) -> Ints:
        """Where the first records start, and where the last of these ends."""
        if not self._starts:
            return np.empty(0, np.int64)
        bounds = np.array(self._starts, np.int64)
        if len(bounds) <= SAMPLE_RECORDS:
            bounds = np.append(bounds, size)
        fitting = int(np.searchsorted(bounds, bounds[0] + SAMPLE_BYTES, "right"))
        return bounds[: max(fitting, 2)]


@contextmanager
def _raw_file(store: Store, prefix: str, request: IndexRequest, file: DataFile) -> Iterator[Path]:
    """A file as it is read: where it is, or fetched and decompressed for the while it is needed."""
    in_place = None if request.in_place is None else request.in_place / file.key
    if in_place is not None and file.codec is None:
        yield in_place
        return
    with translated(f"Can't make a directory in {request.kept}"):
        scratch = Path(tempfile.mkdtemp(prefix="look-", dir=request.kept))
    try:
        path = in_place
        if path is None:
            path, retry = scratch / os.path.basename(file.key), Retry(max(request.retry, 1))
            fetch(store, join_key(prefix, file.key), path, size=file.size, retry=retry)
        if file.codec is not None:
            raw = scratch / "raw"
            decompress_file(file.codec, path, raw, size=None)
            if in_place is None:
                path.unlink()
            path = raw
        yield path
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _remove_leftovers(kept: Path) -> None:
    """Remove what a process that was killed has left; only one at a time makes an index."""
    for path in kept.glob("look-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in kept.glob("*.part"):
        path.unlink(missing_ok=True)


def _remove_others(request: IndexRequest, tables: set[str]) -> None:
    """Remove tables of files that have changed or are gone."""
    for path in request.kept.glob(f"{request.tag}-*.starts"):
        if path.name not in tables:
            path.unlink(missing_ok=True)
