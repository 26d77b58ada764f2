"""Encoding many rows at once, from the columns of a table."""

import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ColumnError, ConfigError
from streaming.format.mds.encodings import Bytes, Encoding, Number, Str
from streaming.format.mds.encodings import NDArray as ArrayEncoding
from streaming.format.mds.encodings.scalar import Float, Int, Scalar
from streaming.format.mds.layout import MDSLayout

__all__ = ["Batch", "encode_rows", "rows_of"]

# Rows that are encoded at once: enough that what is done once a block costs nothing beside them.
_BLOCK = 4096


class Batch:
    """A table by columns: an Arrow table or record batch, a pandas frame, a dict of sequences.

    Args:
        columns: The table.
        names: Columns that are wanted.

    Raises:
        ColumnError: One of them is missing.
        ConfigError: Not a table, or its columns differ in length.
    """

    def __init__(self, columns: Any, names: Sequence[str]) -> None:
        # By what they can do, so that neither package need be there.
        if hasattr(columns, "column_names"):
            found, get = list(columns.column_names), columns.column
        elif isinstance(columns, Mapping) or hasattr(columns, "iloc"):
            found, get = list(columns.keys()), columns.__getitem__
        else:
            raise ConfigError(
                "A batch is an Arrow table, a pandas DataFrame or a dict of columns, but not "
                f"{type(columns).__name__}."
            )
        missing = [name for name in names if name not in found]
        if missing:
            raise ColumnError(f"Columns {missing} are missing; the batch has {found}.")
        self._columns = {name: get(name) for name in names}
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) != 1:
            raise ConfigError(f"The columns of a batch differ in length: {lengths}.")
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def blocks(self) -> Iterator[dict[str, Any]]:
        """The columns of some thousand rows after another."""
        for start in range(0, len(self), _BLOCK):
            yield {
                name: _slice(column, start, min(start + _BLOCK, len(self)))
                for name, column in self._columns.items()
            }


