"""The index of a table that is some Parquet files: which row groups are a shard."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streaming.errors import (
    ConfigError,
    DataError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
)
from streaming.format.index import FileInfo, Index, ShardInfo, build_index
from streaming.format.indexing import DECODED_FOLDER, IndexRequest, in_threads
from streaming.format.listing import DataFile
from streaming.format.parquet.chunks import ChunkScanner
from streaming.format.parquet.decode import constant, dump_schema
from streaming.format.parquet.footer import (
    INDEX_NAME,
    Footer,
    Mark,
    dump_footers,
    load_footers,
    read_footer,
    with_chunks,
)
from streaming.format.parquet.schema import (
    check_names,
    field_matching,
    load_schema,
    num_leaves,
    plain_schema,
    project,
    same,
    unite,
    widen,
)
from streaming.hashing import get_hash
from streaming.storage import Store, join_key, open_store
from streaming.storage.store import part_path, translated
from streaming.util.retrying import Retry

__all__ = ["FOLDER", "UNITS", "TableFile", "find_footers", "index_table"]

Ints = NDArray[np.int64]

# Folder of the cache for Arrow files, and for parts of Parquet files they are made from.
FOLDER = DECODED_FOLDER

# How large a shard becomes, in bytes before compression: neighbouring row groups of a file go
# together up to this. A row group is never cut.
PIECE_BYTES = 64 << 20
_SMALL_GROUP = 1 << 20
UNITS = {None: PIECE_BYTES, "file": 1 << 62, "row_group": _SMALL_GROUP}

# Bytes between two columns that are fetched with them rather than by another request.
_GAP = 256 << 10

_LOCAL_THREADS = 4
_REMOTE_THREADS = 32  # They wait for a small answer most of the time.


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table.

    Attributes:
        file: Where it is below the root of the request, its size, and the mark of its version.
        rows: Rows that it must have; None: as many as it has.
        constants: Columns that have one value in the whole file, as text; None is null. They come
            before what the file has of that name.
        deleted: Numbers of rows that do not count any more, ascending, shape (n,).
    """

    file: DataFile
    rows: int | None = None
    constants: Mapping[str, str | None] = field(default_factory=dict)
    deleted: Ints | None = None


def index_table(
    store: Store,
    prefix: str,
    request: IndexRequest,
    files: Sequence[TableFile],
    schema: pa.Schema | None = None,
) -> Index:
    """Make an index of a table from the footers of its files.

    Args:
        store: Where they are.
        prefix: Key of their root.
        request: What is asked for; its `files` are not looked at.
        files: In the order of their samples.
        schema: The columns of samples. None: what the files have, which must be the same, or can be
            united if the option `allow_schema_mismatch` is set; constants follow as texts, or as
            integers if all are.

    Raises:
        ConfigError: An option can't be meant as it is.
        DataError: A file is not what it should be, or does not fit the others.
        StoreError: A file can't be had.
    """
    check_names(request.columns)
    footers = find_footers(store, prefix, request, [file.file for file in files])
    used = [
        (file, footer) for file, footer in zip(files, footers, strict=True) if footer.rows.sum()
    ]
    kinds: dict[bytes, tuple[pa.Schema, str]] = {}
    # An empty file has a say only where nobody else has one.
    for file, footer in used or zip(files, footers, strict=True):
        if footer.schema not in kinds:
            loaded = load_schema(footer.schema, request.where)
            where = f"{request.where.rstrip('/')}/{file.file.key}"
            kinds[footer.schema] = (plain_schema(loaded, where), file.file.key)
    if schema is None:
        schema = _found_schema(files, list(kinds.values()), request)
    schema = project(schema, request.names)
    if not len(schema):
        raise DataError(f"{request.where} has no columns.")
    _check_types(schema, kinds)
    table = _Table(request, schema, {blob: plain for blob, (plain, _) in kinds.items()})
    for file, footer in used:
        table.add(file, footer)
    return table.index()


