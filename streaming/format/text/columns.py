"""Columns of texts and numbers: which kinds there are, what values make them, and as arrays."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from streaming.format.column import BytesColumn, Column

__all__ = [
    "SAMPLE_BYTES",
    "SAMPLE_RECORDS",
    "as_column",
    "encoding_of",
    "join_kinds",
    "kind_of",
    "kind_of_text",
]

# Records at the beginning of each file that columns are inferred from, and their bytes.
SAMPLE_RECORDS = 1000
SAMPLE_BYTES = 1 << 20

_EXACT: Final = range(-(2**53), 2**53 + 1)  # whole numbers that float64 holds exactly

# "long" is a whole number that float64 can't hold exactly, so it can't become one; "word" stands
# for nan and the infinities as Python writes them, which alone make no column of numbers.
_WIDER: Final = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "float",
    frozenset({"int", "word"}): "float",
    frozenset({"float", "word"}): "float",
}
_ENCODINGS: Final = {"long": "int", "word": "str"}

_MAX_DIGITS: Final = 4300  # Python refuses to read longer numbers.

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def kind_of(value: Any) -> str:
    """The kind of a JSON value."""
    match value:
        case bool():
            return "bool"
        case str():
            return "str"
        case float():
            return "float"
        case int():
            return "int" if value in _EXACT else "long"
    return "json"


def kind_of_text(text: str) -> str:
    """The kind of a field: "str" unless a number is written just so.

    That leaves out "007", "+1" and "1_000", texts of digits as codes and names have them.
    """
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS or text == "-0":
            return "str"
        return "int" if len(text) < 16 or int(text) in _EXACT else "long"
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return "float"
    return "word" if text in ("nan", "inf", "-inf") else "str"


def join_kinds(one: str | None, other: str, default: str) -> str:
    """The kind that values of both can have; `one` is None if there were no others."""
    if one is None or one == other:
        return other
    return _WIDER.get(frozenset({one, other}), default)


def encoding_of(kind: str) -> str:
    """The encoding of a column of this kind."""
    return _ENCODINGS.get(kind, kind)


def as_column(encoding: str, values: Sequence[Any]) -> Column:
    """Values as an array or a BytesColumn, if all of them are what the encoding says; else a list.

    Args:
        encoding: "int" gives int64, "float" float64, "bool" bool, "str" text.
        values: In order.
    """
    types = set(map(type, values))
    try:
        if encoding == "int" and types <= {int}:
            return np.array(values, np.int64)
        if encoding == "float" and (types <= {float} or _are_floats(values, types)):
            return np.array(values, np.float64)
        if encoding == "bool" and types <= {bool}:
            return np.array(values, np.bool_)
        if encoding == "str" and types <= {str}:
            return BytesColumn.join([value.encode() for value in values], is_text=True)
    except (OverflowError, UnicodeEncodeError):
        pass  # A number over 64 bits; half of a surrogate pair.
    return list(values)


def _are_floats(values: Sequence[Any], types: set[type]) -> bool:
    """Whether float64 holds all of these numbers exactly, although some are whole ones."""
    return types <= {float, int} and all(
        float(value) == value or value != value for value in values
    )
