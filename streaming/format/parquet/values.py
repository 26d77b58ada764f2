"""From Arrow arrays to the values of samples: Python's own and numpy's (docs/parquet.md)."""

import io
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streaming.errors import DataError
from streaming.format.column import ArrowColumn, BytesColumn, Column
from streaming.format.parquet.schema import KIND
from streaming.util.importing import lazy

__all__ = ["Convert", "MakeColumn", "lists_of", "make_column", "make_decoder", "make_lists"]

Convert = Callable[[Any], list[Any]]  # an Arrow array to one value a row
MakeColumn = Callable[[Sequence[Any]], Column]  # Arrow arrays, one after another, to a column

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def make_lists(field: pa.Field) -> Convert:
    """What makes the values of a column.

    Args:
        field: The column, of a plain type.
    """
    kind, mark = field.type, (field.metadata or {}).get(KIND, b"").decode()
    if mark:
        return _marked(field, mark)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _numbers
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _numbers
    if pa.types.is_float16(kind):
        return _halves
    if _is_bytes(kind) or pa.types.is_decimal(kind):
        return _objects
    if pa.types.is_timestamp(kind):
        return _nanoseconds if kind.unit == "ns" else _timestamps
    if pa.types.is_duration(kind):
        return _nanoseconds if kind.unit == "ns" else _plain_values
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return _times
    if pa.types.is_nested(kind):
        return _nested(kind)
    return _plain_values


def lists_of(field: pa.Field, array: Any) -> list[Any]:
    """The values of a column, one a row. It pickles, as what `make_lists` makes does not."""
    return make_lists(field)(array)


def make_decoder(field: pa.Field, decode: Callable[[bytes], Any]) -> Convert | None:
    """What makes values by a function of the bytes that are stored; None if there are no bytes."""
    kind = field.type
    mark = (field.metadata or {}).get(KIND)
    if mark == b"image" and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return lambda array: [
            None if value is None else decode(value)
            for value in _objects(array.field(kind.get_field_index("bytes")))
        ]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        binary = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
        return lambda array: [
            None if value is None else decode(value) for value in _objects(array.cast(binary))
        ]
    if _is_bytes(kind):
        return lambda array: [None if value is None else decode(value) for value in _objects(array)]
    return None


def make_column(field: pa.Field) -> MakeColumn:
    """What makes a column without an object a value: of numpy where every row has a number.

    Args:
        field: The column, of a plain type.

    Returns:
        A function of its values, one array after another; one at least.
    """
    kind = field.type
    mark = (field.metadata or {}).get(KIND, b"").decode()
    as_arrow = partial(_as_arrow, field)
    if mark and not mark.startswith("tensor"):
        return as_arrow
    if _has_numbers(kind):
        return partial(_unless_null, _as_numbers, as_arrow)
    if _has_offsets(kind):
        return partial(_unless_null, partial(_as_bytes, kind), as_arrow)
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        shape = _shape_of(mark, kind.list_size)
        return partial(_unless_null, partial(_as_rows, shape, as_arrow), as_arrow)
    return as_arrow


def _unless_null(make: MakeColumn, as_arrow: MakeColumn, arrays: Sequence[Any]) -> Column:
    for array in arrays:
        if array.null_count:
            return as_arrow(arrays)
    return make(arrays)


def _as_arrow(field: pa.Field, arrays: Sequence[Any]) -> Column:
    return ArrowColumn(_joined(arrays), partial(lists_of, field))


def _as_numbers(arrays: Sequence[Any]) -> Column:
    return np.concatenate([_to_numpy(array) for array in arrays])


def _as_rows(shape: tuple[int, ...], as_arrow: MakeColumn, arrays: Sequence[Any]) -> Column:
    array = _joined(arrays)
    values = array.flatten()
    if values.null_count:
        return as_arrow([array])
    return np.array(_to_numpy(values)).reshape(len(array), *shape)


