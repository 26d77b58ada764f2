"""Record batches as samples and as columns: as those of Parquet, and blobs beside them."""

from collections.abc import Sequence
from typing import Any, Protocol

from streaming.format.column import Column
from streaming.format.parquet.reader import row_maker
from streaming.format.reader import Sample
from streaming.util.importing import lazy

__all__ = ["Blobs", "TableValues"]

# Rows that are made at once: lists of this length stay in the CPU's cache.
_SLICE = 1024


class Blobs(Protocol):
    """Makes the values of blob columns."""

    def values(self, column: str, sizes: Sequence[int | None]) -> list[Any]:
        """The values of a column, of which there are the sizes; None for no value."""
        ...


class TableValues:
    """Makes the values of a table's rows.

    Args:
        schema: Of the record batches.
    """

    def __init__(self, schema: Any) -> None:
        values: Any = lazy("streaming.format.parquet.values", "lance")
        self._names = schema.names
        self._is_blob = [_is_blob(field) for field in schema]
        self._lists = [values.make_lists(field) for field in schema]
        self._columns = [values.make_column(field) for field in schema]
        self._row = row_maker(len(schema))

    def rows(self, batches: Sequence[Any], blobs: Blobs) -> list[Sample]:
        """One dict a row."""
        names, rows = self._names, list[Sample]()
        if not any(self._is_blob):
            for batch in batches:
                for at in range(0, batch.num_rows, _SLICE):
                    piece = batch.slice(at, _SLICE)
                    columns = [convert(piece.column(i)) for i, convert in enumerate(self._lists)]
                    rows += self._row(names, columns)
            return rows
        columns = [
            _blobs(names[i], [batch.column(i) for batch in batches], blobs)
            if self._is_blob[i]
            else [value for batch in batches for value in convert(batch.column(i))]
            for i, convert in enumerate(self._lists)
        ]
        return self._row(names, columns)

    def columns(self, batches: Sequence[Any], blobs: Blobs) -> dict[str, Column]:
        """One column a name: see `ShardReader.take_columns`."""
        found: dict[str, Column] = {}
        for i, name in enumerate(self._names):
            arrays = [batch.column(i) for batch in batches]
            is_blob, make = self._is_blob[i], self._columns[i]
            found[name] = _blobs(name, arrays, blobs) if is_blob else make(arrays)
        return found


def _blobs(name: str, arrays: Sequence[Any], blobs: Blobs) -> list[Any]:
    sizes = [
        None if about is None else about["size"] for array in arrays for about in array.to_pylist()
    ]
    return blobs.values(name, sizes)


def _is_blob(field: Any) -> bool:
    about = field.metadata or {}
    return about.get(b"lance-encoding:blob") == b"true" and field.type.num_fields > 0
