"""A look into a dataset, wherever it is: nothing is cached, written beside it, or unpickled."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from streaming.cache import CachePart
from streaming.compression import decompress_file
from streaming.direct import DirectRuntime
from streaming.errors import (
    AccessDeniedError,
    IndexFormatError,
    MissingExtraError,
    MissingFileError,
    ObjectNotFoundError,
    StoreError,
    UnsafeTypeError,
)
from streaming.format import (
    FileInfo,
    Index,
    ShardInfo,
    check_types,
    formats,
    get_index_basename,
    open_reader,
    parse_index,
)
from streaming.format.listing import Place, is_data_file
from streaming.format.tables import TableFormat, TablePlace, TableVersion, VersionLike
from streaming.runtime import Runtime
from streaming.shared.plain import PlainData, describe_lack, find_table
from streaming.storage import join_key, open_store
from streaming.storage.download import fetch
from streaming.storage.stores.local import LocalStore
from streaming.stream import Stream
from streaming.util.importing import lazy
from streaming.util.retrying import Retry

__all__ = [
    "Hidden",
    "Peek",
    "PlainPeek",
    "Reading",
    "TablePeek",
    "columns_of",
    "look",
    "state_of",
]


@dataclass(frozen=True, slots=True)
class Hidden:
    """Stands for a value that is not shown, and says why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a dataset is to be read, as a Stream is told it. Plain data.

    Attributes:
        format: Name of its format; None: what its index, its endings or its log say.
        version: Of a table, which version; None: the newest.
        columns: Names of the columns that are read, or names and encodings; None for all.
        options: More about data without an index.
        cache: What the dataset is told, which says what a shard is of some data without an index.
    """

    format: str | None = None
    version: VersionLike | None = None
    columns: Sequence[str] | Mapping[str, str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "shards"

    @property
    def is_of_table(self) -> bool:
        """Whether it is said of a table, and can't be of anything else."""
        is_table = self.format is not None and formats.get(self.format).table is not None
        return is_table or self.version is not None

    def stream(self, url: str, local: str) -> Stream:
        """A stream that reads so."""
        return Stream(
            remote=url,
            local=local,
            format=self.format,
            version=self.version,
            columns=self.columns,
            format_options=self.options,
        )


_AS_IT_IS = Reading()


def columns_of(info: ShardInfo) -> Mapping[str, str]:
    """Name and encoding of each column, as far as the index tells."""
    if formats.get(info.format).decode is not None:
        schema = lazy("streaming.format.parquet.decode", "parquet").schema_of(info)
        return {field.name: str(field.type) for field in schema}
    names, encodings = info.extra.get("column_names"), info.extra.get("column_encodings")
    try:
        if names is not None and encodings is not None:
            return dict(zip(names, encodings, strict=True))
        return dict(info.extra.get("columns", {}))
    except (TypeError, ValueError) as error:
        raise IndexFormatError(
            f"The columns of {info.files[-1][0].basename} make no sense in the index: {error}."
        ) from error


