"""Rows of a version of a dataset, in the process that reads them.

`take` costs up to some milliseconds a call and then a microsecond a row; to decode rows that lie
side by side costs a tenth of that. So rows that are asked for in sequence are scanned, and of parts
of the table that are asked for again and again, as a shuffled epoch does, all rows are decoded and
kept: as soon as that costs no more than what was spent there on single rows.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.format.lance.client import open_dataset, reading
from streaming.format.tables import TablePlace
from streaming.storage.guard import FetchHelper, helper, inherited_runtime, kept
from streaming.util.importing import lazy

__all__ = ["LanceRows", "Rows", "Span", "moved", "open_rows"]

Ints = NDArray[np.int64]

# Rows of a batch of a scan.
BATCH = 1 << 14
# Rows that are decoded together and kept, if they are small: the more, the fewer calls make a block
# of shuffled rows.
CHUNK = 1 << 15
# Bytes of either.
CHUNK_BYTES = 4 << 20
# Bytes of decoded rows that a process keeps, of all tables.
LIMIT = 64 << 20
# Rows that tell how large rows are in memory.
SAMPLE = 64
# Rows that a process that may fork has its helper read before it reads by itself.
LOOKS = 2000

# Costs in microseconds, measured with pylance 14 (benchmarks/lance): of a row that is decoded with
# those beside it; of a call of `take`, of each of its first rows, and of every row; without their
# bytes, of which either brings so many in a microsecond.
SCAN, CALL, FIRST, TAKE, SPEED = 0.05, 500, 35, 1.0, 1000
NUM_FIRST = 100


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a fragment.

    Attributes:
        fragment: Its id.
        first: How many rows the table has before it.
        rows: Rows that it has.
    """

    fragment: int
    first: int
    rows: int


class Rows(Protocol):
    """Rows of a version of a dataset, wherever they are read."""

    def read(self, parts: Sequence[tuple[Span, Ints]], places: Ints | None = None) -> list[Any]:
        """Rows of some fragments, as record batches; see `LanceRows.read`."""
        ...

    def blob(self, column: str, row: int) -> Any:
        """The value of a blob column in a row of the table, as a file."""
        ...

    def forget(self) -> None:
        """Open the files anew."""
        ...


def open_rows(place: TablePlace, version: int, columns: tuple[str, ...] | None) -> Rows:
    """The rows as this process may read them.

    After a fork the library waits for threads that are not there, if the parent used it: so a
    process that may still fork leaves the few rows that people look at first to the helper, and a
    child that inherited the library in use leaves all to its own.
    """
    other, key = helper(), ("lance", place, version, columns)
    if other is not None and (inherited_runtime() or kept("lance looks", _Looks).are_few()):
        return _FarRows(other, place, version, columns)
    return kept(key, lambda: LanceRows(place, version, columns))