def rows_of(layout: MDSLayout, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that the columns stand for, of Python's own values where there are any."""
    columns = [_values(column.encoding, block[column.name]) for column in layout.columns]
    names = [column.name for column in layout.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def encode_rows(layout: MDSLayout, block: Mapping[str, Any]) -> list[bytes]:
    """The records of some rows: those that their dicts have.

    Args:
        layout: The columns.
        block: Their values, one sequence each.

    Raises:
        Exception: Anything, if a value does not suit its column. Which, only `write` can tell.
    """
    parts: list[list[bytes]] = []
    fixed: list[NDArray[Any]] = []
    values = {
        column.name: _encode_column(column.encoding, block[column.name])
        for column in layout.columns
    }
    for column in layout.columns:
        if column.size is None:
            fixed.append(np.fromiter(map(len, values[column.name]), "<u4"))
    for column in layout.columns:
        encoded = values[column.name]
        if column.size is None:
            if fixed:
                parts.append(_interleave(fixed))
                fixed = []
            parts.append(list(encoded))
        elif isinstance(encoded, np.ndarray):
            fixed.append(encoded)
        else:
            joined = b"".join(encoded)
            if any(len(value) != column.size for value in encoded):
                raise ValueError
            fixed.append(np.frombuffer(joined, f"V{column.size}"))
    if fixed:
        parts.append(_interleave(fixed))
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return list(map(operator.add, *parts))
    return list(map(b"".join, zip(*parts, strict=True)))


def _interleave(columns: Sequence[NDArray[Any]]) -> list[bytes]:
    """What lies side by side in each record, of columns of shape (n,)."""
    record = np.dtype([(f"f{i}", column.dtype) for i, column in enumerate(columns)])
    rows = np.empty(len(columns[0]), record)
    for i, column in enumerate(columns):
        rows[f"f{i}"] = column
    data, size = rows.tobytes(), record.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def _encode_column(encoding: Encoding, column: Any) -> NDArray[Any] | list[bytes]:
    """Values as they are stored: an array with an item each, or the bytes of each."""
    if isinstance(encoding, Number):
        return _encode_numbers(encoding, column)
    if type(encoding) in (Str, Bytes):
        return _encode_texts(encoding, column)
    if type(encoding) is ArrayEncoding:
        fixed, array = encoding.fixed, _array(column)
        if fixed and array is not None and array.dtype == fixed[0] and array.shape[1:] == fixed[1]:
            return np.ascontiguousarray(array).view(f"V{encoding.size}").reshape(len(array))
    encode: Callable[[Any], bytes] = encoding.encode
    values = _values(encoding, column)
    encoded = [value if type(value) is bytes else encode(value) for value in values]
    if not all(type(value) is bytes for value in encoded):
        raise TypeError
    return encoded


def _encode_numbers(encoding: Number, column: Any) -> NDArray[Any]:
    array, dtype = _array(column), encoding.fixed[0]
    is_ours = type(encoding).__module__ == Number.__module__  # Others may mean something else.
    if is_ours and array is not None and array.ndim == 1 and array.itemsize <= 8:
        kind = array.dtype.kind
        if kind in "iu" and dtype.kind in "iu" and isinstance(encoding, (Int, Scalar)):
            info = np.iinfo(dtype)
            if not array.size or (info.min <= array.min() and array.max() <= info.max):
                return array.astype(dtype)
        if kind == "f" and dtype.kind == "f" and isinstance(encoding, (Float, Scalar)):
            with np.errstate(over="ignore"):
                return array.astype(dtype)
        if kind == "b" and dtype.kind == "b":
            return array.astype(dtype)
    values, exact = _values(encoding, column), encoding.exact
    if not all(type(value) is exact for value in values):
        values = [value if type(value) is exact else encoding.number(value) for value in values]
    return np.frombuffer(struct.pack(f"<{len(values)}{encoding.code}", *values), dtype)


def _encode_texts(encoding: Encoding, column: Any) -> list[bytes]:
    found = _arrow_texts(column)
    if found is not None:
        return found
    values = _values(encoding, column)
    if type(encoding) is Str and all(type(value) is str for value in values):
        return list(map(str.encode, values))
    if not all(type(value) is bytes for value in values):
        raise TypeError
    return values


def _arrow_texts(column: Any) -> list[bytes] | None:
    """The encoded values of an Arrow array of texts or byte strings, without their Python form."""
    offset_type = _OFFSETS.get(str(getattr(column, "type", "")))
    if offset_type is None or column.null_count or not len(column):
        return None
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, offset_type)[column.offset : column.offset + len(column) + 1]
    start, stop = int(ends[0]), int(ends[-1])
    joined = b"" if data is None else memoryview(data)[start:stop].tobytes()
    return [joined[a:b] for a, b in pairwise((ends - start).tolist())]


_OFFSETS = {"string": "<i4", "binary": "<i4", "large_string": "<i8", "large_binary": "<i8"}


def _slice(column: Any, start: int, stop: int) -> Any:
    if hasattr(column, "iloc"):  # pandas: [] would go by labels.
        return column.iloc[start:stop]
    if hasattr(column, "combine_chunks"):
        return column.slice(start, stop - start).combine_chunks()
    if hasattr(column, "null_count"):
        return column.slice(start, stop - start)
    return column[start:stop]


def _array(column: Any) -> NDArray[Any] | None:
    """A column as a numpy array of the values it holds, if it is one but for its wrapping."""
    if isinstance(column, np.ndarray):
        return column
    if hasattr(column, "iloc"):
        values = column.to_numpy()
        return values if isinstance(column.dtype, np.dtype) else None
    if hasattr(column, "null_count") and not column.null_count:
        return _arrow_array(column)
    return None


def _arrow_array(column: Any) -> NDArray[Any] | None:
    """An Arrow array of numbers, or of lists of them that are all of one length."""
    kind = str(column.type)
    if kind in _NUMBERS:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if hasattr(column, "flatten") and str(getattr(column.type, "value_type", "")) in _NUMBERS:
        flat = column.flatten()
        if not flat.null_count and len(column) and len(flat) % len(column) == 0:
            length = len(flat) // len(column)
            ends = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
            if (ends == length).all():
                return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(-1, length)
    return None


_NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double".split()
)


def _values(encoding: Encoding, column: Any) -> list[Any]:
    """A column as a list of the values of its rows."""
    if isinstance(column, list):
        return column
    if getattr(column, "ndim", 1) > 1:  # An array or a tensor a row.
        return list(column)
    if isinstance(encoding, ArrayEncoding) and hasattr(column, "null_count"):
        return [np.asarray(item.values) if item.is_valid else None for item in column]
    for method in ("to_pylist", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)
