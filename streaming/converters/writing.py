"""Write the samples of a source as a dataset, whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from streaming.errors import ConfigError, EmptyDatasetError, EncodeError, OutputExistsError
from streaming.format.index import get_index_basename
from streaming.format.mds.writer import MDSWriter
from streaming.format.reader import Sample

__all__ = ["Report", "Row", "Source", "check_apart", "write_dataset"]

Progress = Callable[[int], None]  # takes bytes read since the last call


@dataclass(frozen=True, slots=True)
class Row:
    """One sample, where it came from (for messages), and how many bytes it was there."""

    sample: Sample
    where: str
    size: int


class Source(Protocol):
    """Something that gives samples, all with the same columns."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Name to MDS encoding."""
        ...

    @property
    def size(self) -> int:
        """Bytes that will be read."""
        ...

    def __iter__(self) -> Iterator[Row]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: samples, the bytes they had at the source, and shards."""

    samples: int
    size: int
    shards: int


def write_dataset(
    source: Source,
    out: str | Path,
    *,
    compression: str | None = None,
    hashes: Sequence[str] = (),
    size_limit: int | str | None = 1 << 26,
    overwrite: bool = False,
    progress: Progress = lambda size: None,
) -> Report:
    """Write all samples of a source as an MDS dataset.

    A local dataset is written beside `out` and renamed at the end, so on failure `out` is what it
    was before. At a URL the index comes last, so on failure there is none.

    Args:
        source: The samples.
        out: Directory or URL; new or empty.
        compression: Such as "zstd" or "zstd:7"; None: none.
        hashes: Names of hashes to put into the index, in any order.
        size_limit: Bytes of a shard before compression, as a number or a text such as "64mb".
        overwrite: Replace the dataset that is in the directory `out`.
        progress: Is told how many bytes of the source are done.

    Raises:
        ConfigError: An argument can't be meant as it is.
        OutputExistsError: `out` is not empty, and not a dataset to overwrite.
        EncodeError: A value does not suit its column; the message says where it stands.
        EmptyDatasetError: The source has no samples.
    """
    with _destination(out, overwrite) as directory:
        samples = size = 0
        with MDSWriter(
            out=directory,
            columns=dict(source.columns),
            compression=compression,
            hashes=sorted(hashes),
            size_limit=size_limit,
        ) as writer:
            for row in source:
                _write(writer, row)
                samples, size = samples + 1, size + row.size
                progress(row.size)
            if not samples:
                raise EmptyDatasetError("There is nothing to write: the source has no samples.")
        return Report(samples, size, len(writer.shards))


def check_apart(source: Path, out: str | Path) -> None:
    """Check that writing to `out` can't touch or become a part of `source`.

    Raises:
        ConfigError: One lies in the other.
    """
    if isinstance(out, str) and "://" in out:
        return
    read, written = source.resolve(), Path(os.path.expanduser(out)).resolve()
    if read.is_relative_to(written) or written.is_relative_to(read):
        raise ConfigError(f"{out} and {source} lie in each other. Write to another place.")


def _write(writer: MDSWriter, row: Row) -> None:
    try:
        writer.write(row.sample)
    except EncodeError as error:
        raise type(error)(f"{row.where}: {error}") from error


@contextmanager
def _destination(out: str | Path, overwrite: bool) -> Iterator[str]:
    """Give the place to write to; what was written moves to `out` if nothing went wrong."""
    if isinstance(out, str) and "://" in out:
        if overwrite:
            raise ConfigError(f"Only a local directory can be overwritten, but not {out}.")
        yield out
        return
    target = Path(os.path.abspath(Path(os.path.expanduser(out))))
    _check(target, overwrite)
    mark = secrets.token_hex(4)
    part = target.with_name(f"{target.name}.{mark}.part")
    try:
        yield str(part)
        if target.exists():
            old = target.with_name(f"{target.name}.{mark}.old")
            target.rename(old)
            part.rename(target)
            shutil.rmtree(old)
        else:
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} should be a directory, but is a file.")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise OutputExistsError(
            f"{target} is not empty. Choose another place, or say --overwrite, or overwrite=True."
        )
    if not (target / get_index_basename()).is_file():
        raise OutputExistsError(
            f"{target} is not empty and holds no {get_index_basename()}, so it is no dataset that "
            f"could be overwritten. Choose another place, or empty it yourself."
        )
