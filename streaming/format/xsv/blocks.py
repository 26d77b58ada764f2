"""Taking a block of lines apart as one text, by a few calls whatever the number of lines is.

Where that is not possible without doubt, there is no result, and lines are taken apart one by one.
"""

import csv
import io

import numpy as np
from numpy.typing import NDArray

from streaming.format.text.scan import NEWLINE, RETURN
from streaming.format.xsv.grammar import QUOTE
from streaming.format.xsv.scan import may_limit

__all__ = ["can_split", "split_lines"]

# Stand for what ends fields, for what ends lines, for what is between quotes, and for both of two
# quotes in a row, while a text is taken apart. Control characters, so that hardly any text has
# them, and none that ends lines.
_FIELD, _LINE, _BETWEEN, _QUOTE, _SECOND = "\x01", "\x02", "\x03", "\x04", "\x05"


def can_split(separator: str, newline: str | None) -> bool:
    """Whether lines of this kind can be taken apart as one text.

    Args:
        separator: What stands between fields.
        newline: What ends a line; None: a newline, a carriage return or both.
    """
    overlaps = any(separator.endswith(separator[:i]) for i in range(1, len(separator)))
    return newline in (None, "\n", "\r\n") and not overlaps and not {"\r", "\n"} & set(separator)


def split_lines(
    lines: bytes, starts: NDArray[np.int64], separator: str, newline: str | None, *, quoting: bool
) -> tuple[list[str], int] | None:
    """Take lines apart that are all alike.

    Args:
        lines: Their bytes.
        starts: Where each begins, shape (n,), n > 0.
        separator: What stands between fields; see `can_split`.
        newline: What ends a line; None: any newline, and blank lines do not count.
        quoting: Whether quotes mean anything.

    Returns:
        The fields of all lines, and the step from the field of a line to the same of the next one:
        one more than there are fields. None if it can't be done so.
    """
    try:
        text = lines.decode()
    except UnicodeDecodeError:
        return None
    if newline == "\r\n" and not _end_with_return(lines, starts):
        return None
    if not (quoting and QUOTE in text):
        return _split_bare(text, separator, newline, len(starts))
    if len(separator) > 1:
        return None
    marked = _mark_quotes(lines, separator)
    if marked is None:
        return _split_slowly(text, separator, len(starts))
    return _split_quoted(marked.decode(), separator, newline, len(starts))


def _split_bare(
    text: str, separator: str, newline: str | None, count: int
) -> tuple[list[str], int] | None:
    """Take lines apart that have no quotes, or whose quotes mean nothing."""
    rows = _split_rows(text, newline, count)
    if rows is None:
        return None
    return _checked(f"{separator}\n{separator}".join(rows).split(separator), "\n", rows)


def _split_quoted(
    text: str, separator: str, newline: str | None, count: int
) -> tuple[list[str], int] | None:
    """Take lines apart in which every quote begins a field or ends one; others are marked."""
    parts = text.split(QUOTE)
    # What is outside of quotes, as one text, so that all of it is replaced at once.
    rows = _split_rows(_BETWEEN.join(parts[::2]), newline, count)
    if rows is None:
        return None
    outside = f"{_FIELD}{_LINE}{_FIELD}".join(rows).replace(separator, _FIELD)
    parts[::2] = outside.split(_BETWEEN)
    text = "".join(parts).replace(_QUOTE, QUOTE).replace(_SECOND, "")
    return _checked(text.split(_FIELD), _LINE, rows)


def _split_rows(text: str, newline: str | None, count: int) -> list[str] | None:
    """Cut a text at its newlines, if that gives so many lines."""
    if newline == "\n" and "\r" in text:
        return None
    if not text.endswith(("\n", "\r")):
        if newline is not None:
            return None
        text += "\n"  # the last line of a file
    rows = text.splitlines()
    # That also cuts at what only Unicode takes for the end of a line; or there are blank lines.
    if len(rows) != count and newline is None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        rows = [row for row in text.split("\n") if row]
    return rows if len(rows) == count else None


def _split_slowly(text: str, separator: str, count: int) -> tuple[list[str], int] | None:
    """Take lines apart that may have quotes within fields, and any characters."""
    try:
        lines = io.StringIO(text, newline="")
        rows = [row for row in csv.reader(lines, delimiter=separator, strict=True) if row]
    except csv.Error:  # Perhaps a field of over 128 KiB, perhaps a mistake.
        return None
    if len(rows) != count or len(set(map(len, rows))) > 1:
        return None
    return [field for row in rows for field in (*row, "\n")], len(rows[0]) + 1


def _checked(flat: list[str], mark: str, rows: list[str]) -> tuple[list[str], int] | None:
    """The fields, if each line has as many as the first one; between lines is a mark."""
    count = len(rows)
    width = flat.index(mark) + 1 if count > 1 else len(flat) + 1
    if len(flat) != count * width - 1 or flat[width - 1 :: width].count(mark) != count - 1:
        return None
    return flat, width


def _end_with_return(lines: bytes, starts: NDArray[np.int64]) -> bool:
    """Whether a carriage return and a newline are at the end of every line."""
    view = np.frombuffer(lines, np.uint8)
    ends = np.append(starts[1:], len(view))
    if ends[0] < 2 or len(view) < 2:
        return False
    return bool((view.take(ends - 2) == RETURN).all() and (view.take(ends - 1) == NEWLINE).all())


def _mark_quotes(lines: bytes, separator: str) -> bytes | None:
    """Mark those that are two in a row.

    Returns:
        None if the others don't begin fields and end them in turn, or there are marks already.
    """
    if not lines.endswith(b"\n"):
        lines += b"\n"
    view = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(view == ord(QUOTE))
    if len(quotes) % 2 or view.min() <= ord(_SECOND) or not separator.isascii():
        return None
    # Before the first byte is the last one, a newline; after the last byte is no quote.
    before, after = view[quotes[::2] - 1], view[quotes[1::2] + 1]
    if not (may_limit(before, ord(separator)).all() and may_limit(after, ord(separator)).all()):
        return None
    doubled = quotes[1::2][after == ord(QUOTE)]
    if not len(doubled):
        return lines
    view = view.copy()
    view[doubled], view[doubled + 1] = ord(_QUOTE), ord(_SECOND)
    return view.tobytes()