def _joined(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _marked(field: pa.Field, mark: str) -> Convert:
    """Values of which the type alone does not say what they are."""
    name, _, rest = mark.partition(":")
    plain = make_lists(field.remove_metadata())
    if name == "uuid":
        return lambda array: [x if x is None else uuid.UUID(bytes=x) for x in plain(array)]
    if name == "bool":
        return lambda array: [x if x is None else bool(x) for x in plain(array)]
    if name == "image":
        return lambda array: [_image(x) for x in plain(array)]
    if name == "tensor":
        shape = tuple(map(int, rest.split(",")))
        return lambda array: [x if x is None else np.reshape(x, shape) for x in plain(array)]
    if name == "array":
        dtype, _, sizes = rest.partition(":")
        shape = tuple(map(int, sizes.split(",")))
        return lambda array: _arrays(array, np.dtype(dtype), shape)
    raise DataError(f"Column {field.name!r} is marked {mark!r}, which means nothing here.")


def _nested(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        return _structs(kind)
    if pa.types.is_map(kind):
        keys, items = make_lists(kind.key_field), make_lists(kind.item_field)

        def maps(array: Any) -> list[Any]:
            spans, first, size = _spans(array)
            pairs = zip(
                keys(array.keys.slice(first, size)),
                items(array.items.slice(first, size)),
                strict=True,
            )
            found = list(pairs)
            return [span and dict(found[slice(*span)]) for span in spans]

        return maps
    inner = make_lists(kind.value_field)
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists(kind, inner)

    def lists(array: Any) -> list[Any]:
        spans, first, size = _spans(array)
        values = inner(array.values.slice(first, size))
        return [span and values[slice(*span)] for span in spans]

    return lists


def _structs(kind: pa.DataType) -> Convert:
    names = [field.name for field in kind]
    converters = [make_lists(field) for field in kind]

    def structs(array: Any) -> list[Any]:
        columns = [convert(array.field(i)) for i, convert in enumerate(converters)]
        if columns:
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        else:
            rows = [{} for _ in range(len(array))]
        if array.null_count:
            return [
                row if there else None
                for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)
            ]
        return rows

    return structs


def _fixed_lists(kind: Any, inner: Convert) -> Convert:
    size = kind.list_size
    is_number = _is_number(kind.value_type)

    def lists(array: Any) -> list[Any]:
        # Not `flatten`, which leaves out what lies under a null.
        values = array.values.slice(array.offset * size, len(array) * size)
        if is_number and not values.null_count:
            rows: list[Any] = list(np.array(_to_numpy(values)).reshape(len(array), size))
        elif is_number and array.null_count and not array.flatten().null_count:
            rows = list(np.array(_to_numpy(values.fill_null(0))).reshape(len(array), size))
        else:
            found = inner(values)
            rows = [found[at : at + size] for at in range(0, len(found), size)] if size else []
            rows = rows or [[] for _ in range(len(array))]
        if array.null_count:
            there = array.is_valid().to_pylist()
            return [row if is_there else None for row, is_there in zip(rows, there, strict=True)]
        return rows

    return lists


def _spans(array: Any) -> tuple[list[tuple[int, int] | None], int, int]:
    """Where the elements of each row are among those of all rows, or None for a null.

    Also: where those of all rows begin in the array that holds them, and how many they are.
    """
    bounds = array.offsets.to_numpy()
    first, last = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
    offsets = (bounds - first).tolist()
    spans: list[tuple[int, int] | None] = list(pairwise(offsets))
    if array.null_count:
        there = array.is_valid().to_pylist()
        spans = [span if is_there else None for span, is_there in zip(spans, there, strict=True)]
    return spans, first, last - first


def _numbers(array: Any) -> list[Any]:
    found: list[Any] = array.to_pylist() if array.null_count else _to_numpy(array).tolist()
    return found


def _halves(array: Any) -> list[Any]:
    if not array.null_count:
        return list(_to_numpy(array))
    return [None if x is None else np.float16(x) for x in array.to_pylist()]


def _objects(array: Any) -> list[Any]:
    """Texts, bytes and decimals: made one after another in C++."""
    found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def _plain_values(array: Any) -> list[Any]:
    found: list[Any] = array.to_pylist()
    return found


def _timestamps(array: Any) -> list[Any]:
    try:
        return _plain_values(array)
    except (OverflowError, ValueError):  # A year that `datetime` does not know.
        values = array.cast(pa.int64()).to_pylist()
        unit = array.type.unit
        return [None if x is None else np.datetime64(x, unit) for x in values]


def _nanoseconds(array: Any) -> list[Any]:
    """Points and spans of time that are finer than Python's own."""
    values = array.cast(pa.int64()).fill_null(0).to_numpy()
    is_point = pa.types.is_timestamp(array.type)
    rows = list(values.view("M8[ns]" if is_point else "m8[ns]"))
    return _with_nulls(array, rows)


def _times(array: Any) -> list[Any]:
    """Times of day in ns: those that are finer than Python's own as a span since midnight."""
    found = array.cast(pa.time64("us"), safe=False).to_pylist()
    values = array.cast(pa.int64()).to_pylist()
    return [
        np.timedelta64(value, "ns") if value is not None and value % 1000 else time
        for time, value in zip(found, values, strict=True)
    ]


def _with_nulls(array: Any, rows: Sequence[Any]) -> list[Any]:
    if not array.null_count:
        return list(rows)
    there = array.is_valid().to_pylist()
    return [row if is_there else None for row, is_there in zip(rows, there, strict=True)]


def _image(value: Any) -> Any:
    """An image as Pillow has it, not decoded yet; what was stored without its bytes stays so."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        return value
    return lazy("PIL.Image", "image").open(io.BytesIO(data))


def _arrays(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[Any]:
    """Lists of lists of numbers as arrays of one shape; its first size may differ by row."""
    bounds, inner = array.offsets.to_numpy(), array.values
    while pa.types.is_nested(inner.type):
        bounds, inner = inner.offsets.to_numpy()[bounds], inner.values
    flat = _to_numpy(inner.slice(bounds[0], bounds[-1] - bounds[0])).astype(dtype)
    spans = pairwise((bounds - bounds[0]).tolist())
    there = array.is_valid().to_pylist()
    return [
        flat[start:stop].reshape(shape) if is_there else None
        for (start, stop), is_there in zip(spans, there, strict=True)
    ]


def _as_bytes(kind: pa.DataType, arrays: Sequence[Any]) -> Column:
    """Texts or bytes put together by one copy."""
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    width = np.dtype(np.int64 if is_large else np.int32)
    offsets = np.zeros(sum(map(len, arrays)) + 1, np.int64)
    pieces: list[Any] = []
    row = size = 0
    for array in arrays:
        _, ends, data = array.buffers()
        count = len(array)
        if ends is not None and count:
            found = np.frombuffer(ends, width, count + 1, array.offset * width.itemsize)
            first, last = int(found[0]), int(found[-1])
            np.add(found[1:], size - first, out=offsets[row + 1 : row + count + 1])
            if data is not None:
                pieces.append(data.slice(first, last - first))
                size += last - first
        else:
            offsets[row + 1 : row + count + 1] = size
        row += count
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return BytesColumn(b"".join(pieces), offsets, is_text=is_text)


def _to_numpy(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _has_numbers(kind: pa.DataType) -> bool:
    """Whether values are numbers of numpy, or points in time without a zone, or days."""
    is_naive = pa.types.is_timestamp(kind) and kind.tz is None
    is_time = is_naive or pa.types.is_duration(kind) or pa.types.is_date32(kind)
    return is_time or _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _NUMBERS)


def _has_offsets(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_bytes(kind: pa.DataType) -> bool:
    return _has_offsets(kind) or bool(pa.types.is_fixed_size_binary(kind))


def _shape_of(mark: str, size: int) -> tuple[int, ...]:
    return tuple(map(int, mark.partition(":")[2].split(","))) if mark else (size,)
