"""Reading shards of text: a data file, and a table of where its records are."""

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import IndexFormatError
from streaming.format.index import ShardInfo
from streaming.format.indexing import check_unchanged
from streaming.format.mapping import Mapped, map_file
from streaming.format.reader import ShardReader, lost_index
from streaming.format.text.table import RecordTable

__all__ = ["TextReader"]

_PIECE = 1 << 20  # bytes in which lines are counted at once


class TextReader(ShardReader):
    """A shard whose records are texts, one after another; see `ShardReader`.

    Where they are is in the shard's meta file. If the data came without an index, it is in a table
    that was made when they were indexed, of which `extra["table"]` gives path, bytes, and bytes of
    a number.
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
        raw, _ = info.files[-1]
        self.path = self.paths[-1]
        table = info.extra.get("table")
        self._state: tuple[int, int, int] | None = None  # of a file that others may write to
        if table is None:
            width = info.extra.get("offset_bytes", 4)
            self._table = RecordTable(self.paths[0], info.files[0][0].bytes, info.samples, width)
            self._data: Mapped = map_file(self.path, raw.bytes)
            self._table.check(raw.bytes)
        else:
            if raw.etag is not None and os.path.isabs(raw.basename):
                self._state = _state_of(self.path)
                check_unchanged(self.path, raw.etag)
            self._data = map_file(self.path, raw.bytes)
            try:
                self._table = RecordTable(Path(table[0]), table[1], info.samples, table[2])
            except FileNotFoundError as error:
                raise lost_index(table[0]) from error
        self._offsets, self._at = self._table.offsets, self._table.at

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        if "table" not in info.extra and info.extra.get("offset_bytes", 4) not in (4, 8):
            raise IndexFormatError(
                f"`offset_bytes` of {info.files[0][0].basename} should be 4 or 8, but is "
                f"{info.extra['offset_bytes']!r:.100}."
            )

    def read_raw(self, index: int) -> memoryview:
        start, stop = self._range(index)
        return memoryview(self._data)[start:stop]

    def close(self) -> None:
        # The map itself goes when the last view of it does; what was given out stays good.
        self._data = b""

    def _range(self, index: int) -> tuple[int, int]:
        """Where a record is in the data file."""
        index = operator.index(index)  # Small unsigned numbers of numpy would wrap around below.
        if not 0 <= index < self.info.samples:
            raise IndexError(f"Sample {index} is not in {self.path}, which has {len(self)}.")
        if self._state is not None:
            self._watch(self._state)
        return self._at[index], self._at[index + 1]

    def _read(self, places: NDArray[np.int64]) -> tuple[memoryview, NDArray[np.int64]]:
        """Bring records together; without a copy, if they lie so in the file.

        Args:
            places: Which, checked, shape (n,), n > 0.

        Returns:
            Their bytes, one after another, and where each starts there, shape (n,).
        """
        if self._state is not None:
            self._watch(self._state)
        first, count = int(places[0]), len(places)
        if int(places[-1]) - first == count - 1 and bool((places[1:] > places[:-1]).all()):
            bounds = self._offsets[first : first + count + 1].astype(np.int64)
            view = memoryview(self._data)[int(bounds[0]) : int(bounds[-1])]
            return view, bounds[:-1] - bounds[0]
        starts, stops = self._offsets[places], self._offsets[places + 1]
        data = self._data
        pieces = [data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        sizes = (stops - starts).astype(np.int64)
        return memoryview(b"".join(pieces)), np.cumsum(sizes) - sizes

    def _name(self, idx: int | None) -> str:
        """What a message calls a record."""
        if idx is None:
            return "the bytes given"
        start, view = self._at[idx], memoryview(self._data)
        pieces = (bytes(view[at : min(at + _PIECE, start)]) for at in range(0, start, _PIECE))
        line = 1 + sum(piece.count(b"\n") for piece in pieces)
        return f"sample {idx} of shard file {self.path} (line {line}, byte {start})"

    def _watch(self, state: tuple[int, int, int]) -> None:
        """See that a file of the user's still is as it was, in a call that costs little.

        Where it was cut short, to read what is mapped of it would end the process.
        """
        if _state_of(self.path) != state:
            check_unchanged(self.path, str(self.info.files[-1][0].etag))

    def _blame(self, places: NDArray[np.int64]) -> None:
        """Decode records one by one, so that the error of the first bad one says where it is."""
        for place in places.tolist():
            self.get_item(place)

    def get_item(self, idx: int) -> dict[str, Any]:
        start, stop = self._range(idx)
        return self._decode(self._data[start:stop], idx)

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        return self._decode(bytes(data), None)

    def _decode(self, record: bytes, idx: int | None) -> dict[str, Any]:
        """Decode one record; `idx` is its place, for messages."""
        raise NotImplementedError


def _state_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file does; zeros if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size
