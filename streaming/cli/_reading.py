"""How data without an index is to be read, as the commands take it."""

import json
from collections.abc import Sequence
from typing import Any, Final

from streaming.errors import ConfigError
from streaming.peek import Reading
from streaming.util.pretty import unpack_str2str, unpack_strs

__all__ = ["COLUMNS", "FORMAT", "OPTIONS", "VERSION", "options_of", "reading_of", "readings_of"]

# What the options are for; `plan` takes each of them once, or once a stream.
FORMAT: Final = "Format of data without an index; otherwise their endings or their log say it."
VERSION: Final = "Of a table: its number, a tag, or a time. Otherwise the newest."
COLUMNS: Final = "NAME,... that are read, or NAME=ENCODING,... of data without an index."
_EXAMPLE: Final = """'{"separator": "|"}'"""
OPTIONS: Final = f"More of data without an index, as JSON, such as {_EXAMPLE}."

_Words = Sequence[str] | None


def reading_of(
    format: str | None, version: str | None, columns: str | None, options: str | None
) -> Reading:
    """What was said of one dataset; an empty text says nothing.

    Raises:
        ConfigError: The columns or the options are not of their form.
    """
    return Reading(
        format=format or None,
        version=version or None,
        columns=_columns(columns) if columns else None,
        options=options_of(options) if options else {},
    )


def readings_of(
    count: int, format: _Words, version: _Words, columns: _Words, options: _Words
) -> list[Reading]:
    """What was said of each of several datasets.

    Args:
        count: How many there are.
        format: A text for each; one for all of them; or none.
        version: Likewise.
        columns: Likewise.
        options: Likewise.

    Raises:
        ConfigError: There are more or fewer texts than datasets, or one is not of its form.
    """
    given = {"format": format, "version": version, "columns": columns, "format-options": options}
    lists = [_spread(name, words or [""], count) for name, words in given.items()]
    return [reading_of(*words) for words in zip(*lists, strict=True)]


def _spread(name: str, words: Sequence[str], count: int) -> Sequence[str]:
    if len(words) not in (1, count):
        raise ConfigError(
            f"--{name} comes {len(words)} times for {count} datasets. Give it once for all, or "
            'once for each in their order; "" says nothing.'
        )
    return words if len(words) == count else [words[0]] * count


def _columns(text: str) -> list[str] | dict[str, str]:
    return unpack_str2str(text) if "=" in text else unpack_strs(text)


def options_of(text: str) -> dict[str, Any]:
    """What `--format-options` says.

    Raises:
        ConfigError: It is no JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--format-options is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"--format-options must be a JSON object, such as {_EXAMPLE}, but is {text!r}."
        )
    return found
