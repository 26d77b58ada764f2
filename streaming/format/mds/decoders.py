"""Decoding one column: a value, a block of values, a block as one column."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import SampleError
from streaming.format.column import BytesColumn, Column, Pieces, Stack
from streaming.format.mapping import Mapped
from streaming.format.mds.encodings import Bytes, Encoding, Number, Str, Tensor

__all__ = ["Decoder", "Source", "make_decoder"]

# Up to here a block of arrays is gathered at once and each is copied out of it, which is twice as
# fast for small ones. Above it, the second copy costs more than it saves, and memory besides.
_SMALL_ARRAY = 1024  # bytes

# Bytes up to which texts, with what lies between them, are decoded together.
_SHORT_TEXT = 256


class Source:
    """The bytes of a mapped file, for whole values and for gathering many small ones."""

    __slots__ = ("data", "view")

    def __init__(self, data: Mapped) -> None:
        self.data = data
        self.view = memoryview(data)

    def gather(self, starts: NDArray[np.int64], size: int) -> NDArray[np.void]:
        """Copy `size` bytes from each of these places, which must lie in the file."""
        # Every place of the file as an item, one byte apart: numpy does the rest in one call.
        items = np.ndarray(
            (max(0, len(self.view) - size + 1),), f"V{size}", self.data, strides=(1,)
        )
        return items[starts]


class Decoder(ABC):
    """Decodes the values of one column. Stateless: shards and threads share it.

    Attributes:
        encoding: How the column is stored.
        is_own: What is given is what the encoding means, not what another function makes of it.
    """

    is_own = True

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding

    @abstractmethod
    def one(self, view: memoryview) -> Any:
        """The value of these bytes."""

    @abstractmethod
    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        """The values that lie there."""

    def column(self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Column:
        """The same as a column."""
        return self.many(source, starts, stops)

    def part(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Column | Pieces:
        """The same as a column of which large arrays stay where they are."""
        return self.column(source, starts, stops)

    def stack(self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Stack:
        """The same for a batch; see `ShardReader.take_stacked`."""
        return self.many(source, starts, stops)


class _Any(Decoder):
    """What has no faster way."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__(encoding)
        self._decode: Callable[[Any], Any] = encoding.decode
        self._takes_views = bool(getattr(encoding, "takes_views", False))

    def one(self, view: memoryview) -> Any:
        return self._decode(view if self._takes_views else bytes(view))

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        decode, data = self._decode, source.view if self._takes_views else source.data
        return [decode(data[a:b]) for a, b in _spans(starts, stops)]


class _Other(Decoder):
    """What a function that the user chose makes of the stored bytes."""

    is_own = False

    def __init__(self, encoding: Encoding, function: Callable[[bytes], Any]) -> None:
        super().__init__(encoding)
        self._function = function

    def one(self, view: memoryview) -> Any:
        return self._function(bytes(view))

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        function, data = self._function, source.data
        return [function(data[a:b]) for a, b in _spans(starts, stops)]


