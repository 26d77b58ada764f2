"""The index of a dataset: `index.json`, version 2, read as columns and written as text."""

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import eq
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming.compression import get_compression_extension
from streaming.errors import EncodingNameError, IndexFormatError, UnknownNameError
from streaming.format.column import BytesColumn
from streaming.format.registry import formats
from streaming.table import ShardTable

__all__ = [
    "FileInfo",
    "Index",
    "ShardInfo",
    "build_index",
    "dump_index",
    "get_index_basename",
    "has_bad_name",
    "parse_index",
]

VERSION = 2

# Far above any real shard, and low enough that sums over 1e6 shards fit int64.
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**42)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]

# Keys that belong to a format. They repeat from shard to shard, so their text is parsed once.
_EXTRA = (
    "column_encodings",
    "column_names",
    "column_sizes",
    "columns",
    "declared",
    "newline",
    "offset_bytes",
    "quoting",
    "separator",
)
_FILES = ("raw_meta", "zip_meta", "raw_data", "zip_data")

# In a name: control characters, and what separates parts on Windows.
_BAD_CHARACTER = re.compile(r"[\x00-\x1f\\]")
_BAD_PARTS = frozenset(("", ".", ".."))
_MAX_PART = 255  # of most file systems; characters here, so that this is only the first check
# What belongs to the directory itself: the state that a cache keeps beside the shards.
_RESERVED = ".streaming"
_PLAIN = f"{string.ascii_letters}{string.digits}-_.".encode()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard.

    Attributes:
        basename: Where it lies under the dataset's directory.
        bytes: How large it is.
        hashes: Name of a hash to its digest.
        etag: The version of the object that was indexed, if the index pins it; see `ObjectInfo`.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str]
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What an index says of one shard.

    Attributes:
        format: Name of the format.
        samples: Number of samples.
        files: (raw file, compressed file or None); the meta file first if the format has one.
        compression: `family` or `family:level`, or None.
        extra: What belongs to the format. Shared by like shards: not to be changed.
    """

    format: str
    samples: int
    files: tuple[tuple[FileInfo, FileInfo | None], ...]
    compression: str | None
    extra: Mapping[str, Any]

    @property
    def raw_bytes(self) -> int:
        """Bytes of all files as they are read."""
        return sum(raw.bytes for raw, _ in self.files)

    @property
    def zip_bytes(self) -> int:
        """Bytes of all files as they are fetched if compressed; 0 if they are not."""
        return sum(file.bytes for _, file in self.files if file)


class _File(msgspec.Struct, gc=False):
    basename: str
    bytes: _Bytes
    hashes: msgspec.Raw = msgspec.Raw(b"{}")


class _Shard(msgspec.Struct, gc=False):
    samples: _Count
    format: str
    raw_data: _File
    zip_data: _File | None = None
    raw_meta: _File | None = None
    zip_meta: _File | None = None
    version: int = VERSION
    compression: str | None = None
    column_encodings: msgspec.Raw = msgspec.Raw()
    column_names: msgspec.Raw = msgspec.Raw()
    column_sizes: msgspec.Raw = msgspec.Raw()
    columns: msgspec.Raw = msgspec.Raw()
    declared: msgspec.Raw = msgspec.Raw()
    newline: msgspec.Raw = msgspec.Raw()
    offset_bytes: msgspec.Raw = msgspec.Raw()
    quoting: msgspec.Raw = msgspec.Raw()
    separator: msgspec.Raw = msgspec.Raw()


class _Document(msgspec.Struct, gc=False):
    version: int
    shards: list[_Shard]


class _Envelope(msgspec.Struct, gc=False):
    version: int
    shards: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class _Files:
    """One file of every shard; bytes are -1 where a shard has no such file, etags may be ""."""

    names: BytesColumn
    bytes: NDArray[np.int64]
    hashes: BytesColumn
    etags: BytesColumn | None = None

    def get(self, shard: int, where: str) -> FileInfo | None:
        size = int(self.bytes[shard])
        if size < 0:
            return None
        try:
            hashes = msgspec.json.decode(self.hashes[shard], type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise IndexFormatError(
                f"The digests of {self.names[shard]} in {where} are not names and texts: {error}"
            ) from error
        etag = self.etags[shard] or None if self.etags is not None else None
        return FileInfo(self.names[shard], size, hashes, etag)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What like shards share."""

    format: str
    compression: str | None
    extra: Mapping[str, Any]


