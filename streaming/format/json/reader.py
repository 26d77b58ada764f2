"""Reading JSON shards, and JSONL files that came without an index."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming.errors import IndexFormatError, SampleError, UnknownNameError
from streaming.format.column import Column
from streaming.format.index import ShardInfo
from streaming.format.json.encodings import get_json_encoding
from streaming.format.reader import Sample
from streaming.format.text.columns import as_column
from streaming.format.text.reader import TextReader

__all__ = ["JSONReader", "parse_object"]

_decode = msgspec.json.Decoder(dict).decode
_decode_lines = msgspec.json.Decoder(dict).decode_lines
# What msgspec raises where there may still be JSON of Python's kind: NaN, half a surrogate pair.
_FAILURES: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BLANKS: Final = b" \t\r\n"
_NAMES: Final = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class JSONReader(TextReader):
    """Reads a shard that has a JSON object a line; see `ShardReader`.

    A sample is what its line holds, as Python reads JSON: with `columns`, just these, None where
    the line lacks one. If the user declared the columns (`extra["declared"]`), it has just those,
    each of its type.
    """

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        known = _columns_of(info)
        names = list(known) if columns is None else list(dict.fromkeys(columns))
        self._columns = {name: known[name] for name in names}
        self._shape: Callable[[Sample], Sample] | None = None
        if info.extra.get("declared"):
            self._shape = _Declared(self._columns)
        elif columns is not None:
            self._shape = lambda row: {name: row.get(name) for name in names}
        newline = str(info.extra.get("newline", "\n")).encode()
        self._newline = newline if newline.strip(_BLANKS) else b""
        # Samples that are just what the decoder makes of a record.
        is_simple = self._shape is None and not self._newline and self._state is None
        self._num_simple = info.samples if is_simple else 0
        first = self._data[self._at[0] : self._at[min(1, info.samples)]]
        self._joint = b"}\r\n{" if first.endswith(b"\r\n") else b"}\n{"
        # The same as a number of four bytes, and which of these count.
        mask = b"\xff" * len(self._joint)
        pair = self._joint.ljust(4, b"\0") + mask.ljust(4, b"\0")
        self._number, self._mask = np.frombuffer(pair, np.uint32)

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        super().check_types(info, allow_unsafe_types, columns)
        known = _columns_of(info)
        for name in columns or ():
            if name not in known:
                raise UnknownNameError(
                    f"There is no column {name!r}. Known: {', '.join(known)}. In files that came "
                    "without an index, a column that is not in the first lines must be declared, "
                    'as in columns={"name": "json"}.'
                )
        for kind in known.values():
            get_json_encoding(kind)

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        places = self._place(offsets)
        rows = self._rows(places)
        if self._shape is None:
            return rows
        try:
            return list(map(self._shape, rows))
        except SampleError:
            self._blame(places)
            raise

    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        rows = self.take(offsets)
        return {
            name: as_column(kind, [row.get(name) for row in rows])
            for name, kind in self._columns.items()
        }

    def get_item(self, idx: int) -> Sample:
        if type(idx) is int and 0 <= idx < self._num_simple:
            try:
                row: Sample = _decode(self._data[self._at[idx] : self._at[idx + 1]])
            except _FAILURES:
                pass
            else:
                return row
        return super().get_item(idx)

    def _rows(self, places: NDArray[np.int64]) -> list[Sample]:
        """The objects of these lines, all that is in them."""
        if not len(places):
            return []
        lines, starts = self._read(places)
        if self._are_objects(lines, starts):
            try:
                rows: list[Sample] = _decode_lines(lines)
            except _FAILURES:
                rows = []
            if len(rows) == len(places):
                return rows
        return [self._parse(self._data[slice(*self._range(i))], i) for i in places.tolist()]

    def _are_objects(self, lines: memoryview, starts: NDArray[np.int64]) -> bool:
        r"""Whether each line but the first begins where an object could, and one before it ends.

        The decoder does not mind newlines: it would take ``{}{}`` for two lines, and go on over the
        end of one. With ``}\n{`` at every border there can be no more and no fewer objects than
        lines without an error, for a border cannot be inside of a value.
        """
        size = len(self._joint)
        if len(starts) < 2:
            return True
        if starts[1] < size or starts[-1] + 4 - size >= len(lines):
            return False
        # Four bytes from every place on, as one number: what is compared fastest.
        words = np.ndarray((len(lines) - 3,), np.uint32, lines, strides=(1,))
        found = words[starts[1:] - (size - 1)] & self._mask
        return bool((found == self._number).all())

    def _decode(self, record: bytes, idx: int | None) -> Sample:
        row = self._parse(record, idx)
        if self._shape is None:
            return row
        try:
            return self._shape(row)
        except SampleError as error:
            raise SampleError(f"{error} It is in {self._name(idx)}.") from None

    def _parse(self, record: bytes, idx: int | None) -> Sample:
        """The object of one line."""
        if self._newline:
            record = record.removesuffix(self._newline)
        try:
            return parse_object(record)
        except SampleError as error:
            raise SampleError(f"The line of {self._name(idx)} {error}") from error


def parse_object(line: bytes) -> Sample:
    """The object that a line holds, as Python's own parser reads it.

    Raises:
        SampleError: It holds none; the message is what a sentence says of the line.
    """
    try:
        value: Any = _decode(line)
    except _FAILURES:
        value = _parse_slowly(line)
    if type(value) is not dict:
        raise SampleError(
            f"holds {_NAMES.get(type(value), 'a number')}, but each line must be one JSON object, "
            'such as {"text": "..."}.'
        )
    return value


def _parse_slowly(line: bytes) -> Any:
    try:
        return json.loads(line.rstrip(_BLANKS).decode())
    except json.JSONDecodeError as error:
        raise SampleError(f"is not JSON: {error.msg} (character {error.pos + 1}).") from None
    except UnicodeDecodeError as error:
        raise SampleError(f"is not UTF-8: {error.reason} (its byte {error.start}).") from None
    except RecursionError:
        raise SampleError("is nested too deeply.") from None
    except ValueError as error:  # A number of over 4,300 digits.
        raise SampleError(f"can't be decoded: {error}.") from None


class _Declared:
    """Gives samples the columns that were declared, and sees to their types."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = [
            (name, kind, get_json_encoding(kind).is_encoded) for name, kind in columns.items()
        ]

    def __call__(self, row: Sample) -> Sample:
        return {name: self._convert(name, kind, check, row) for name, kind, check in self._columns}

    def _convert(self, name: str, kind: str, check: Callable[[Any], bool], row: Sample) -> Any:
        value = row.get(name)
        if kind == "json":
            return value
        if type(value) is bool and kind != "bool":
            pass
        elif check(value):
            return value
        elif kind == "float" and type(value) is int and _is_exact(value):
            return float(value)
        what = f"is {value!r:.50}" if name in row else "is missing"
        raise SampleError(f"Column {name!r} was declared as {kind}, but {what}.")


def _is_exact(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _columns_of(info: ShardInfo) -> dict[str, str]:
    columns = info.extra.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(kind, str) for kind in columns.values()):
        raise IndexFormatError(
            f"`columns` of {info.files[-1][0].basename} should be an object of names and "
            f"encodings, but is {columns!r:.100}."
        )
    return columns