class PlainPeek:
    """A view of data that came without an index. Close it, or use it in a `with` statement.

    What is brought here lies in a temporary directory for as long as it is open.

    Args:
        url: URL or path of a folder or a file, or a pattern; of a table, its URL or path.
        reading: How it is to be read.

    Attributes:
        index: The index.
        version: Of a table, the number of the version; None for other data.
        columns: Name and type or encoding of each column.

    Raises:
        ConfigError: There is no such version, or there are files of several formats.
        MissingFileError, ObjectNotFoundError: There is nothing to read.
        DataError, StoreError: It can't be read.
    """

    def __init__(self, url: str, reading: Reading = _AS_IT_IS) -> None:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="streaming-peek-"))
            stream = reading.stream(url, directory)
            stream.apply_default({"cache": reading.cache})
            self.index, where = stream.obtain_index()
            names = None if reading.columns is None else tuple(reading.columns)
            self.index.check(lambda info: check_types(info, False, names))
            self.version = stream.opened_version
            self._part = CachePart(
                where, self.index, stream.source(), columns=names, version=self.version
            )
            self._close = stack.pop_all().close
        first = next(iter(self.index), None)
        self.columns = {} if first is None else columns_of(first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def samples(self, num_samples: int) -> list[dict[str, Any]]:
        """The first samples, so many at most."""
        kind = Runtime if self._part.source is None else DirectRuntime
        runtime = kind([self._part], self.index.table.samples)
        try:
            return runtime.take(np.arange(min(num_samples, self.index.samples)))
        finally:
            runtime.close()


class TablePeek(PlainPeek):
    """A view of a version of a table, as `PlainPeek` is one.

    Args:
        url: URL or path of the table.
        reading: How it is to be read, and which version.

    Raises:
        ConfigError: There is no such version.
        ObjectNotFoundError: There is no table.
        DataError, StoreError: It can't be read.
    """

    def __init__(self, url: str, reading: Reading = _AS_IT_IS) -> None:
        found = self.find(url) if reading.format is None else reading.format
        table = None if found is None else formats.get(found).table
        if table is None:
            about = "" if reading.version is None else " Only tables have versions."
            raise ObjectNotFoundError(f"There is no table at {url}.{about}")
        self.table: TableFormat = table
        self._place = TablePlace.at(url)
        super().__init__(url, replace(reading, format=found))

    @staticmethod
    def find(url: str) -> str | None:
        """Name of the format of the table at a place; None if there is none."""
        return find_table(PlainData(place=Place.parse(url), local=None))

    def history(self, limit: int) -> list[TableVersion]:
        """The versions of the table, newest first, so many at most."""
        return self.table.history(self._place, limit)


class Peek:
    """An open view of a dataset. Close it, or use it in a `with` statement.

    Args:
        url: URL or path of the directory that holds the index.
        reading: How it is to be read.

    Raises:
        ConfigError: Its index says another format, or leaves nothing to say of how to read it.
        ObjectNotFoundError: There is no index.
        IndexFormatError: The index is broken.
    """

    def __init__(self, url: str, reading: Reading = _AS_IT_IS) -> None:
        self.url = url
        self._names = None if reading.columns is None else tuple(reading.columns)
        with ExitStack() as stack:
            self._store, self._prefix = open_store(os.path.expanduser(url))
            stack.enter_context(closing(self._store))
            where = f"{url.rstrip('/')}/{get_index_basename()}"
            try:
                document = self._store.read(self._key(get_index_basename()))
            except ObjectNotFoundError as error:
                raise ObjectNotFoundError(
                    f"There is no {where}. A dataset has one as soon as its writer has finished."
                ) from error
            self.index: Index = parse_index(document, where)
            for info in self.index.examples():
                reading.stream(url, url).check_format(info)
            self._close = stack.pop_all().close

    def __enter__(self) -> "Peek":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def present(self) -> dict[str, int]:
        """Bytes of each file that is there, by its name in the index.

        Where a store can't list (HTTP) or may not, all is taken to be there: to read will tell.
        """
        cut = len(self._key(""))
        try:
            return {found.key[cut:]: found.size for found in self._store.list(self._key(""))}
        except StoreError:
            files = [zipped or raw for info in self.index for raw, zipped in info.files]
            return {file.basename: file.bytes for file in files}

    def samples(self, num_samples: int, present: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        """Give the first samples of the shards that are there.

        Args:
            num_samples: How many at most.
            present: Files that are there; see `present`.

        Yields:
            Name to value. What can't be shown is `Hidden`: pickled columns, and values that need
            a package that is not installed.

        Raises:
            DataError: A shard is broken.
        """
        for shard, info in enumerate(self.index):
            if num_samples <= 0:
                return
            if info.samples and state_of(info, present):
                count = min(num_samples, info.samples)
                num_samples -= count
                with (
                    tempfile.TemporaryDirectory(prefix="streaming-peek-") as directory,
                    self.index.blamed(shard),
                ):
                    paths = self._bring(info, present, Path(directory))
                    yield from _read(info, paths, count, self._names)

    def _bring(self, info: ShardInfo, present: Mapping[str, int], directory: Path) -> list[Path]:
        """Get the raw files of a shard: where they are if that is here, else in `directory`."""
        paths = []
        for number, (raw, zipped) in enumerate(info.files):
            path = directory / f"raw-{number}"
            is_here = present.get(raw.basename) == raw.bytes
            if is_here and isinstance(self._store, LocalStore):
                path = self._store.root / self._key(raw.basename)
            elif is_here:
                fetch(self._store, self._key(raw.basename), path, size=raw.bytes, retry=Retry())
            elif zipped is not None:
                packed = directory / f"zip-{number}"
                key = self._key(zipped.basename)
                fetch(self._store, key, packed, size=zipped.bytes, retry=Retry())
                assert info.compression  # parse_index sees to it.
                decompress_file(info.compression, packed, path, size=raw.bytes)
            paths.append(path)
        return paths

    def _key(self, name: str) -> str:
        return join_key(self._prefix, name)


def look(url: str, reading: Reading = _AS_IT_IS) -> Peek | PlainPeek:
    """Look at what a Stream would read there: a dataset with an index, or data without one.

    Args:
        url: URL or path.
        reading: How it is to be read.

    Raises:
        MissingFileError, ObjectNotFoundError: There is neither.
        ConfigError: It can't be read as was said.
        DataError, StoreError: It can't be read; see `Peek` and `PlainPeek`.
    """
    if reading.is_of_table:
        return PlainPeek(url, reading)
    try:
        return Peek(url, reading)
    except (ObjectNotFoundError, AccessDeniedError) as missing:
        # Who may not list a bucket is told "denied" for an index that is not there.
        try:
            return PlainPeek(url, reading)
        except (ObjectNotFoundError, AccessDeniedError, MissingFileError) as error:
            if is_data_file(url):
                raise error from None
            raise type(missing)(f"{missing} {_describe_lack(url, reading)}".rstrip()) from None


def _describe_lack(url: str, reading: Reading) -> str:
    """Why there is nothing to look at, as a sentence; "" if that can't be seen."""
    place = Place.parse(url)
    store, prefix = open_store(place.root)
    store.close()
    index = get_index_basename()
    root = store.root / prefix if isinstance(store, LocalStore) else None
    splits = sorted(path.parent.name for path in root.glob(f"*/{index}")) if root else []
    if splits:
        return f"There are splits: {', '.join(splits)}."
    return describe_lack(PlainData(place=place, local=None, format=reading.format))


def state_of(info: ShardInfo, present: Mapping[str, int]) -> str:
    """How a shard is there: "raw", "zip", both ("raw, zip"), or "" if it is not, or not whole."""

    def is_there(file: FileInfo | None) -> bool:
        return file is not None and present.get(file.basename) == file.bytes

    kinds = {
        "raw": all(is_there(raw) for raw, _ in info.files),
        "zip": all(is_there(zipped) for _, zipped in info.files),
    }
    return ", ".join(kind for kind, is_whole in kinds.items() if is_whole)


def _read(
    info: ShardInfo, paths: Sequence[Path], count: int, names: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Decode the first samples of a shard column by column, so that one column spoils no other."""
    samples: list[dict[str, Any]] = [{} for _ in range(count)]
    for name in columns_of(info) if names is None else names:
        values: Sequence[Any]
        try:
            with closing(open_reader(info, paths, [name])) as reader:
                values = [sample[name] for sample in reader.take(np.arange(count))]
        except UnsafeTypeError:
            values = [Hidden("pickled; opening it could run code")] * count
        except MissingExtraError as error:
            values = [Hidden(str(error))] * count
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    return samples
