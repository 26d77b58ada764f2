"""Parquet, read where it lies (docs/parquet.md). pyarrow is imported when it is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming.format.index import Index, ShardInfo
from streaming.format.indexing import IndexRequest
from streaming.format.parquet.reader import ParquetReader
from streaming.format.reader import ShardReader
from streaming.format.registry import Format
from streaming.storage import Store
from streaming.util.importing import lazy

__all__ = ["FORMAT", "ParquetReader"]


def _module(name: str) -> Any:
    lazy("pyarrow.parquet", "parquet")
    return lazy(f"streaming.format.parquet.{name}", "parquet")


def _index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    # What reading needs is imported now, so that workers that are forked later find it done.
    for name in ("passing", "values"):
        _module(name)
    lazy("pyarrow.compute", "parquet")
    index: Index = _module("indexing").index_dataset(store, prefix, request)
    return index


def _dump_index(store: Store, prefix: str, request: IndexRequest) -> tuple[str, bytes]:
    dumped: tuple[str, bytes] = _module("indexing").dump_index(store, prefix, request)
    return dumped


def _decode(info: ShardInfo, path: Path, target: Path) -> None:
    _module("decode").decode(info, path, target)


def _read_once(info: ShardInfo, path: Path, columns: Sequence[str] | None) -> ShardReader:
    reader: ShardReader = _module("passing").PassingReader(info, [path], columns)
    return reader


FORMAT = Format(
    "parquet",
    ParquetReader,
    endings=(".parquet", ".pq", ".parq"),
    index_dataset=_index_dataset,
    dump_index=_dump_index,
    decode=_decode,
    read_once=_read_once,
)
