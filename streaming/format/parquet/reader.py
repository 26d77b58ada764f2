"""Reading shards of Parquet: the Arrow files that were made of them."""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    ConfigError,
    SampleError,
    ShardCorruptError,
    UnknownNameError,
    from_os_error,
)
from streaming.format.column import Column, inverse
from streaming.format.index import ShardInfo
from streaming.format.reader import Sample, ShardReader
from streaming.util.importing import lazy

__all__ = ["ParquetReader", "row_maker"]

# Rows that become Python's values at once: these stay in the processor's cache.
_ROWS = 1024


class ParquetReader(ShardReader):
    """Reads a shard that was decoded from row groups of a Parquet file; see `ShardReader`.

    The values of samples are in docs/parquet.md. The Arrow file is mapped: its memory is shared by
    all processes, and the system's to take back.
    """

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        self.path = self.paths[-1]
        self._arrow: Any = lazy("pyarrow", "parquet")
        self._values: Any = lazy("streaming.format.parquet.values", "parquet")
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        schema, self._batches = self._map()
        self._num_bytes = self.path.stat().st_size
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        names = schema.names if columns is None else list(dict.fromkeys(columns))
        if names != schema.names:  # Rows are put in order without columns that nobody asked for.
            schema = self._arrow.schema([schema.field(name) for name in names])
            self._batches = [batch.select(names) for batch in self._batches]
        self._names, self._schema = names, schema
        self._lists = [self._values.make_lists(field) for field in schema]
        self._makers = [self._values.make_column(field) for field in schema]
        self._row = row_maker(len(names))
        self._group = _same("parquet", schema.serialize().to_pybytes())

    @property
    def mean_bytes(self) -> int:
        """Bytes of a row as it is here, which no footer says."""
        return self._num_bytes // max(len(self), 1)

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        known = info.extra.get("names", ())
        for name in columns or ():
            if name not in known:
                raise UnknownNameError(f"There is no column {name!r}. Known: {', '.join(known)}.")

    def use_decoders(self, decoders: Mapping[str, Callable[[bytes], Any]]) -> None:
        for name, decode in decoders.items():
            if name not in self._names:
                raise UnknownNameError(
                    f"There is no column {name!r} to decode. Known: {', '.join(self._names)}."
                )
            at = self._names.index(name)
            field = self._schema.field(at)
            lists = self._values.make_decoder(field, decode)
            if lists is None:
                raise ConfigError(
                    f"`decoders` has {name!r}, but values of type {field.type} are not stored as "
                    "bytes."
                )
            self._lists[at] = lists
        # They are told apart by what they are: they need not be hashable. This reader keeps them.
        marks = sorted((name, id(decode)) for name, decode in decoders.items())
        self._decoders = dict(decoders)
        self._group = _same(self._group, *marks)

    @property
    def group(self) -> Hashable:
        """Shards with the same columns, of which the same values are made, are read by one call."""
        return self._group

    @classmethod
    def take_group(
        cls,
        parts: Sequence[tuple[ShardReader, NDArray[np.int64]]],
        places: NDArray[np.int64] | None,
        method: Literal["take", "take_columns"],
    ) -> Any:
        readers = cast("Sequence[tuple[ParquetReader, NDArray[np.int64]]]", parts)
        found = [reader._find(reader._place(offsets)) for reader, offsets in readers]
        batches = [batch for some, _ in found for batch in some]
        order = None if places is None else inverse(places)
        if any(back is not None for _, back in found):
            wheres, first = [], 0
            for (_, offsets), (_, back) in zip(readers, found, strict=True):
                wheres.append(first + (np.arange(len(offsets)) if back is None else back))
                first += len(offsets)
            joined = np.concatenate(wheres)
            order = joined if order is None else joined[order]
        reader = readers[0][0]
        if method == "take_columns":
            return reader._make_columns(batches, order)
        try:
            return reader._make(batches, order)
        except SampleError:
            if len(readers) > 1:  # One of them says that it is in its file.
                for each in readers:
                    each[0].take(each[1])
            raise

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        found: list[Sample] = self.take_group([(self, offsets)], None, "take")
        return found

    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        found: Mapping[str, Column] = self.take_group([(self, offsets)], None, "take_columns")
        return found

    def get_item(self, idx: int) -> Sample:
        idx = operator.index(idx)
        if not 0 <= idx < len(self):
            raise IndexError(f"Sample {idx} is not in {self.path}, which has {len(self)}.")
        number = int(np.searchsorted(self._starts, idx, side="right")) - 1
        return self._rows(self._batches[number].slice(idx - int(self._starts[number]), 1))[0]

    def read_raw(self, index: int) -> memoryview:
        raise ConfigError("Parquet stores columns: there are no bytes of one sample.")

    def decode_sample(self, data: bytes) -> Sample:
        raise ConfigError("Parquet stores columns: there are no bytes of one sample.")

    def close(self) -> None:
        # The map itself goes when the last array over it does; what was given out stays good.
        self._batches = []

    def _map(self) -> tuple[Any, list[Any]]:
        """The schema and the batches of the Arrow file."""
        arrow, names = self._arrow, list(self.info.extra.get("names", ()))
        try:
            source = arrow.memory_map(str(self.path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise from_os_error(error, f"Can't map {self.path}") from error
        try:
            # Closed again, or each reader would hold a descriptor; batches hold the map.
            with source, arrow.ipc.open_file(source) as file:
                schema = file.schema
                batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise ShardCorruptError(f"{self.path} is no whole Arrow file: {error}") from error
        rows = sum(batch.num_rows for batch in batches)
        if rows != len(self) or schema.names != names:
            raise ShardCorruptError(
                f"{self.path} has {rows} rows of {schema.names}, but the index says {len(self)} of "
                f"{names}."
            )
        return schema, batches

    def _find(self, places: NDArray[np.int64]) -> tuple[list[Any], NDArray[np.int64] | None]:
        """The rows at some places, as batches one after another.

        Returns:
            The batches, and where among their rows each of those asked for is; None: in order.
        """
        if not len(places):
            return [self._batches[0].slice(0, 0)], None
        first, count = int(places[0]), len(places)
        if int(places[-1]) - first == count - 1 and bool((places[1:] > places[:-1]).all()):
            return self._span(first, first + count), None
        if bool((places[1:] >= places[:-1]).all()):
            return self._pick(places), None
        # In the order in which they lie in memory, which is read faster so.
        order = np.argsort(places)
        return self._pick(places[order]), inverse(order)

    def _pick(self, places: NDArray[np.int64]) -> list[Any]:
        """The rows at ascending places."""
        array = self._arrow.array
        if len(self._batches) == 1:
            return [self._batches[0].take(array(places))]
        bounds = np.searchsorted(places, self._starts).tolist()
        return [
            batch.take(array(places[a:b] - start))
            for batch, start, (a, b) in zip(
                self._batches, self._starts.tolist(), pairwise(bounds), strict=False
            )
            if a < b
        ]

    def _span(self, start: int, stop: int) -> list[Any]:
        batches = []
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[number + 1]))
            inner = start - int(self._starts[number])
            batches.append(self._batches[number].slice(inner, end - start))
            start, number = end, number + 1
        return batches

    def _make(self, batches: Sequence[Any], order: NDArray[np.int64] | None) -> list[Sample]:
        """Samples of the rows of some batches. They are put in order before: that is faster."""
        rows: list[Sample] = []
        for batch in batches if order is None else [self._join(batches, order)]:
            for start in range(0, batch.num_rows, _ROWS):
                rows += self._rows(batch.slice(start, _ROWS))
        return rows

    def _make_columns(
        self, batches: Sequence[Any], order: NDArray[np.int64] | None
    ) -> dict[str, Column]:
        """Columns of the rows of some batches."""
        if order is not None:
            batches = [self._join(batches, order)]
        return {
            name: make([batch.column(i) for batch in batches])
            for i, (name, make) in enumerate(zip(self._names, self._makers, strict=True))
        }

    def _join(self, batches: Sequence[Any], order: NDArray[np.int64]) -> Any:
        """The rows of some batches as one, in another order."""
        arrow = self._arrow
        joined = [
            arrow.concat_arrays([batch.column(i) for batch in batches])
            for i in range(len(self._schema))
        ]
        whole = arrow.RecordBatch.from_arrays(joined, schema=self._schema)
        return whole.take(arrow.array(order))

    def _rows(self, batch: Any) -> list[Sample]:
        """Rows as samples."""
        try:
            columns = [lists(batch.column(i)) for i, lists in enumerate(self._lists)]
        except Exception as error:
            raise SampleError(
                f"A value in {self.info.extra['key']} ({self.path}) can't be made: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._row(self._names, columns)


@cache
def _same(*parts: Hashable) -> Hashable:
    """One object for all that are equal, which then are compared at once."""
    return parts


@cache
def row_maker(width: int) -> Callable[[Sequence[str], Sequence[list[Any]]], list[Sample]]:
    """A function that makes dicts of columns; a loop over names takes thrice as long.

    Its source holds numbers only.
    """
    if not 0 < width <= 64:
        return lambda names, columns: [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    keys = ", ".join(f"k{i}" for i in range(width))
    values = ", ".join(f"v{i}" for i in range(width))
    items = ", ".join(f"k{i}: v{i}" for i in range(width))
    scope: dict[str, Any] = {}
    exec(
        f"def make(names, columns):\n    {keys}, = names\n"
        f"    return [{{{items}}} for {values}, in zip(*columns, strict=True)]\n",
        scope,
    )
    made: Callable[[Sequence[str], Sequence[list[Any]]], list[Sample]] = scope["make"]
    return made
