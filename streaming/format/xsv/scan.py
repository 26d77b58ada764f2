"""Where the records of separated text start: newlines that are not between quotes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streaming.errors import DataError
from streaming.format.text.scan import NEWLINE, RETURN, File, Window, scan_runs

__all__ = ["may_limit", "record_starts"]

Ints = NDArray[np.int64]

_QUOTE = ord('"')


def record_starts(file: File, separator: bytes, *, quoting: bool, threads: int) -> Iterator[Ints]:
    """Where the records of a file start, piece by piece; blank lines are none.

    A record ends with a newline, a carriage return, or both, outside of quotes. Whether a place is
    between quotes follows from the number of quotes before it, as long as every quote begins or
    ends a field or is one of two in a row. So runs are looked at side by side, for both cases, and
    what each has found is chosen when those before it are known. A run with other quotes in it, as
    in ``5" pipe``, is read character by character.

    Args:
        file: The file.
        separator: What stands between fields.
        quoting: Whether quotes mean anything.
        threads: How many threads look at it.

    Raises:
        DataError: A quote is not closed at the end of the file.
    """

    def look(start: int, stop: int) -> _Run:
        run = _Run(start, stop)
        for window in Window(file).slide(start, stop):
            run.add(window, separator, quoting)
        return run

    last, is_inside, is_clear = file.base, False, True
    for run in scan_runs(file, look, threads):
        if is_clear and run.is_plain(is_inside):
            pieces, is_inside = run.starts[is_inside], is_inside ^ run.is_odd
        else:
            found, is_inside, is_clear = _walk(file, last, run.stop, separator)
            pieces = [found[found >= run.start]]
        for piece in pieces:
            if len(piece):
                last = int(piece[-1])
            yield piece
    if is_inside:
        raise DataError(
            f"In {file.name}, a field of the record at line {file.line_of(last)} (byte {last}) "
            "begins with a quote that is never closed. If quotes have no meaning in this file, "
            "read it with quoting=False."
        )


@dataclass(slots=True)
class _Run:
    """What was found in a part of a file, for both cases: it begins outside of quotes, or inside.

    Attributes:
        start: Where it begins.
        stop: Where it ends.
        starts: Of records, for each case.
        is_odd: Whether it has an odd number of quotes.
    """

    start: int
    stop: int
    starts: tuple[list[Ints], list[Ints]] = field(default_factory=lambda: ([], []))
    is_odd: bool = False
    _is_plain: list[bool] = field(default_factory=lambda: [True, True])

    def is_plain(self, is_inside: bool) -> bool:
        """Whether every quote begins a field, ends one or is doubled, if it begins thus."""
        return self._is_plain[is_inside]

    def add(self, window: Window, separator: bytes, quoting: bool) -> None:
        """Look at the next window."""
        ends = _line_ends(window)
        size, array = window.size, window.array
        if not quoting or window.bytes.find(_QUOTE, 1, size + 1) < 0:
            self.starts[self.is_odd].append(_as_starts(ends, window))
            return
        quotes = np.flatnonzero(window.find(_QUOTE, 0, 1))  # one less than their places
        before = np.searchsorted(quotes, ends, "left")  # quotes at places up to that of the end
        is_odd = (before & 1).astype(np.bool_)
        self.starts[self.is_odd].append(_as_starts(ends[~is_odd], window))
        self.starts[not self.is_odd].append(_as_starts(ends[is_odd], window))
        self._check(array.take(quotes), array.take(quotes + 2), separator)
        self.is_odd ^= bool(len(quotes) % 2)

    def _check(self, before: NDArray[np.uint8], after: NDArray[np.uint8], separator: bytes) -> None:
        """Note whether the quotes of a window can be what they are taken for.

        Args:
            before: The byte before each.
            after: The byte after each.
            separator: What stands between fields.
        """
        if len(separator) > 1:
            self._is_plain[:] = False, False
            return
        may_open, may_close = may_limit(before, separator[0]), may_limit(after, separator[0])
        for case in (0, 1):
            first = self.is_odd ^ case  # 0: the first quote begins a field
            if not (may_open[first::2].all() and may_close[1 - first :: 2].all()):
                self._is_plain[case] = False


def may_limit(bytes: NDArray[np.uint8], separator: int) -> NDArray[np.bool_]:
    """Whether a byte may stand outside of a quote that begins or ends a field.

    A quote may: the other one of two in a row.
    """
    return _limits(separator).take(bytes)


@lru_cache(maxsize=64)
def _limits(separator: int) -> NDArray[np.bool_]:
    """The same for all bytes."""
    found = np.zeros(256, np.bool_)
    found[[NEWLINE, RETURN, separator, _QUOTE]] = True
    return found


def _line_ends(window: Window) -> Ints:
    """Places in a window of newlines, and of carriage returns that no newline follows."""
    ends = window.find_places(NEWLINE)
    if window.bytes.find(RETURN, 0, window.size) < 0:
        return ends
    is_return = window.find(RETURN, 1)
    later = ends[1:] if len(ends) and ends[0] == 0 else ends
    pairs = np.count_nonzero(window.array.take(later - 1) == RETURN)
    pairs += window.bytes.startswith(b"\r\n", window.size - 1)
    if np.count_nonzero(is_return) == pairs:
        return ends
    is_lone = np.greater(is_return, window.find(NEWLINE, 2, 1), out=is_return)
    return np.flatnonzero(window.find(NEWLINE) | is_lone)


def _as_starts(ends: Ints, window: Window) -> Ints:
    """The places behind these ends of lines, in the file, but for those of blank lines."""
    first = window.array.take(ends + 1)
    is_blank = (first == NEWLINE) | (first == RETURN)
    if is_blank.any():
        ends = ends[~is_blank]
    return ends + window.at


def _walk(file: File, start: int, stop: int, separator: bytes) -> tuple[Ints, bool, bool]:
    """Read a part of a file field by field.

    Args:
        file: The file.
        start: Where a record starts.
        stop: Where the part ends.
        separator: What stands between fields.

    Returns:
        Where records start in [start, stop); whether `stop` is between quotes, by the number of
        quotes that begin or end; and whether a quote at `stop` would mean what it seems to.
    """
    data, limit = file.read(start, stop + len(separator) + 1), stop - start
    find_end = re.compile(re.escape(separator) + rb"|\r\n?|\n").search
    starts, at = [] if data[:1] in (b"\n", b"\r") else [start], 0
    is_clear = not data.startswith(b'""', limit - 1)
    while at < limit:
        if data[at] == _QUOTE:
            at += 1
            while True:
                close = data.find(b'"', at, limit)
                if close < 0:
                    return np.array(starts, np.int64), True, True
                at = close + 1
                if data[at : at + 1] != b'"':
                    break
                if at == limit:  # `stop` takes a pair apart: up to there the field seems to end.
                    return np.array(starts, np.int64), False, True
                at += 1
        end = find_end(data, at)
        if end is None or end.start() >= limit:
            break
        at = end.end()
        if end[0] != separator:
            while data[at : at + 1] in (b"\n", b"\r"):
                at += 1
            if at < limit:
                starts.append(start + at)
    return np.array(starts, np.int64), False, is_clear
