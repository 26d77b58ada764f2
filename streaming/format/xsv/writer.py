"""Writing separated text: a header, then a line a sample."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from streaming.errors import ColumnError, ConfigError, EncodeError, EncodeTextError
from streaming.format.output import Out
from streaming.format.reader import Sample
from streaming.format.text.table import MAX_U32, pack_table
from streaming.format.writer import SplitWriter, WriterOptions
from streaming.format.xsv.encodings import get_xsv_encoding
from streaming.format.xsv.grammar import QUOTE, join_fields
from streaming.util.checking import check_encodings

__all__ = ["CSVWriter", "TSVWriter", "XSVEncoder", "XSVWriter"]


class XSVEncoder:
    """Lays samples out as lines of separated fields; see `ShardEncoder` and docs/text.md.

    Args:
        columns: Name to encoding.
        separator: What stands between fields.
        newline: What ends a line.
        quoting: Put quotes around a field that holds a separator, a newline or a quote; else one
            that holds a separator or newline is refused.
        format: What an index calls the format: "xsv", "csv", "tsv".

    Raises:
        ConfigError: No columns, a name that is not text, an empty separator or newline, or one that
            quotes can't make unambiguous.
        EncodingNameError: There is no such encoding.
        EncodeTextError: A name holds the separator or newline, and not `quoting`.
    """

    sample_bytes = 0

    def __init__(
        self,
        columns: Mapping[str, str],
        *,
        separator: str,
        newline: str = "\n",
        quoting: bool = False,
        format: str = "xsv",
    ) -> None:
        check_encodings(columns)
        check_separator(separator, newline, quoting)
        names = sorted(columns)
        self.format = format
        self.settings: dict[str, Any] = {
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "newline": newline,
        }
        if format == "xsv":
            self.settings["separator"] = separator
        if quoting:
            self.settings["quoting"] = True
        self._columns = [(name, get_xsv_encoding(columns[name]).encode) for name in names]
        self._separator, self._newline, self._quoting = separator, newline, quoting
        self.header = self._join(names)
        self.max_bytes = MAX_U32 - len(self.header)

    def encode(self, sample: Sample) -> bytes:
        """The line of a sample."""
        fields = [_encode(name, encode, sample) for name, encode in self._columns]
        return self._join(fields)

    def empty_bytes(self, config: bytes) -> int:
        """Nothing: the limit on the size of a shard does not count its header."""
        return 0

    def join(self, records: Sequence[bytes], config: bytes) -> Mapping[str, bytes]:
        """The files of a shard."""
        sizes = accumulate(map(len, records), initial=len(self.header))
        offsets = np.fromiter(sizes, np.int64, len(records) + 1)
        return {
            "data": b"".join([self.header, *records]),
            "meta": pack_table(offsets, config),
        }

    def _join(self, fields: Sequence[str]) -> bytes:
        separator, newline = self._separator, self._newline
        if self._quoting:
            line = join_fields(fields, separator, newline)
        else:
            line = separator.join(fields)
            # A field may also hold a part of the separator that only its neighbour makes a whole.
            if line.count(separator) >= len(fields) or newline in line or len(separator) > 1:
                self._check(line, fields)
        try:
            return (line + newline).encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"The text of a column is not Unicode: {error}.") from error

    def _check(self, line: str, fields: Sequence[str]) -> None:
        """Make sure that the line can be taken apart again."""
        is_whole = line.split(self._separator) == fields
        for name, field in zip(self.settings["column_names"], fields, strict=True):
            if self._newline in field or (not is_whole and self._separator[0] in field):
                raise EncodeTextError(
                    f"Column {name!r} holds what separates fields or lines in this file "
                    f"({self._separator!r}, {self._newline!r}): {field!r:.100}. Write with "
                    "quoting=True, or choose another separator."
                )


class XSVWriter(SplitWriter):
    """Writes a dataset as lines of separated fields; see `Writer`.

    Args:
        columns: Name to encoding: "str", "int", "float".
        separator: What stands between fields; any text.
        out: A directory, a URL, or (local, remote).
        keep_local: Keep local files after upload.
        compression: ``family`` or ``family:level``: br, bz2, gz, snappy, zstd.
        hashes: Names of digests that the index gets for every file, sorted.
        size_limit: Bytes of a shard, or text such as "64mb"; None or 0 for no limit.
        newline: What ends a line.
        quoting: Put quotes around a value that holds a separator, a newline or a quote, as RFC 4180
            has it. Other readers of such datasets refuse them. Without it, a value that holds a
            separator or newline is an error.
        sample_limit: Samples of a shard; None for no limit.
        kwargs: `progress_bar`, `max_workers`, `retry`, `exist_ok`, `storage_options`, as for
            `MDSWriter`.

    Raises:
        ConfigError: An argument can't be used.
        EncodingNameError: There is no such encoding.
        EncodeTextError: The name of a column holds the separator or newline, and not `quoting`.
        OutputExistsError: There is something at `out`, and not `exist_ok`.
    """

    format: str = "xsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        newline: str = "\n",
        quoting: bool = False,
        **kwargs: Any,
    ) -> None:
        options = WriterOptions.from_kwargs(
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        encoder = XSVEncoder(
            columns, separator=separator, newline=newline, quoting=quoting, format=self.format
        )
        self.columns = dict(columns)
        self.column_names: list[str] = encoder.settings["column_names"]
        self.column_encodings: list[str] = encoder.settings["column_encodings"]
        self.separator, self.newline, self.quoting = separator, newline, quoting
        super().__init__(encoder, out, options)


class CSVWriter(XSVWriter):
    """Writes a dataset as lines of fields with commas between them; see `XSVWriter`."""

    format = "csv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        newline: str = "\n",
        quoting: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator=",",
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            newline=newline,
            quoting=quoting,
            **kwargs,
        )


class TSVWriter(XSVWriter):
    """Writes a dataset as lines of fields with tabs between them; see `XSVWriter`."""

    format = "tsv"

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        newline: str = "\n",
        quoting: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator="\t",
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            newline=newline,
            quoting=quoting,
            **kwargs,
        )


def check_separator(separator: str, newline: str | None, quoting: bool) -> None:
    """Check that lines can be told apart, and fields.

    Args:
        separator: What stands between fields.
        newline: What ends a line; None: whatever ends lines of text.
        quoting: Whether quotes mean anything.

    Raises:
        ConfigError: They can't.
    """
    for name, value in (("separator", separator), ("newline", newline)):
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(f"`{name}` must be a text of one character at least, not {value!r}.")
    forbidden = {QUOTE, "\r", "\n", *(newline or "")} if quoting or newline is None else set()
    if forbidden & set(separator) or (quoting and newline is not None and QUOTE in newline):
        raise ConfigError(
            f"Fields can't be separated by {separator!r}, and lines by {newline!r}, if quotes and "
            "newlines mean what they usually do."
        )


def _encode(name: str, encode: Callable[[Any], str], sample: Sample) -> str:
    try:
        return encode(sample[name])
    except EncodeError as error:
        raise type(error)(f"Column {name!r}: {error}.") from error
    except KeyError:
        raise ColumnError(f"Column {name!r} is missing; the sample has {list(sample)}.") from None
