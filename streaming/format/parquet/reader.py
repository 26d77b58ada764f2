"""Reading shards of Parquet: the Arrow files that were made of them."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError, SampleError, ShardCorruptError, UnknownNameError
from streaming.format.column import Column
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
        self._open()
        schema = self._file.schema
        names = schema.names if columns is None else list(dict.fromkeys(columns))
        self._names = names
        self._numbers = [schema.get_field_index(name) for name in names]
        self._fields = [schema.field(number) for number in self._numbers]
        self._lists = [self._values.make_lists(field) for field in self._fields]
        self._row = row_maker(len(names))

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
            lists = self._values.make_decoder(self._fields[at], decode)
            if lists is None:
                raise ConfigError(
                    f"`decoders` has {name!r}, but values of type {self._fields[at].type} are not "
                    "stored as bytes."
                )
            self._lists[at] = lists

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        batches, order = self._find(self._place(offsets))
        rows: list[Sample] = []
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS):
                rows += self._rows(batch.slice(start, _ROWS))
        return rows if order is None else [rows[place] for place in order.tolist()]

    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        batches, order = self._find(self._place(offsets))
        columns = {}
        for name, number, field in zip(self._names, self._numbers, self._fields, strict=True):
            arrays = [batch.column(number) for batch in batches]
            array = arrays[0] if len(arrays) == 1 else self._arrow.concat_arrays(arrays)
            if order is not None:
                array = array.take(self._arrow.array(order))
            columns[name] = self._values.as_column(field, array)
        return columns

    def get_item(self, idx: int) -> Sample:
        idx = operator.index(idx)
        if not 0 <= idx < len(self):
            raise IndexError(f"Sample {idx} is not in {self.path}, which has {len(self)}.")
        number = int(np.searchsorted(self._starts, idx, side="right")) - 1
        return self._rows(self._batch(number).slice(idx - int(self._starts[number]), 1))[0]

    def read_raw(self, index: int) -> memoryview:
        raise ConfigError("Parquet stores columns: there are no bytes of one sample.")

    def decode_sample(self, data: bytes) -> Sample:
        raise ConfigError("Parquet stores columns: there are no bytes of one sample.")

    def close(self) -> None:
        # The map itself goes when the last array over it does; what was given out stays good.
        self._batches.clear()

    def _open(self) -> None:
        arrow = self._arrow
        try:
            self._file = arrow.ipc.open_file(arrow.memory_map(str(self.path)))
            self._batches: dict[int, Any] = {}
            sizes = [self._batch(i).num_rows for i in range(self._file.num_record_batches)]
        except FileNotFoundError:
            raise
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise ShardCorruptError(f"{self.path} is no whole Arrow file: {error}") from error
        self._starts = np.cumsum([0, *sizes]).astype(np.int64)
        names = list(self.info.extra.get("names", ()))
        if self._starts[-1] != len(self) or self._file.schema.names != names:
            raise ShardCorruptError(
                f"{self.path} has {self._starts[-1]} rows of {self._file.schema.names}, but the "
                f"index says {len(self)} of {names}."
            )

    def _batch(self, number: int) -> Any:
        found = self._batches.get(number)
        if found is None:
            found = self._batches[number] = self._file.get_batch(number)
        return found

    def _find(self, places: NDArray[np.int64]) -> tuple[list[Any], NDArray[np.int64] | None]:
        """The rows at some places, as batches one after another.

        Returns:
            The batches, and where among their rows each of those asked for is; None: in order.
        """
        if not len(places):
            return [self._batch(0).slice(0, 0)], None
        first, count = int(places[0]), len(places)
        if int(places[-1]) - first == count - 1 and bool((places[1:] > places[:-1]).all()):
            return self._span(first, first + count), None
        if len(self._starts) == 2:
            return [self._batch(0).take(self._arrow.array(places))], None
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        inner = (places - self._starts[numbers])[order]
        bounds = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        batches = [
            self._batch(int(numbers[order[start]])).take(self._arrow.array(inner[start:stop]))
            for start, stop in pairwise(bounds)
        ]
        if len(batches) == 1:
            return batches, None
        back = np.empty_like(order)
        back[order] = np.arange(count)
        return batches, back

    def _span(self, start: int, stop: int) -> list[Any]:
        batches = []
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[number + 1]))
            inner = start - int(self._starts[number])
            batches.append(self._batch(number).slice(inner, end - start))
            start, number = end, number + 1
        return batches

    def _rows(self, batch: Any) -> list[Sample]:
        """Rows as samples."""
        try:
            columns = [
                lists(batch.column(number))
                for lists, number in zip(self._lists, self._numbers, strict=True)
            ]
        except Exception as error:
            raise SampleError(
                f"A value in {self.info.extra['key']} ({self.path}) can't be made: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._row(self._names, columns)


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
