"""Separated text as RFC 4180 has it: fields, and quotes around those that need them.

A field that begins with a quote goes on to the next single quote, over separators and newlines; two
quotes in it stand for one. In any other field a quote is a character like others.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from streaming.errors import DataError

__all__ = ["QUOTE", "join_fields", "split_fields"]

QUOTE = '"'

_QUOTED = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"')


def split_fields(record: str, separator: str) -> list[str]:
    """Take a record apart.

    Args:
        record: Without the newline at its end.
        separator: What stands between fields.

    Raises:
        DataError: A quote is not closed, or something follows the one that closes.
    """
    if QUOTE not in record:
        return record.split(separator)
    fields, at = [], 0
    while True:
        if record.startswith(QUOTE, at):
            found = _QUOTED.match(record, at)
            if found is None:
                raise DataError(f"the quote at character {at + 1} is not closed")
            field, stop = found[1].replace('""', QUOTE), found.end()
            if stop < len(record) and not record.startswith(separator, stop):
                raise DataError(f"at character {stop + 1} a field goes on after its closing quote")
        else:
            stop = record.find(separator, at)
            stop = len(record) if stop < 0 else stop
            field = record[at:stop]
        fields.append(field)
        if stop == len(record):
            return fields
        at = stop + len(separator)


def join_fields(fields: Sequence[str], separator: str, newline: str) -> str:
    """Put a record together, without a newline, with quotes where they are needed."""
    is_special = _find_special(separator, newline)
    texts = [
        f'"{field.replace(QUOTE, QUOTE * 2)}"' if is_special(field) else field for field in fields
    ]
    # An only field that is empty would make a blank line, which readers leave out.
    return separator.join(texts) if texts != [""] else '""'


@lru_cache(maxsize=64)
def _find_special(separator: str, newline: str) -> Callable[[str], object]:
    """Find what a field can't hold without quotes: also a part of what ends it."""
    return re.compile(f"[{re.escape(QUOTE + separator + newline)}\r\n]").search
