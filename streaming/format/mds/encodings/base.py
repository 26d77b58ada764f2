"""What an encoding is: the bytes of one value of a column, and back."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from streaming.errors import (
    EncodeError,
    EncodeRangeError,
    EncodeTypeError,
    SampleError,
    StreamingError,
)

__all__ = ["Encoding", "brief", "decode_value", "encode_value", "refuse"]


class Encoding(ABC):
    """Turns the values of a column into bytes, and back. Stateless; threads share it.

    A class in the registry needs `size`, `encode` and `decode`, and no more: it need not be a
    subclass, and the rest has defaults. A class that takes parameters, as in ``name:parameters``,
    has a class method `from_str` as well.

    Attributes:
        size: Bytes of every value, or None if they differ.
        safe: Decoding runs no code that the data choose.
        takes_views: `decode` takes any buffer; others are given `bytes`.
    """

    size: int | None = None
    safe: bool = True
    takes_views: bool = False

    @property
    def fixed(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """If a value's bytes are nothing but an array in C order: its type and shape.

        A block of such values is decoded at once, without `decode`.
        """
        return None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value.

        Raises:
            EncodeError: The value does not suit this encoding.
        """

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of these bytes.

        Raises:
            Exception: These are not bytes that `encode` makes; `decode_value` makes a SampleError
                of whatever comes.
        """

    @staticmethod
    def _validate(data: Any, expected_type: type | tuple[type, ...]) -> None:
        if not isinstance(data, expected_type):
            kinds = expected_type if isinstance(expected_type, tuple) else (expected_type,)
            refuse(data, " or ".join(kind.__name__ for kind in kinds))


def refuse(value: Any, expected: str) -> NoReturn:
    """Raise EncodeError for a value of the wrong type."""
    raise EncodeError(f"expected {expected}, found {type(value).__name__}: {brief(value)}")


def brief(value: Any) -> str:
    """A value as a message may show it."""
    try:
        return reprlib.repr(value)
    except Exception:  # An int of over 4,300 digits, for one.  # noqa: BLE001
        return f"a {type(value).__name__}"


def encode_value(encoding: Encoding, value: Any) -> bytes:
    """Encode a value; `bytes` are taken to be encoded already.

    Raises:
        EncodeError: The value does not suit the encoding. Also a TypeError or OverflowError where
            the encoding raised one.
    """
    if isinstance(value, bytes):
        return value
    try:
        return encoding.encode(value)
    except StreamingError:
        raise
    except TypeError as error:
        raise EncodeTypeError(f"can't be encoded: {error}") from error
    except OverflowError as error:
        raise EncodeRangeError(f"can't be encoded: {error}") from error
    except Exception as error:
        raise EncodeError(f"can't be encoded: {type(error).__name__}: {error}") from error


def decode_value(encoding: Encoding, data: bytes | memoryview) -> Any:
    """Decode a value.

    Raises:
        SampleError: The bytes are not those of a value.
    """
    decode: Callable[[Any], Any] = encoding.decode
    try:
        return decode(data if getattr(encoding, "takes_views", False) else bytes(data))
    except StreamingError:
        raise
    except Exception as error:
        raise SampleError(f"can't be decoded: {type(error).__name__}: {error}") from error
