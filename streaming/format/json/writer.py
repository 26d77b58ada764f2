"""Writing JSON shards: an object a line."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from streaming.errors import ColumnError, ConfigError, EncodeError, EncodeTypeError
from streaming.format.json.encodings import get_json_encoding
from streaming.format.output import Out
from streaming.format.reader import Sample
from streaming.format.text.table import MAX_U32, pack_table
from streaming.format.writer import SplitWriter, WriterOptions
from streaming.util.checking import check_encodings

__all__ = ["JSONEncoder", "JSONLWriter", "JSONWriter"]


class JSONEncoder:
    """Lays samples out as lines of JSON; see `ShardEncoder` and docs/text.md.

    Args:
        columns: Name to encoding.
        newline: What ends a line.
        format: What an index calls the format: "json", or "jsonl".

    Raises:
        ConfigError: No columns, a name that is not text, or no newline.
        EncodingNameError: There is no such encoding.
    """

    sample_bytes = 0
    max_bytes = MAX_U32

    def __init__(self, columns: Mapping[str, str], newline: str, format: str = "json") -> None:
        check_encodings(columns)
        if not newline:
            raise ConfigError("`newline` must be what ends a line, but is empty.")
        self.format = format
        self.settings: Mapping[str, Any] = {"columns": dict(columns), "newline": newline}
        self._checks = [
            (name, kind, get_json_encoding(kind).is_encoded) for name, kind in columns.items()
        ]
        self._newline = newline.encode()
        self._dump = json.JSONEncoder(sort_keys=True, default=_as_plain).encode

    def encode(self, sample: Sample) -> bytes:
        """The line of a sample."""
        values = {}
        for name, kind, is_encoded in self._checks:
            try:
                value = sample[name]
            except KeyError:
                raise ColumnError(
                    f"Column {name!r} ({kind}) is missing; the sample has {list(sample)}."
                ) from None
            if not is_encoded(value):
                raise EncodeTypeError(
                    f"Column {name!r} takes {kind}, but not {type(value).__name__}."
                )
            values[name] = value
        try:
            return self._dump(values).encode() + self._newline
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(f"JSON can't hold the sample: {error}.") from error

    def empty_bytes(self, config: bytes) -> int:
        """Nothing: the limit on the size of a shard counts its lines only."""
        return 0

    def join(self, records: Sequence[bytes], config: bytes) -> Mapping[str, bytes]:
        """The files of a shard."""
        offsets = np.fromiter(accumulate(map(len, records), initial=0), np.int64, len(records) + 1)
        return {"data": b"".join(records), "meta": pack_table(offsets, config)}


class JSONWriter(SplitWriter):
    """Writes a dataset as lines of JSON; see `Writer`.

    Args:
        columns: Name to encoding: "str", "int", "float"; or, which other writers do not know,
            "bool" and "json" (anything that JSON can say).
        out: A directory, a URL, or (local, remote).
        keep_local: Keep local files after upload.
        compression: ``family`` or ``family:level``: br, bz2, gz, snappy, zstd.
        hashes: Names of digests that the index gets for every file, sorted.
        size_limit: Bytes of a shard, or text such as "64mb"; None or 0 for no limit.
        newline: What ends a line.
        sample_limit: Samples of a shard; None for no limit.
        kwargs: `progress_bar`, `max_workers`, `retry`, `exist_ok`, `storage_options`, as for
            `MDSWriter`.

    Raises:
        ConfigError: An argument can't be used.
        EncodingNameError: There is no such encoding.
        OutputExistsError: There is something at `out`, and not `exist_ok`.
    """

    format: str = "json"

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
        **kwargs: Any,
    ) -> None:
        options = WriterOptions.from_kwargs(
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        encoder = JSONEncoder(columns, newline, self.format)
        self.columns = dict(columns)
        self.newline = newline
        super().__init__(encoder, out, options)


class JSONLWriter(JSONWriter):
    """The same under the name that files of lines mostly have: "jsonl". Other readers refuse it."""

    format = "jsonl"


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