class LanceRows:
    """Reads rows of a version of a dataset. Threads may share it; processes may not.

    Args:
        place: The dataset.
        version: Of it.
        columns: Read only these; None: all.
    """

    def __init__(self, place: TablePlace, version: int, columns: tuple[str, ...] | None) -> None:
        self.place, self.version = place, version
        self._columns = None if columns is None else list(columns)
        self._lock = threading.RLock()
        self._scan: _Scan | None = None
        self._last: tuple[int, int] | None = None  # where the last range ended
        self._spent: dict[int, float] = {}  # on single rows of each chunk, by its first row
        self._reopen()

    def read(self, parts: Sequence[tuple[Span, Ints]], places: Ints | None = None) -> list[Any]:
        """Read rows of some fragments.

        Args:
            parts: Fragments, and offsets in each; shape (n,), n > 0.
            places: Where each row, one part after another, belongs; None: in that order.

        Returns:
            Record batches, which have the rows in that order.

        Raises:
            MissingFileError: A file is gone.
            DataError, StoreError: It can't be read.
        """
        with self._lock, reading(self.place.where, self.version):
            is_in_order = places is None or bool((places[1:] > places[:-1]).all())
            if is_in_order and all(_is_range(offsets) for _, offsets in parts):
                return [
                    batch
                    for span, offsets in parts
                    for batch in self._read_range(span, int(offsets[0]), int(offsets[-1]) + 1)
                ]
            self._scan = None
            return [self._read_anywhere(parts, places)]

    def blob(self, column: str, row: int) -> Any:
        """A file of the library: the value of a blob column in a row of the table."""
        with self._lock, reading(self.place.where, self.version):
            (found,) = self._dataset.take_blobs(column, indices=[row])
            return found

    def forget(self) -> None:
        """Open the files anew, after some were replaced."""
        with self._lock:
            self._scan = None
            self._reopen()

    def _reopen(self) -> None:
        self._dataset = open_dataset(self.place, self.version)
        num_rows, size = self._dataset.count_rows(), 0
        for fragment in self._dataset.get_fragments():
            size += sum(file.file_size_bytes or 0 for file in fragment.metadata.files)
        self._mean = max(1, size // max(1, num_rows))
        self._chunk = max(64, min(CHUNK, CHUNK_BYTES // self._mean))
        self._batch = min(BATCH, self._chunk)

    def _take(self, rows: Ints) -> Any:
        """Rows of the table, by one call."""
        table = self._dataset.take(rows, columns=self._columns)
        if len(rows) >= SAMPLE:  # Files are compressed, and have columns that are not read.
            self._mean = max(1, table.nbytes // len(rows))
        return lazy("pyarrow", "lance").concat_batches(table.to_batches())

    def _read_range(self, span: Span, start: int, stop: int) -> list[Any]:
        here = (span.first, start)
        if self._scan is None or self._scan.place != here:
            self._scan = None
            if self._last == here and stop < span.rows:
                self._scan = _Scan(self._open_scan(span, start), here)
        self._last = (span.first, stop)
        if self._scan is None:
            return [self._take(np.arange(span.first + start, span.first + stop))]
        batches = self._scan.read(stop - start)
        if stop == span.rows:
            self._scan, self._last = None, (span.first + span.rows, 0)
        return batches

    def _open_scan(self, span: Span, start: int) -> Iterator[Any]:
        scanner = self._dataset.scanner(
            columns=self._columns,
            fragments=[self._dataset.get_fragment(span.fragment)],
            offset=start,
            batch_size=self._batch,
            batch_readahead=4,
            scan_in_order=True,
        )
        batches: Iterator[Any] = scanner.to_batches()
        return batches

    def _read_anywhere(self, parts: Sequence[tuple[Span, Ints]], places: Ints | None) -> Any:
        """Rows anywhere: those of decoded chunks, and the others by one call."""
        arrow = lazy("pyarrow", "lance")
        rows = np.concatenate([span.first + offsets for span, offsets in parts])
        heads = np.concatenate(
            [span.first + offsets // self._chunk * self._chunk for span, offsets in parts]
        )
        stops = np.repeat([s.first + s.rows for s, _ in parts], [len(o) for _, o in parts])
        order = np.arange(len(rows)) if places is None else places
        if (rows[1:] < rows[:-1]).any():
            ascending = np.argsort(rows)
            rows, heads, stops, order = (x[ascending] for x in (rows, heads, stops, order))
        bounds = [0, *(np.flatnonzero(heads[1:] != heads[:-1]) + 1).tolist(), len(rows)]
        pieces = [
            (int(heads[a]), min(int(heads[a]) + self._chunk, int(stops[a])), a, b)
            for a, b in pairwise(bounds)
        ]
        chunks = self._get_chunks(pieces)
        # Where each row is among those that are found.
        found, where, size = [], np.empty_like(rows), 0
        is_left = np.zeros(len(rows), np.bool_)
        for (head, _, a, b), chunk in zip(pieces, chunks, strict=True):
            if chunk is None:
                is_left[a:b] = True
            else:
                found.append(chunk.take(arrow.array(rows[a:b] - head)))
                where[a:b] = np.arange(size, size + b - a)
                size += b - a
        left = rows[is_left]
        if len(left):
            is_new = np.append(True, left[1:] != left[:-1])
            found.append(self._take(left[is_new]))
            where[is_left] = size + np.cumsum(is_new) - 1
        return arrow.concat_batches(found).take(arrow.array(moved(where, order)))

    def _get_chunks(self, pieces: Sequence[tuple[int, int, int, int]]) -> list[Any]:
        """Decoded rows of parts of the table, where they are here or worth it; else None.

        Args:
            pieces: First row and end of each, and between which places those are that it is for.
        """
        kept_ones = kept("lance chunks", _Chunks)
        me = (self.place, self.version, tuple(self._columns or ()))
        found = [kept_ones.get((me, head)) for head, *_ in pieces]
        missing = [piece for piece, chunk in zip(pieces, found, strict=True) if chunk is None]
        if not missing:
            return found
        bytes_cost = self._mean / SPEED
        count = sum(b - a for *_, a, b in missing)
        cost = CALL + FIRST * min(count, NUM_FIRST) + count * (TAKE + bytes_cost)
        spent = sum(self._spent.get(head, 0.0) for head, *_ in missing)
        num_rows = sum(stop - head for head, stop, *_ in missing)
        # What is asked for together will be again; if that is too much to keep, it is no use.
        all_bytes = sum(stop - head for head, stop, *_ in pieces) * self._mean
        if all_bytes > LIMIT or num_rows * (SCAN + bytes_cost) > cost + spent:
            for head, _, a, b in missing:
                self._spent[head] = self._spent.get(head, 0.0) + cost * (b - a) / count
            return found
        for i, (head, stop, *_) in enumerate(pieces):
            if found[i] is None:
                found[i] = self._take(np.arange(head, stop))
                self._spent.pop(head, None)
                kept_ones.put((me, head), found[i])
        return found


class _Looks:
    """How many rows this process has had read by its helper."""

    def __init__(self) -> None:
        self._count = 0

    def are_few(self) -> bool:
        """Whether it may still have been a look only, or else reads by itself from now on."""
        return self._count < LOOKS

    def add(self, count: int) -> None:
        """Count some more."""
        self._count += count


class _FarRows:
    """Rows that the helper reads, which come as bytes."""

    def __init__(
        self,
        helper: FetchHelper,
        place: TablePlace,
        version: int,
        columns: tuple[str, ...] | None,
    ) -> None:
        self._helper, self._table = helper, (place, version, columns)

    def read(self, parts: Sequence[tuple[Span, Ints]], places: Ints | None = None) -> list[Any]:
        kept("lance looks", _Looks).add(sum(len(offsets) for _, offsets in parts))
        data = self._helper.call(_read, self._table, parts, places)
        arrow = lazy("pyarrow", "lance")
        with arrow.ipc.open_stream(arrow.py_buffer(data)) as stream:
            return list(stream)

    def blob(self, column: str, row: int) -> Any:
        return io.BytesIO(self._helper.call(_read_blob, self._table, column, row))

    def forget(self) -> None:
        self._helper.call(_forget, self._table)


_Table = tuple[TablePlace, int, tuple[str, ...] | None]


def _read(table: _Table, parts: Sequence[tuple[Span, Ints]], places: Ints | None) -> bytes:
    arrow = lazy("pyarrow", "lance")
    batches = open_rows(*table).read(parts, places)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read_blob(table: _Table, column: str, row: int) -> bytes:
    with open_rows(*table).blob(column, row) as file:
        data: bytes = file.read()
        return data


def _forget(table: _Table) -> None:
    open_rows(*table).forget()


class _Scan:
    """Rows as they come, from some place on."""

    def __init__(self, batches: Iterator[Any], place: tuple[int, int]) -> None:
        self._batches = batches
        self._left: Any = None
        self.place = place

    def read(self, count: int) -> list[Any]:
        """The next rows; so many must be left."""
        first, at = self.place
        self.place = (first, at + count)
        found = []
        while count:
            batch = next(self._batches) if self._left is None else self._left
            found.append(batch if batch.num_rows <= count else batch.slice(0, count))
            self._left = None if batch.num_rows <= count else batch.slice(count)
            count -= found[-1].num_rows
        return found


class _Chunks:
    """Decoded rows of all tables of a process; the least recently used go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = 0
        self._chunks: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        """A chunk, if it is here."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def put(self, key: Any, chunk: Any) -> None:
        """Keep a chunk, unless it is far too large."""
        with self._lock:
            if chunk.nbytes > LIMIT // 4 or key in self._chunks:
                return
            self._chunks[key] = chunk
            self._size += chunk.nbytes
            while self._size > LIMIT:
                _, old = self._chunks.popitem(last=False)
                self._size -= old.nbytes


def moved(values: Ints, places: Ints) -> Ints:
    """Values, each at its place."""
    found = np.empty_like(values)
    found[places] = values
    return found


def _is_range(places: Ints) -> bool:
    size = len(places)
    return int(places[-1]) - int(places[0]) == size - 1 and bool((places[1:] > places[:-1]).all())