def find_footers(
    store: Store,
    prefix: str,
    request: IndexRequest,
    files: Sequence[DataFile],
    *,
    with_all: bool = False,
) -> list[Footer]:
    """The footers of files: those that were kept, or lie beside the data, and else by reading them.

    Args:
        store: Where the files are.
        prefix: Key of their root.
        request: What is asked for.
        files: The files.
        with_all: Also where the columns lie that nobody will fetch alone.

    Raises:
        ConfigError: The index that the user names is not there.
        DataError: A file is no Parquet file, or a broken one.
        StoreError: A file can't be had.
    """
    path = request.kept / "footers.arrow"
    marks: list[Mark] = [(file.key, file.size, file.etag) for file in files]
    most = _most(request)

    def needs_chunks(footer: Footer) -> bool:
        if with_all or request.in_place is not None:
            return with_all
        return request.names is not None or len(_cut(footer, most)) > 1

    def is_good(mark: Mark) -> bool:
        footer = known.get(mark)
        return footer is not None and (
            bool(footer.starts.size) or not len(footer.rows) or not needs_chunks(footer)
        )

    known = kept = load_footers(path)
    # One that is named is looked for even if it is not needed: else a slip shows on the next node.
    if request.options.get("index") is not None or not all(map(is_good, marks)):
        known = {**_published(store, prefix, request), **kept}
    new = [file for file, mark in zip(files, marks, strict=True) if not is_good(mark)]
    retry = Retry(max(request.retry, 1))
    with ChunkScanner() as scanner:

        def read(file: DataFile) -> Footer:
            key = join_key(prefix, file.key)
            where = f"{request.where.rstrip('/')}/{file.key}"
            footer, data = read_footer(file, where, partial(retry.call, store.read, key))
            if needs_chunks(footer) and len(footer.rows):
                footer = with_chunks(footer, data, file.size, where, scanner)
            return footer

        threads = _LOCAL_THREADS if request.in_place is not None else _REMOTE_THREADS
        try:
            for file, footer in zip(new, in_threads(read, new, threads), strict=True):
                known[file.key, file.size, file.etag] = footer
        except DataError:
            _keep(path, known)  # The next try goes on there.
            raise
    found = [known[mark] for mark in marks]
    if new or kept.keys() != set(marks):
        _keep(path, dict(zip(marks, found, strict=True)))
    return found


def _most(request: IndexRequest) -> int:
    """Bytes that a shard may have, if it has several row groups."""
    if request.unit not in UNITS:
        raise ConfigError(f"A shard can't be a {request.unit!r}.")
    return UNITS[request.unit]


def _published(store: Store, prefix: str, request: IndexRequest) -> dict[Mark, Footer]:
    """The footers that lie beside the data, or where the user says; none if there are none.

    Raises:
        ConfigError: The user names a place where they are not.
    """
    place = request.options.get("index")
    try:
        if place is None:
            return load_footers(store.read(join_key(prefix, INDEX_NAME)))
        parent, _, name = str(place).rpartition("/")
        other, folder = open_store(parent or ".")
        try:
            return load_footers(other.read(join_key(folder, name)))
        finally:
            other.close()
    except StoreError as error:
        if place is None:
            return {}  # Also if it is forbidden to ask for what is not there.
        if isinstance(error, TransientStoreError | StoreTimeoutError):
            raise
        raise ConfigError(
            f"format_options name an index of {request.where} that can't be read: {error}"
        ) from error


