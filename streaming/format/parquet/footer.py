"""Footers of Parquet files: read by range, and kept as one binary file."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streaming.errors import DataError
from streaming.format.listing import DataFile
from streaming.format.parquet.chunks import ChunkScanner

__all__ = [
    "INDEX_NAME",
    "READING",
    "Footer",
    "Mark",
    "dump_footers",
    "load_footers",
    "read_footer",
    "with_chunks",
]

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Mark = tuple[str, int, str | None]  # what a version of a file is known by: key, size, etag

# Name of the file with all footers beside the data. Hidden from whoever lists a table's files.
INDEX_NAME = "_streaming.arrow"

# What is read first from the end of a file. Most footers are smaller; a larger one takes a second
# request, and each KB more is read from every file.
TAIL = 16 << 10
# A footer is parsed in memory, several times its size.
MOST_FOOTER = 256 << 20

# How files are read. The old type int96 could be any year: not in ns, which end in 2262.
READING: dict[str, Any] = {
    "pre_buffer": False,
    "coerce_int96_timestamp_unit": "us",
    "page_checksum_verification": True,  # Where a page has one.
}

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_END = 8  # the length of the footer, and the magic
_VERSION = b"1"
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("schema", pa.dictionary(pa.int32(), pa.binary())),
        ("length", pa.int64()),
        ("rows", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
        ("starts", pa.list_(pa.int64())),
        ("lengths", pa.list_(pa.int64())),
    ],
    {b"streaming.footers": _VERSION},
)


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself.

    Attributes:
        schema: Its Arrow schema, serialised.
        length: Bytes of the footer, with the eight at the end of the file.
        rows: Rows of each row group, shape (groups,).
        sizes: Bytes of each, not compressed, shape (groups,).
        starts: Where each column of each begins, shape (groups, leaves). Leaves are the columns
            that the file has, of which a nested column of the table has several. None, if nobody
            wanted to know.
        lengths: Bytes of each, as they lie there, of the same shape.
    """

    schema: bytes
    length: int
    rows: Ints
    sizes: Ints
    starts: Ints
    lengths: Ints


def read_footer(file: DataFile, where: str, read: Any) -> tuple[Footer, bytes]:
    """Read the footer of a file.

    Args:
        file: The file.
        where: Its path or URL, for messages.
        read: Gives the bytes [start, stop) of it.

    Returns:
        What it says, but for where the columns lie, and its bytes; see `with_chunks`.

    Raises:
        DataError: It is no Parquet file, or a broken or encrypted one.
    """
    if file.size < len(_MAGIC) + _END:
        raise DataError(f"{where} has {file.size} bytes, too few for a Parquet file.")
    tail = read(max(0, file.size - TAIL), file.size)
    magic = tail[-4:]
    if magic == _ENCRYPTED:
        raise DataError(f"{where} is an encrypted Parquet file, which can't be read here.")
    if magic != _MAGIC:
        raise DataError(
            f"{where} is not a Parquet file, or was cut: it ends with {magic!r}, not {_MAGIC!r}."
        )
    length = int.from_bytes(tail[-8:-4], "little") + _END
    if length > file.size - len(_MAGIC) or length > MOST_FOOTER:
        raise DataError(
            f"{where} is damaged: of its {file.size} bytes, the footer should take {length}."
        )
    if length > len(tail):
        tail = read(file.size - length, file.size)
    if len(tail) < length:
        raise DataError(f"{where} was cut while it was read.")
    return _parse(tail[-length:], file.size, where), tail[-length:]


def with_chunks(
    footer: Footer, data: bytes, size: int, where: str, scanner: ChunkScanner
) -> Footer:
    """A footer that says where the columns lie.

    Args:
        footer: What else it says.
        data: Its bytes.
        size: Bytes of the file.
        where: Path or URL of the file, for messages.
        scanner: Finds out.

    Raises:
        DataError: They can't lie there.
    """
    starts, lengths = scanner.find(data, len(footer.rows), where)
    found = replace(footer, starts=starts, lengths=lengths)
    if not _is_sound(found, size):
        raise DataError(f"{where} is damaged: its columns can't lie where its footer says.")
    return found