class _Str(Decoder):
    def one(self, view: memoryview) -> str:
        return str(view, "utf-8")

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        texts = _decode_together(source, starts, stops) if len(starts) > 1 else None
        if texts is not None:
            return texts
        data = source.data
        return [data[a:b].decode() for a, b in _spans(starts, stops)]

    def column(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> BytesColumn:
        return BytesColumn.gather(source.data, starts, stops, is_text=True)


class _Bytes(Decoder):
    def one(self, view: memoryview) -> bytes:
        return bytes(view)

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        data = source.data
        return [data[a:b] for a, b in _spans(starts, stops)]

    def column(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> BytesColumn:
        return BytesColumn.gather(source.data, starts, stops)


class _Fixed(Decoder):
    """Numbers and arrays of one shape: a block is gathered as a whole."""

    def __init__(self, encoding: Encoding, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        super().__init__(encoding)
        self._dtype, self._shape = dtype, shape
        self._size = encoding.size or 0

    def one(self, view: memoryview) -> Any:
        return self.encoding.decode(view)  # type: ignore[arg-type]  # all of these take views

    def column(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> NDArray[Any]:
        block = source.gather(starts, self._size)
        if self._dtype.kind == "b" and block.size and block.view(np.uint8).max() > 1:
            raise SampleError("a bool is one byte, 0 or 1, but there are others")
        return block.view(self._dtype).reshape(len(starts), *self._shape)

    def part(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> NDArray[Any] | Pieces:
        if self._size <= _SMALL_ARRAY or self._dtype.kind == "b":
            return self.column(source, starts, stops)
        which: NDArray[np.intp] = np.zeros(len(starts), np.intp)
        return Pieces([source.view], which, starts, self._dtype, self._shape)

    def stack(self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Stack:
        if self._dtype.kind not in "biufc":
            return self.many(source, starts, stops)
        return self.part(source, starts, stops)


class _Number(_Fixed):
    def __init__(self, encoding: Number) -> None:
        super().__init__(encoding, *encoding.fixed)
        self._plain = encoding.plain

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        values = self.column(source, starts, stops)
        return values.tolist() if self._plain else list(values)

    def stack(self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Stack:
        if self._dtype == np.uint64:  # Of scalars of this type torch makes no tensor.
            return self.many(source, starts, stops)
        return super().stack(source, starts, stops)


class _Array(_Fixed):
    # Each array has its own memory: one that is kept must not keep the whole block.

    def one(self, view: memoryview) -> Any:
        if self._dtype.kind == "b":
            return super().one(view)
        # What `decode` does with a size that is known to be right.
        return np.ndarray(self._shape, self._dtype, bytearray(view))

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        if self._size <= _SMALL_ARRAY:
            return [row.copy() for row in self.column(source, starts, stops)]
        view, one = source.view, self.one
        return [one(view[a:b]) for a, b in _spans(starts, stops)]


class _Tensor(_Fixed):
    """A tensor a sample, but an array as a column, which torch takes without a copy."""

    def many(
        self, source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[Any]:
        view, one = source.view, self.one
        return [one(view[a:b]) for a, b in _spans(starts, stops)]


def make_decoder(encoding: Encoding, function: Callable[[bytes], Any] | None = None) -> Decoder:
    """The fastest decoder that an encoding allows.

    Args:
        encoding: How the column is stored.
        function: Makes a value of its stored bytes, in place of the encoding.
    """
    if function is not None:
        return _Other(encoding, function)
    if type(encoding) is Str:
        return _Str(encoding)
    if type(encoding) is Bytes:
        return _Bytes(encoding)
    if isinstance(encoding, Number):
        return _Number(encoding)
    fixed = getattr(encoding, "fixed", None)
    if fixed is not None and encoding.size:
        return (_Tensor if type(encoding) is Tensor else _Array)(encoding, *fixed)
    return _Any(encoding)


def _decode_together(
    source: Source, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> list[str] | None:
    """Short texts that lie one behind another, decoded as one text and split.

    In a copy, what lies between them is overwritten: NUL, something, NUL. So every second part is
    a text, unless one has a NUL itself, which the number of parts tells.

    Returns:
        None if they don't lie so, or one has a NUL.

    Raises:
        UnicodeDecodeError: One is not UTF-8.
    """
    gaps = starts[1:] - stops[:-1]
    gap = int(gaps[0])
    first, last = int(starts[0]), int(stops[-1])
    if gap < 2 or last - first > _SHORT_TEXT * len(starts) or (gaps != gap).any():
        return None
    joined = bytearray(source.view[first:last])
    places = np.ndarray((len(joined) - gap + 1,), f"V{gap}", joined, strides=(1,))
    places[stops[:-1] - first] = np.void(b"\0" + b"-" * (gap - 2) + b"\0")
    parts = joined.decode().split("\0")
    return parts[::2] if len(parts) == 2 * len(starts) - 1 else None


def _spans(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), stops.tolist(), strict=True)