def _keep(path: Path, footers: Mapping[Mark, Footer]) -> None:
    part = part_path(path)
    try:
        with translated(f"Can't keep an index at {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(dump_footers(footers))
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _found_schema(
    files: Sequence[TableFile], kinds: Sequence[tuple[pa.Schema, str]], request: IndexRequest
) -> pa.Schema:
    """The columns that the files have, and those that their paths say."""
    allow = request.options.get("allow_schema_mismatch", False)
    if not isinstance(allow, bool):
        raise ConfigError(f"`allow_schema_mismatch` is True or False, but not {allow!r}.")
    constants = _constant_types(files, request.where)
    own = [
        (pa.schema([field for field in plain if field.name not in constants]), key)
        for plain, key in kinds
    ]
    united = unite(own, allow_mismatch=allow, where=request.where)
    return pa.schema([*united, *(pa.field(name, kind) for name, kind in constants.items())])


def _constant_types(files: Sequence[TableFile], where: str) -> dict[str, pa.DataType]:
    names = list(files[0].constants)
    values: dict[str, set[str]] = {name: set() for name in names}
    for file in files:
        if list(file.constants) != names:
            raise DataError(
                f"The paths of {files[0].file.key} and {file.file.key} in {where} name different "
                f"columns ({names} and {list(file.constants)}). Give format_options="
                '{"partitions": False} to leave them out.'
            )
        for name, text in file.constants.items():
            if text is not None:
                values[name].add(text)
    return {
        name: pa.int64() if found and all(map(_is_whole, found)) else pa.string()
        for name, found in values.items()
    }


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit()
    # "007" is a name, not a number, which would come back as 7.
    return is_number and len(digits) < 19 and text == str(int(text))


def _check_types(schema: pa.Schema, kinds: Mapping[bytes, tuple[pa.Schema, str]]) -> None:
    for plain, key in kinds.values():
        for field_ in schema:
            found = field_matching(field_, plain)
            if found is None or same(found.type, field_.type):
                continue
            wider = widen(found.type, field_.type)
            is_renamed = pa.types.is_nested(field_.type)  # Names within it are found by `decode`.
            fits = is_renamed or _is_time_of(found.type, field_.type)
            if not fits and (wider is None or not same(wider, field_.type)):
                raise DataError(
                    f"Column {field_.name!r} of {key} is {found.type}, which can't be widened to "
                    f"{field_.type}."
                )


def _is_time_of(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a table's log says of points in time that they are in UTC, and files do not.

    Those of old writers (INT96) are finer, too; a value that would be cut is an error when read.
    """
    is_time = pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted)
    return is_time and wanted.unit == "us" and found.tz in (None, wanted.tz)


class _Table:
    """Collects the shards of a table."""

    def __init__(
        self, request: IndexRequest, schema: pa.Schema, kinds: Mapping[bytes, pa.Schema]
    ) -> None:
        self._request = request
        self._in_place = "" if request.in_place is None else os.path.join(request.in_place, "")
        self._schema = schema
        self._text = dump_schema(schema)
        self._extra = {"schema": self._text, "names": schema.names}
        if request.version is not None:
            self._extra["version"] = request.version
        self._most = _most(request)
        self._shards: list[ShardInfo] = []
        self._details: list[dict[str, Any]] = []
        self._wanted = cache(lambda blob: _wanted_leaves(kinds[blob], schema))
        self._head = get_hash("xxh3_128", f"1 {self._text} {request.unit}".encode())

    def add(self, file: TableFile, footer: Footer) -> None:
        """Cut a file into shards."""
        request, data = self._request, file.file
        if file.rows is not None and file.rows != footer.rows.sum():
            raise DataError(
                f"{request.where.rstrip('/')}/{data.key} should have {file.rows} rows, but has "
                f"{footer.rows.sum()}."
            )
        constants = {
            name: text for name, text in file.constants.items() if name in self._schema.names
        }
        for name, text in constants.items():
            constant(text, self._schema.field(name).type)
        deleted, digest = self._keep_deleted(file.deleted)
        said = (self._head, data.key, data.size, data.etag, constants, digest)
        mark = get_hash("xxh3_128", msgspec.json.encode(said))
        details: dict[str, Any] = {"key": data.key, "size": data.size}
        if data.etag is not None:
            details["etag"] = data.etag
        if request.in_place is not None:
            details["in_place"] = True
        if constants:
            details["constants"] = constants
        if deleted is not None:
            details["deleted"] = deleted
        firsts = np.cumsum([0, *footer.rows])
        pieces = _cut(footer, self._most)
        for start, stop in pieces:
            rows = int(firsts[stop] - firsts[start])
            samples = rows - _count(file.deleted, int(firsts[start]), int(firsts[stop]))
            if not samples:
                continue
            shard = {**details, "groups": [start, stop], "rows": rows}
            if deleted is not None:
                shard["first_row"] = int(firsts[start])
            whole = start == 0 and stop == len(footer.rows)
            self._add_piece(data, footer, mark, shard, samples, whole)

    def index(self) -> Index:
        """The index of all that was added."""
        return build_index(self._request.where, self._shards, self._details)

    def _add_piece(
        self,
        data: DataFile,
        footer: Footer,
        mark: str,
        shard: dict[str, Any],
        samples: int,
        is_whole: bool,
    ) -> None:
        request = self._request
        start, stop = shard["groups"]
        leaves = self._wanted(footer.schema)
        share = 1.0 if leaves is None else float(leaves.mean())
        if leaves is not None and footer.starts.size:
            if len(leaves) == footer.starts.shape[1]:
                sizes = footer.lengths[start:stop].sum(axis=0)
                share = int(sizes[leaves].sum()) / max(int(sizes.sum()), 1)
            else:
                leaves = None  # The file has other columns than its schema lets one think.
        raw = int(footer.sizes[start:stop].sum() * share)
        raw_file = FileInfo(f"{FOLDER}/{mark}-{start}.arrow", max(raw, samples, 1), {})
        if request.in_place is not None:
            # Not by pathlib, which would take as long as all the rest of this.
            zip_file = FileInfo(f"{self._in_place}{data.key}", data.size, {}, data.etag)
        elif is_whole and share > 0.75:
            zip_file = FileInfo(data.key, data.size, {}, data.etag)
        else:
            ranges = _ranges(footer, start, stop, leaves, data.size - footer.length)
            size = sum(b - a for a, b in ranges) + footer.length
            shard = {**shard, "ranges": ranges, "footer": footer.length}
            zip_file = FileInfo(f"{FOLDER}/{mark}-{start}.parquet", size, {}, data.etag)
        files = ((raw_file, zip_file),)
        self._shards.append(ShardInfo("parquet", samples, files, "parquet", self._extra))
        self._details.append(shard)

    def _keep_deleted(self, deleted: Ints | None) -> tuple[str | None, str]:
        """Write the numbers of deleted rows to a file: its path, and a digest."""
        if deleted is None or not len(deleted):
            return None, ""
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(deleted, np.int64), allow_pickle=False)
        digest = get_hash("xxh3_128", buffer.getvalue())
        path = self._request.made / f"deleted-{digest}.npy"
        if not path.exists():
            part = part_path(path)
            with translated(f"Can't keep an index at {path}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(buffer.getvalue())
                part.replace(path)
        return str(path), digest


def _cut(footer: Footer, most: int) -> list[tuple[int, int]]:
    """Neighbouring row groups that go together: as many as stay below `most` bytes."""
    pieces: list[tuple[int, int]] = []
    start, size = 0, 0
    for group, (rows, more) in enumerate(
        zip(footer.rows.tolist(), footer.sizes.tolist(), strict=True)
    ):
        if size and size + more > most and rows:
            pieces.append((start, group))
            start, size = group, 0
        size += max(more, 1)
    if start < len(footer.rows):
        pieces.append((start, len(footer.rows)))
    return pieces


def _count(deleted: Ints | None, start: int, stop: int) -> int:
    if deleted is None:
        return 0
    first, last = np.searchsorted(deleted, [start, stop])
    return int(last - first)


def _wanted_leaves(plain: pa.Schema, schema: pa.Schema) -> NDArray[np.bool_] | None:
    """Which columns of a file are read; None for all."""
    names = {found.name for x in schema if (found := field_matching(x, plain)) is not None}
    if len(names) == len(plain):
        return None
    wanted = [np.full(num_leaves(field_.type), field_.name in names) for field_ in plain]
    return np.concatenate([np.zeros(0, np.bool_), *wanted])


def _ranges(
    footer: Footer, start: int, stop: int, leaves: NDArray[np.bool_] | None, end: int
) -> list[list[int]]:
    """Where the columns of some row groups lie, near ones as one range."""
    starts, lengths = footer.starts[start:stop], footer.lengths[start:stop]
    if leaves is not None:
        starts, lengths = starts[:, leaves], lengths[:, leaves]
    starts, lengths = starts.ravel(), lengths.ravel()
    order = np.argsort(starts, kind="stable")
    ranges: list[list[int]] = []
    for first, last in zip(starts[order].tolist(), (starts + lengths)[order].tolist(), strict=True):
        if last > end:
            raise DataError(f"A column is said to lie at {first} to {last}, behind all columns.")
        if ranges and first - ranges[-1][1] <= _GAP:
            ranges[-1][1] = max(ranges[-1][1], last)
        else:
            ranges.append([first, last])
    return ranges
