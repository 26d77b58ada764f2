"""Reading separated text: shards, and files that came without an index."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    ConfigError,
    DataError,
    EncodingNameError,
    IndexFormatError,
    SampleError,
    ShardCorruptError,
    UnknownNameError,
)
from streaming.format.column import Column
from streaming.format.index import ShardInfo
from streaming.format.mds.layout import make_rows
from streaming.format.reader import Sample
from streaming.format.text.columns import as_column
from streaming.format.text.reader import TextReader
from streaming.format.xsv.blocks import can_split, split_lines
from streaming.format.xsv.encodings import decode_inferred, decode_texts, get_xsv_encoding
from streaming.format.xsv.grammar import split_fields
from streaming.format.xsv.writer import XSVEncoder, check_separator

__all__ = ["CSVReader", "TSVReader", "XSVReader"]

Ints = NDArray[np.int64]

_BLOCK = 1024  # lines taken apart at once: their fields stay in the processor's cache


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the lines of a shard are made.

    Attributes:
        names: Of the fields of a line, in order.
        kinds: Their encodings.
        separator: What stands between them.
        newline: What ends a line; None: a newline, a carriage return, or both, and blank lines do
            not count.
        quoting: Whether quotes mean anything.
        declared: Those columns that a sample has.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    separator: str
    newline: str | None
    quoting: bool
    declared: tuple[str, ...]

    def fields(self, record: bytes) -> list[str]:
        """Take one line apart.

        Raises:
            DataError: It can't be; the message is what a sentence says of it.
        """
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"is not UTF-8: {error.reason} (its byte {error.start})") from None
        if self.newline is None:
            text = text.rstrip("\r\n")
        elif text.endswith(self.newline):
            text = text[: -len(self.newline)]
        else:
            raise DataError(f"does not end with {self.newline!r}")
        if not self.quoting:
            fields = text.split(self.separator)
        else:
            try:
                fields = split_fields(text, self.separator)
            except DataError as error:
                raise DataError(f"can't be taken apart: {error}") from None
        if len(fields) != len(self.names):
            raise DataError(f"has {len(fields)} fields, but there are {len(self.names)} columns")
        return fields


class XSVReader(TextReader):
    """Reads a shard of separated text; see `ShardReader`."""

    separator: ClassVar[str | None] = None  # where the index does not say it

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        self._layout = layout = self._layout_of(info)
        wanted = layout.declared if columns is None else tuple(dict.fromkeys(columns))
        # Only files that came without an index have any newline.
        self._is_inferred = layout.newline is None and "declared" not in info.extra
        self._wanted = [
            (name, place, layout.kinds[place], self._decoder(layout.kinds[place]))
            for name, place in ((name, layout.names.index(name)) for name in wanted)
        ]
        self._names = wanted
        self._make_rows = make_rows(len(wanted))
        self._can_split = can_split(layout.separator, layout.newline)
        if "table" not in info.extra and layout.newline is not None:
            self._check_header()

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        super().check_types(info, allow_unsafe_types, columns)
        known = cls._layout_of(info).declared
        for name in columns or ():
            if name not in known:
                raise UnknownNameError(f"There is no column {name!r}. Known: {', '.join(known)}.")

    def take(self, offsets: Ints) -> list[Sample]:
        places = self._place(offsets)
        if not self._wanted:
            return [{} for _ in range(len(places))]
        rows: list[Sample] = []
        for start in range(0, len(places), _BLOCK):
            rows += self._make_rows(self._names, self._values(places[start : start + _BLOCK]))
        return rows

    def take_columns(self, offsets: Ints) -> Mapping[str, Column]:
        values = self._values(self._place(offsets))
        return {
            name: as_column(kind, column)
            for (name, _, kind, _), column in zip(self._wanted, values, strict=True)
        }

    def _values(self, places: Ints) -> list[Sequence[Any]]:
        """The values of the wanted columns of these lines, column by column."""
        if not len(places):
            return [[] for _ in self._wanted]
        lines, starts = self._read(places)
        texts = self._split(bytes(lines), starts)
        if texts is None:
            rows = [self._fields(self._data[slice(*self._range(i))], i) for i in places.tolist()]
            texts = [[row[place] for row in rows] for _, place, _, _ in self._wanted]
        try:
            return [
                decode_texts(kind, column, is_inferred=self._is_inferred)
                for (_, _, kind, _), column in zip(self._wanted, texts, strict=True)
            ]
        except ValueError:
            self._blame(places)
            raise

    def _split(self, lines: bytes, starts: Ints) -> list[list[str]] | None:
        """The fields of the wanted columns of a block of lines; None if it is not that simple."""
        layout = self._layout
        if not self._can_split:
            return None
        found = split_lines(lines, starts, layout.separator, layout.newline, quoting=layout.quoting)
        if found is None or found[1] != len(layout.names):
            return None
        flat, _, step = found
        return [flat[place::step] for _, place, _, _ in self._wanted]

    def _decoder(self, kind: str) -> Callable[[str], Any]:
        if self._is_inferred:
            return partial(decode_inferred, kind)
        return get_xsv_encoding(kind).decode

    def _decode(self, record: bytes, idx: int | None) -> Sample:
        fields = self._fields(record, idx)
        sample: Sample = {}
        for name, place, kind, decode in self._wanted:
            try:
                sample[name] = decode(fields[place])
            except ValueError as error:
                raise SampleError(
                    f"Column {name!r} of {self._name(idx)} should be {kind}, but is "
                    f"{fields[place]!r:.100} ({error})."
                ) from error
        return sample

    def _fields(self, record: bytes, idx: int | None) -> list[str]:
        try:
            return self._layout.fields(record)
        except DataError as error:
            raise SampleError(f"The line of {self._name(idx)} {error}.") from error

    @classmethod
    def _layout_of(cls, info: ShardInfo) -> _Layout:
        extra, where = info.extra, info.files[-1][0].basename
        names, kinds = extra.get("column_names"), extra.get("column_encodings")
        declared = extra.get("declared", names)
        lists = (names, kinds, declared)
        if not all(
            isinstance(found, list) and all(isinstance(item, str) for item in found)
            for found in lists
        ):
            raise IndexFormatError(
                f"`column_names`, `column_encodings` and `declared` of {where} should be lists of "
                f"texts, but are {lists!r:.200}."
            )
        separator, newline = extra.get("separator", cls.separator), extra.get("newline", "\n")
        quoting = extra.get("quoting", False)
        if not (
            isinstance(separator, str)
            and (newline is None or isinstance(newline, str))
            and isinstance(quoting, bool)
        ):
            raise IndexFormatError(
                f"`separator`, `newline` and `quoting` of {where} should be a text, a text or "
                f"null, and true or false, but are {(separator, newline, quoting)!r:.200}."
            )
        return _make_layout(where, *map(tuple, lists), separator, newline, quoting)

    def _check_header(self) -> None:
        """See that the names in the file are those of the index, in the same order."""
        layout = self._layout
        expected = XSVEncoder(
            dict(zip(layout.names, layout.kinds, strict=True)),
            separator=layout.separator,
            newline=layout.newline or "\n",
            quoting=layout.quoting,
        )
        found = self._data[: self._at[0]]
        # A file with holes, of which only some samples are here, has zeros in place of its header.
        if found != expected.header and found.strip(b"\0"):
            raise ShardCorruptError(
                f"Shard file {self.path} begins with {found[:100]!r}, but by the index it should "
                f"begin with the names of its columns, {expected.header[:100]!r}."
            )


class CSVReader(XSVReader):
    """Reads a shard of comma-separated text."""

    separator = ","


class TSVReader(XSVReader):
    """Reads a shard of tab-separated text."""

    separator = "\t"


@lru_cache(maxsize=256)
def _make_layout(
    where: str,
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    declared: tuple[str, ...],
    separator: str,
    newline: str | None,
    quoting: bool,
) -> _Layout:
    if not names or len(names) != len(kinds) or len(set(names)) != len(names):
        raise IndexFormatError(
            f"The columns of {where} don't match, or one comes twice: {names}, {kinds}."
        )
    if not set(declared) <= set(names):
        raise IndexFormatError(f"Not all of {declared} are columns of {where}: {names}.")
    try:
        check_separator(separator, newline, quoting)
        for kind in kinds:
            get_xsv_encoding(kind)
    except EncodingNameError:
        raise
    except ConfigError as error:
        raise IndexFormatError(f"The lines of {where} can't be read: {error}") from error
    return _Layout(names, kinds, separator, newline, quoting, declared)