Columns = Mapping[str, NDArray[Any]]

_TEXTS = ("names", "hashes", "etags")


class Index:
    """The shards of one directory, as columns; some 100 bytes a shard. Plain data: it pickles.

    Attributes:
        where: Path or URL of the document, for messages.
        table: Samples and bytes of each shard; `stream` is 0.
    """

    def __init__(
        self,
        where: str,
        table: ShardTable,
        kinds: Sequence[_Kind],
        kind: NDArray[np.int32],
        files: Mapping[str, _Files],
        details: BytesColumn | None = None,
    ) -> None:
        self.where = where
        self.table = table
        self._kinds = kinds
        self._kind = kind
        self._files = files
        self._details = details  # JSON of what only one shard's `extra` has

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[ShardInfo]:
        return map(self.shard, range(len(self)))

    @cached_property
    def samples(self) -> int:
        """Samples in all shards."""
        return int(self.table.samples.sum())

    def shard(self, shard: int) -> ShardInfo:
        """Describe one shard.

        Args:
            shard: In [0, len).

        Raises:
            IndexFormatError: Its digests are broken. (All else was checked by `parse_index`.)
        """
        kind = self._kinds[self._kind[shard]]
        pairs = []
        # Shards that were found without an index may have more files than it could name.
        more = sorted(key[4:] for key in self._files if key.startswith("raw_more"))
        for part in (*reversed(more), "meta", "data"):
            raw, zipped = (
                self._files[key].get(shard, self.where) if key in self._files else None
                for key in (f"raw_{part}", f"zip_{part}")
            )
            if raw:
                pairs.append((raw, zipped))
        extra = kind.extra
        if self._details is not None:
            extra = {**extra, **msgspec.json.decode(self._details[shard])}
        samples = int(self.table.samples[shard])
        return ShardInfo(kind.format, samples, tuple(pairs), kind.compression, extra)

    def examples(self) -> list[ShardInfo]:
        """One shard of every kind (format, compression, columns): all there is to check once."""
        return [self.shard(shard) for shard in _find_first(self._kind)]

    def check(self, check: Callable[[ShardInfo], object]) -> None:
        """Check one shard of every kind.

        Args:
            check: Raises if something is wrong.

        Raises:
            IndexFormatError, EncodingNameError: `check` found such; here with index and shard.
        """
        for shard in _find_first(self._kind):
            with self.blamed(shard):
                check(self.shard(shard))

    @contextmanager
    def blamed(self, shard: int) -> Iterator[None]:
        """Name the index, and a shard in it, in an error about what it says."""
        try:
            yield
        except (IndexFormatError, EncodingNameError) as error:
            raise type(error)(f"Shard {shard} in {self.where}: {error}") from error

    def basenames(self, form: Literal["raw", "zip"]) -> list[list[str]]:
        """The names of all raw or all compressed files, a list of one a shard for each part.

        Formats that have a meta file have two parts. "" where a shard has no such file.
        """
        keys = [key for key in self._files if key.startswith(form)]
        return [self._files[key].names.to_pylist() for key in keys]

    def to_columns(self) -> tuple[list[tuple[str, str | None, Mapping[str, Any]]], Columns]:
        """All that the index holds, as plain values: kinds of shards, and arrays by name."""
        columns: dict[str, NDArray[Any]] = {
            "samples": self.table.samples,
            "raw_bytes": self.table.raw_bytes,
            "zip_bytes": self.table.zip_bytes,
            "kind": self._kind,
        }
        for key, files in self._files.items():
            columns[f"{key}.bytes"] = files.bytes
            for name in _TEXTS:
                text: BytesColumn | None = getattr(files, name)
                if text is not None:
                    columns[f"{key}.{name}"] = np.frombuffer(text.buffer, np.uint8)
                    columns[f"{key}.{name}.offsets"] = text.offsets
        return [(kind.format, kind.compression, kind.extra) for kind in self._kinds], columns

    @classmethod
    def from_columns(
        cls,
        where: str,
        kinds: Sequence[tuple[str, str | None, Mapping[str, Any]]],
        columns: Columns,
    ) -> "Index":
        """Make an index of what `to_columns` gave, which is checked as by `parse_index`.

        Raises:
            IndexFormatError: They contradict each other, or themselves.
            KeyError: One is missing.
            UnknownNameError: A format or compression that is not registered.
        """
        table = ShardTable(
            samples=columns["samples"],
            raw_bytes=columns["raw_bytes"],
            zip_bytes=columns["zip_bytes"],
            stream=np.zeros(len(columns["samples"]), np.int32),
        )
        files = {}
        for key in _FILES:
            if f"{key}.bytes" in columns:
                names, hashes, etags = (_unpack_text(columns, f"{key}.{name}") for name in _TEXTS)
                files[key] = _Files(names, columns[f"{key}.bytes"], hashes, etags)
        made = [_Kind(*kind) for kind in kinds]
        _check_columns(table, made, columns["kind"], files, where)
        return cls(where, table, made, columns["kind"], files)


