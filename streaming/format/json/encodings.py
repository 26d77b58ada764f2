"""Types of the columns of JSON shards."""

from abc import ABC, abstractmethod
from typing import Any, Final

from streaming.errors import EncodingNameError

__all__ = ["Encoding", "get_json_encoding", "is_json_encoded", "is_json_encoding"]


class Encoding(ABC):
    """What values a column takes."""

    @classmethod
    @abstractmethod
    def is_encoded(cls, obj: Any) -> bool:
        """Whether a value suits the column; what JSON can't say shows only when it is written."""


class Str(Encoding):
    """Texts."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        return isinstance(obj, str)


class Int(Encoding):
    """Whole numbers of any size. True and False count as such, as the predecessor has it."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        return isinstance(obj, int)


class Float(Encoding):
    """Floating-point numbers."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        return isinstance(obj, float)


class Bool(Encoding):
    """True and False."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        return isinstance(obj, bool)


class Json(Encoding):
    """Whatever JSON can say."""

    @classmethod
    def is_encoded(cls, obj: Any) -> bool:
        return True


_encodings: Final[dict[str, type[Encoding]]] = {
    "str": Str,
    "int": Int,
    "float": Float,
    "bool": Bool,  # This and the next are ours; other readers do not look at them.
    "json": Json,
}


def get_json_encoding(encoding: str) -> type[Encoding]:
    """What an encoding means.

    Raises:
        EncodingNameError: There is no such encoding.
    """
    if not (isinstance(encoding, str) and encoding in _encodings):
        raise EncodingNameError(
            f"There is no JSON encoding {encoding!r}. Known: {', '.join(_encodings)}."
        )
    return _encodings[encoding]


def is_json_encoding(encoding: str) -> bool:
    """Whether there is such an encoding."""
    return encoding in _encodings


def is_json_encoded(encoding: str, value: Any) -> bool:
    """Whether a value suits a column.

    Raises:
        EncodingNameError: There is no such encoding.
    """
    return get_json_encoding(encoding).is_encoded(value)
