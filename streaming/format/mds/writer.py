"""Writing MDS shards."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from streaming.errors import ColumnError, EncodeError, EncodeTypeError
from streaming.format.mds.batch import Batch, encode_rows, rows_of
from streaming.format.mds.encodings import Number, Str
from streaming.format.mds.encodings.base import encode_value
from streaming.format.mds.layout import MDSColumn, MDSLayout, build_layout
from streaming.format.output import Out
from streaming.format.reader import Sample
from streaming.format.writer import JointWriter, WriterOptions
from streaming.util.checking import check_encodings

__all__ = ["MDSEncoder", "MDSWriter"]

_MAX = (1 << 32) - 1  # what a u32 says


class MDSEncoder:
    """Lays samples out as MDS; see `ShardEncoder` and docs/formats.md.

    Args:
        columns: Name to encoding.

    Raises:
        ConfigError: No columns, or a name that is not text.
        EncodingNameError: There is no such encoding.
    """

    format = "mds"
    sample_bytes = 4  # its offset
    max_bytes = _MAX

    def __init__(self, columns: Mapping[str, str]) -> None:
        check_encodings(columns)
        names = sorted(columns)
        self.layout = layout = build_layout(names, [columns[name] for name in names])
        self.settings: dict[str, Any] = {
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "column_sizes": [column.size for column in layout.columns],
        }
        self.encode = _make_record_function(layout)

    encode: Callable[[Sample], bytes]

    def empty_bytes(self, config: bytes) -> int:
        """Bytes of a shard without samples."""
        return 8 + len(config)

    def join(self, records: Sequence[bytes], config: bytes) -> Mapping[str, bytes]:
        """The file of a shard."""
        count = len(records)
        offsets = np.empty(count + 1, np.int64)
        offsets[0] = 4 + 4 * (count + 1) + len(config)
        offsets[1:] = np.fromiter(map(len, records), np.int64, count)
        table = np.cumsum(offsets).astype("<u4").tobytes()
        return {"data": b"".join([struct.pack("<I", count), table, config, *records])}


class MDSWriter(JointWriter):
    """Writes a dataset of typed columns; see `Writer`.

    Args:
        columns: Name to encoding, as in ``{"text": "str", "tokens": "ndarray:int32"}``.
        out: A directory, a URL, or (local, remote).
        keep_local: Keep local files after upload.
        compression: ``family`` or ``family:level``: br, bz2, gz, snappy, zstd.
        hashes: Names of digests that the index gets for every file, sorted.
        size_limit: Bytes of a shard, or text such as "64mb"; None or 0 for no limit. A sample that
            is larger has a shard of its own.
        sample_limit: Samples of a shard; None for no limit.
        kwargs: `progress_bar` (False) of uploads; `max_workers` (one a core, up to 16), threads
            that compress and hash; `retry` (2), attempts for an upload; `exist_ok` (False),
            replace what is there; `storage_options`, how to reach a URL, as for `Stream`.

    Raises:
        ConfigError: An argument can't be used.
        EncodingNameError: There is no such encoding.
        OutputExistsError: There is something at `out`, and not `exist_ok`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        sample_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = WriterOptions.from_kwargs(
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            sample_limit=sample_limit,
            **kwargs,
        )
        encoder = MDSEncoder(columns)
        self.columns = dict(columns)
        self.column_names: list[str] = encoder.settings["column_names"]
        self.column_encodings: list[str] = encoder.settings["column_encodings"]
        self.column_sizes: list[int | None] = encoder.settings["column_sizes"]
        self._layout = encoder.layout
        super().__init__(encoder, out, options)

    def write_batch(self, columns: Any) -> None:
        """Add many samples by columns: the same bytes as `write` for each row, but faster.

        A row has Python's own values where its column has any (`tolist`, `to_pylist`), and arrays
        where the column has several axes or holds lists for an ``ndarray``.

        Args:
            columns: An Arrow table or record batch, a pandas DataFrame, or a dict of sequences of
                one length: lists, arrays, Arrow arrays, tensors. Columns that were not declared are
                left out.

        Raises:
            EncodeError: A value does not suit its column; the message gives its row. The rows
                before it are written.
            ConfigError: Not a table; or the writer is finished.
            StreamingError: As for `write`.
        """
        number = 0
        for block in Batch(columns, self.column_names).blocks():
            records = self._encode_block(block)
            if records is not None:
                self.write_records(records)
                number += len(records)
                continue
            for row in rows_of(self._layout, block):
                try:
                    self.write(row)
                except EncodeError as error:
                    raise type(error)(f"Row {number} of the batch: {error}") from error
                number += 1

    def _encode_block(self, block: Mapping[str, Any]) -> list[bytes] | None:
        """The records of some rows; None if each must be looked at."""
        cls = type(self)
        if cls.write is not MDSWriter.write or cls.encode_sample is not MDSWriter.encode_sample:
            return None
        try:
            return encode_rows(self._layout, block)
        except Exception:  # Whatever it is, `write` meets it too, and knows the row.  # noqa: BLE001
            return None


