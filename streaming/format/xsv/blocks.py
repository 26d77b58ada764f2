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

Ints = NDArray[np.int64]

# Stand for what ends fields, and for what is to be left out, while a text is taken apart. Control
# characters, so that hardly any text has them, and none that ends lines.
_FIELD, _NOTHING = 1, 2


def can_split(separator: str, newline: str | None) -> bool:
    """Whether lines of this kind can be taken apart as one text.

    Args:
        separator: What stands between fields.
        newline: What ends a line; None: a newline, a carriage return or both.
    """
    overlaps = any(separator.endswith(separator[:i]) for i in range(1, len(separator)))
    is_free = set(separator).isdisjoint(f"\r\n{chr(_FIELD)}{chr(_NOTHING)}")
    return newline in (None, "\n", "\r\n") and not overlaps and is_free


def split_lines(
    lines: bytes, starts: Ints, separator: str, newline: str | None, *, quoting: bool
) -> tuple[list[str], int, int] | None:
    """Take lines apart that are all alike.

    Args:
        lines: Their bytes.
        starts: Where each begins, shape (n,), n > 0.
        separator: What stands between fields; see `can_split`.
        newline: What ends a line; None: any newline, and blank lines do not count.
        quoting: Whether quotes mean anything.

    Returns:
        The fields of all lines, how many a line has, and the step from one to the same of the next
        line, for there may be something between lines. None if it can't be done so.
    """
    if not _are_ended(lines, starts, newline):
        return None
    if quoting and QUOTE.encode() in lines:
        if len(separator) > 1:
            return None
        found = _split_quoted(lines, starts, separator, newline)
        return found or (_split_slowly(lines, len(starts), separator) if newline is None else None)
    text = _decode(lines)
    rows = None if text is None else _split_rows(text, newline, len(starts))
    if rows is None:
        return None
    # Lines have no newlines any more, so a field that is one stands between two of them.
    flat = f"{separator}\n{separator}".join(rows).split(separator)
    return _checked(flat, len(rows))


def _split_quoted(
    lines: bytes, starts: Ints, separator: str, newline: str | None
) -> tuple[list[str], int, int] | None:
    """Take lines apart in which quotes begin fields and end them in turn, or are two in a row.

    What ends fields and lines outside of quotes becomes one character, and quotes are left out, so
    that the text can be split at once.
    """
    if not lines.endswith((b"\n", b"\r")):
        lines += b"\n"
    view, limit = np.frombuffer(lines, np.uint8), ord(separator)
    if view.min() <= _NOTHING or limit > 127:
        return None
    is_quote = view == ord(QUOTE)
    places = np.flatnonzero(is_quote | (view == limit))
    is_quote = is_quote.take(places)
    is_outside = np.cumsum(is_quote, dtype=np.uint8) & 1 == 0
    quotes, separators = places[is_quote], places[is_outside & ~is_quote]
    # Before the first byte is the last one, a newline; after the last byte is no quote.
    if len(quotes) % 2 or not (
        may_limit(view.take(quotes[::2] - 1), limit).all()
        and may_limit(view.take(quotes[1::2] + 1), limit).all()
    ):
        return None
    last = np.append(starts[1:], len(view)) - 1
    is_pair = _are_pairs(view, last, newline)
    width, rest = divmod(len(separators) + len(last), len(last))
    if is_pair is None or rest or not _are_among(separators, starts, last):
        return None
    view = view.copy()
    view[separators] = _FIELD
    # Of two in a row, which end a field and begin one, the latter is what they stand for.
    is_mark = np.ones(len(quotes), np.bool_)
    is_mark[2::2] = quotes[2::2] - quotes[1:-1:2] > 1
    view[quotes[is_mark]] = _NOTHING
    view[last] = np.where(is_pair, _NOTHING, _FIELD)
    view[last[is_pair] - 1] = _FIELD
    view[last[-1] - int(is_pair[-1])] = _NOTHING
    text = _decode(view.tobytes().translate(None, bytes([_NOTHING])))
    return None if text is None else (text.split(chr(_FIELD)), width, width)


def _are_among(separators: Ints, starts: Ints, last: Ints) -> bool:
    """Whether as many of these places lie in each line, between its start and its last byte."""
    if not len(separators):
        return True
    rows = separators.reshape(len(last), -1)
    return bool((rows[:, 0] >= starts).all() and (rows[:, -1] <= last).all())


def _are_pairs(
    view: NDArray[np.uint8], last: Ints, newline: str | None
) -> NDArray[np.bool_] | None:
    """Which lines end with two characters, the latter at `last`; None if one ends with more."""
    if newline is not None:
        # A lone carriage return is a character here, but next to a quote it would look like an end.
        has_lone = newline == "\n" and bool((view == RETURN).any())
        return None if has_lone else np.full(len(last), newline == "\r\n")
    found = _is_newline(view.take(last - 1))
    return None if (found & _is_newline(view.take(last - 2))).any() else found


def _is_newline(bytes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (bytes == NEWLINE) | (bytes == RETURN)
    return found


def _decode(lines: bytes) -> str | None:
    try:
        return lines.decode()
    except UnicodeDecodeError:
        return None


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


def _split_slowly(lines: bytes, count: int, separator: str) -> tuple[list[str], int, int] | None:
    """Take lines apart that may have quotes within fields, and any characters and newlines."""
    text = _decode(lines)
    if text is None:
        return None
    try:
        found = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        rows = [row for row in found if row]
    except csv.Error:  # Perhaps a field of over 128 KiB, perhaps a mistake.
        return None
    width = len(rows[0]) if rows else 0
    if len(rows) != count or any(len(row) != width for row in rows):
        return None
    return [field for row in rows for field in row], width, width


def _checked(flat: list[str], count: int) -> tuple[list[str], int, int] | None:
    """The fields, if each line has as many as the first one; between lines is a newline."""
    step = flat.index("\n") + 1 if count > 1 else len(flat) + 1
    if len(flat) != count * step - 1 or flat[step - 1 :: step].count("\n") != count - 1:
        return None
    return flat, step - 1, step


def _are_ended(lines: bytes, starts: Ints, newline: str | None) -> bool:
    """Whether every line ends with its newline; else one could go on in the next.

    The last one only if there has to be a carriage return; see `_split_rows`.
    """
    view, ends = np.frombuffer(lines, np.uint8), starts[1:]
    if newline == "\r\n":
        ends = np.append(ends, len(view))
        if ends[0] < 2 or not (view.take(ends - 2) == RETURN).all():
            return False
    last = view.take(ends - 1)
    return bool((_is_newline(last) if newline is None else last == NEWLINE).all())
