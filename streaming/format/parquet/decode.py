"""The phase after the Parquet file: some of its row groups as an uncompressed Arrow file.

It is to a Parquet file what the raw file of a shard is to the compressed one: made once a node,
under the shard's lock, in the cache, and mapped by every process that reads it. All that can be
done once is done here: types are made those of the table, columns that a file lacks become nulls,
those that come from its path are filled in, and rows that were deleted are left out. Whoever needs
the rows only once, in order, takes them from `pieces` instead.
"""

import base64
import io
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import CacheError, DataError, ShardCorruptError, StreamingError
from streaming.format.index import ShardInfo
from streaming.format.parquet.footer import READING
from streaming.format.parquet.schema import field_matching, load_schema, plain_schema
from streaming.storage.store import translated
from streaming.storage.stores.local import LocalStore

__all__ = ["PackedFile", "constant", "decode", "dump_schema", "pieces", "schema_of"]

# Bytes that are decoded at once, which then are still in the processor's cache, and what a batch of
# the Arrow file holds: enough that what is done once a batch costs little, and little enough that
# a worker can hold one in memory however large a row group is.
_PIECE_BYTES = 1 << 20
_PIECE_ROWS = 1 << 13
_PROBE_ROWS = 64
_BATCH_ROWS = 1 << 18
_BATCH_BYTES = 16 << 20
# Bytes of a row, by what was read of like shards: no footer says how many, for a dictionary has
# each of its values only once.
_widths: dict[tuple[str, ...], int] = {}
# Bytes of a column that are read at once from a file that is not mapped.
_BUFFER = 1 << 20


def dump_schema(schema: pa.Schema) -> str:
    """A schema as text, for an index."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(info: ShardInfo) -> pa.Schema:
    """The columns of a shard's samples.

    Raises:
        IndexFormatError: The index does not say.
    """
    blob = base64.b64decode(str(info.extra.get("schema", "")))
    return load_schema(blob, str(info.extra.get("key")))


def decode(info: ShardInfo, path: Path, target: Path) -> None:
    """Write the Arrow file of a shard.

    Args:
        info: The shard.
        path: The Parquet file, or the parts of it that belong to the shard.
        target: The Arrow file to be.

    Raises:
        ShardCorruptError: The file is damaged, or not the one that was indexed.
        DataError: A column is of a type that does not fit the table.
        StoreError: The Arrow file can't be written.
    """
    schema = schema_of(info)
    with (
        translated(f"Can't write {target}"),
        pa.OSFile(str(target), "wb") as sink,
        pa.ipc.new_file(sink, schema) as out,
    ):
        for batch in _merged(pieces(info, path, schema), schema):
            out.write_batch(batch)


def pieces(info: ShardInfo, path: Path, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a shard, some at a time, so that they are still in the processor's cache.

    Args:
        info: The shard.
        path: The Parquet file, or the parts of it that belong to the shard.
        schema: Those columns of it that are wanted.

    Raises:
        ShardCorruptError: The file is damaged, or not the one that was indexed; the latter may come
            out after its last row only.
        DataError: A column is of a type that does not fit the table.
    """
    mark = _version(info, path)
    rows = 0
    for piece in _readable(info, path, schema):
        rows += piece.num_rows
        yield piece
    if rows != info.samples or mark != _version(info, path):
        raise ShardCorruptError(
            f"{path} changed after it was indexed: there should be {info.samples} rows in row "
            f"groups {info.extra['groups']}, but there are {rows}. Make the dataset anew, and it "
            "is indexed again."
        )


