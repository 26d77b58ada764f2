"""Arguments of the right type, or a sentence that names them."""

import math
import numbers
import operator
import os

import numpy as np

from streaming.errors import ConfigError

__all__ = ["check_flag", "check_number", "check_text", "check_whole"]


_LIMIT = 2**63  # Samples, bytes and positions are int64.


def check_whole(name: str, value: object, least: int) -> int:
    """A whole number from `least` to below 2^63, as an int; numpy's count, bools don't.

    Raises:
        ConfigError: It is something else.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise ConfigError(f"`{name}` must be a whole number, but is {value!r}.")
    if not least <= number < _LIMIT:
        bound = f"at least {least}" if number < least else "below 2^63"
        raise ConfigError(f"`{name}` must be {bound}, but is {number}.")
    return number


def check_number(name: str, value: object, *, above: float | None = None) -> float:
    """A finite number from zero on, or above a bound.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"`{name}` must be a number, but is {value!r}.")
    if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
        wanted = "zero or a positive number" if above is None else f"a number above {above:g}"
        raise ConfigError(f"`{name}` must be {wanted}, but is {value}.")
    return float(value)


def check_flag(name: str, value: object) -> bool:
    """True or False; 1, 0 and numpy's count.

    Raises:
        ConfigError: It is something else: "no" would be true.
    """
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise ConfigError(f"`{name}` must be True or False, but is {value!r}.")
    return bool(value)


def check_text(name: str, value: object, what: str = "a text") -> str:
    """A path, URL or name as text, without NUL.

    Raises:
        ConfigError: It is something else.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"`{name}` must be {what}, but is {value!r}.")
    return text
