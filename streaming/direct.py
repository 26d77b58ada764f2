"""Samples at random from far away, by ranges of their shards; no shard is kept.

For a look into a dataset of any size, and for few samples of many shards. Whole epochs are better
read through a cache: each range is a request.
"""

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming.array import Array
from streaming.cache import CacheDirectory, CachePart, ShardCache
from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.errors import ConfigError, ShardCorruptError
from streaming.format import (
    FileInfo,
    ShardInfo,
    ShardReader,
    check_types,
    formats,
    get_index_basename,
    open_reader,
    parse_index,
)
from streaming.format.column import Column
from streaming.format.reader import LostIndexError, Sample
from streaming.format.text.table import RecordTable
from streaming.hashing import get_hash
from streaming.runtime import PerProcess, Runtime, checked_ids
from streaming.shared.counts import CountsFolder
from streaming.shared.epoch import RunDirectory
from streaming.shared.files import ShardFiles, fetch_file, make_raw
from streaming.source import StreamSource

__all__ = ["DirectDataset", "DirectRuntime"]

T = TypeVar("T")
R = TypeVar("R")

# Bytes between two samples that are read with them rather than by another request: about what a
# connection brings in the time of a round trip.
GAP = 512 << 10
# Requests at a time.
THREADS = 16
# Bytes of what was read that stay at hand, and shards it may belong to.
LIMIT = 256 << 20
MAX_SHARDS = 256


class DirectRuntime(Runtime):
    """Reads samples by id, without bringing whole shards here where their format allows.

    What was read lies in files with holes in a temporary directory, which readers map as if they
    were whole; the least recently used go first. Compressed shards are brought here whole.

    Args:
        parts: The streams, in the order in which their shards are numbered; see `can_read`.
        samples_per_shard: Samples in each shard, shape (num_shards,).
        limit: Bytes that may stay at hand; None: `LIMIT`.
        allow_unsafe_types: Whether columns may be read whose decoding runs code from the data.
        decoders: Functions that make values of the stored bytes of some columns, by column.
        counts: Has no effect: there is no cache.
    """

    def __init__(
        self,
        parts: Sequence[CachePart],
        samples_per_shard: NDArray[np.int64],
        *,
        limit: int | None = None,
        ranks_per_node: int = 1,
        allow_unsafe_types: bool = False,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        counts: CountsFolder | None = None,
    ) -> None:
        super().__init__(
            [], samples_per_shard, allow_unsafe_types=allow_unsafe_types, decoders=decoders
        )
        self.cache = _NoCache()
        self._parts = tuple(parts)
        self._firsts = np.cumsum([0, *(len(part.index) for part in parts)])
        self._allows_unsafe = allow_unsafe_types
        self._most = LIMIT if limit is None else limit
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._run = RunDirectory()
        self._numbers = itertools.count()

    @staticmethod
    def can_read(part: CachePart) -> bool:
        """Whether a stream has a source, or files on this node that are decoded where they lie."""
        if part.source is not None:
            return True
        return all(formats.get(info.format).decode is not None for info in part.index.examples())

    def reader(self, shard: int) -> ShardReader:
        """A reader of what is here of a shard, after `_take_each` has seen to it."""
        return self._shard(shard).reader

    def close(self) -> None:
        """Drop everything that is here. The runtime is of no more use."""
        with self._lock:
            self._shards.clear()
        self._run.close()

    def _make_get(self) -> Callable[[int], Sample]:
        runtime: Runtime = weakref.proxy(self)
        return lambda sample_id: runtime.take(np.array([sample_id]))[0]

    def _take_each(
        self, ids: NDArray[np.int64], method: Literal["take", "take_parts", "take_stacked"]
    ) -> tuple[list[Any], NDArray[np.int64] | None]:
        wanted = self.spanner.split(np.sort(ids))
        with ThreadPoolExecutor(THREADS) if len(wanted) > 1 else nullcontext() as threads:
            each = map if threads is None else threads.map
            opened = list(each(self._shard, [shard for shard, _ in wanted]))
        spans = [
            (shard, span)
            for shard, (_, places) in zip(opened, wanted, strict=True)
            for span in shard.missing(places)
        ]
        with ThreadPoolExecutor(THREADS) if len(spans) > 1 else nullcontext() as threads:
            each = map if threads is None else threads.map
            for _ in each(lambda item: item[0].bring(item[1]), spans):
                pass
        taken = super()._take_each(ids, method)
        self._trim()
        return taken

    def _shard(self, number: int) -> "_Shard":
        with self._lock:
            found = self._shards.get(number)
            if found is not None:
                self._shards.move_to_end(number)
                return found
        opened = self._open(number)
        with self._lock:
            found = self._shards.setdefault(number, opened)
        if found is not opened:  # Another thread was faster.
            opened.drop()
        return found

    def _trim(self) -> None:
        """Drop shards that were not used for longest until the rest is small enough."""
        with self._lock:
            sizes = sum(shard.num_bytes for shard in self._shards.values())
            while len(self._shards) > MAX_SHARDS or (sizes > self._most and self._shards):
                _, shard = self._shards.popitem(last=False)
                sizes -= shard.num_bytes
                shard.drop()

    def _open(self, number: int) -> "_Shard":
        part = int(np.searchsorted(self._firsts, number, side="right")) - 1
        files = self._parts[part].files(number - int(self._firsts[part]))
        info, source = files.info, files.source
        name = Path(self._run.path, f"{number}-{next(self._numbers)}")
        columns, unsafe = self._parts[part].columns, self._allows_unsafe
        open_remote = formats.get(info.format).open_remote
        shard: _Shard
        if source is None and self.can_read(self._parts[part]):
            shard = _DecodedShard(files, name)
        elif not isinstance(source, StreamSource):
            raise ConfigError("Shards can't be read directly without a remote to read from.")
        elif open_remote is not None:
            shard = _Shard(info, name)
            shard.reader = open_remote(info, source, columns)
            return shard
        else:
            shard = (_RangedShard if _has_ranges(info) else _WholeShard)(info, source, name)
        shard.reader = open_reader(info, shard.paths, columns, allow_unsafe_types=unsafe)
        if self._decoders:
            shard.reader.use_decoders(self._decoders)
        return shard