def get_index_basename() -> str:
    """Name of the index file in a dataset's directory."""
    return "index.json"


def dump_index(shards: Sequence[Mapping[str, Any]]) -> bytes:
    """Write an index, byte for byte as the predecessor's writers do.

    Args:
        shards: One mapping of JSON values per shard, in order.
    """
    return json.dumps({"shards": list(shards), "version": VERSION}, sort_keys=True).encode()


def build_index(
    where: str, shards: Sequence[ShardInfo], details: Sequence[Mapping[str, Any]] | None = None
) -> Index:
    """Make an index of data that has none, from what was found by looking at it.

    Args:
        where: Path or URL of the data, for messages.
        shards: In order. Names may be absolute paths: what is there is read where it is.
        details: What is added to the `extra` of each shard, JSON values; for what differs from
            shard to shard, where `extra` itself is kept once for all shards that have it in common.
    """
    numbers: dict[bytes, int] = {}
    kinds: list[_Kind] = []
    kind = np.empty(len(shards), np.int32)
    for i, info in enumerate(shards):
        key = msgspec.json.encode((info.format, info.compression, info.extra))
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(_Kind(info.format, info.compression, info.extra))
        kind[i] = numbers[key]
    files: dict[str, _Files] = {}
    most = max((len(info.files) for info in shards), default=0)
    more = [(f"more{place:09d}", -place) for place in range(3, most + 1)]
    for part, place in (("data", -1), ("meta", -2), *more):
        for form, state in enumerate(("raw", "zip")):
            column = [
                info.files[place][form] if len(info.files) >= -place else None for info in shards
            ]
            if any(column):
                files[f"{state}_{part}"] = _pack_files(column)
    table = _make_table([info.samples for info in shards], files)
    texts = None if details is None else BytesColumn.join(list(map(msgspec.json.encode, details)))
    return Index(where, table, kinds, kind, files, texts)


def parse_index(data: bytes, where: str) -> Index:
    """Read an index, and check it as something that comes from outside.

    Keys that are not known are ignored.

    Args:
        data: The document.
        where: Its path or URL, for messages.

    Raises:
        IndexFormatError: Not JSON, not version 2, a value of the wrong type or out of range, a file
            outside the directory, or files that don't fit the format.
        UnknownNameError: A format or compression that is not registered.
    """
    if not data.strip():
        raise IndexFormatError(
            f"The index {where} is empty. Whoever wrote it was probably stopped; write it again."
        )
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IndexFormatError(f"The index {where} {_reason(data, error)}") from error
    if document.version != VERSION:
        raise IndexFormatError(
            f"The index {where} has version {document.version}, but this library reads {VERSION}."
        )
    shards = document.shards
    files = {key: found for key in _FILES if (found := _column_of_files(shards, key, where))}
    table = _make_table([shard.samples for shard in shards], files)
    kinds, kind = _sort_kinds(shards, where)
    _check_files(table, kinds, kind, files, where)
    return Index(where, table, kinds, kind, files)


def _reason(data: bytes, error: Exception) -> str:
    """Say which shard is to blame, which msgspec's message leaves open."""
    try:
        for i, shard in enumerate(msgspec.json.decode(data, type=_Envelope).shards):
            try:
                msgspec.json.decode(shard, type=_Shard)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as found:
                return f"is not a valid index at shard {i}: {found}"
    except msgspec.ValidationError as found:
        return f"is JSON, but not an index: {found}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # Not JSON at all, which is what `error` says.
    return f"is not whole or not JSON ({len(data)} bytes): {error}"