def _encode_slowly(layout: MDSLayout, sample: Sample) -> bytes:
    """Encode a sample column by column, and say what is wrong with it if something is."""
    heads, values = [], []
    for column in layout.columns:
        value = _encode_column(column, sample)
        if column.size is None:
            heads.append(len(value))
        values.append(value)
    return struct.pack(f"<{len(heads)}I", *heads) + b"".join(values)


def _encode_column(column: MDSColumn, sample: Sample) -> bytes:
    name = f"Column {column.name!r} ({column.kind})"
    try:
        value = sample[column.name]
    except KeyError:
        raise ColumnError(f"{name} is missing; the sample has {list(sample)}.") from None
    except TypeError as error:
        raise EncodeTypeError(
            f"A sample is a dict of columns, but not {type(sample).__name__}."
        ) from error
    try:
        data = encode_value(column.encoding, value)
    except EncodeError as error:
        raise type(error)(f"{name}: {error}.") from error
    if not isinstance(data, bytes):
        raise EncodeTypeError(f"{name}: its encoding gave {type(data).__name__}, not bytes.")
    if column.size is not None and len(data) != column.size:
        raise ColumnError(f"{name} takes {column.size} bytes, but the value has {len(data)}.")
    if len(data) > _MAX:
        raise EncodeError(f"{name} has {len(data)} bytes, but a value holds {_MAX}.")
    return data


def _make_record_function(layout: MDSLayout) -> Callable[[Sample], bytes]:
    """Write a function that encodes the samples of just these columns, as source text.

    A loop over columns takes three times as long. The source holds numbers only; names, types and
    functions are values in its scope. It covers what is usual; for anything else, and to find out
    what is wrong, it calls `_encode_slowly`, which gives the same bytes.
    """
    scope: dict[str, Any] = {"slowly": lambda sample: _encode_slowly(layout, sample)}
    body: list[str] = []
    parts: list[str] = []
    codes = ""
    arguments: list[str] = []

    def end_numbers() -> None:
        """All numbers that lie side by side take one call of `struct`."""
        nonlocal codes, arguments
        if codes:
            scope[f"pack{len(parts)}"] = struct.Struct("<" + codes).pack
            parts.append(f"pack{len(parts)}({', '.join(arguments)})")
            codes, arguments = "", []

    for i, column in enumerate(layout.columns):
        encoding = column.encoding
        scope[f"name{i}"] = column.name
        body.append(f"v{i} = sample[name{i}]")
        if isinstance(encoding, Number):
            scope |= {f"exact{i}": encoding.exact, f"convert{i}": encoding.number}
            body.append(f"if type(v{i}) is not exact{i}: v{i} = convert{i}(v{i})")
            continue
        scope[f"convert{i}"] = encoding.encode
        if type(encoding) is Str:
            body.append(f"if type(v{i}) is str: v{i} = v{i}.encode()")
            body.append(f"elif type(v{i}) is not bytes: return slowly(sample)")
        else:
            body.append(f"if type(v{i}) is not bytes: v{i} = convert{i}(v{i})")
            body.append(f"if type(v{i}) is not bytes: return slowly(sample)")
        if column.size is None:
            codes += "I"
            arguments.append(f"len(v{i})")
        else:
            body.append(f"if len(v{i}) != {column.size}: return slowly(sample)")
    for i, column in enumerate(layout.columns):
        if isinstance(column.encoding, Number):
            codes += column.encoding.code
            arguments.append(f"v{i}")
        else:
            end_numbers()
            parts.append(f"v{i}")
    end_numbers()
    # Up to here a chain of sums is faster than a call.
    last = " + ".join(parts) if len(parts) <= 8 else f"b''.join(({', '.join(parts)},))"
    lines = "\n        ".join([*body, f"return {last}"])
    source = f"""
def encode(sample):
    try:
        {lines}
    except Exception:
        return slowly(sample)
"""
    exec(source, scope)
    return cast(Callable[[Sample], bytes], scope["encode"])