class DirectDataset(Array):
    """A remote dataset, read at random without a copy of it here. Picklable.

    Args:
        remote: URL or path of the directory that holds the index.
        split: Sub-directory of it.
        download_retry: How often a request is tried in all.
        download_timeout: Seconds without a byte after which one counts as failed.
        storage_options: How to reach `remote`; see `StoreOptions`.
        allow_unsafe_types: Allow columns whose decoding runs code that the data holds (pickle).

    Raises:
        ObjectNotFoundError: There is no index.
        IndexFormatError: It is broken.
        UnsafeTypeError: A column would run code, and `allow_unsafe_types` is not set.
    """

    def __init__(
        self,
        remote: str,
        split: str | None = None,
        *,
        download_retry: int = DEFAULT_RETRY,
        download_timeout: float = DEFAULT_TIMEOUT,
        storage_options: Mapping[str, Any] | None = None,
        allow_unsafe_types: bool = False,
    ) -> None:
        places = (os.path.expanduser(remote), split)
        root = "/".join(part.rstrip("/") for part in places if part)
        options = {"timeout": download_timeout, **(storage_options or {})}
        source = StreamSource(root, download_retry, options)
        name = get_index_basename()
        data = source.read(name)
        index = parse_index(data, source.url(name))
        index.check(lambda info: check_types(info, allow_unsafe_types))
        nowhere = CacheDirectory(Path(root), get_hash("xxh3_128", data))
        self.index = index
        self.num_samples = index.samples
        # Not a method of ours: what is here should go with the last reference, not a collection.
        samples, parts = index.table.samples, [CachePart(nowhere, index, source)]
        self._make = partial(DirectRuntime, parts, samples, allow_unsafe_types=allow_unsafe_types)
        self._runtime = PerProcess(self._make)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.num_samples

    def get_item(self, sample_id: int) -> Sample:
        """Get one sample; `sample_id` is in [0, size)."""
        return self._runtime.get().get(sample_id)

    def __getitems__(self, sample_ids: Sequence[int]) -> list[Sample]:
        """Get many samples at once, near ones by one request."""
        return self._runtime.get().take(checked_ids(sample_ids, self.size))

    def take_columns(self, sample_ids: Sequence[int]) -> dict[str, Column]:
        """The same by columns."""
        return self._runtime.get().take_columns(checked_ids(sample_ids, self.size))

    def preview(self, num_samples: int = 10) -> list[Sample]:
        """The first samples."""
        return self.__getitems__(range(min(num_samples, self.size)))

    def close(self) -> None:
        """Drop what is here. The next read begins anew."""
        runtime = self._runtime.value
        if runtime is not None:
            runtime.close()
            self._runtime = PerProcess(self._make)


class _NoCache(ShardCache):
    """What a dataset asks of its cache, where there is none: nothing is ever missing."""

    def __init__(self) -> None:
        super().__init__([])

    def is_inert(self) -> bool:
        """True: there is nothing to look ahead to."""
        return True

    def absent(self, shards: Sequence[int] | NDArray[np.int64]) -> list[int]:
        """None of them."""
        return []

    def touch(self, shard: int) -> None:
        """Nothing."""

    def remake(self, shards: Iterable[int], error: LostIndexError) -> None:
        """Nothing, as there is no directory of shards: the error stands."""
        raise error

    def refresh(self, shard: int) -> bool:
        """False: what is damaged here is damaged there."""
        return False