def _column_of_files(shards: Sequence[_Shard], key: str, where: str) -> _Files | None:
    """One kind of file of all shards; None if no shard has it."""
    found: list[_File | None] = [getattr(shard, key) for shard in shards]
    if not any(found):
        return None
    empty = _File("", -1)
    some = [file or empty for file in found]
    if has_bad_name([file.basename for file in found if file]):
        wrong = next(i for i, file in enumerate(found) if file and has_bad_name([file.basename]))
        raise IndexFormatError(
            f"`{key}` of shard {wrong} in {where} is named {some[wrong].basename[:100]!r}. A name "
            "must be a relative path with '/' that stays inside the dataset's directory."
        )
    try:
        names = [file.basename.encode() for file in some]
    except UnicodeEncodeError as error:
        raise IndexFormatError(
            f"The name of a file (`{key}`) in {where} is not Unicode text: {error}"
        ) from error
    return _Files(
        BytesColumn.join(names, is_text=True),
        np.array([file.bytes for file in some], np.int64),
        BytesColumn.join([bytes(file.hashes) for file in some]),
    )


def has_bad_name(names: Sequence[str]) -> bool:
    """Whether a file name may leave the directory, is no name, or belongs to the directory itself.

    All names are looked at as one text, which takes a tenth of the time.
    """
    joined = "/".join(names)
    parts = set(joined.split("/"))
    return bool(
        _BAD_CHARACTER.search(joined)
        or not _BAD_PARTS.isdisjoint(parts)
        or max(map(len, parts)) > _MAX_PART
        or (":" in joined and any(name[1:2] == ":" for name in names))  # a drive
        or get_index_basename() in names
        or (_RESERVED in parts and any(name.split("/")[0] == _RESERVED for name in names))
    )


def _pack_files(files: Sequence[FileInfo | None]) -> _Files:
    some = [file or FileInfo("", -1, {}) for file in files]
    return _Files(
        BytesColumn.join([file.basename.encode() for file in some], is_text=True),
        np.array([file.bytes for file in some], np.int64),
        BytesColumn.join([msgspec.json.encode(file.hashes) for file in some]),
        BytesColumn.join([(file.etag or "").encode() for file in some], is_text=True),
    )


def _make_table(
    samples: Sequence[int] | NDArray[np.int64], files: Mapping[str, _Files]
) -> ShardTable:
    def total(form: str) -> NDArray[np.int64]:
        found = [np.maximum(file.bytes, 0) for key, file in files.items() if key.startswith(form)]
        return sum(found, start=np.zeros(len(samples), np.int64))

    return ShardTable(
        samples=np.array(samples, np.int64),
        raw_bytes=total("raw"),
        zip_bytes=total("zip"),
        stream=np.zeros(len(samples), np.int32),
    )


def _sort_kinds(shards: Sequence[_Shard], where: str) -> tuple[list[_Kind], NDArray[np.int32]]:
    """The different kinds of shards, in order of appearance, and the kind of each shard."""
    numbers: dict[tuple[Any, ...], int] = {}
    kind = np.empty(len(shards), np.int32)
    for i, shard in enumerate(shards):
        key = (
            shard.format,
            shard.compression,
            shard.version,
            bytes(shard.column_encodings),
            bytes(shard.column_names),
            bytes(shard.column_sizes),
            bytes(shard.columns),
            bytes(shard.declared),
            bytes(shard.newline),
            bytes(shard.offset_bytes),
            bytes(shard.quoting),
            bytes(shard.separator),
        )
        kind[i] = numbers.setdefault(key, len(numbers))
    firsts = _find_first(kind)
    made = [_make_kind(key, i, where) for key, i in zip(numbers, firsts, strict=True)]
    return made, kind


def _find_first(kind: NDArray[np.int32]) -> list[int]:
    """The first shard of each kind."""
    firsts: list[int] = np.unique(kind, return_index=True)[1].tolist()
    return firsts


