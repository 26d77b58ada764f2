"""A table of fixed records in a file that all processes of a node map."""

import mmap
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from streaming.shared.sharing import share

__all__ = ["SharedTable"]

_MAGIC = b"STRMTBL1"  # The digit is the version of this layout.
_HEADER = np.dtype([("magic", "S8"), ("itemsize", "<i8"), ("rows", "<i8"), ("digest", "S40")])


class SharedTable:
    """Records that every process sees change at once. Threads may share it.

    Nothing here locks. A whole aligned number is read and written at once; whoever needs more than
    one to agree holds a lock of his own. What is written here is lost with the machine, not with
    the process.

    Attributes:
        records: One record per row, shape (rows,), mapped; write into it.
    """

    def __init__(self, records: NDArray[Any]) -> None:
        self.records = records

    @classmethod
    def create(cls, path: Path, records: NDArray[Any], digest: str) -> "SharedTable":
        """Put a table in place whole, for one that may be there, and open it.

        Those who have the old one open keep it. Whoever creates one holds a lock against others who
        do.

        Args:
            path: The file; its directory exists.
            records: What it begins with, shape (rows,).
            digest: Names what the rows stand for; at most 40 ASCII characters.
        """
        header = np.array([(_MAGIC, records.itemsize, len(records), digest.encode())], _HEADER)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)  # Another user's, who was killed, could not be written over.
        try:
            # Written, not left sparse: on a full disk this raises, where touching a hole of a
            # mapped file would kill the process.
            with part.open("w+b") as file:
                file.write(header.tobytes() + records.tobytes())
                file.flush()
                table = cls(_map(file, records.dtype))
            share(part, is_written=True)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return table

    @classmethod
    def open(cls, path: Path, dtype: np.dtype[Any], rows: int, digest: str) -> "SharedTable | None":
        """Open a table if it is there and is the one that is meant.

        Args:
            path: The file.
            dtype: Type of a record.
            rows: How many there must be.
            digest: What it must have been created with.
        """
        expected = np.array([(_MAGIC, dtype.itemsize, rows, digest.encode())], _HEADER).tobytes()
        try:
            with path.open("r+b") as file:
                is_same = file.read(len(expected)) == expected
                size = os.fstat(file.fileno()).st_size
                if not is_same or size != len(expected) + rows * dtype.itemsize:
                    return None
                return cls(_map(file, dtype))
        except FileNotFoundError:
            return None


def _map(file: BinaryIO, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype, offset=_HEADER.itemsize)