class _Shard:
    """What is here of one shard, in files that lie where `name` says."""

    reader: ShardReader

    def __init__(self, info: ShardInfo, name: Path) -> None:
        self.info = info
        self.paths = [name.with_name(f"{name.name}.{i}") for i in range(len(info.files))]
        self.num_bytes = 0

    def missing(self, places: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
        """Samples [start, stop) to bring before those at some places can be read."""
        return ()

    def bring(self, span: tuple[int, int]) -> None:
        """Bring samples [start, stop)."""

    def drop(self) -> None:
        """Remove the files. Readers that are in use keep what they have mapped."""
        for path in self.paths:
            path.unlink(missing_ok=True)


class _WholeShard(_Shard):
    """A shard that can only be had whole: it is compressed, or its samples are anywhere in it."""

    def __init__(self, info: ShardInfo, source: StreamSource, name: Path) -> None:
        super().__init__(info, name)
        for (raw, zipped), path in zip(info.files, self.paths, strict=True):
            if zipped is None:
                source.fetch(raw, path)
            else:
                packed = path.with_suffix(".zip")
                fetch_file(source, info, zipped, packed, None)
                make_raw(info, packed, path, size=raw.bytes)
                packed.unlink()
            self.num_bytes += path.stat().st_size


class _DecodedShard(_Shard):
    """A shard of a file that lies on this node, decoded from there."""

    def __init__(self, files: ShardFiles, name: Path) -> None:
        super().__init__(files.info, name)
        files.check_can_make()
        whole = [raw.bytes for raw, _ in files.info.files]
        for packed, path, size in zip(files.zip_paths, self.paths, whole, strict=True):
            make_raw(files.info, packed, path, size=size)
            self.num_bytes += path.stat().st_size


class _RangedShard(_Shard):
    """A shard of which samples can be read alone, as a table says where each is.

    The table is the beginning of the first file: a count and `count + 1` offsets into the last one.
    Data that came without an index have it on this node, since they were indexed.
    """

    def __init__(self, info: ShardInfo, source: StreamSource, name: Path) -> None:
        super().__init__(info, name)
        self.source = source
        self._is_here = np.zeros(info.samples, np.bool_)
        self._lock = threading.Lock()
        for (raw, _), path in zip(info.files, self.paths, strict=True):
            with path.open("xb") as file:
                file.truncate(raw.bytes)
        self._offsets = self._read_table().astype(np.int64)

    def _read_table(self) -> NDArray[Any]:
        """Where samples are in the last file, shape (samples + 1,)."""
        info, first = self.info, self.info.files[0][0]
        if (table := info.extra.get("table")) is not None:
            return RecordTable(Path(table[0]), table[1], info.samples, table[2]).offsets
        width = int(info.extra.get("offset_bytes", 4))
        size = width * (info.samples + 2)
        if len(info.files) > 1:
            size = first.bytes  # A file of its own for the table: it is small.
        data = self._write(self.paths[0], first, 0, size)
        return np.frombuffer(data, f"<u{width}", info.samples + 1, width)

    def missing(self, places: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
        with self._lock:
            wanted = np.unique(places)
            wanted = wanted[~self._is_here[wanted]]
        if not len(wanted):
            return ()
        gaps = self._offsets[wanted[1:]] - self._offsets[wanted[:-1] + 1]
        cuts = np.flatnonzero(gaps > GAP) + 1
        return [(int(group[0]), int(group[-1]) + 1) for group in np.split(wanted, cuts)]

    def bring(self, span: tuple[int, int]) -> None:
        start, stop = int(self._offsets[span[0]]), int(self._offsets[span[1]])
        self._write(self.paths[-1], self.info.files[-1][0], start, stop)
        with self._lock:
            self._is_here[slice(*span)] = True

    def _write(self, path: Path, file: FileInfo, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop <= file.bytes:
            raise ShardCorruptError(
                f"{self.source.url(file.basename)} should have {file.bytes} bytes, but its table "
                f"of samples speaks of the bytes from {start} to {stop}."
            )
        data = self.source.read(file.basename, start, stop) if stop > start else b""
        self.source.check(file)
        if len(data) != stop - start:
            raise ShardCorruptError(
                f"{self.source.url(file.basename)} should have {file.bytes} bytes, but ends after "
                f"{start + len(data)}."
            )
        with path.open("r+b") as target:
            target.seek(start)
            target.write(data)
        with self._lock:
            self.num_bytes += len(data)
        return data


def _has_ranges(info: ShardInfo) -> bool:
    has_table = info.format == "mds" or formats.get(info.format).has_meta
    is_packed = any(zipped is not None for _, zipped in info.files)
    return has_table and not is_packed
