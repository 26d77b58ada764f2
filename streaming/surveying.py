"""What there is in a cache directory, who uses it, and what they did: for people and monitors."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streaming.errors import MissingFileError, StreamingError
from streaming.format.index import Index, ShardInfo, get_index_basename, parse_index
from streaming.hashing import file_digest
from streaming.shared.counts import Stats
from streaming.shared.directory import state_path, stats_of, users_of
from streaming.shared.files import target_of_part
from streaming.shared.holders import Holder
from streaming.shared.origin import origin_of

__all__ = ["Survey", "Verifiable", "find_damaged", "survey", "verifiable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What there is in one cache directory.

    Attributes:
        directory: The directory.
        remote: Where its files come from; None if nobody said so.
        has_index: Whether its index is here. That of data that came without one is not: each run
            makes it anew.
        files: Files of data that are here.
        shards: Shards of the dataset; 0 without an index.
        present: Those whose raw files are here, by their sizes; 0 without an index.
        raw_bytes: Bytes of raw files; without an index, of all files.
        zip_bytes: Bytes of compressed files.
        wrong_size: Names of files that have other sizes than the index says.
        parts: Names of files that are on their way, or that a killed process has left.
        users: Processes that use the directory now.
        stats: What all who ever used it have done.
    """

    directory: Path
    remote: str | None
    has_index: bool
    files: int
    shards: int
    present: int
    raw_bytes: int
    zip_bytes: int
    wrong_size: tuple[str, ...]
    parts: tuple[str, ...]
    users: tuple[Holder, ...]
    stats: Stats

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = (
            *("remote", "has_index", "files", "shards", "present"),
            *("raw_bytes", "zip_bytes", "wrong_size", "parts"),
        )
        return {
            "directory": str(self.directory),
            **{name: getattr(self, name) for name in names},
            "users": [user.to_json() for user in self.users],
            **self.stats.to_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifiable:
    """How many files of a cache directory can be compared with an index, and by what.

    Attributes:
        digests: Files of which the index has a digest.
        sizes: Files of which it has the size alone.
        nothing: Files of which there is no index.
    """

    digests: int
    sizes: int
    nothing: int


def survey(directory: Path) -> list[Survey]:
    """Look at a cache directory and at the folders in it that hold other sources, or other users'.

    Takes no lock and changes nothing.

    Raises:
        MissingFileError: There is no cache.
    """
    roots = [root for root in (directory, *_folders(directory)) if _is_cache(root)]
    if not roots:
        raise MissingFileError(
            f"There is no cache in {directory}: neither {get_index_basename()} nor "
            f"{state_path(directory)}."
        )
    return [_survey_one(root) for root in roots]


def find_damaged(directory: Path, algo: str | None = None) -> Iterator[tuple[Path, str]]:
    """Compare the digests of the files of a cache directory with those in its index.

    Args:
        directory: The directory.
        algo: Name of a hash; None: any that the index has.

    Yields:
        Each damaged file, and what is wrong with it.
    """
    for info in _index(directory) or ():
        for file in itertools.chain.from_iterable(info.files):
            path = directory / file.basename if file is not None else None
            if file is None or path is None or not path.is_file():
                continue
            if path.stat().st_size != file.bytes:
                yield path, f"has {path.stat().st_size} bytes, not {file.bytes}"
                continue
            name = algo or next(iter(sorted(file.hashes)), "")
            if name in file.hashes and (found := file_digest(name, path)) != file.hashes[name]:
                yield path, f"has {name} {found}, not {file.hashes[name]}"


def verifiable(directory: Path, algo: str | None = None) -> Verifiable:
    """Count the files of which `find_damaged` can tell whether they are whole.

    Args:
        directory: The directory.
        algo: As for `find_damaged`.
    """
    index, here = _index(directory), set(_data_sizes(directory))
    if index is None:
        return Verifiable(digests=0, sizes=0, nothing=len(here))
    hashes = {
        file.basename: file.hashes
        for info in index
        for file in itertools.chain.from_iterable(info.files)
        if file is not None and file.basename in here
    }
    digests = sum(algo in one if algo else bool(one) for one in hashes.values())
    return Verifiable(digests=digests, sizes=len(hashes) - digests, nothing=0)


def _survey_one(directory: Path) -> Survey:
    origin = origin_of(directory)
    index = _index(directory)
    sizes = dict(_sizes(directory))
    raw = _found(index, sizes, "raw")
    zip = _found(index, sizes, "zip")
    parts = [name for name in sizes if target_of_part(name, any_node=True) is not None]
    present = 0 if index is None else int(np.sum(raw[0] == index.table.raw_bytes))
    data = _data_sizes(directory)
    return Survey(
        directory=directory,
        # An address is followed by the names of files there, if some were chosen.
        remote=None if origin is None else origin.remote.removesuffix(": "),
        has_index=index is not None,
        files=len(data),
        shards=0 if index is None else len(index),
        present=present,
        raw_bytes=sum(data.values()) if index is None else int(raw[0].sum()),
        zip_bytes=int(zip[0].sum()),
        wrong_size=(*raw[1], *zip[1]),
        parts=tuple(sorted(parts)),
        users=users_of(directory),
        stats=stats_of(directory),
    )


def _found(
    index: Index | None, sizes: dict[str, int], kind: str
) -> "tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]":
    """Bytes that are here of each shard, and the files that have another size than they should."""
    bytes_here = np.zeros(0 if index is None else len(index), np.int64)
    wrong = []
    for number, info in enumerate(index or ()):
        for file in _files(info, kind):
            size = sizes.get(file[0], 0)
            bytes_here[number] += size
            if file[0] in sizes and size != file[1]:
                wrong.append(file[0])
    return bytes_here, wrong


def _files(info: ShardInfo, kind: str) -> Iterator[tuple[str, int]]:
    for raw, zip in info.files:
        file = raw if kind == "raw" else zip
        if file is not None:
            yield file.basename, file.bytes


def _sizes(directory: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Files below a directory but the state's and other caches', by their relative names."""
    with os.scandir(directory / prefix) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = prefix + entry.name
            if entry.is_file(follow_symlinks=True):
                yield name, entry.stat().st_size
            elif entry.is_dir() and not _is_cache(directory / name) and entry.name != ".streaming":
                yield from _sizes(directory, f"{name}/")


def _data_sizes(directory: Path) -> dict[str, int]:
    """Those files that are neither the index nor on their way."""
    return {
        name: size
        for name, size in _sizes(directory)
        if name != get_index_basename() and target_of_part(name, any_node=True) is None
    }


def _folders(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry) for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_cache(directory: Path) -> bool:
    try:
        return (directory / get_index_basename()).is_file() or state_path(directory).is_dir()
    except PermissionError:
        return False  # Another user's, who lets nobody look.


def _index(directory: Path) -> Index | None:
    path = directory / get_index_basename()
    try:
        return parse_index(path.read_bytes(), str(path))
    except (FileNotFoundError, PermissionError, StreamingError):
        return None