def _make_kind(key: tuple[Any, ...], shard: int, where: str) -> _Kind:
    """What like shards share, of which one is named in messages."""
    format, compression, version, *extra = key
    if version != VERSION:
        raise IndexFormatError(
            f"Shard {shard} in {where} has version {version}, but this library reads {VERSION}."
        )
    _check_names(format, compression, shard, where)
    try:
        values = {
            name: msgspec.json.decode(text)
            for name, text in zip(_EXTRA, extra, strict=True)
            if text
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IndexFormatError(
            f"The columns of shard {shard} in {where} are broken: {error}"
        ) from error
    return _Kind(format, compression or None, values)


def _check_names(format: str, compression: str | None, shard: int, where: str) -> None:
    """See that format and compression of a shard are known."""
    try:
        formats.get(format)
        if compression:
            get_compression_extension(compression)
    except UnknownNameError as error:
        raise UnknownNameError(f"Shard {shard} in {where}: {error}") from error


def _unpack_text(columns: Columns, name: str) -> Any:
    if name.endswith(".etags") and name not in columns:
        return None
    is_text = not name.endswith(".hashes")  # Those are JSON.
    return BytesColumn(columns[name].tobytes(), columns[f"{name}.offsets"], is_text=is_text)


def _check_columns(
    table: ShardTable,
    kinds: Sequence[_Kind],
    kind: NDArray[np.int32],
    files: Mapping[str, _Files],
    where: str,
) -> None:
    """Check what `parse_index` knows to be right by the way it made it, and then what it checks."""
    rows, most = len(table), 2**42
    texts = [text for file in files.values() for text in (file.names, file.hashes, file.etags)]
    is_good = (
        all(len(column) == rows for column in (table.raw_bytes, table.zip_bytes, kind))
        and bool(((kind >= 0) & (kind < len(kinds))).all())
        and bool(((table.samples >= 0) & (table.samples <= 2**40)).all())
        and all(len(file.bytes) == rows for file in files.values())
        and all(bool(((x.bytes >= -1) & (x.bytes <= most)).all()) for x in files.values())
        and all(text is None or text.is_sound(rows) for text in texts)
        and not any(
            has_bad_name([x for x, size in zip(file.names, file.bytes, strict=True) if size >= 0])
            for file in files.values()
            if not _are_plain(file)
        )
    )
    if not is_good:
        raise IndexFormatError(f"The binary copy of the index {where} is broken.")
    expected = _make_table(table.samples, files)
    if not (
        np.array_equal(expected.raw_bytes, table.raw_bytes)
        and np.array_equal(expected.zip_bytes, table.zip_bytes)
    ):
        raise IndexFormatError(f"The binary copy of the index {where} has other sums of bytes.")
    for number, shared in enumerate(kinds):
        _check_names(shared.format, shared.compression, int((kind == number).argmax()), where)
    _check_files(table, kinds, kind, files, where)


def _are_plain(files: _Files) -> bool:
    """Whether all names are so plain that `has_bad_name` could not mind one. Tells in a tenth."""
    names, is_used = files.names, files.bytes >= 0
    lengths = np.diff(names.offsets)[is_used]
    if not len(lengths) or lengths.min() < 1 or lengths.max() > _MAX_PART:
        return not len(lengths)
    firsts = np.frombuffer(names.buffer, np.uint8)[names.offsets[:-1][is_used]]
    return (
        bool((firsts != ord(".")).all())
        and not names.buffer.translate(None, _PLAIN)
        and get_index_basename().encode() not in names.buffer
    )


def _check_files(
    table: ShardTable,
    kinds: Sequence[_Kind],
    kind: NDArray[np.int32],
    files: Mapping[str, _Files],
    where: str,
) -> None:
    """Every shard has the files, and files of a size, that its format and compression ask for."""
    has = {
        key: files[key].bytes >= 0 if key in files else np.zeros(len(table), np.bool_)
        for key in _FILES
    }
    problems = []
    for number, shared in enumerate(kinds):
        mine = kind == number
        format = formats.get(shared.format)
        first = files.get("raw_meta" if format.has_meta else "raw_data")
        least = format.least_bytes(table.samples)
        problems += [
            (mine & (has["raw_meta"] != format.has_meta), "lacks or has a `raw_meta` by mistake"),
            (
                mine & has["zip_data"] & (not shared.compression),
                "has `zip_data` but no compression",
            ),
        ]
        if first:
            problems.append((mine & (first.bytes < least), "has more samples than its bytes hold"))
    problems += [
        (has["zip_meta"] & ~has["raw_meta"], "has `zip_meta` but no `raw_meta`"),
        (has["raw_meta"] & (has["zip_meta"] != has["zip_data"]), "has one of two compressed files"),
    ]
    for wrong, what in problems:
        if wrong.any():
            raise IndexFormatError(f"Shard {int(wrong.argmax())} in {where} {what}.")
    _check_distinct(files, where)


def _check_distinct(files: Mapping[str, _Files], where: str) -> None:
    """A shard's own files have different names, or one would be written over the other."""
    names = [column.names.to_pylist() for column in files.values()]
    for one, other in combinations(names, 2):
        if any(map(eq, one, other)):
            twice = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a and a == b]
            if twice:
                raise IndexFormatError(
                    f"Shard {twice[0]} in {where} names one file twice: {one[twice[0]]}."
                )
