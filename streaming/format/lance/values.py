"""Record batches as samples and as columns: as those of Parquet, and blobs beside them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streaming.format.column import Column
from streaming.format.parquet.reader import row_maker
from streaming.format.reader import Sample
from streaming.util.importing import lazy

__all__ = ["Blobs", "columns_of", "rows_of"]

# Rows that are made at once: lists of this length stay in the CPU's cache.
_SLICE = 1024


class Blobs(Protocol):
    """Makes the values of blob columns."""

    def values(self, column: str, sizes: Sequence[int | None]) -> list[Any]:
        """The values of a column, of which there are the sizes; None for no value."""
        ...


def rows_of(batches: Sequence[Any], blobs: Blobs) -> list[Sample]:
    """One dict a row."""
    values: Any = lazy("streaming.format.parquet.values", "lance")
    schema = batches[0].schema
    make = row_maker(len(schema))
    is_blob = [_is_blob(field) for field in schema]
    lists = [values.make_lists(field) for field in schema]
    rows: list[Sample] = []
    if not any(is_blob):
        for batch in batches:
            for at in range(0, batch.num_rows, _SLICE):
                piece = batch.slice(at, _SLICE)
                columns = [convert(piece.column(i)) for i, convert in enumerate(lists)]
                rows += make(schema.names, columns)
        return rows
    columns = [
        _blobs(schema.field(i).name, [batch.column(i) for batch in batches], blobs)
        if is_blob[i]
        else [value for batch in batches for value in convert(batch.column(i))]
        for i, convert in enumerate(lists)
    ]
    return make(schema.names, columns)


def columns_of(batches: Sequence[Any], blobs: Blobs) -> Mapping[str, Column]:
    """One column a name: see `ShardReader.take_columns`."""
    values: Any = lazy("streaming.format.parquet.values", "lance")
    arrow, found = lazy("pyarrow", "lance"), dict[str, Column]()
    for i, field in enumerate(batches[0].schema):
        arrays = [batch.column(i) for batch in batches]
        if _is_blob(field):
            found[field.name] = _blobs(field.name, arrays, blobs)
        else:
            array = arrays[0] if len(arrays) == 1 else arrow.concat_arrays(arrays)
            found[field.name] = values.as_column(field, array)
    return found


def _blobs(name: str, arrays: Sequence[Any], blobs: Blobs) -> list[Any]:
    sizes = [
        None if about is None else about["size"] for array in arrays for about in array.to_pylist()
    ]
    return blobs.values(name, sizes)


def _is_blob(field: Any) -> bool:
    about = field.metadata or {}
    return about.get(b"lance-encoding:blob") == b"true" and field.type.num_fields > 0
