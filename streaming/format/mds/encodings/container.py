"""Encodings of many values in one, and of any value."""

import pickle
import struct
from typing import Any

import numpy as np

from streaming.errors import ColumnError, SampleError
from streaming.format.mds.encodings.base import Encoding, decode_value, encode_value
from streaming.format.mds.encodings.image import JPEG, PIL, PNG, split_blobs
from streaming.format.mds.encodings.scalar import Number

__all__ = ["JPEGList", "List", "PILList", "PNGList", "Pickle"]


class List(Encoding):
    """A list of values of one encoding: u32 0, u32 count, u32 size of each if they differ, values.

    Args:
        element: The encoding of the values.
    """

    takes_views = True

    def __init__(self, element: Encoding) -> None:
        self.element = element
        self.safe = getattr(element, "safe", True)

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, list)
        element, count = self.element, len(obj)
        if isinstance(element, Number) and all(type(item) is element.exact for item in obj):
            try:
                return struct.pack(f"<II{count}{element.code}", 0, count, *obj)
            except (struct.error, OverflowError):
                pass  # Out of range; below it is found out which.
        values = [encode_value(element, item) for item in obj]
        sizes = [len(value) for value in values]
        if element.size is None:
            return struct.pack(f"<II{count}I", 0, count, *sizes) + b"".join(values)
        if any(size != element.size for size in sizes):
            raise ColumnError(f"expected elements of {element.size} bytes, found sizes {sizes[:9]}")
        return struct.pack("<II", 0, count) + b"".join(values)

    def decode(self, data: bytes) -> list[Any]:
        view, element = memoryview(data), self.element
        if len(view) < 8 or bytes(view[:4]) != bytes(4):
            raise SampleError(
                f"a list begins with 0 and a count, but this with {bytes(view[:8])!r}"
            )
        if element.size is None:
            return [decode_value(element, blob) for blob in split_blobs(view, 4)]
        (count,) = struct.unpack_from("<I", view, 4)
        if 8 + count * element.size != len(view):
            raise SampleError(
                f"a list of {count} values of {element.size} bytes can't have {len(view)} bytes"
            )
        if isinstance(element, Number) and element.fixed and element.code != "?":
            numbers = np.frombuffer(view, element.fixed[0], count, 8)
            return numbers.tolist() if element.plain else list(numbers)
        starts = range(8, len(view), element.size)
        return [decode_value(element, view[at : at + element.size]) for at in starts]


class PILList(List):
    """A list of images as pixels."""

    def __init__(self) -> None:
        super().__init__(PIL())


class JPEGList(List):
    """A list of images as JPEG files."""

    def __init__(self) -> None:
        super().__init__(JPEG())


class PNGList(List):
    """A list of images as PNG files."""

    def __init__(self) -> None:
        super().__init__(PNG())


class Pickle(Encoding):
    """Any value that pickles. Decoding runs whatever the data say: for data you trust."""

    safe = False

    def encode(self, obj: Any) -> bytes:
        return pickle.dumps(obj)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)
