"""What `take_columns` gives: one column of many samples."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import DataError
from streaming.util.importing import lazy

__all__ = [
    "ArrowColumn",
    "BytesColumn",
    "Column",
    "Pieces",
    "Stack",
    "inverse",
    "merge_columns",
    "merge_stacks",
    "slice_columns",
]


class BytesColumn:
    """Texts or byte strings, end to end in one buffer; the layout of Arrow's large strings.

    Args:
        buffer: All values joined; UTF-8 if they are texts.
        offsets: Where each value starts, and the end, ascending, shape (length + 1,).
        is_text: Items are `str`, and the buffer is known to be valid UTF-8 value by value.
    """

    __slots__ = ("buffer", "is_text", "offsets")

    def __init__(self, buffer: bytes, offsets: NDArray[np.int64], *, is_text: bool = False) -> None:
        self.buffer = buffer
        self.offsets = offsets
        self.is_text = is_text

    @classmethod
    def join(cls, values: Sequence[bytes], *, is_text: bool = False) -> "BytesColumn":
        """Make a column of encoded values.

        Raises:
            UnicodeDecodeError: `is_text`, and a value is not UTF-8.
        """
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
        column = cls(b"".join(values), offsets, is_text=is_text)
        if is_text:
            column._check_text()
        return column

    @classmethod
    def gather(
        cls,
        buffer: Any,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        *,
        is_text: bool = False,
    ) -> "BytesColumn":
        """Make a column of values that lie here and there in a buffer.

        Args:
            buffer: A map of a file, or `bytes`.
            starts: Where the values begin in it, shape (n,). The same value may come again, but
                different ones don't overlap, and begin at different places.
            stops: Where they end.
            is_text: As for the class.

        Raises:
            UnicodeDecodeError: `is_text`, and a value is not UTF-8.
        """
        arrow = sys.modules.get("pyarrow")
        if arrow is None or not len(starts):
            spans = zip(starts.tolist(), stops.tolist(), strict=True)
            return cls.join([buffer[a:b] for a, b in spans], is_text=is_text)
        # Values and the gaps between them, as one column of which every second is wanted. Where
        # they do not ascend, they are sorted before, and put in order after.
        places: NDArray[np.intp] = np.arange(len(starts))
        if (starts[1:] < stops[:-1]).any():
            starts, first, places = np.unique(starts, return_index=True, return_inverse=True)
            stops = stops[first]
        offsets = np.empty(2 * len(starts), np.int64)
        offsets[0::2], offsets[1::2] = starts, stops
        column = cls._take_by_arrow(arrow, buffer, offsets, 2 * places)
        column.is_text = is_text
        if is_text:
            column._check_text()
        return column

    @classmethod
    def concatenate(cls, columns: Sequence["BytesColumn"]) -> "BytesColumn":
        """Put columns of one kind one after another; at least one."""
        starts = np.cumsum([0] + [int(column.offsets[-1]) for column in columns])
        ends = [column.offsets[1:] + start for column, start in zip(columns, starts, strict=False)]
        return cls(
            b"".join(column.buffer for column in columns),
            np.concatenate([np.zeros(1, np.int64), *ends]),
            is_text=columns[0].is_text,
        )

    def take(self, places: NDArray[np.int64]) -> "BytesColumn":
        """The values at these places, in the order asked."""
        arrow = sys.modules.get("pyarrow")
        if arrow is not None and len(places):
            column = self._take_by_arrow(arrow, self.buffer, self.offsets, places)
        else:
            spans = zip(
                self.offsets[places].tolist(), self.offsets[1:][places].tolist(), strict=True
            )
            column = BytesColumn.join([self.buffer[a:b] for a, b in spans])
        column.is_text = self.is_text
        return column

    @classmethod
    def _take_by_arrow(
        cls, arrow: Any, buffer: Any, offsets: NDArray[np.int64], places: NDArray[np.intp]
    ) -> "BytesColumn":
        """Choose values by pyarrow, where a program has loaded it anyway: over twice as fast."""
        buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(buffer)]
        array = arrow.Array.from_buffers(arrow.large_binary(), len(offsets) - 1, buffers)
        # Not `arrow.array(places)`, which imports pandas to see whether they are a series.
        buffers = [None, arrow.py_buffer(np.ascontiguousarray(places, np.int64))]
        taken = array.take(arrow.Array.from_buffers(arrow.int64(), len(places), buffers))
        _, ends, joined = taken.buffers()
        return cls(
            joined.to_pybytes() if joined is not None else b"",
            np.frombuffer(ends, np.int64, len(taken) + 1),
        )

    def is_sound(self, length: int) -> bool:
        """Whether a column that comes from outside has this length, and offsets in its buffer.

        Its values are then somewhere in the buffer; texts may still not be UTF-8.
        """
        offsets = self.offsets
        return (
            len(offsets) == length + 1
            and offsets[0] == 0
            and offsets[-1] == len(self.buffer)
            and bool((offsets[1:] >= offsets[:-1]).all())
        )

    def _check_text(self) -> None:
        """Make sure that each value is UTF-8: all together are, and none begins in a character."""
        if self.buffer.isascii():
            return
        self.buffer.decode()
        starts = self.offsets[self.offsets < len(self.buffer)]
        is_inside = np.frombuffer(self.buffer, np.uint8)[starts] & 0xC0 == 0x80
        if is_inside.any():
            at = int(starts[is_inside.argmax()])
            raise UnicodeDecodeError(
                "utf-8", self.buffer, at, at + 1, "a value begins in a character"
            )

    def slice(self, start: int, stop: int) -> "BytesColumn":
        """The values in [start, stop)."""
        if start == 0 and stop == len(self):
            return self
        offsets = self.offsets[start : stop + 1]
        buffer = self.buffer[offsets[0] : offsets[-1]]
        return BytesColumn(buffer, offsets - offsets[0], is_text=self.is_text)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is not in a column of {len(self)} values.")
        index %= len(self)
        value = self.buffer[self.offsets[index] : self.offsets[index + 1]]
        return value.decode() if self.is_text else value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        kind = "text" if self.is_text else "bytes"
        return f"<{type(self).__name__} of {len(self)} x {kind}, {len(self.buffer)} bytes>"

    def to_pylist(self) -> list[Any]:
        """All values, as `str` or `bytes`."""
        buffer, ends = self.buffer, self.offsets.tolist()
        if self.is_text:
            return [buffer[a:b].decode() for a, b in pairwise(ends)]
        return [buffer[a:b] for a, b in pairwise(ends)]

    def to_arrow(self) -> Any:
        """The same memory as a pyarrow array (`large_string` or `large_binary`).

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        arrow = sys.modules.get("pyarrow") or lazy("pyarrow", "parquet")
        kind = arrow.large_string() if self.is_text else arrow.large_binary()
        buffers = [None, arrow.py_buffer(self.offsets), arrow.py_buffer(self.buffer)]
        return arrow.Array.from_buffers(kind, len(self), buffers)

    def __arrow_array__(self, type: Any = None) -> Any:
        """What `pyarrow.array(column)` calls."""
        array = self.to_arrow()
        return array if type is None else array.cast(type)


