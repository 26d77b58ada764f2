"""Types of the columns of separated text."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import msgspec

from streaming.errors import EncodeRangeError, EncodeTypeError, EncodingNameError
from streaming.format.text.columns import encoding_of, join_kinds, kind_of_text

__all__ = [
    "Encoding",
    "decode_inferred",
    "decode_texts",
    "get_xsv_encoding",
    "is_xsv_encoding",
    "xsv_decode",
    "xsv_encode",
]


class Encoding(ABC):
    """How the values of a column are written as text."""

    @classmethod
    @abstractmethod
    def encode(cls, obj: Any) -> str:
        """The text of a value.

        Raises:
            EncodeError: The value does not suit the column.
        """

    @classmethod
    @abstractmethod
    def decode(cls, obj: str) -> Any:
        """The value of a text; ValueError if it is none."""


class Str(Encoding):
    """Texts, as they are."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        if not isinstance(obj, str):
            raise EncodeTypeError(f"str takes a text, but not {type(obj).__name__}")
        return obj

    @classmethod
    def decode(cls, obj: str) -> str:
        return obj


class Int(Encoding):
    """Whole numbers of any size. Not bools: "True" would be no number to a reader."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise EncodeTypeError(f"int takes a whole number, but not {type(obj).__name__}")
        try:
            return str(int(obj))
        except ValueError as error:
            raise EncodeRangeError(f"the number has too many digits: {error}") from error

    @classmethod
    def decode(cls, obj: str) -> int:
        return int(obj)


class Float(Encoding):
    """Floating-point numbers, in the shortest text that gives the same number."""

    @classmethod
    def encode(cls, obj: Any) -> str:
        if not isinstance(obj, float):
            raise EncodeTypeError(f"float takes a float, but not {type(obj).__name__}")
        return str(float(obj))

    @classmethod
    def decode(cls, obj: str) -> float:
        return float(obj)


_encodings: Final[dict[str, type[Encoding]]] = {"str": Str, "int": Int, "float": Float}
_DECODERS: Final[dict[str, Callable[[str], list[Any]]]] = {
    "int": msgspec.json.Decoder(list[int]).decode,
    "float": msgspec.json.Decoder(list[float]).decode,
}
_EXACT: Final = 2.0**53  # Beyond it, floats don't hold all whole numbers.
_find_zero = re.compile(r"-0\s*[,\]]").search


def get_xsv_encoding(encoding: str) -> type[Encoding]:
    """What an encoding means.

    Raises:
        EncodingNameError: There is no such encoding.
    """
    if not (isinstance(encoding, str) and encoding in _encodings):
        raise EncodingNameError(
            f"There is no encoding {encoding!r} of separated text. Known: {', '.join(_encodings)}."
        )
    return _encodings[encoding]


def is_xsv_encoding(encoding: str) -> bool:
    """Whether there is such an encoding."""
    return encoding in _encodings


def decode_texts(encoding: str, texts: list[str], *, is_inferred: bool = False) -> list[Any]:
    """The values of many texts.

    Numbers are read as a list of JSON, which takes a third of the time, and gives the same where
    it gives anything; but for the sign of a zero.

    Args:
        encoding: The encoding.
        texts: The texts.
        is_inferred: As for `decode_inferred`.

    Raises:
        ValueError: One is no such value.
    """
    if encoding == "str":
        return texts
    text = f"[{','.join(texts)}]"
    try:
        values = _DECODERS[encoding](text)
    except (msgspec.MsgspecError, RecursionError):
        values = []
    # A text that holds a comma would give two values.
    is_good = len(values) == len(texts) and not (encoding == "float" and _find_zero(text))
    if is_good and not (is_inferred and _is_doubtful(encoding, text, values)):
        return values
    if is_inferred:
        return [decode_inferred(encoding, text) for text in texts]
    return list(map(_encodings[encoding].decode, texts))


def decode_inferred(encoding: str, text: str) -> Any:
    """The value of a text whose encoding was inferred from others: one that it would fit, too.

    A postal code such as "02139" among numbers is not to become one.

    Raises:
        ValueError: It is no such value.
    """
    joined = encoding_of(join_kinds(encoding, kind_of_text(text), "str"))
    if encoding != "str" and joined != encoding:
        raise ValueError(
            "by the first lines, the column has numbers; declare it as str, or as a number if this "
            "is one"
        )
    return _encodings[encoding].decode(text)


def _is_doubtful(encoding: str, text: str, values: list[Any]) -> bool:
    """Whether a list of numbers may be more than the numbers themselves."""
    if " " in text or "\t" in text or "\n" in text or "\r" in text or "-0" in text:
        return True
    if encoding == "int" or not values:
        return False
    return not -_EXACT < min(values) <= max(values) < _EXACT


def xsv_encode(encoding: str, value: Any) -> str:
    """The text of a value.

    Raises:
        EncodingNameError: There is no such encoding.
        EncodeError: The value does not suit it.
    """
    return get_xsv_encoding(encoding).encode(value)


def xsv_decode(encoding: str, value: str) -> Any:
    """The value of a text.

    Raises:
        EncodingNameError: There is no such encoding.
        ValueError: The text is no such value.
    """
    return get_xsv_encoding(encoding).decode(value)
