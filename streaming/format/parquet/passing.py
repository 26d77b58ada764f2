"""Reading the rows of a Parquet file once, in order, as they are decoded: no Arrow file is made."""

import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streaming.errors import MissingFileError
from streaming.format.parquet.decode import pieces, schema_of
from streaming.format.parquet.reader import ParquetReader
from streaming.format.reader import Sample

__all__ = ["PassingReader"]


class PassingReader(ParquetReader):
    """Reads a shard from the Parquet file itself; see `ShardReader`.

    Each call asks for samples that follow each other, and come after those of the call before; what
    lies in between is left out. Anything else, and single samples, are a MissingFileError: the
    Arrow file that they need was not made.
    """

    reads_once = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self._pieces = pieces(self.info, self.path, self._schema)
        self._first = 0  # the row with which the piece begins
        self._piece = next(self._pieces, None)
        if self._piece is not None:
            self._num_bytes = self._piece.nbytes * len(self) // self._piece.num_rows

    def get_item(self, idx: int) -> Sample:
        raise self._missing()

    def close(self) -> None:
        with self._lock:
            self._pieces.close()
            self._piece = None

    def _map(self) -> tuple[Any, list[Any]]:
        return schema_of(self.info), []

    def _find(self, places: NDArray[np.int64]) -> tuple[list[Any], NDArray[np.int64] | None]:
        if not len(places):
            return [pa.RecordBatch.from_pylist([], self._schema)], None
        start, stop = int(places[0]), int(places[-1]) + 1
        if stop - start != len(places) or not bool((places[1:] > places[:-1]).all()):
            raise self._missing()
        with self._lock:
            return self._span(start, stop), None

    def _span(self, start: int, stop: int) -> list[Any]:
        batches = []
        while start < stop:
            piece = self._piece
            if piece is None or start < self._first:
                raise self._missing()
            end = self._first + piece.num_rows
            if start < end:
                batches.append(piece.slice(start - self._first, min(stop, end) - start))
                start = min(stop, end)
            if start >= end:  # After the last piece, this says whether the file was the right one.
                self._first, self._piece = end, next(self._pieces, None)
        return batches

    def _missing(self) -> MissingFileError:
        return MissingFileError(
            f"{self.path} is read once, in order, from row {self._first} on; there is no Arrow "
            "file for other samples."
        )
