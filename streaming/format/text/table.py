"""The table of a text shard: where in its data file each record starts.

Layout: the number of records n; n + 1 offsets, of which the last is where the last record ends;
then JSON for people. Numbers are u32, or u64 if the index says `offset_bytes` 8, which it does for
data files of 4 GiB and more.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ShardCorruptError
from streaming.format.mapping import Mapped, map_file
from streaming.storage.store import part_path, translated

__all__ = ["MAX_U32", "RecordTable", "least_table_bytes", "pack_table", "write_table"]

MAX_U32 = (1 << 32) - 1


class RecordTable:
    """The table of one shard, mapped.

    Attributes:
        offsets: Shape (samples + 1,), u32 or u64, in native order.
        at: The same for single places, which it gives as `int` much faster than an array.

    Args:
        path: The file.
        size: Its bytes.
        samples: Records it must have.
        width: Bytes of a number, 4 or 8.

    Raises:
        FileNotFoundError: There is no such file.
        ShardCorruptError: It has another size, or another number of records.
    """

    def __init__(self, path: Path, size: int, samples: int, width: int) -> None:
        data = map_file(path, size)
        if len(data) < width * (samples + 2):
            raise ShardCorruptError(
                f"Shard file {path} of {len(data)} bytes can't hold the table of the {samples} "
                "samples that the index says."
            )
        found, self.offsets = _unpack(data, samples, width)
        if found != samples:
            raise ShardCorruptError(
                f"Shard file {path} has the places of {found} samples, but the index says "
                f"{samples}."
            )
        self.at = self.offsets.data
        self._path = path

    def check(self, size: int) -> None:
        """Check that records lie one after another in a data file of `size` bytes.

        Raises:
            ShardCorruptError: They don't.
        """
        offsets = self.offsets
        wrong = offsets[1:] < offsets[:-1]
        if not wrong.any():
            wrong = offsets[1:] > size
        if wrong.any():
            at = int(wrong.argmax())
            raise ShardCorruptError(
                f"By the table {self._path}, sample {at} lies at [{offsets[at]}, "
                f"{offsets[at + 1]}) of a file of {size} bytes."
            )


def _unpack(data: Mapped, samples: int, width: int) -> tuple[int, NDArray[Any]]:
    (found,) = struct.unpack_from("<I" if width == 4 else "<Q", data)
    offsets = np.frombuffer(data, f"<u{width}", samples + 1, width)
    return found, offsets.astype(f"=u{width}", copy=False)


def least_table_bytes(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of the smallest table of so many records."""
    return 4 * (samples + 2)


def pack_table(offsets: NDArray[np.int64], config: bytes) -> bytes:
    """Make a table of u32.

    Args:
        offsets: Start of each record, and the end of the last, below 2^32, shape (n + 1,).
        config: JSON for people.
    """
    return struct.pack("<I", len(offsets) - 1) + offsets.astype("<u4").tobytes() + config


def write_table(
    path: Path, starts: Iterable[NDArray[np.int64]], stop: int, config: bytes, *, width: int
) -> int:
    """Write a table piece by piece, under its name only once it is whole.

    Args:
        path: The file.
        starts: Starts of records, ascending.
        stop: Where the last record ends.
        config: JSON that stands at the end.
        width: Bytes of a number, 4 or 8.

    Returns:
        The number of records.

    Raises:
        StoreError: It can't be written.
        DataError: Whatever `starts` raises.
    """
    part = part_path(path)
    count = 0
    try:
        with translated(f"Can't write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(bytes(width))
                for piece in starts:
                    count += len(piece)
                    file.write(piece.astype(f"<u{width}").data)
                file.write(stop.to_bytes(width, "little") + config)
                file.seek(0, os.SEEK_SET)
                file.write(count.to_bytes(width, "little"))
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count
