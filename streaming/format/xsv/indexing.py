"""Indexing files of separated text that have no index."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError, DataError, UnknownNameError
from streaming.format.index import Index, ShardInfo
from streaming.format.indexing import Export, IndexRequest
from streaming.format.text.columns import encoding_of, join_kinds, kind_of_text
from streaming.format.text.indexing import export_table, index_text, read_records
from streaming.format.text.scan import File
from streaming.format.xsv.encodings import get_xsv_encoding
from streaming.format.xsv.grammar import split_fields
from streaming.format.xsv.scan import record_starts
from streaming.format.xsv.writer import check_separator
from streaming.storage import Store
from streaming.util.checking import check_flag, check_names

__all__ = ["export_shard", "index_dataset"]

_SEPARATORS = {"csv": ",", "tsv": "\t"}


def index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    """Make an index of files of separated text.

    The names of columns are in the first line of every file, the same in all. Their encodings are
    those declared, or inferred from the first lines of every file: a column whose fields are all
    whole numbers as Python writes them is "int", all such numbers "float", anything else "str".

    Args:
        store: Where they are.
        prefix: Key of their root.
        request: What is asked for. Its options are `separator`, for "csv" and "tsv" if it is not
            the usual one; `quoting` (True), whether quotes mean anything; `header` (True), whether
            the first line has names; `names`, which are used instead.

    Raises:
        ConfigError: An option or a column that was declared can't be meant as it is.
        DataError: A file is not what it should be.
        StoreError: A file can't be had.
    """
    style = _Style.parse(request)
    format = request.format if style.separator == _SEPARATORS.get(request.format) else "xsv"

    def combine(files: Mapping[str, Any]) -> Mapping[str, Any]:
        return _combine(files, style, request, format)

    return index_text(
        store, prefix, replace(request, format=format), lambda: _Records(style), combine
    )


def export_shard(info: ShardInfo, config: Mapping[str, Any]) -> Export:
    """A shard as an index beside the data has it."""
    settings = {key: value for key, value in info.extra.items() if key != "table"}
    return export_table(info, settings, config)


@dataclass(frozen=True, slots=True)
class _Style:
    """What the user said of the lines of a file."""

    separator: str
    quoting: bool
    header: bool
    names: tuple[str, ...] | None
    infers: bool

    _OPTIONS: ClassVar = ("separator", "quoting", "header", "names")

    @classmethod
    def parse(cls, request: IndexRequest) -> "_Style":
        options = dict(request.options)
        unknown = options.keys() - set(cls._OPTIONS)
        if unknown:
            raise ConfigError(
                f"Separated text has the options {', '.join(cls._OPTIONS)}, but not "
                f"{', '.join(sorted(unknown))}."
            )
        separator = options.get("separator", _SEPARATORS.get(request.format))
        if separator is None:
            raise ConfigError(
                'Say what separates the fields, as in format_options={"separator": "|"}.'
            )
        quoting = check_flag("quoting", options.get("quoting", True))
        header = check_flag("header", options.get("header", True))
        names = options.get("names")
        if names is not None:
            check_names("names", names)
        if names is None and not header:
            names = list(request.columns or ())
        for kind in (request.columns or {}).values():
            get_xsv_encoding(kind)
        check_separator(separator, None, quoting)
        if names is not None:
            if not names:
                raise ConfigError("Files without a header need `names`, or declared `columns`.")
            _check_names(names, "`names`", ConfigError)
        return cls(separator, quoting, header, names and tuple(names), request.columns is None)

    def fields(self, line: bytes) -> list[str]:
        """Take a line apart; DataError says what is wrong with it."""
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"is not UTF-8: {error.reason} (its byte {error.start})") from None
        if not self.quoting:
            return text.split(self.separator)
        try:
            return split_fields(text, self.separator)
        except DataError as error:
            raise DataError(f"can't be taken apart: {error}") from None


class _Records:
    """Looks through a file for records; see `Look`."""

    def __init__(self, style: _Style) -> None:
        self._style = style
        self._header: int | None = None  # where it starts

    def starts(self, file: File, threads: int) -> Iterator[NDArray[np.int64]]:
        style, is_header = self._style, self._style.header
        separator = style.separator.encode()
        for piece in record_starts(file, separator, quoting=style.quoting, threads=threads):
            if is_header and len(piece):
                self._header, is_header = int(piece[0]), False
                yield piece[1:]
            else:
                yield piece

    def describe(self, file: File, head: NDArray[np.int64]) -> dict[str, Any] | None:
        style, names = self._style, self._style.names
        if names is None:
            if self._header is None:
                return None
            stop = int(head[0]) if len(head) else file.size
            line = file.read(self._header, stop)
            names = tuple(self._fields(file, line, self._header))
            _check_names(names, f"The header of {file.name}", DataError)
        kinds: list[str | None] = [None] * len(names)
        if style.infers:
            for line, start in zip(read_records(file, head), head.tolist(), strict=False):
                fields = self._fields(file, line, start)
                if len(fields) != len(names):
                    raise DataError(
                        f"{_where(file, start)} has {len(fields)} fields, but there are "
                        f"{len(names)} columns: {', '.join(names)}."
                    )
                kinds = [
                    join_kinds(kind, kind_of_text(field), "str")
                    for kind, field in zip(kinds, fields, strict=True)
                ]
        return {"names": names, "kinds": kinds}

    def _fields(self, file: File, line: bytes, start: int) -> list[str]:
        try:
            return self._style.fields(line)
        except DataError as error:
            raise DataError(f"{_where(file, start)} {error}.") from None


def _combine(
    files: Mapping[str, Any], style: _Style, request: IndexRequest, format: str
) -> Mapping[str, Any]:
    """What an index says of files that have all the same columns."""
    if not files:
        return {}
    first, names = next((key, said["names"]) for key, said in files.items())
    kinds: list[str | None] = [None] * len(names)
    for key, said in files.items():
        if said["names"] != names:
            raise DataError(
                f"All files of a dataset must have the same columns in the same order, but in "
                f"{request.where}, {first} has {names}, and {key} has {said['names']}."
            )
        kinds = [
            kind if more is None else join_kinds(kind, more, "str")
            for kind, more in zip(kinds, said["kinds"], strict=True)
        ]
    encodings = [encoding_of(kind or "str") for kind in kinds]
    extra = {"column_names": names, "newline": None, "quoting": style.quoting}
    if format == "xsv":
        extra["separator"] = style.separator
    declared = request.columns
    if declared is None:
        return {**extra, "column_encodings": encodings}
    unknown = declared.keys() - set(names)
    if unknown:
        raise UnknownNameError(
            f"There is no column {min(unknown)!r} in {request.where}. Known: {', '.join(names)}."
        )
    encodings = [declared.get(name, "str") for name in names]
    return {**extra, "column_encodings": encodings, "declared": list(declared)}


def _check_names(names: Sequence[str], what: str, error: type[ConfigError | DataError]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice or "" in names:
        wrong = f"the name {twice[0]!r} twice" if twice else "a column without a name"
        raise error(
            f"{what} has {wrong}: {list(names)}. Give names that differ, as in "
            'format_options={"names": ["a", "b"]}.'
        )


def _where(file: File, start: int) -> str:
    return f"In {file.name}, line {file.line_of(start)} (byte {start})"
