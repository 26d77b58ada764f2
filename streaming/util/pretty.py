"""Sizes, counts, durations, lists and maps as text that people write and read, to and fro.

The grammar of a quantity: numbers and units in turn ("1h30m"), units descending, each once; a later
part does not exceed the unit before it; only the last number may have a fraction; commas and
underscores do not count, case neither. Arithmetic is exact.
"""

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from streaming.errors import ConfigError

__all__ = [
    "bytes_to_int",
    "get_list_arg",
    "normalize_bin_bytes",
    "normalize_bytes",
    "normalize_count",
    "normalize_dec_bytes",
    "normalize_duration",
    "number_abbrev_to_int",
    "pack_str2str",
    "pack_strs",
    "prettify_bin_bytes",
    "prettify_bytes",
    "prettify_count",
    "prettify_dec_bytes",
    "prettify_duration",
    "unpack_str2str",
    "unpack_strs",
]

_Units = dict[str, int]  # unit to what it is worth, ascending

_DEC_BYTES: Final[_Units] = {
    unit: 1000**i for i, unit in enumerate("b kb mb gb tb pb eb zb yb rb qb".split())
}
_BIN_BYTES: Final[_Units] = {
    unit: 1024**i for i, unit in enumerate("ib kib mib gib tib pib eib zib yib rib qib".split())
}
_COUNTS: Final[_Units] = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_DURATIONS: Final[_Units] = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]*)")
_MAX_CHARS: Final = 400  # any float fits; int() and float() of a far longer text fail or take long


def normalize_dec_bytes(size: float | str) -> int:
    """Bytes of "64mb" and the like, in powers of 1000; see `normalize_bytes`."""
    return _normalize_whole(size, _DEC_BYTES, "bytes")


def normalize_bin_bytes(size: float | str) -> int:
    """Bytes of "64mib" and the like, in powers of 1024; see `normalize_bytes`."""
    return _normalize_whole(size, _BIN_BYTES, "bytes")


def normalize_bytes(size: float | str) -> int:
    """Get a number of bytes.

    Args:
        size: A whole number, or a text such as "64mb" (64 * 1000**2) or "64mib" (64 * 1024**2).

    Returns:
        Bytes. A part of a byte that a larger unit leaves over ("0.1kib") is dropped.

    Raises:
        ConfigError: Negative, not whole, or not of the grammar.
    """
    is_binary = isinstance(size, str) and size.lower().endswith("ib")
    return normalize_bin_bytes(size) if is_binary else normalize_dec_bytes(size)


def normalize_count(count: float | str) -> int:
    """Get a number of things.

    Args:
        count: A whole number, or a text such as "100", "1.5k" or "2m500k".

    Raises:
        ConfigError: Negative, not whole, or not of the grammar.
    """
    return _normalize_whole(count, _COUNTS, "things")


def normalize_duration(duration: float | str) -> float:
    """Get a number of seconds.

    Args:
        duration: Seconds, or a text such as "90s", "1h30m" or "1m23.5s".

    Raises:
        ConfigError: Negative, not finite, or not of the grammar.
    """
    try:
        if isinstance(duration, str):
            duration = float(sum(n * unit for n, unit in _parse(duration, _DURATIONS, "seconds")))
        is_time = math.isfinite(duration) and duration >= 0 and not isinstance(duration, bool)
    except (OverflowError, TypeError):
        is_time = False
    if not is_time:
        raise ConfigError(f"A time is finite and not negative, but not {_show(duration)} seconds.")
    return float(duration)


def _normalize_whole(quantity: float | str, units: _Units, what: str) -> int:
    """Get a quantity of things that can't be halved."""
    if isinstance(quantity, str):
        parts = _parse(quantity, units, what)
        number, unit = parts[-1]
        if unit == 1 and number.denominator != 1:
            raise ConfigError(f"{what.capitalize()} can't be halved, as in {_show(quantity)}.")
        return int(sum(number * unit for number, unit in parts))
    try:
        whole = int(quantity)
    except (OverflowError, TypeError, ValueError):  # inf, None, nan
        whole = -1
    if whole < 0 or whole != quantity or isinstance(quantity, bool):
        raise ConfigError(
            f"A number of {what} is whole and not negative, but not {_show(quantity)}."
        )
    return whole


