"""Looking through a file at the speed of memory: a window slides over it, in several threads."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming.errors import DataError
from streaming.storage.store import translated

__all__ = ["File", "Window", "line_starts", "scan_runs"]

T = TypeVar("T")
Ints = NDArray[np.int64]

PIECE = 1 << 20  # bytes looked at together; they stay in the processor's cache
RUN = 16 << 20  # bytes that a thread looks through before it takes the next

NEWLINE, RETURN = 10, 13
_BLANK = b" \t\r"

# What files begin with that are not UTF-8 text, whatever their name says.
_FOREIGN = {
    b"\xff\xfe": "UTF-16 or UTF-32 text. Convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text. Convert it to UTF-8",
    b"\x1f\x8b": "compressed with gzip. Give it a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Give it a name that ends in .zst",
    b"BZh": "compressed with bzip2. Give it a name that ends in .bz2",
    b"PK\x03\x04": "a zip archive. Unpack it",
    b"PAR1": "a Parquet file. Give it a name that ends in .parquet",
}
_MARK = b"\xef\xbb\xbf"


class File:
    """An open file of text. Threads may share it.

    Attributes:
        name: What messages call it.
        size: Its bytes.
        base: Where the text begins: after a byte-order mark, if there is one.

    Raises:
        StoreError: It can't be read.
        DataError: It begins like something else than UTF-8 text.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = name or str(path)
        with translated(f"Can't read {self.name}"):
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.size = os.fstat(self._fd).st_size
        head = self.read(0, 4)
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                os.close(self._fd)
                raise DataError(f"{self.name} is {what}.")
        self.base = len(_MARK) if head.startswith(_MARK) else 0

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), fewer at the end of the file."""
        with translated(f"Can't read {self.name}"):
            return os.pread(self._fd, max(stop - start, 0), start)

    def read_into(self, buffer: memoryview, start: int) -> None:
        """Fill a buffer with the bytes from `start` on.

        Raises:
            DataError: The file has become shorter.
        """
        with translated(f"Can't read {self.name}"):
            found = os.preadv(self._fd, [buffer], start)
        while found < len(buffer):  # Some file systems give less than is there.
            more = self.read(start + found, start + len(buffer))
            if not more:
                raise DataError(f"{self.name} changed while it was looked through.")
            buffer[found : found + len(more)] = more
            found += len(more)

    def line_of(self, place: int) -> int:
        """Number of the line that a byte is in, counted from 1."""
        pieces = (self.read(at, min(at + PIECE, place)) for at in range(0, place, PIECE))
        return 1 + sum(piece.count(b"\n") for piece in pieces)


class Window:
    """Bytes [at, at + size) of a file, with one before and one after them.

    Before the text, and after its end, there is a newline.

    Attributes:
        bytes: The buffer: byte i is byte at - 1 + i of the file. Good up to i = size + 1.
        array: The same memory.
        masks: Three arrays of bools, of the size of a window, for whoever looks through it: made
            anew for each, they would take more time than what is done with them.
    """

    def __init__(self, file: File) -> None:
        self.file = file
        self.bytes = bytearray(PIECE + 2)
        self.array = np.frombuffer(self.bytes, np.uint8)
        self.masks = np.zeros((3, -(-PIECE // 8) * 8), np.bool_)
        self._view = memoryview(self.bytes)
        self.at = self.size = 0

    def slide(self, start: int, stop: int) -> Iterator["Window"]:
        """Go over the bytes [start, stop) of the file, a window after the other."""
        file = self.file
        for at in range(start, stop, PIECE):
            self.at, self.size = at, min(PIECE, stop - at)
            before, end = int(at == file.base), min(at + self.size + 1, file.size)
            file.read_into(self._view[before : end - at + 1], at - 1 + before)
            if before:
                self.bytes[0] = NEWLINE
            if at + self.size == file.size:
                self.bytes[self.size + 1] = NEWLINE
            yield self

    def find(self, byte: int, mask: int = 0, start: int = 0) -> NDArray[np.bool_]:
        """Where a byte is, from place `start` on, for as many places as the window has.

        Args:
            byte: The byte.
            mask: Number of the mask to use, which is what comes back.
            start: 0 or 1.
        """
        found: NDArray[np.bool_] = self.masks[mask][: self.size]
        np.equal(self.array[start : start + self.size], byte, out=found)
        return found

    def find_places(self, byte: int) -> Ints:
        """The places where a byte is, ascending. Uses mask 0."""
        found, whole = self.find(byte), -(-self.size // 8) * 8
        self.masks[0, self.size : whole] = False
        # Most words have none, if the byte is one that ends lines; they are passed over.
        words = self.masks[0, :whole].view(np.uint64)
        hits = np.flatnonzero(words != 0)
        if 8 * len(hits) > len(words):
            return np.flatnonzero(found)
        inner = np.flatnonzero(words.take(hits).view(np.bool_))
        places = hits.take(inner >> 3)
        places <<= 3
        inner &= 7
        places += inner
        return places


def scan_runs(file: File, look: Callable[[int, int], T], threads: int) -> Iterator[T]:
    """Look through a file run by run.

    Args:
        file: The file.
        look: Is given start and stop of a run; called by several threads.
        threads: How many.

    Yields:
        What `look` gave, in the order of the file. A few runs ahead are looked at meanwhile.
    """
    runs = ((at, min(at + RUN, file.size)) for at in range(file.base, file.size, RUN))
    if threads < 2 or file.size - file.base <= RUN:
        for run in runs:
            yield look(*run)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="streaming-scan")
    ahead: deque[Future[T]] = deque()
    try:
        for run in runs:
            ahead.append(pool.submit(look, *run))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def line_starts(file: File, *, threads: int) -> Iterator[Ints]:
    """Where the lines of a file start that are not blank, piece by piece.

    Lines end with a newline; what is before it belongs to them, a carriage return too.
    """

    def look(start: int, stop: int) -> list[Ints]:
        return [_starts(window) for window in Window(file).slide(start, stop)]

    for pieces in scan_runs(file, look, threads):
        yield from pieces


def _starts(window: Window) -> Ints:
    places = window.find_places(NEWLINE)
    first = window.array.take(places + 1)
    doubtful = np.flatnonzero(first <= ord(" "))
    if len(doubtful):
        second = window.array[places[doubtful] + 2]
        is_blank = (first[doubtful] == NEWLINE) | (
            (first[doubtful] == RETURN) & (second == NEWLINE)
        )
        for i in np.flatnonzero(~is_blank).tolist():
            is_blank[i] = _is_blank(window, int(places[doubtful[i]]) + 1)
        places = np.delete(places, doubtful[is_blank])
    places += window.at
    return places


def _is_blank(window: Window, place: int) -> bool:
    """Whether a line has nothing but blanks; it starts at this place of the window."""
    rest = bytes(window.bytes[place : min(place + 64, window.size + 2)]).lstrip(_BLANK)
    at = window.at - 1 + place
    while not rest:
        found = window.file.read(at, at + 4096)
        if not found:
            return True  # The end of the file.
        rest = found.lstrip(_BLANK)
        at += 4096
    return rest[0] == NEWLINE
