"""Values of blob columns: files that are opened when they are read."""

import io
from typing import Any

from streaming.format.lance.rows import open_rows
from streaming.format.tables import TablePlace

__all__ = ["LanceBlob"]


class LanceBlob(io.RawIOBase):
    """A value of a blob column, read where it is and when it is asked for. Pickles as a reference.

    Args:
        place: The dataset.
        version: Of it.
        column: The column.
        row: Number of the row in the table.
        size: Bytes.
    """

    def __init__(self, place: TablePlace, version: int, column: str, row: int, size: int) -> None:
        super().__init__()
        self._about = (place, version, column, row, size)
        self._file: Any = None

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return self._about[-1]

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._about

    def __repr__(self) -> str:
        place, version, column, row, size = self._about
        return f"<{size} bytes: {column!r} of row {row} of version {version} of {place.where}>"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._opened().readinto(buffer)
        return count

    def readall(self) -> bytes:
        data: bytes = self._opened().read()
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place: int = self._opened().seek(offset, whence)
        return place

    def tell(self) -> int:
        return 0 if self._file is None else int(self._file.tell())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def _opened(self) -> Any:
        if self.closed:
            raise ValueError(f"{self!r} is closed.")
        if self._file is None:
            place, version, column, row, _ = self._about
            # Of the columns none is read but this one: those that rows are read with need not be.
            self._file = open_rows(place, version, None).blob(column, row)
        return self._file