def _parse(data: bytes, size: int, where: str) -> Footer:
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        source = pa.BufferReader(data)
        schema = pq.ParquetFile(source, metadata=metadata, **READING).schema_arrow
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows = np.array([group.num_rows for group in groups], np.int64)
        sizes = np.array([group.total_byte_size for group in groups], np.int64)
        total = metadata.num_rows
        blob = schema.serialize().to_pybytes()
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if "encrypt" in str(error).lower():
            raise DataError(
                f"{where} is an encrypted Parquet file, which can't be read here."
            ) from error
        raise DataError(f"{where} has a damaged footer: {error}") from error
    nowhere = np.zeros((len(groups), 0), np.int64)
    footer = Footer(blob, len(data), rows, np.maximum(sizes, 0), nowhere, nowhere)
    if rows.sum() != total or not _is_sound(footer, size):
        raise DataError(
            f"{where} is damaged: what its footer says of row groups can't be ({total} rows in "
            f"all, {rows.tolist()[:9]} in the first)."
        )
    return footer


def _is_sound(footer: Footer, size: int) -> bool:
    groups = len(footer.rows)
    return bool(
        0 <= footer.length <= size
        and (footer.rows >= 0).all()
        and footer.rows.sum() <= 2**40
        and len(footer.sizes) == groups
        and footer.starts.shape == footer.lengths.shape
        and len(footer.starts) == groups
        and (footer.sizes >= 0).all()
        and (footer.starts >= 0).all()
        and (footer.lengths >= 0).all()
        and (footer.starts <= size).all()
        and (footer.lengths <= size - footer.starts).all()
    )


def dump_footers(footers: Mapping[Mark, Footer]) -> bytes:
    """Footers of many files as one Arrow file."""
    schemas: dict[bytes, int] = {}
    numbers = [schemas.setdefault(footer.schema, len(schemas)) for footer in footers.values()]
    values = list(footers.values())
    columns = [
        pa.array([key for key, _, _ in footers], pa.string()),
        pa.array([size for _, size, _ in footers], pa.int64()),
        pa.array([etag for _, _, etag in footers], pa.string()),
        pa.DictionaryArray.from_arrays(
            pa.array(numbers, pa.int32()), pa.array(list(schemas), pa.binary())
        ),
        pa.array([footer.length for footer in values], pa.int64()),
        *(
            _pack([getattr(footer, name) for footer in values])
            for name in ("rows", "sizes", "starts", "lengths")
        ),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as out:
        out.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def load_footers(data: Any) -> dict[Mark, Footer]:
    """What `dump_footers` wrote.

    Args:
        data: Its bytes, or the path of the file. They may come from anywhere: a footer that
            contradicts itself, and whatever is no such file, is left out.
    """
    try:
        source = pa.memory_map(str(data)) if isinstance(data, Path) else pa.BufferReader(data)
        with pa.ipc.open_file(source) as file:
            if file.schema.metadata != _SCHEMA.metadata or not file.schema.equals(_SCHEMA):
                return {}
            table = file.read_all()
        table.validate(full=True)
        found: dict[Mark, Footer] = {}
        for batch in table.to_batches():
            found.update(_unpack(batch))
    except (pa.ArrowException, OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.debug("Footers that were kept are of no use: %s", error)
        return {}
    return found


def _pack(arrays: Iterable[Ints]) -> Any:
    flat = [array.ravel() for array in arrays]
    offsets = np.cumsum([0, *map(len, flat)]).astype(np.int32)
    values = np.concatenate([np.zeros(0, np.int64), *flat])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _unpack(batch: Any) -> Iterable[tuple[Mark, Footer]]:
    keys, sizes, etags = (batch.column(i).to_pylist() for i in range(3))
    schemas = batch.column(3).dictionary.to_pylist()
    numbers = batch.column(3).indices.to_pylist()
    ends = batch.column(4).to_pylist()
    lists = [
        (column.offsets.to_numpy(), column.values.to_numpy())
        for column in (batch.column(i) for i in range(5, 9))
    ]
    for i, (key, size, etag) in enumerate(zip(keys, sizes, etags, strict=True)):
        rows, groups, starts, lengths = (
            values[offsets[i] : offsets[i + 1]] for offsets, values in lists
        )
        shape = (len(rows), -1 if len(rows) else 0)
        if len(starts) != len(lengths) or (len(rows) and len(starts) % len(rows)):
            continue
        footer = Footer(
            schemas[numbers[i]],
            ends[i],
            rows,
            groups,
            starts.reshape(shape),
            lengths.reshape(shape),
        )
        if _is_sound(footer, size):
            yield (key, size, etag), footer
