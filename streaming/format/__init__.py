"""Shard formats: what an index says, and readers and writers of one shard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from streaming.format.column import BytesColumn, Column
from streaming.format.index import (
    FileInfo,
    Index,
    ShardInfo,
    dump_index,
    get_index_basename,
    parse_index,
)
from streaming.format.lazy import Reader
from streaming.format.reader import Sample, ShardReader
from streaming.format.registry import Format, formats

__all__ = [
    "BytesColumn",
    "Column",
    "FileInfo",
    "Format",
    "Index",
    "Reader",
    "Sample",
    "ShardInfo",
    "ShardReader",
    "check_types",
    "dump_index",
    "formats",
    "get_index_basename",
    "open_reader",
    "parse_index",
    "read_once",
    "reader_from_json",
]


def open_reader(
    info: ShardInfo,
    paths: Sequence[Path],
    columns: Sequence[str] | None = None,
    *,
    allow_unsafe_types: bool = False,
) -> ShardReader:
    """Open a shard with the reader of its format; see `ShardReader` for arguments and errors."""
    reader = formats.get(info.format).reader
    return reader(info, paths, columns, allow_unsafe_types=allow_unsafe_types)


def read_once(info: ShardInfo, path: Path, columns: Sequence[str] | None = None) -> ShardReader:
    """Open a shard of the compressed file itself; see `Format.read_once`, which there must be."""
    opens = formats.get(info.format).read_once
    assert opens is not None  # Callers look first.
    return opens(info, path, columns)


def check_types(
    info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
) -> None:
    """Check the columns of a shard without opening it; see `ShardReader.check_types`.

    Like shards need it once: `Index.examples` has one of each kind.
    """
    formats.get(info.format).reader.check_types(info, allow_unsafe_types, columns)


def reader_from_json(dirname: str, split: str | None, obj: Mapping[str, Any]) -> Reader:
    """Describe a shard by its entry in an index; its files are opened when it is first read.

    Args:
        dirname: Directory of the dataset.
        split: Directory under it that holds the index; None or "" for none.
        obj: One of the index's `shards`.

    Raises:
        IndexFormatError: The entry is broken.
        UnknownNameError: There is no such format.
    """
    document = msgspec.json.encode({"shards": [obj], "version": obj.get("version")})
    info = parse_index(document, f"an entry for {Path(dirname, split or '')}").shard(0)
    return Reader(info, dirname, split)
