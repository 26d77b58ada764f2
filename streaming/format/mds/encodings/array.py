"""Encodings of arrays: numpy's and torch's."""

import math
import struct
import sys
from bisect import bisect_left
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from streaming.errors import EncodeError, EncodingNameError, SampleError
from streaming.format.mds.encodings.base import Encoding, refuse
from streaming.util.importing import lazy

__all__ = ["NDArray", "Tensor"]

# The type byte: the bits of a number, plus 0 for unsigned, 1 for signed, 2 for float, 3 for others.
_CODES = {
    "uint8": 8,
    "int8": 9,
    "bool": 11,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "bfloat16": 19,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_NAMES = {code: name for name, code in _CODES.items()}
_LATER = ("bool", "bfloat16")  # unknown to the predecessor
_DIMS = "BHIQ"  # widths of a dimension, as `struct` names them
_WIDEST = (255, 65535, (1 << 32) - 1)  # the largest dimension that each of them but the last holds

Self = TypeVar("Self", bound="_Shaped")


@lru_cache(maxsize=64)
def _dtype(name: str) -> np.dtype[Any]:
    found: np.dtype[Any]
    if name == "bfloat16":
        found = np.dtype(lazy("ml_dtypes", "bfloat16").bfloat16)
    else:
        found = np.dtype(name).newbyteorder("<")
    return found


@lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    """Its name without the byte order; remembered, as numpy takes longer for it than for a copy."""
    name: str = dtype.name
    return name


class _Shaped(Encoding):
    """The layout that arrays and tensors share; see docs/formats.md.

    Args:
        dtype: Name of the type of all values of the column; None writes it into each.
        shape: Shape of all values of the column; None writes it into each.

    Raises:
        EncodingNameError: No such type, or a dimension that is not positive.
    """

    takes_views = True
    kind: ClassVar[str]  # what the encoding is called

    def __init__(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        if dtype is not None and dtype not in _CODES:
            raise EncodingNameError(
                f"{self.kind} has no type {dtype!r}. Known: {', '.join(_CODES)}."
            )
        if shape is not None and not (shape and all(dim > 0 for dim in shape)):
            raise EncodingNameError(f"{self.kind} can't have the shape {shape}.")
        self.dtype = dtype
        self.shape = shape
        if dtype is not None and shape is not None:
            self.size = math.prod(shape) * _itemsize(dtype)
            if self.size >= 1 << 32:
                raise EncodingNameError(
                    f"{self.kind}:{dtype}:{shape} has {self.size} bytes, but a shard holds 4 GiB."
                )

    @classmethod
    def from_str(cls: type[Self], text: str) -> Self:
        """Read ``DTYPE`` or ``DTYPE:DIM,DIM,...``; nothing is the type in each value."""
        dtype, colon, dims = text.partition(":")
        if not colon:
            return cls(dtype or None)
        parts = dims.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
            raise EncodingNameError(
                f"{cls.kind}:{text} is not an encoding: expected {cls.kind}:DTYPE:DIM,DIM,..."
            )
        return cls(dtype, tuple(map(int, parts)))

    @property
    def fixed(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Type and shape of all values, if the column says both."""
        if self.dtype is None or self.shape is None:
            return None
        return _dtype(self.dtype), self.shape

    def _pack(self, dtype: str, shape: tuple[int, ...], values: bytes) -> bytes:
        """Put what the column does not fix before the values."""
        if self.dtype is not None and dtype != self.dtype:
            raise EncodeError(f"expected {self.kind} of {self.dtype}, found {dtype}")
        head = b"" if self.dtype else bytes((_CODES[dtype],))
        if self.shape is not None:
            if shape != self.shape:
                raise EncodeError(f"expected {self.kind} of shape {self.shape}, found {shape}")
            return head + values if head else values
        if len(shape) > 63:
            raise EncodeError(f"expected {self.kind} of up to 63 dimensions, found {len(shape)}")
        width = bisect_left(_WIDEST, max(shape, default=0))
        head += struct.pack(f"<B{len(shape)}{_DIMS[width]}", len(shape) << 2 | width, *shape)
        return head + values

    def _unpack(self, data: bytes) -> tuple[str, tuple[int, ...], memoryview]:
        """Type, shape and the bytes of the values, of which there are just enough."""
        view, at = memoryview(data), 0
        dtype, shape = self.dtype, self.shape
        if dtype is None:
            dtype, at = _NAMES.get(view[0], ""), 1
            if not dtype:
                raise SampleError(f"{view[0]} is not the code of a type")
        if shape is None:
            dims = struct.Struct(f"<{view[at] >> 2}{_DIMS[view[at] & 3]}")
            shape = dims.unpack_from(view, at + 1)
            at += 1 + dims.size
        size = math.prod(shape) * _itemsize(dtype)
        if size != len(view) - at:
            raise SampleError(
                f"{self.kind} of {dtype} and shape {shape} takes {size} bytes, but there are "
                f"{len(view) - at}"
            )
        values = view[at:]
        if dtype == "bool" and size and np.frombuffer(values, np.uint8).max() > 1:
            raise SampleError("a bool is one byte, 0 or 1, but there are others")
        return dtype, shape, values


def _itemsize(dtype: str) -> int:
    return max(1, _CODES[dtype] // 8)


class NDArray(_Shaped):
    """A numpy array, little endian, in C order. What is decoded is the caller's own, and writable.

    Arrays without elements or dimensions are refused, as ever; `tensor` takes them.
    """

    kind = "ndarray"

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, np.ndarray)
        name = _name(obj.dtype)
        if name not in _CODES or (name in _LATER and self.dtype is None):
            hint = f"; declare the column as 'ndarray:{name}'" if name in _LATER else ""
            raise EncodeError(f"ndarray does not hold values of type {obj.dtype}{hint}")
        if obj.size == 0 or obj.ndim == 0:
            raise EncodeError(f"expected an array with elements, found shape {obj.shape}")
        values = obj.astype(_dtype(name), copy=False).tobytes()
        return self._pack(name, obj.shape, values)

    def decode(self, data: bytes) -> np.ndarray[Any, Any]:
        dtype, shape, values = self._unpack(data)
        if self.dtype is None and dtype in _LATER:
            raise SampleError(f"ndarray does not hold values of type {dtype}")
        return np.ndarray(shape, _dtype(dtype), bytearray(values))


class Tensor(_Shaped):
    """A torch tensor, of any shape. Comes back on the CPU, contiguous, without a gradient."""

    kind = "tensor"

    @property
    def fixed(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        # numpy has bfloat16 only through another package.
        return None if self.dtype == "bfloat16" else super().fixed

    def encode(self, obj: Any) -> bytes:
        torch = sys.modules.get("torch")  # Whoever has a tensor has torch.
        if torch is None or not isinstance(obj, torch.Tensor):
            refuse(obj, "torch.Tensor")
        name = str(obj.dtype).removeprefix("torch.")
        if name not in _CODES:
            raise EncodeError(f"tensor does not hold values of type {obj.dtype}")
        flat = obj.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return self._pack(name, tuple(obj.shape), flat.view(torch.uint8).numpy().tobytes())

    def decode(self, data: bytes) -> Any:
        torch = lazy("torch", "torch")
        name, shape, values = self._unpack(data)
        dtype = getattr(torch, name)
        if not values:  # frombuffer refuses an empty buffer.
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape)