class ArrowColumn:
    """Values that lie in an Arrow array: nested ones, and those among which some are missing.

    Args:
        array: The values.
        convert: Makes a list of them as samples have them; pickles.
    """

    __slots__ = ("_convert", "array")

    def __init__(self, array: Any, convert: Callable[[Any], list[Any]]) -> None:
        self.array = array
        self._convert = convert

    def take(self, places: NDArray[np.int64]) -> "ArrowColumn":
        """The values at these places, in the order asked."""
        return ArrowColumn(self.array.take(lazy("pyarrow", "parquet").array(places)), self._convert)

    def slice(self, start: int, stop: int) -> "ArrowColumn":
        """The values in [start, stop)."""
        return ArrowColumn(self.array.slice(start, stop - start), self._convert)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is not in a column of {len(self)} values.")
        return self._convert(self.array.slice(index % len(self), 1))[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pylist())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} x {self.array.type}>"

    def to_pylist(self) -> list[Any]:
        """All values, as samples have them."""
        return self._convert(self.array)

    def to_arrow(self) -> Any:
        """The same memory as a pyarrow array."""
        return self.array

    def __arrow_array__(self, type: Any = None) -> Any:
        """What `pyarrow.array(column)` calls."""
        return self.array if type is None else self.array.cast(type)


