"""The index of a version of a Lance dataset: a shard for each fragment that has rows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError, MissingFileError
from streaming.format.index import FileInfo, Index, ShardInfo, build_index
from streaming.format.indexing import IndexRequest, in_threads
from streaming.format.lance.client import load_library, open_dataset, reading
from streaming.format.tables import TablePlace, call_safely
from streaming.storage import Store, join_key
from streaming.storage.download import fetch
from streaming.storage.store import part_path, translated
from streaming.util.importing import lazy
from streaming.util.retrying import Retry

__all__ = ["index_dataset"]

_THREADS = 16  # that ask a store for small files and sizes


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A fragment as its manifest has it.

    Attributes:
        number: Its id.
        rows: Rows that are not deleted.
        files: Keys below the dataset, and bytes if they are known.
        deletions: Key of the file that says which rows are deleted, if there is one.
        is_elsewhere: Whether files of it lie in another dataset, of which this is a clone.
    """

    number: int
    rows: int
    files: tuple[tuple[str, int | None], ...]
    deletions: str | None
    is_elsewhere: bool


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What there is in a version of a dataset."""

    columns: Mapping[str, str]
    fragments: tuple[_Fragment, ...]


def index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    """Make an index of a version of a Lance dataset.

    The option "filter" is a condition in SQL: only rows for which it holds are samples.

    Args:
        store: Where it is.
        prefix: Key of its root.
        request: What is asked for; with a version.

    Raises:
        ConfigError: An option can't be meant as it is.
        MissingFileError, ObjectNotFoundError: A file of the version is gone.
        DataError, StoreError: It can't be read.
    """
    assert request.version is not None
    condition = _check_options(request)
    load_library()
    lazy("streaming.format.parquet.values", "lance")
    lazy("pyarrow.compute", "lance")
    place = TablePlace.at(request.where, request.storage_options)
    rows = request.kept / f"{request.tag}.rows.npy"
    if condition is None:
        found = call_safely(_look, place, request.version)
    else:
        with translated(f"Can't make {request.kept}"):
            rows.parent.mkdir(parents=True, exist_ok=True)
        found = call_safely(_look_for, place, request.version, condition, rows)
    if request.in_place is None:
        _fetch_manifest(store, prefix, request, found)
    sizes = _Sizes(store, prefix, request)
    firsts = np.cumsum([0, *(fragment.rows for fragment in found.fragments)])
    chosen = None if condition is None else np.load(rows, mmap_mode="r")
    shards, details = [], []
    for number, fragment in enumerate(found.fragments):
        first, stop = int(firsts[number]), int(firsts[number + 1])
        detail: dict[str, Any] = {"fragment": fragment.number, "first": first}
        samples = fragment.rows
        if chosen is not None:
            start, end = np.searchsorted(chosen, [first, stop]).tolist()
            detail |= {"rows": [str(rows), start, end], "physical": fragment.rows}
            samples = end - start
        if samples:
            files = tuple((file, None) for file in sizes.of(fragment))
            shards.append(ShardInfo("lance", samples, files, None, _extra(found, request)))
            details.append(detail)
    return build_index(request.where, shards, details)


def _extra(found: _Snapshot, request: IndexRequest) -> dict[str, Any]:
    extra = {"columns": dict(found.columns), "version": request.version}
    return extra if request.in_place is None else {**extra, "root": str(request.in_place)}


def _check_options(request: IndexRequest) -> str | None:
    """The condition of the request, if there is one."""
    if request.columns is not None:
        raise ConfigError(
            "The columns of a Lance dataset have types, so `columns` is a list of names, but got "
            f"{dict(request.columns)}."
        )
    unknown = sorted(request.options.keys() - {"filter"})
    if unknown:
        raise ConfigError(f"Lance datasets have the option 'filter', but got {unknown}.")
    condition = request.options.get("filter")
    if condition is not None and not (isinstance(condition, str) and condition.strip()):
        raise ConfigError(f"`filter` must be a condition in SQL, but is {condition!r}.")
    return condition


class _Sizes:
    """Tells the files of fragments, and sees to it that they are there where that costs little."""

    def __init__(self, store: Store, prefix: str, request: IndexRequest) -> None:
        self._store, self._prefix, self._request = store, prefix, request

    def of(self, fragment: _Fragment) -> list[FileInfo]:
        """The files of a fragment as an index has them."""
        in_place = self._request.in_place
        if fragment.is_elsewhere and in_place is None:
            raise ConfigError(
                f"{self._request.where} is a clone: its data lie in another dataset. Read it where "
                'it is, with cache="none", or make it a dataset of its own.'
            )
        found = []
        for key, size in fragment.files:
            if in_place is not None:
                found.append(FileInfo(str(in_place / key), self._size_here(in_place / key), {}))
            else:
                found.append(FileInfo(key, self._size_there(key) if size is None else size, {}))
        return found or [self._manifest_here()]

    def _manifest_here(self) -> FileInfo:
        """Stands for the files of a fragment that are all elsewhere."""
        assert self._request.in_place is not None
        path = self._request.in_place / self._request.files[0].key
        return FileInfo(str(path), self._size_here(path), {})

    def _size_here(self, path: Path) -> int:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            raise MissingFileError(
                f"{path} is gone, which is a file of version {self._request.version} of the Lance "
                f"dataset {self._request.where}. It was cleaned up: read a newer version."
            ) from None

    def _size_there(self, key: str) -> int:
        return self._store.stat(join_key(self._prefix, key)).size


def _fetch_manifest(store: Store, prefix: str, request: IndexRequest, found: _Snapshot) -> None:
    """Bring what a dataset of cached fragments needs beside these: manifest and deletions."""
    assert request.local is not None
    local, retry = request.local, Retry(max(request.retry, 1))
    deletions = [fragment.deletions for fragment in found.fragments if fragment.deletions]

    def bring(key: str) -> None:
        if not (local / key).exists():
            fetch(store, join_key(prefix, key), local / key, retry=retry)

    for _ in in_threads(bring, [*deletions, request.files[0].key], _THREADS):
        pass


def _look(place: TablePlace, version: int) -> _Snapshot:
    dataset = open_dataset(place, version)
    with reading(place.where, version):
        columns = {field.name: str(field.type) for field in dataset.schema}
        return _Snapshot(columns, tuple(map(_describe, dataset.get_fragments())))


def _look_for(place: TablePlace, version: int, condition: str, path: Path) -> _Snapshot:
    """The same, and the numbers of the rows for which a condition holds, written to a file."""
    dataset = open_dataset(place, version)
    with reading(place.where, version):
        scanner = dataset.scanner(columns=["_rowoffset"], filter=condition, scan_in_order=True)
        pieces = [batch.column(0).to_numpy().astype(np.int64) for batch in scanner.to_batches()]
    rows: NDArray[np.int64] = np.sort(np.concatenate([np.empty(0, np.int64), *pieces]))
    part = part_path(path)
    with translated(f"Can't write {path}"), part.open("wb") as file:
        np.save(file, rows)
    part.replace(path)
    return _look(place, version)


def _describe(fragment: Any) -> _Fragment:
    about = fragment.metadata
    elsewhere = any(file.base_id is not None for file in about.files)
    return _Fragment(
        fragment.fragment_id,
        about.physical_rows - about.num_deletions,
        tuple(
            (f"data/{file.path}", file.file_size_bytes)
            for file in reversed(about.files)  # The first, with most columns, stands last.
            if file.base_id is None
        ),
        fragment.deletion_file(),
        elsewhere,
    )
