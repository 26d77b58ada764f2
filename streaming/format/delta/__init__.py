"""Delta tables: their log is read by `deltalake`, their files as Parquet (docs/tables.md)."""

from dataclasses import replace

from streaming.format.delta.indexing import index_dataset
from streaming.format.delta.state import history, resolve
from streaming.format.parquet import FORMAT as PARQUET
from streaming.format.tables import TableFormat

__all__ = ["FORMAT"]


def _keys(version: int) -> tuple[str, ...]:
    return (f"_delta_log/{version:020d}.json",)


# Shards are Parquet's, which the index says of each.
FORMAT = replace(
    PARQUET,
    name="delta",
    endings=(),
    index_dataset=index_dataset,
    dump_index=None,
    table=TableFormat("Delta table", "_delta_log", _keys, resolve, history),
)