def constant(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A value of a type, from how it stands in a path.

    Raises:
        DataError: It can't be one.
    """
    try:
        if pa.types.is_timestamp(kind) and kind.tz and text is not None:
            naive = pa.scalar(text).cast(pa.timestamp(kind.unit))
            return pa.scalar(naive.value, pa.int64()).cast(kind)
        return pa.scalar(text, pa.string()).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{text!r} can't be a value of type {kind}: {error}") from error


class PackedFile(io.RawIOBase):
    """A file of which only some ranges are here, one after another, and its footer.

    Args:
        path: The file that has them.
        ranges: Where each was, [start, stop), ascending.
        size: Bytes of the file that they are of.
    """

    def __init__(self, path: Path, ranges: Sequence[Sequence[int]], size: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._starts = np.array([start for start, _ in ranges], np.int64)
        self._stops = np.array([stop for _, stop in ranges], np.int64)
        self._places = np.cumsum([0, *(stop - start for start, stop in ranges)])
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file as it was."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Bytes from there on.

        Raises:
            OSError: They are not here.
        """
        stop = self._size if size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        number = int(np.searchsorted(self._starts, self._at, side="right")) - 1
        if number < 0 or stop > self._stops[number]:
            raise OSError(f"The bytes from {self._at} to {stop} belong to no column that is read")
        self._file.seek(int(self._places[number] + self._at - self._starts[number]))
        data = b""
        while len(data) < stop - self._at:
            piece = self._file.read(stop - self._at - len(data))
            if not piece:
                raise OSError(f"The file ends in the middle of the range at {self._at}")
            data += piece
        self._at = stop
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _version(info: ShardInfo, path: Path) -> str | None:
    """What tells the state of a file of the user's from another, as it was indexed.

    Raises:
        ShardCorruptError: It is another already.
    """
    etag = info.extra.get("etag")
    if etag is None or not info.extra.get("in_place"):
        return None
    found = LocalStore(path.parent).stat(path.name)
    if found.etag != etag:
        raise ShardCorruptError(
            f"{path} changed after it was indexed (it has {found.size} bytes now). Make the "
            "dataset anew, and the file is indexed again."
        )
    return found.etag


def _readable(info: ShardInfo, path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """What can be read of a file. What fails here is the file's fault."""
    try:
        for piece in _conformed(info, path, schema):
            if piece.num_rows:
                piece.validate(full=True)  # Also that texts are UTF-8, which files do not promise.
                yield piece
    except StreamingError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        first, stop = info.extra["groups"]
        raise ShardCorruptError(
            f"Row groups {first} to {stop - 1} of {info.extra['key']} can't be read from {path}: "
            f"{error}"
        ) from error


def _merged(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Small batches put together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in parts:
        held.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield from _join(held, schema)
            held, rows, size = [], 0, 0
    yield from _join(held, schema)


def _join(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = (
        pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    )
    return found


def _conformed(info: ShardInfo, path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a shard, some at a time, as the table has them."""
    extra = info.extra
    constants = {
        name: constant(text, schema.field(name).type)
        for name, text in extra.get("constants", {}).items()
        if name in schema.names
    }
    kept = _kept(extra)
    with _opened(extra, path) as file:
        _check_groups(file.metadata, extra, path)
        found = plain_schema(file.schema_arrow, extra["key"])
        wanted = {
            field.name: field_matching(field, found)
            for field in schema
            if field.name not in constants
        }
        at = 0
        for batch in _read(file, extra, [field.name for field in wanted.values() if field]):
            count = batch.num_rows
            columns = [
                pa.repeat(constants[field.name], count)
                if field.name in constants
                else _column(batch, wanted[field.name], field, extra["key"])
                for field in schema
            ]
            whole = pa.RecordBatch.from_arrays(columns, schema=schema)
            if kept is not None:
                whole = whole.filter(pa.array(kept[at : at + count]))
            at += count
            yield whole


def _opened(extra: Mapping[str, Any], path: Path) -> pq.ParquetFile:
    if "ranges" not in extra:
        return pq.ParquetFile(path, memory_map=True, **READING)
    size, footer = extra["size"], extra["footer"]
    packed = PackedFile(path, [*extra["ranges"], [size - footer, size]], size)
    packed.seek(size - footer)
    metadata = pq.read_metadata(pa.BufferReader(packed.read()))
    return pq.ParquetFile(
        pa.PythonFile(packed, "r"), metadata=metadata, buffer_size=_BUFFER, **READING
    )


def _check_groups(metadata: pq.FileMetaData, extra: Mapping[str, Any], path: Path) -> None:
    first, stop = extra["groups"]
    is_there = 0 <= first < stop <= metadata.num_row_groups
    rows = sum(metadata.row_group(i).num_rows for i in range(first, stop)) if is_there else 0
    if rows != extra["rows"]:
        raise ShardCorruptError(
            f"{path} is not the file that was indexed: there should be {extra['rows']} rows in row "
            f"groups {first} to {stop - 1}, but there are {rows}."
        )


def _read(
    file: pq.ParquetFile, extra: Mapping[str, Any], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, with only these columns of the file."""
    if not names:
        for start in range(0, extra["rows"], _BATCH_ROWS):
            count = min(_BATCH_ROWS, extra["rows"] - start)
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        return
    groups = list(range(*extra["groups"]))
    reading: dict[str, Any] = {"row_groups": groups, "columns": names, "use_threads": False}
    kind = (extra["schema"], *names)
    if kind not in _widths:
        _widths[kind] = _first_width(file, reading)
    size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
    width = max(_widths[kind], size // max(extra["rows"], 1), 1)
    for batch in file.iter_batches(min(max(_PIECE_BYTES // width, 1), _PIECE_ROWS), **reading):
        _widths[kind] = max(_widths[kind], batch.nbytes // max(batch.num_rows, 1))
        yield batch


def _first_width(file: pq.ParquetFile, reading: Mapping[str, Any]) -> int:
    """Bytes of a row, by the first of them. Costs a page of each column of varying width."""
    fields = [file.schema_arrow.field(name) for name in reading["columns"]]
    varying = [field.name for field in fields if not _has_width(field.type)]
    width: int = sum(field.type.byte_width for field in fields if field.name not in varying)
    if varying:
        first = next(file.iter_batches(_PROBE_ROWS, **{**reading, "columns": varying}), None)
        # The footer may count rows that are not there; who counts them says so.
        width += first.nbytes // first.num_rows if first else 0
    return width


def _has_width(kind: pa.DataType) -> bool:
    """Whether each value of a type has as many bytes as any other."""
    tests = ("is_integer", "is_floating", "is_temporal", "is_fixed_size_binary")
    return any(getattr(pa.types, test)(kind) for test in tests)


def _kept(extra: Mapping[str, Any]) -> Any:
    """Which rows of the row groups are left; None for all."""
    path = extra.get("deleted")
    if path is None:
        return None
    first, rows = extra["first_row"], extra["rows"]
    try:
        deleted = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise CacheError(
            f"{path} is gone, which says what rows of the table are deleted: no dataset of this "
            f"version was open any more. Make the dataset anew."
        ) from None
    here = deleted[np.searchsorted(deleted, first) : np.searchsorted(deleted, first + rows)]
    kept = np.ones(rows, np.bool_)
    kept[here - first] = False
    return kept


def _column(batch: pa.RecordBatch, found: pa.Field | None, field: pa.Field, key: str) -> pa.Array:
    """A column of the table, from that of the file, or nulls if it has none."""
    if found is None:
        return pa.nulls(batch.num_rows, field.type)
    array = batch.column(batch.schema.get_field_index(found.name))
    try:
        return _conform(array, field)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"Column {field.name!r} of {key} is {array.type}, of which a value does not fit "
            f"{field.type}: {error}"
        ) from error


def _conform(array: pa.Array, field: pa.Field) -> pa.Array:
    """An array as one of another, plain type; fields of structs by their names in the file."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = field.type
    if array.type.equals(kind):
        return array
    if pa.types.is_dictionary(array.type):
        return _conform(array.dictionary_decode(), field)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        parts = []
        for child in kind:
            found = field_matching(child, list(array.type))
            if found is None:
                parts.append(pa.nulls(len(array), child.type))
            else:
                number = array.type.get_field_index(found.name)
                parts.append(_conform(array.field(number), child))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys = _conform(array.keys, kind.key_field)
        items = _conform(array.items, kind.item_field)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values = _conform(array.values, kind.value_field)
        make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        offsets = _offsets(array).cast(pa.int64() if make is pa.LargeListArray else pa.int32())
        return make.from_arrays(offsets, values, kind)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(array.type):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        mask = array.is_null() if array.null_count else None
        values = _conform(values, kind.value_field)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    return array.cast(kind)


def _offsets(array: Any) -> Any:
    """Where the elements of each row begin; null for a row that is null."""
    offsets = array.offsets
    if not array.null_count:
        return offsets
    mask = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(offsets.to_numpy(), offsets.type, mask=mask)