def _parse(text: str, units: _Units, what: str) -> list[tuple[Fraction, int]]:
    """Cut a text into numbers, each with what its unit is worth."""

    def wrong(why: str) -> ConfigError:
        return ConfigError(f"{_show(text)} is not a number of {what}: {why}.")

    if not re.match("[0-9]", text):
        raise wrong("it must start with a digit")
    if len(text) > _MAX_CHARS:
        raise wrong(f"it has {len(text)} characters, and {_MAX_CHARS} are the limit")
    plain = text.replace(",", "").replace("_", "").lower()
    parts: list[tuple[Fraction, int]] = []
    at = 0
    while at < len(plain):
        match = _PART.match(plain, at)
        if match is None:
            raise wrong(f"there must be numbers and units in turn, but there is {plain[at]!r}")
        at = match.end()
        if match[2] not in units:
            known = ", ".join(repr(unit) for unit in units)
            raise wrong(f"{match[2]!r} is no unit of it; {known} are")
        number, unit = Fraction(match[1]), units[match[2]]
        if parts:
            if "." in plain[: match.start()]:
                raise wrong("only the last number may have a fraction")
            if unit >= parts[-1][1]:
                raise wrong("units must become smaller")
            if number * unit > parts[-1][1]:
                raise wrong(f"{match[0]!r} is more than one of the unit before it")
        parts.append((number, unit))
    return parts


def prettify_dec_bytes(size: int, *, digits: int | None = None) -> str:
    """A number of bytes as text, in powers of 1000; see `prettify_bytes`."""
    return _prettify(_normalize_whole(size, {}, "bytes"), _DEC_BYTES, digits)


def prettify_bin_bytes(size: int, *, digits: int | None = None) -> str:
    """A number of bytes as text, in powers of 1024; see `prettify_bytes`."""
    return _prettify(_normalize_whole(size, {}, "bytes"), _BIN_BYTES, digits)


def prettify_bytes(size: int, *, digits: int | None = None) -> str:
    """Give a number of bytes as text.

    Args:
        size: Bytes.
        digits: How many digits to show, rounded, with one unit ("67.1mb"). None: the text that
            `normalize_bytes` turns back into just this number, in powers of 1000 or 1024,
            whichever is shorter ("64mib").

    Raises:
        ConfigError: Negative, or not whole.
    """
    decimal = prettify_dec_bytes(size, digits=digits)
    return min(decimal, prettify_bin_bytes(size), key=len) if digits is None else decimal


def prettify_count(count: int, *, digits: int | None = None) -> str:
    """Give a number of things as text.

    Args:
        count: How many.
        digits: How many digits to show, rounded, with one unit ("1.5m"). None: the text that
            `normalize_count` turns back into just this number ("1m500k").

    Raises:
        ConfigError: Negative, or not whole.
    """
    return _prettify(_normalize_whole(count, {}, "things"), _COUNTS, digits)


def prettify_duration(seconds: float, *, digits: int | None = None) -> str:
    """Give a number of seconds as text.

    Args:
        seconds: How long.
        digits: How many digits to show, rounded, with one unit ("1.5h"). None: the text that
            `normalize_duration` turns back into just this number ("1h30m").

    Raises:
        ConfigError: Negative, or not finite.
    """
    return _prettify(normalize_duration(seconds), _DURATIONS, digits)


def _prettify(quantity: float, units: _Units, digits: int | None) -> str:
    """Write a quantity that is not negative."""
    return _spell(quantity, units) if digits is None else _round(quantity, units, digits)


def _spell(quantity: float, units: _Units) -> str:
    """Write a quantity exactly, in as many units as it takes."""
    whole, _, fraction = format(Decimal(str(quantity)), "f").partition(".")
    left, fraction, parts = int(whole), fraction.rstrip("0"), ""
    for unit, worth in reversed(units.items()):
        number, left = divmod(left, worth)
        if worth == 1 and fraction:
            parts += f"{number}.{fraction}{unit}"
        elif number:
            parts += f"{number}{unit}"
    return parts or f"0{min(units, key=units.__getitem__)}"


def _round(quantity: float, units: _Units, digits: int) -> str:
    """Write a quantity rounded, in one unit."""
    # Rounded before it is compared: 999,999 is "1m" and not "1000k" in three digits.
    rounded = {unit: Decimal(f"{quantity / worth:.{digits}g}") for unit, worth in units.items()}
    fitting = [unit for unit, number in rounded.items() if number >= 1 or units[unit] == 1]
    return f"{rounded[fitting[-1]]:f}{fitting[-1]}"


