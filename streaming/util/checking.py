"""Arguments of the right type, or a sentence that names them."""

import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from streaming.errors import ConfigError

__all__ = [
    "check_encodings",
    "check_flag",
    "check_names",
    "check_number",
    "check_options",
    "check_text",
    "check_whole",
    "nearest",
    "parameters",
]


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


def check_names(name: str, value: object) -> None:
    """A list of texts, or a mapping with such keys; one text would be taken for its characters.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, str) or not isinstance(value, Collection):
        example = f" For one, say [{value!r}]." if isinstance(value, str) else ""
        raise ConfigError(f"`{name}` must be a list of names, but is {value!r}.{example}")
    for item in value:
        if not isinstance(item, str):
            raise ConfigError(f"`{name}` must be a list of names, but has {item!r} in it.")


def check_options(name: str, value: object) -> dict[str, Any]:
    """Options by their names, as a dict of its own; None for none.

    Raises:
        ConfigError: They are something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"`{name}` must be a dict of options by their names, but is {value!r}.")
    return dict(value)


def check_encodings(columns: object) -> None:
    """The columns that a writer is given: names of encodings by names of columns, one at least.

    Raises:
        ConfigError: They are something else, or a name is no text that UTF-8 can say: what lists
            the columns is read as that.
    """
    pairs = columns.items() if isinstance(columns, Mapping) else ()
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise ConfigError(
            "`columns` must give the name of an encoding for each column, of which there is one "
            f"at least, as in {{'text': 'str'}}, but is {columns!r}."
        )
    for name, _ in pairs:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"No column can be called {name!r}: {error}.") from None


def nearest(name: str, known: Collection[str]) -> str:
    """The known name that an unknown one was probably meant for; "" if none is like it."""
    import difflib  # Only who errs waits for it.

    return next(iter(difflib.get_close_matches(name.lower(), known, 1, 0.8)), "")


def parameters(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments that a function, or method of a class, takes by name."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    found = inspect.signature(function).parameters.values()
    return {item.name for item in found if item.kind in named} - {"self"}