class Pieces:
    """Large arrays of one type and shape, left where they lie until they are wanted.

    So each is copied once, to where it belongs, however often the column is cut and put together.
    Keeps the files in memory that it refers to.

    Args:
        views: Bytes that the arrays lie in.
        which: In which of them, array by array, shape (n,).
        starts: Where they begin there; the whole of each is known to be in it.
        dtype: What an array is made of.
        shape: Shape of an array, which is not empty.
    """

    __slots__ = ("dtype", "shape", "starts", "views", "which")

    def __init__(
        self,
        views: Sequence[memoryview],
        which: NDArray[np.intp],
        starts: NDArray[np.int64],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        self.views = views
        self.which = which
        self.starts = starts
        self.dtype = dtype
        self.shape = shape

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: slice) -> "Pieces":
        return Pieces(self.views, self.which[at], self.starts[at], self.dtype, self.shape)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self.to_array())

    @classmethod
    def merge(cls, parts: Sequence["Pieces"], places: NDArray[np.int64]) -> "Pieces":
        """Put columns of one type and shape together; as for `merge_columns`."""
        firsts = np.cumsum([0, *(len(part.views) for part in parts)])
        which, starts = np.empty_like(places), np.empty_like(places)
        which[places] = np.concatenate(
            [part.which + first for part, first in zip(parts, firsts, strict=False)]
        )
        starts[places] = np.concatenate([part.starts for part in parts])
        views = [view for part in parts for view in part.views]
        return cls(views, which, starts, parts[0].dtype, parts[0].shape)

    def to_array(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Copy them.

        Args:
            out: Where to, contiguous, of shape (n, *shape). None makes an array.
        """
        array = np.empty((len(self), *self.shape), self.dtype) if out is None else out
        if not len(self):
            return array
        target = array.reshape(-1).view(np.uint8).data
        size = target.nbytes // len(self)
        views, at = self.views, 0
        for which, start in zip(self.which.tolist(), self.starts.tolist(), strict=True):
            target[at : at + size] = views[which][start : start + size]
            at += size
        return array


Column = NDArray[Any] | BytesColumn | ArrowColumn | list[Any]
Stack = NDArray[Any] | Pieces | list[Any]


def slice_columns(
    columns: Mapping[str, Column | Pieces], start: int, stop: int
) -> dict[str, Column]:
    """The samples in [start, stop) of some columns; arrays share their memory, but for Pieces."""
    return {name: _slice(column, start, stop) for name, column in columns.items()}


def _slice(column: Column | Pieces, start: int, stop: int) -> Column:
    if isinstance(column, BytesColumn | ArrowColumn):
        return column.slice(start, stop)
    part = column[start:stop]
    return part.to_array() if isinstance(part, Pieces) else part


def inverse(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of a permutation: where what each place has came from."""
    order = np.empty_like(places)
    order[places] = np.arange(len(places))
    return order


def merge_columns(
    parts: Sequence[Mapping[str, Column | Pieces]], places: NDArray[np.int64]
) -> dict[str, Column | Pieces]:
    """Put samples of several shards together.

    Args:
        parts: The columns of one shard each; at least one.
        places: Where each of their samples, one part after another, belongs; a permutation.

    Returns:
        A column of arrays of different types or shapes, or stored in different ways, becomes a
        list. Pieces stay where they are if they can.

    Raises:
        DataError: The parts have different columns.
    """
    names = list(parts[0])
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DataError(
                f"Columns of samples with {names} and with {list(part)} can't be put together. "
                "Streams that are read in columns must have the same ones."
            )
    return {name: _merge([part[name] for part in parts], places) for name in names}


def merge_stacks(
    parts: Sequence[Mapping[str, Stack]], places: NDArray[np.int64]
) -> dict[str, Stack] | None:
    """The same for what `ShardReader.take_stacked` gives; None if they are not of one kind."""
    merged: dict[str, Stack] = {}
    for name in parts[0]:
        if any(list(part) != list(parts[0]) for part in parts):
            return None
        stacks = [part[name] for part in parts]
        found: Stack | None = _merge_alike(stacks, places)
        if found is None and all(isinstance(stack, list) for stack in stacks):
            found = _merge_values(stacks, places)
        if found is None:
            return None
        merged[name] = found
    return merged


def _merge(parts: Sequence[Column | Pieces], places: NDArray[np.int64]) -> Column | Pieces:
    first = parts[0]
    arrows = [part for part in parts if isinstance(part, ArrowColumn)]
    if arrows:
        joined = _merge_arrow(parts, arrows[0], places)
        return _merge_values(parts, places) if joined is None else joined
    if isinstance(first, BytesColumn):
        texts = [part for part in parts if isinstance(part, BytesColumn)]
        if len(texts) == len(parts) and len({part.is_text for part in texts}) == 1:
            return BytesColumn.concatenate(texts).take(inverse(places))
        return _merge_values(parts, places)
    merged = _merge_alike(parts, places)
    return _merge_values(parts, places) if merged is None else merged


def _merge_alike(
    parts: Sequence[Column | Pieces], places: NDArray[np.int64]
) -> NDArray[Any] | Pieces | None:
    """Put arrays together; None if they are not of one type and shape."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if len(arrays) < len(parts) or len({(x.dtype, x.shape[1:]) for x in arrays}) > 1:
            return None
        merged = np.empty((len(places), *first.shape[1:]), first.dtype)
        start = 0
        for part in arrays:
            merged[places[start : start + len(part)]] = part
            start += len(part)
        return merged
    pieces = [part for part in parts if isinstance(part, Pieces)]
    if len(pieces) < len(parts) or len({(x.dtype, x.shape) for x in pieces}) > 1:
        return None
    return Pieces.merge(pieces, places)


def _merge_values(parts: Sequence[Column | Pieces], places: NDArray[np.int64]) -> list[Any]:
    values = [value for part in parts for value in part]
    return [values[place] for place in inverse(places).tolist()]


def _merge_arrow(
    parts: Sequence[Column | Pieces], like: ArrowColumn, places: NDArray[np.int64]
) -> ArrowColumn | None:
    """Parts of which at least one is Arrow's, as others are where no value is missing.

    Returns:
        None if they are of different types.
    """
    arrow = lazy("pyarrow", "parquet")
    kind, arrays = like.array.type, []
    for part in parts:
        if isinstance(part, ArrowColumn):
            array = part.array
        elif isinstance(part, BytesColumn):
            array = part.to_arrow().cast(kind) if _is_text(arrow, kind) else None
        elif isinstance(part, np.ndarray) and part.ndim == 1:
            array = arrow.array(part)
        else:
            array = None
        if array is None or array.type != kind:
            return None
        arrays.append(array)
    joined = ArrowColumn(arrow.concat_arrays(arrays), like._convert)
    return joined.take(inverse(places))


def _is_text(arrow: Any, kind: Any) -> bool:
    kinds = (arrow.string(), arrow.large_string(), arrow.binary(), arrow.large_binary())
    return kind in kinds