def unpack_strs(text: str, sep: str = ",") -> list[str]:
    """Cut a text at each separator; no text is no strings."""
    return text.split(sep) if text else []


def pack_strs(strs: Iterable[str], sep: str = ",") -> str:
    """Join strings to the text from which `unpack_strs` gets them.

    Raises:
        ConfigError: There is no such text: a string holds the separator, or one empty string is
            all there is.
    """
    strs = list(strs)
    text = sep.join(strs)
    if unpack_strs(text, sep) != strs:
        raise ConfigError(f"{_show(strs)} can't be told apart again when joined by {sep!r}.")
    return text


def unpack_str2str(text: str, sep: str = ",", eq: str = "=") -> dict[str, str]:
    """Get a map from a text such as "a=1,b=2".

    Args:
        text: Pairs; no text is no pairs.
        sep: Stands between pairs.
        eq: Stands between a key and its value; a value may hold it too.

    Raises:
        ConfigError: A pair without `eq`, or the same key twice.
    """
    pairs: dict[str, str] = {}
    for pair in unpack_strs(text, sep):
        key, found, value = pair.partition(eq)
        if not found:
            raise ConfigError(f"{_show(pair)} should be a key and a value joined by {eq!r}.")
        if key in pairs:
            raise ConfigError(f"The key {_show(key)} comes twice.")
        pairs[key] = value
    return pairs


def pack_str2str(pairs: Mapping[str, str], sep: str = ",", eq: str = "=") -> str:
    """Join a map to the text from which `unpack_str2str` gets it.

    Raises:
        ConfigError: There is no such text: a key or value holds a separator.
    """
    for key in pairs:
        if eq in key:
            raise ConfigError(f"The key {_show(key)} must not hold {eq!r}.")
    return pack_strs((f"{key}{eq}{value}" for key, value in pairs.items()), sep)


_OLD_NUMBER: Final = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?)"
_OLD_BYTES: Final = {
    unit: 1024**i for i, unit in enumerate("b kb mb gb tb pb eb zb yb".split()) if i
}


def get_list_arg(text: str) -> list[str]:
    """Cut a text at commas (an old name of `unpack_strs`)."""
    return unpack_strs(text)


def bytes_to_int(bytes_str: float | str) -> int:
    """Get a number of bytes as the predecessor reads it: "kb" is 1024 here.

    Args:
        bytes_str: A number, or digits with "b" or nothing, or any decimal number with kb, mb, gb,
            tb, pb, eb, zb or yb, in powers of 1024. Parts of a byte are dropped.

    Raises:
        ConfigError: Not of this form.
    """
    if isinstance(bytes_str, str):
        bytes_str = bytes_str.strip().lower()
        if re.fullmatch("[0-9]+ *b", bytes_str):
            bytes_str = bytes_str[:-1].rstrip()
    return _old_number(bytes_str, _OLD_BYTES, "bytes")


def number_abbrev_to_int(abbrev_str: float | str) -> int:
    """Get a number as the predecessor reads it.

    Args:
        abbrev_str: A number, or digits, or any decimal number with k, m, b or t (10 to the power
            of 3, 6, 9, 12). Parts of one are dropped.

    Raises:
        ConfigError: Not of this form.
    """
    if isinstance(abbrev_str, str):
        abbrev_str = abbrev_str.strip().lower()
    return _old_number(abbrev_str, {unit: _COUNTS[unit] for unit in "kmbt"}, "things")


def _old_number(quantity: float | str, units: _Units, what: str) -> int:
    if not isinstance(quantity, str):
        return int(quantity)
    if len(quantity) <= _MAX_CHARS:
        if re.fullmatch("[0-9]+", quantity):
            return int(quantity)
        match = re.fullmatch(rf"{_OLD_NUMBER} *({'|'.join(units)})", quantity)
        if match:
            return int(Fraction(match[1]) * units[match[2]])
    raise ConfigError(
        f"{_show(quantity)} is not a number of {what}. It should be digits, or a number with one "
        f"of the suffixes {', '.join(units)}."
    )


def _show(value: object) -> str:
    """What the user gave, cut if it is too long for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
