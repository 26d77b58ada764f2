"""Indexes beside data that came without: made once, then found by whoever reads the data."""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.compression import compress, get_compression_extension
from streaming.errors import (
    ConfigError,
    EmptyDatasetError,
    OutputExistsError,
)
from streaming.format.index import (
    VERSION,
    Index,
    ShardInfo,
    dump_index,
    get_index_basename,
    parse_index,
)
from streaming.format.indexing import IndexRequest, in_threads, local_path
from streaming.format.listing import Place, choose_format, list_files
from streaming.format.registry import Format, formats
from streaming.format.tables import find_marker
from streaming.storage import Store, join_key, open_store
from streaming.storage.store import find, part_path
from streaming.storage.upload import publish
from streaming.util.retrying import Retry

__all__ = ["SCRATCH_PREFIX", "Report", "write_index"]

SCRATCH_PREFIX = "streaming-index-"  # of temporary directories

_THREADS = 8  # that write meta files, which are many and small


@dataclass(frozen=True, slots=True)
class Report:
    """What was indexed: where the index is, the format, files, samples, and bytes as stored."""

    where: str
    format: str
    files: int
    samples: int
    size: int


def write_index(
    place: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Index data and write the index beside it; from then on it is a dataset as any other.

    The index comes last, so if this fails there is none. Data that change later must be indexed
    again; of Parquet files, only those that changed are looked at without it.

    Args:
        place: A folder, a file, a pattern, or several, on any store that can be written to.
        format: Name of the format; None: what the endings of the files say.
        columns: Names and encodings; None: they are inferred.
        options: More about the data, by the names that the format has for it.
        storage_options: How to reach the place; see `StoreOptions`.
        overwrite: Replace an index that is there.
        out: URL or path of the index, if not beside the data; for formats that can find it there.

    Raises:
        ConfigError: There is nothing to index, or an argument can't be meant as it is.
        OutputExistsError: There is an index, and not `overwrite`.
        EmptyDatasetError: There are no samples.
        DataError: A file is not what it should be.
        StoreError: The store failed.
    """
    where = Place.parse(place)
    listing = list_files(where, storage_options)
    found = find_marker(listing.root, storage_options)
    table = None if found is None else formats.get(found).table
    if table is not None:
        raise ConfigError(
            f"{listing.root} is a {table.name}, which has its own log and needs no index."
        )
    chosen = choose_format(listing, format)
    if chosen is None and listing.has_index:
        raise ConfigError(
            f"{where} holds a dataset that has an index already, {get_index_basename()}, and needs "
            "no other."
        )
    if chosen is None:
        raise ConfigError(f"There is nothing at {where} that is read without an index.")
    name, files = chosen
    about = formats.get(name)
    if about.index_dataset is None or (about.export_shard or about.dump_index) is None:
        raise ConfigError(f"{name} data have an index of their own; none can be made.")
    if out is not None and about.dump_index is None:
        raise ConfigError(f"The index of {name} data lies beside them, and nowhere else.")
    store, prefix = open_store(listing.root, storage_options)
    try:
        if not overwrite and about.dump_index is None:
            _check_vacant(store, prefix, listing.root, get_index_basename())
        with _scratch() as scratch:
            request = IndexRequest(
                where=listing.root,
                files=files,
                format=name,
                kept=scratch,
                in_place=local_path(store, prefix),
                columns=columns,
                options=options or {},
            )
            dumped = None
            if about.dump_index is not None:  # First: it finds out more.
                dumped = about.dump_index(store, prefix, request)
            index = about.index_dataset(store, prefix, request)
            if not index.samples:
                raise EmptyDatasetError(f"The files at {where} hold no samples.")
            if dumped is not None:
                there = _publish_dumped(*dumped, store, prefix, listing.root, out, overwrite)
                size = sum(file.size for file in files)
                return Report(there, name, len(files), index.samples, size)
            size = _Publication(store, prefix, scratch, request.in_place, about).write(index)
    finally:
        store.close()
    return Report(listing.root, index.shard(0).format, len(index), index.samples, size)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary directory with a lock, by which `clean` tells whether its owner is dead."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX) as name:
        making = Path(name, "making")
        with making.open("wb") as lease:
            fcntl.flock(lease, fcntl.LOCK_SH)
            making.rename(making.with_name("lease"))  # It is never seen without the lock.
            yield Path(name)


def _check_vacant(store: Store, prefix: str, root: str, name: str) -> None:
    if find(store, join_key(prefix, name)) is None:
        return
    raise OutputExistsError(
        f"{root} has an index already. If the data have changed since, say --overwrite, or "
        "overwrite=True."
    )


def _publish_dumped(
    name: str,
    content: bytes,
    store: Store,
    prefix: str,
    root: str,
    out: str | os.PathLike[str] | None,
    overwrite: bool,
) -> str:
    """Write an index that is one file.

    Returns:
        The directory that it lies in, or its own place if that was given.
    """
    with ExitStack() as stack:
        if out is not None:
            parent, _, name = os.fspath(out).rpartition("/")
            root = parent or "."
            store, prefix = open_store(root)
            stack.callback(store.close)
        if not overwrite:
            _check_vacant(store, prefix, root, name)
        scratch = stack.enter_context(_scratch())
        path = scratch / "index"
        path.write_bytes(content)
        publish(store, path, join_key(prefix, name), retry=Retry())
    return root if out is None else os.fspath(out)


@dataclass(frozen=True, slots=True)
class _Publication:
    """Writes an index and the files it needs."""

    store: Store
    prefix: str
    scratch: Path
    in_place: Path | None
    about: Format

    def write(self, index: Index) -> int:
        """Write all of it, the index last; the bytes of the data as they are stored."""
        shards = list(in_threads(self._write_shard, list(index), _THREADS))
        document = dump_index(shards)
        parse_index(document, f"made for {index.where}")  # What we could not read, nobody should.
        self._publish(get_index_basename(), document)
        return sum(int((shard["zip_data"] or shard["raw_data"])["bytes"]) for shard in shards)

    def _write_shard(self, info: ShardInfo) -> dict[str, Any]:
        """Write the meta file of a shard, compressed like its data; its entry in the index."""
        raw, zipped = info.files[-1]
        config = {
            "version": VERSION,
            "format": info.format,
            "compression": info.compression,
            "hashes": [],
            "size_limit": None,
        }
        assert self.about.export_shard is not None
        export = self.about.export_shard(info, config)
        entry = {
            **config,
            **export.settings,
            "samples": info.samples,
            "raw_data": self._describe(raw.basename, raw.bytes),
            "zip_data": zipped and self._describe(zipped.basename, zipped.bytes),
        }
        if export.meta is None:
            return entry
        name = f"{self._relative(raw.basename)}.meta"
        entry["raw_meta"], entry["zip_meta"] = self._describe(name, len(export.meta)), None
        if info.compression is None:
            self._publish(name, export.meta)
            return entry
        name = f"{name}.{get_compression_extension(info.compression)}"
        packed = compress(info.compression, export.meta)
        entry["zip_meta"] = self._describe(name, len(packed))
        self._publish(name, packed)
        return entry

    def _describe(self, name: str, size: int) -> dict[str, Any]:
        return {"basename": self._relative(name), "bytes": size, "hashes": {}}

    def _relative(self, name: str) -> str:
        return (
            name if self.in_place is None else os.path.relpath(self.in_place / name, self.in_place)
        )

    def _publish(self, name: str, data: bytes) -> None:
        path = part_path(self.scratch / "published")
        path.write_bytes(data)
        publish(self.store, path, join_key(self.prefix, name), retry=Retry())
        path.unlink()
