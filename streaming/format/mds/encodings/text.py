"""Encodings that are text, and plain bytes."""

import json
from decimal import Decimal
from typing import Any

import numpy as np

from streaming.format.mds.encodings.base import Encoding

__all__ = ["JSON", "Bytes", "Str", "StrDecimal", "StrEncoding", "StrFloat", "StrInt"]


class Bytes(Encoding):
    """Bytes as they are."""

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, bytes)
        return bytes(obj)

    def decode(self, data: bytes) -> bytes:
        return data


class StrEncoding(Encoding):
    """Values that are stored as UTF-8 text."""

    takes_views = True

    def encode(self, obj: Any) -> bytes:
        return str(obj).encode()


class Str(StrEncoding):
    """Text."""

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, str)
        return super().encode(obj)

    def decode(self, data: bytes) -> str:
        return str(data, "utf-8")


class StrInt(StrEncoding):
    """An int of any size in decimal digits (up to Python's own limit for those, 4,300)."""

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, int)
        return super().encode(int(obj))

    def decode(self, data: bytes) -> int:
        return int(str(data, "utf-8"))


class StrFloat(StrEncoding):
    """A float in its shortest decimal form."""

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, float)
        return super().encode(obj)

    def decode(self, data: bytes) -> float:
        return float(str(data, "utf-8"))


class StrDecimal(StrEncoding):
    """A `decimal.Decimal`."""

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, Decimal)
        return super().encode(obj)

    def decode(self, data: bytes) -> Decimal:
        return Decimal(str(data, "utf-8"))


class JSON(StrEncoding):
    """Anything that JSON can say, NaN and infinities besides; numpy arrays become lists."""

    def encode(self, obj: Any) -> bytes:
        return json.dumps(obj, default=self._to_list).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(str(data, "utf-8"))

    @staticmethod
    def _to_list(obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            return obj.tolist()
        raise TypeError(f"JSON has no {type(obj).__name__}")
