"""Reading fragments of Lance datasets."""

import operator
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    ConfigError,
    IndexFormatError,
    ShardCorruptError,
    StreamingError,
    UnknownNameError,
)
from streaming.format.column import Column
from streaming.format.index import ShardInfo
from streaming.format.lance.blobs import LanceBlob
from streaming.format.lance.rows import Rows, Span, moved, open_rows
from streaming.format.lance.values import TableValues
from streaming.format.reader import Remote, Sample, ShardReader, lost_index
from streaming.format.tables import TablePlace

__all__ = ["LanceReader"]

_MAX_NAMES = 4  # of files, that an error has


class LanceReader(ShardReader):
    """Reads a fragment, or the rows of it that a filter has left; see `ShardReader`.

    Holds no handle: each process opens the dataset when it first reads from it.
    """

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
        place: TablePlace | None = None,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        self._table = _place_of(info, self.paths) if place is None else place
        is_copy = place is None and "root" not in info.extra
        # The cache brings fragments; what says that they are a dataset came with the index.
        self._manifests = Path(self._table.where, "_versions") if is_copy else None
        self._version = int(info.extra["version"])
        self._columns = None if columns is None else tuple(dict.fromkeys(columns))
        known = _columns_of(info)
        self._names = self._columns or tuple(known)
        first, fragment = int(info.extra["first"]), int(info.extra["fragment"])
        self._chosen: NDArray[np.int64] | None = None
        rows = info.samples
        if "rows" in info.extra:
            path, start, stop = info.extra["rows"]
            try:
                self._chosen = np.load(path, mmap_mode="r")[start:stop] - first
            except FileNotFoundError as error:
                raise lost_index(path) from error
            rows = int(info.extra["physical"])
        self._span = Span(fragment, first, rows)
        self._values: TableValues | None = None

    @classmethod
    def open_remote(
        cls, info: ShardInfo, source: Remote, columns: Sequence[str] | None = None
    ) -> "LanceReader":
        """A reader of a fragment that stays where it is."""
        return cls(info, (), columns, place=TablePlace.at(source.root, source.options))

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        known = _columns_of(info)
        for name in columns or ():
            if name not in known:
                raise UnknownNameError(f"There is no column {name!r}. Known: {', '.join(known)}.")

    @property
    def group(self) -> Hashable:
        """Fragments of a version are read by one call."""
        return "lance", self._table, self._version, self._columns

    @classmethod
    def take_group(
        cls,
        parts: Sequence[tuple[ShardReader, NDArray[np.int64]]],
        places: NDArray[np.int64] | None,
        method: Literal["take", "take_columns"],
    ) -> Any:
        readers = cast("Sequence[tuple[LanceReader, NDArray[np.int64]]]", parts)
        first = readers[0][0]
        placed = [(reader._span, reader._place_rows(offsets)) for reader, offsets in readers]
        with first._told_of(reader.info for reader, _ in readers):
            batches = first._rows().read(placed, places)
        blobs = _Blobs(first._table, first._version, placed, places)
        values = first._values
        if values is None:
            values = first._values = TableValues(batches[0].schema)
        return (values.rows if method == "take" else values.columns)(batches, blobs)

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        found: list[Sample] = (
            self.take_group([(self, offsets)], None, "take") if len(offsets) else []
        )
        return found

    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        if not len(offsets):
            return {}
        found: Mapping[str, Column] = self.take_group([(self, offsets)], None, "take_columns")
        return found

    def get_item(self, idx: int) -> Sample:
        return self.take(np.array([operator.index(idx)]))[0]

    def read_raw(self, index: int) -> memoryview:
        raise ConfigError("A row of a Lance dataset has no bytes of its own: it lies in columns.")

    def decode_sample(self, data: bytes) -> Sample:
        raise ConfigError("A row of a Lance dataset has no bytes of its own: it lies in columns.")

    def close(self) -> None:
        """Nothing is open here."""

    def reopen(self) -> None:
        """Look at the files anew."""
        with self._told_of([self.info]):
            self._rows().forget()

    @contextmanager
    def _told_of(self, infos: Iterable[ShardInfo]) -> Iterator[None]:
        """Name the file of a fragment that is damaged, and see if the manifest is gone.

        What cleans a directory of old files often leaves the folders.
        """
        try:
            yield
        except StreamingError as error:
            if self._manifests is not None and not any(self._manifests.glob("*.manifest")):
                raise lost_index(self._manifests) from error
            names = [file.basename for info in infos for file, _ in info.files]
            if not isinstance(error, ShardCorruptError) or len(names) > _MAX_NAMES:
                raise
            where = ", ".join(os.path.join(self._table.where, name) for name in names)
            raise ShardCorruptError(f"{error} What was read is in {where}.") from error

    def _rows(self) -> Rows:
        return open_rows(self._table, self._version, self._columns)

    def _place_rows(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the fragment."""
        if offsets.min() < 0 or offsets.max() >= self.info.samples:
            raise IndexError(
                f"Samples {offsets.min()} to {offsets.max()} are not all in fragment "
                f"{self._span.fragment} of {self._table.where}, which has {len(self)}."
            )
        return offsets if self._chosen is None else self._chosen[offsets]


class _Blobs:
    """Makes the values of blob columns."""

    def __init__(
        self,
        place: TablePlace,
        version: int,
        parts: Sequence[tuple[Span, NDArray[np.int64]]],
        places: NDArray[np.int64] | None,
    ) -> None:
        self._place, self._version = place, version
        self._parts, self._places = parts, places

    def values(self, column: str, sizes: Sequence[int | None]) -> list[LanceBlob | None]:
        """The values of a column, of which there are the sizes; None for no value."""
        rows = np.concatenate([span.first + offsets for span, offsets in self._parts])
        if self._places is not None:
            rows = moved(rows, self._places)
        return [
            None if size is None else LanceBlob(self._place, self._version, column, row, size)
            for row, size in zip(rows.tolist(), sizes, strict=True)
        ]


def _place_of(info: ShardInfo, paths: Sequence[Path]) -> TablePlace:
    """Where the dataset is on this node: in place, or as the cache has it."""
    root = info.extra.get("root")
    if root is None:
        root = str(paths[-1])[: -len(info.files[-1][0].basename) - 1]
    return TablePlace(root, root)


def _columns_of(info: ShardInfo) -> Mapping[str, str]:
    columns = info.extra.get("columns")
    if not isinstance(columns, dict):
        raise IndexFormatError("This is no index of a Lance dataset: it has no columns.")
    return columns
