"""Encodings of numbers, truth values and times: all of one size."""

import struct
from abc import abstractmethod
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from streaming.errors import EncodeError, EncodeRangeError, SampleError
from streaming.format.mds.encodings.base import Encoding, brief, refuse

__all__ = [
    "Bool",
    "Date",
    "DateTime",
    "Float",
    "Float16",
    "Float32",
    "Float64",
    "Int",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Number",
    "Scalar",
    "Timestamp",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
]


class Number(Encoding):
    """A number, little endian.

    Attributes:
        code: What it is to `struct`.
        exact: Values of just this type are what `struct` takes; others go through `number` first.
        plain: Values are Python's own, not numpy's.
    """

    code: ClassVar[str]
    exact: ClassVar[type]
    plain: ClassVar[bool] = True
    takes_views = True
    _struct: ClassVar[struct.Struct]

    def __init_subclass__(cls, code: str = "") -> None:
        if code:
            cls.code = code
            cls.size = struct.calcsize("<" + code)
            cls._struct = struct.Struct("<" + code)

    @property
    def fixed(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return np.dtype("<" + self.code), ()

    @abstractmethod
    def number(self, obj: Any) -> Any:
        """A value as the Python number that is stored.

        Raises:
            EncodeError: It is not one of this encoding's values.
        """

    def encode(self, obj: Any) -> bytes:
        try:
            return self._struct.pack(self.number(obj))
        except struct.error as error:
            raise EncodeRangeError(f"{brief(obj)} is out of range: {error}") from error

    def decode(self, data: bytes) -> Any:
        return self._struct.unpack(data)[0]


class Int(Number, code="q"):
    """Python's int, 64 bits."""

    exact = int

    def number(self, obj: Any) -> int:
        self._validate(obj, int)
        return int(obj)


class Float(Number, code="d"):
    """Python's float, 64 bits. An int is taken if a float can hold it."""

    exact = float

    def number(self, obj: Any) -> float:
        if isinstance(obj, bool) or not isinstance(obj, (float, int, np.floating, np.integer)):
            refuse(obj, "float")
        value = float(obj)
        if isinstance(obj, (int, np.integer)) and value != int(obj):
            raise EncodeError(f"{brief(obj)} can't be held by a float")
        return value


class Bool(Number, code="?"):
    """One byte, 0 or 1."""

    exact = bool

    def number(self, obj: Any) -> bool:
        self._validate(obj, (bool, np.bool_))
        return bool(obj)

    def decode(self, data: bytes) -> bool:
        if bytes(data) not in (b"\0", b"\1"):
            raise SampleError(f"a bool is one byte, 0 or 1, but this is {bytes(data)[:20]!r}")
        return bytes(data) == b"\1"


class Scalar(Number):
    """A numpy scalar. Takes what numpy's constructor of the type takes, if it fits."""

    plain = False
    _type: ClassVar[Any]  # a subclass of np.number

    def __init_subclass__(cls, code: str = "") -> None:
        super().__init_subclass__(code)
        if code:
            cls._type = np.dtype(code).type

    def decode(self, data: bytes) -> Any:
        return self._type(super().decode(data))


class _Integer(Scalar):
    """A numpy integer. Fractions are cut off; unlike numpy's, no number wraps around."""

    exact = int

    def number(self, obj: Any) -> int:
        if isinstance(obj, (int, float, str, np.integer, np.floating, np.bool_)):
            value = int(obj)
        else:
            value = int(np.asarray(self._type(obj)).item())
        info = np.iinfo(self._type)
        if not info.min <= value <= info.max:
            raise EncodeRangeError(f"{brief(obj)} is not in [{info.min}, {info.max}]")
        return value


class _Real(Scalar):
    """A numpy float. Numbers are rounded to it, and what is too large becomes infinite."""

    exact = float

    def number(self, obj: Any) -> float:
        with np.errstate(over="ignore"):
            return float(np.asarray(self._type(obj)).item())


class UInt8(_Integer, code="B"):
    """np.uint8."""


class UInt16(_Integer, code="H"):
    """np.uint16."""


class UInt32(_Integer, code="I"):
    """np.uint32."""


class UInt64(_Integer, code="Q"):
    """np.uint64."""


class Int8(_Integer, code="b"):
    """np.int8."""


class Int16(_Integer, code="h"):
    """np.int16."""


class Int32(_Integer, code="i"):
    """np.int32."""


class Int64(_Integer, code="q"):
    """np.int64."""


class Float16(_Real, code="e"):
    """np.float16."""


class Float32(_Real, code="f"):
    """np.float32."""


class Float64(_Real, code="d"):
    """np.float64."""


_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_DAY_ONE = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class DateTime(Encoding):
    """A `datetime` without a time zone: int64 microseconds since the start of 1970."""

    size = 8
    takes_views = True

    def encode(self, obj: Any) -> bytes:
        return struct.pack("<q", (self._checked(obj, is_aware=False) - _EPOCH) // _MICROSECOND)

    def decode(self, data: bytes) -> datetime:
        return _EPOCH + timedelta(microseconds=struct.unpack("<q", data)[0])

    def _checked(self, obj: Any, *, is_aware: bool) -> datetime:
        self._validate(obj, datetime)
        if (obj.utcoffset() is not None) != is_aware:
            raise EncodeError(
                f"expected a datetime {'with' if is_aware else 'without'} a time zone, found "
                f"{obj!r}; the encoding {'datetime' if is_aware else 'timestamp'!r} takes it"
            )
        if getattr(obj, "nanosecond", 0):  # pandas
            raise EncodeError(f"{obj!r} has nanoseconds, which a datetime can't hold")
        found: datetime = obj
        return found


class Timestamp(DateTime):
    """A point in time: the same of a `datetime` with a time zone. Comes back in UTC."""

    def encode(self, obj: Any) -> bytes:
        return struct.pack("<q", (self._checked(obj, is_aware=True) - _EPOCH_UTC) // _MICROSECOND)

    def decode(self, data: bytes) -> datetime:
        return super().decode(data).replace(tzinfo=UTC)


class Date(Encoding):
    """A `date`: int32 days since 1970-01-01."""

    size = 4
    takes_views = True

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, date) or isinstance(obj, datetime):
            refuse(obj, "date")
        return struct.pack("<i", (obj - _DAY_ONE).days)

    def decode(self, data: bytes) -> date:
        return _DAY_ONE + timedelta(days=struct.unpack("<i", data)[0])
