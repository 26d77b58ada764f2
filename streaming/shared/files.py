"""The files of one shard in one directory: whether they are whole, and how to come by them.

Nothing here locks or counts. Who calls what changes files holds the shard's lock.
"""

import errno
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from streaming.compression import decompress_file
from streaming.errors import (
    ConfigError,
    MissingFileError,
    ObjectNotFoundError,
    ShardCorruptError,
    from_os_error,
)
from streaming.format.index import FileInfo, ShardInfo
from streaming.format.indexing import check_unchanged
from streaming.format.registry import formats
from streaming.hashing import Digest, get_hash
from streaming.shared.sharing import make_directory, share

__all__ = [
    "Claim",
    "Identity",
    "RangeSource",
    "ShardFiles",
    "Source",
    "Steps",
    "VersionedSource",
    "fetch_file",
    "make_raw",
    "replacing",
    "target_of_part",
]

logger = logging.getLogger(__name__)

# Called with what is about to get its final name, so that a process that is killed a moment later
# leaves nothing of which nobody knows who made it.
Claim: TypeAlias = Callable[[Literal["raw", "zip"]], None]

# What tells the raw files of a shard from those that were there before: (inode, time in ns) each.
Identity: TypeAlias = tuple[tuple[int, int], ...]


class Source(Protocol):
    """Where the files of a directory come from. Plain data: it pickles, and opens what it needs."""

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        """Copy a file here.

        Args:
            file: Which; its `bytes` are checked if they are not negative.
            path: Where to; does not exist yet. Part of the file may be left there on error.
            digest: Hash name and what it must come to.

        Returns:
            Bytes of the file.
        """
        ...

    def url(self, basename: str) -> str:
        """Address of a file, for messages and to tell one source from another."""
        ...


@runtime_checkable
class VersionedSource(Source, Protocol):
    """A source that can say, for less than a download, whether a file is still the same."""

    def version(self, basename: str) -> str | None:
        """A mark that changes with the file; None if there is none.

        Raises:
            StoreError: The source failed.
        """
        ...


@runtime_checkable
class RangeSource(Source, Protocol):
    """A source that can bring parts of a file."""

    def fetch_ranges(self, file: FileInfo, ranges: Sequence[Sequence[int]], path: Path) -> None:
        """Copy parts of a file here, one after another.

        Args:
            file: The whole file.
            ranges: Which bytes of it, [start, stop) each.
            path: Where to; does not exist yet. Part of it may be left there on error.
        """
        ...


class Steps(Protocol):
    """Steps of making files that somebody does in his own way. Plain data: it pickles."""

    @property
    def decompresses(self) -> bool:
        """Whether `decompress` is to be called."""
        ...

    @property
    def prepares(self) -> bool:
        """Whether `prepare` is to be called, in place of fetching and decompressing."""
        ...

    def decompress(self, zip: FileInfo, path: Path, target: Path, compression: str) -> None:
        """Decompress the file at `path`, which the index calls `zip`, to `target`."""
        ...

    def prepare(self, raw: FileInfo, zip: FileInfo | None, compression: str | None) -> None:
        """Make a raw file, under its own name."""
        ...


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard: raw ones that are read, and compressed ones they are made from.

    A file is whole if its size is what the index says: everything gets its name only when it is
    complete, and a file that was cut by something else has another size. Raw files that a format
    decodes (`Format.decode`) have a size that the index can only estimate: they are whole if they
    are there, and their readers find out if they are not.

    Attributes:
        directory: Where they are.
        info: What the index says of them.
        source: Where missing ones come from; None if there is nowhere.
        validate_hash: Name of the hash that is checked when files are fetched or decompressed.
        steps: How to make files, where it is done in another way than usual.
    """

    directory: Path
    info: ShardInfo
    source: Source | None = None
    validate_hash: str | None = None
    steps: Steps | None = None

    @property
    def raw_paths(self) -> list[Path]:
        """Paths of the raw files, in the order of the index."""
        return [self.directory / raw.basename for raw, _ in self.info.files]

    @property
    def zip_paths(self) -> list[Path]:
        """Paths of the compressed files; empty if the shard is not compressed."""
        return [self.directory / file.basename for _, file in self.info.files if file]

    def identity(self) -> Identity | None:
        """What the raw files are known by; None unless all of them are there and whole."""
        marks = []
        for raw, _ in self.info.files:
            found = _stat(self.directory / raw.basename)
            if found is None or not self._has_size(found, raw):
                return None
            marks.append((found.st_ino, found.st_mtime_ns))
        return tuple(marks)

    def can_make(self) -> bool:
        """Whether the raw files, were they not there, could be had."""
        return self.source is not None or self.has_zips()

    def has_zips(self) -> bool:
        """Whether the compressed files are here and whole."""
        return all(file is not None and self._is_whole(file) for _, file in self.info.files)

    def check_can_make(self) -> None:
        """Make sure that what is missing can be had.

        Raises:
            MissingFileError: A file is not there.
            ShardCorruptError: A file has the wrong size.
        """
        if self.source is not None:
            return
        for raw, zip in self.info.files:
            if self._has_raw(raw) or (zip is not None and self._is_whole(zip)):
                continue
            for file in (raw, zip):
                if file is not None and os.path.isabs(file.basename):
                    raise self._changed(file)
                if file is not None and (found := _stat(self.directory / file.basename)):
                    raise ShardCorruptError(
                        f"Shard file {self.directory / file.basename} has {found.st_size} bytes, "
                        f"but the index says {file.bytes}. There is no remote to fetch it from."
                        f"{_of_version(self.info)}"
                    )
            raise MissingFileError(
                f"Shard file {self.directory / raw.basename} is missing"
                f"{f', and so is its compressed form {zip.basename}' if zip else ''}. There is no "
                f"remote to fetch it from.{_of_version(self.info)}"
            )

    def _changed(self, file: FileInfo) -> MissingFileError | ShardCorruptError:
        """The error that a file of the user's, read where it lies, is not the one indexed."""
        found = _stat(self.directory / file.basename)
        way_out = _of_version(self.info) or " Make the dataset anew: what is there is indexed."
        if found is None:
            return MissingFileError(f"{file.basename} was removed after it was indexed.{way_out}")
        return ShardCorruptError(
            f"{file.basename} was replaced after it was indexed: it has {found.st_size} bytes, not "
            f"{file.bytes}.{way_out}"
        )

    def make(self, claim: Claim, *, anew: bool = False) -> int:
        """Fetch and decompress what is missing. What can't be decompressed is fetched once more.

        Args:
            claim: Called right before each file gets its name.
            anew: Replace what is there, too.

        Returns:
            Bytes that were fetched.

        Raises:
            ConfigError: The index has no hash of the name `validate_hash`.
            MissingFileError: A file is not there, and there is no source.
            ShardCorruptError: Bytes that were fetched, or lie here, are not what the index says.
            StoreError: The source failed.
        """
        return sum(
            self._make_file(raw, zip, claim, anew)
            for raw, zip in self.info.files
            if anew or not self._has_raw(raw)
        )

    def fetch_zips(self, claim: Claim) -> int:
        """Fetch those compressed files that are missing; arguments and errors as for `make`."""
        zips = [zip for _, zip in self.info.files if zip and not self._is_whole(zip)]
        return sum(self._fetch(zip, lambda: claim("zip")) for zip in zips)

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove files of this shard; those already gone are no error."""
        for path in paths:
            path.unlink(missing_ok=True)

    def _make_file(self, raw: FileInfo, zip: FileInfo | None, claim: Claim, anew: bool) -> int:
        if self.steps is not None and self.steps.prepares:
            self._have_prepared(self.steps, raw, zip, claim, anew)
            return (raw if zip is None else zip).bytes
        if zip is None:
            return self._fetch(raw, lambda: claim("raw"))
        fetched = 0
        if (anew and self.source is not None) or not self._is_whole(zip):
            fetched = self._fetch(zip, lambda: claim("zip"))
        try:
            self._decompress(zip, raw, claim)
        except ShardCorruptError as error:
            if self.source is None:
                raise
            logger.warning("%s It is fetched again.", str(error))
            fetched += self._fetch(zip, lambda: claim("zip"))
            self._decompress(zip, raw, claim)
        return fetched

    def _have_prepared(
        self, steps: Steps, raw: FileInfo, zip: FileInfo | None, claim: Claim, anew: bool
    ) -> None:
        if anew:
            has_other = self.source is not None
            self.drop([*self.raw_paths, *(self.zip_paths if has_other else ())])
        claim("raw")
        if zip is not None and not self._is_whole(zip):
            claim("zip")
        steps.prepare(raw, zip, self.info.compression)
        if not self._is_whole(raw):
            found = _stat(self.directory / raw.basename)
            raise ShardCorruptError(
                f"A step of a subclass left {found.st_size if found else 'no'} bytes of "
                f"{self.directory / raw.basename}, but the index says {raw.bytes}."
            )

    def _fetch(self, file: FileInfo, claim: Callable[[], None]) -> int:
        if self.source is None:
            self.check_can_make()  # Raises, unless the file has come this very moment.
            return 0
        digest = self._expected_hash(file)
        with replacing(self.directory / file.basename) as part:
            fetch_file(self.source, self.info, file, part, digest)
            found = _stat(part)
            if found is None or found.st_size != file.bytes:
                raise ShardCorruptError(
                    f"{self.source.url(file.basename)} gave {found.st_size if found else 'no'} "
                    f"bytes for {file.basename}, but the index says {file.bytes}. The object there "
                    f"may have been replaced after the index was written.{_of_version(self.info)}"
                )
            claim()
        return file.bytes

    def _decompress(self, zip: FileInfo, raw: FileInfo, claim: Claim) -> None:
        path, target = self.directory / zip.basename, self.directory / raw.basename
        algo = self.validate_hash
        expected = raw.hashes.get(algo) if algo else None
        digest = Digest(algo) if algo and expected else None
        with replacing(target) as part:
            self._write_raw(zip, path, part, raw.bytes, digest)
            if digest is not None and digest.hexdigest() != expected:
                raise ShardCorruptError(
                    f"Shard file {path}, decompressed, has {digest.algo} {digest.hexdigest()}, but "
                    f"the index says {expected}."
                )
            if zip.etag is not None and os.path.isabs(zip.basename):  # It lies where it was found.
                check_unchanged(path, zip.etag)
            claim("raw")

    def _write_raw(
        self, zip: FileInfo, path: Path, part: Path, size: int, digest: Digest | None
    ) -> None:
        """Decompress or decode the file at `path`, and have what comes out digested."""
        if self.steps is None or not self.steps.decompresses:
            make_raw(self.info, path, part, size=size, digest=digest)
            return
        assert self.info.compression is not None  # The index was checked for it.
        self.steps.decompress(zip, path, part, self.info.compression)
        found = _stat(part)
        if found is None or found.st_size != size:
            raise ShardCorruptError(
                f"Shard file {path}, decompressed, has {found.st_size if found else 'no'} bytes, "
                f"but the index says {size}."
            )
        if digest is not None:
            digest.update(part.read_bytes())

    def _expected_hash(self, file: FileInfo) -> tuple[str, str] | None:
        algo = self.validate_hash
        if algo is None:
            return None
        if algo not in file.hashes:
            raise ConfigError(
                f"`validate_hash` is {algo!r}, but the index has of {file.basename} "
                f"{'only ' + ', '.join(sorted(file.hashes)) if file.hashes else 'no hash at all'}."
            )
        return algo, file.hashes[algo]

    def _has_raw(self, raw: FileInfo) -> bool:
        found = _stat(self.directory / raw.basename)
        return found is not None and self._has_size(found, raw)

    def _has_size(self, found: os.stat_result, raw: FileInfo) -> bool:
        """Whether a raw file has the size that it must have, if that is known."""
        if formats.get(self.info.format).decode is not None:
            return found.st_size > 0
        return found.st_size == raw.bytes

    def _is_whole(self, file: FileInfo) -> bool:
        found = _stat(self.directory / file.basename)
        return found is not None and found.st_size == file.bytes


def fetch_file(
    source: Source, info: ShardInfo, file: FileInfo, path: Path, digest: tuple[str, str] | None
) -> None:
    """Copy a file of a shard to `path`: the whole object, or those parts that are the shard's.

    Raises:
        ConfigError: Parts are needed, and the source can't bring them.
        ShardCorruptError, StoreError: As the source says.
    """
    try:
        _fetch_file(source, info, file, path, digest)
    except ObjectNotFoundError as error:
        about = _of_version(info)
        if not about:
            raise
        raise ObjectNotFoundError(f"{error}{about}") from error


def _fetch_file(
    source: Source, info: ShardInfo, file: FileInfo, path: Path, digest: tuple[str, str] | None
) -> None:
    ranges = info.extra.get("ranges")
    if ranges is None:
        source.fetch(file, path, digest)
        return
    key, size = str(info.extra["key"]), int(info.extra["size"])
    if not isinstance(source, RangeSource):
        raise ConfigError(
            f"Parts of {key} are needed, which `_download_file` of a subclass can't bring. Let "
            'each file be fetched whole, by cache="file".'
        )
    whole = FileInfo(key, size, {}, file.etag)
    source.fetch_ranges(whole, [*ranges, (size - int(info.extra["footer"]), size)], path)


def _of_version(info: ShardInfo) -> str:
    """What a message adds if the shard is of a table, whose files are removed in the end."""
    version = info.extra.get("version")
    if version is None:
        return ""
    return (
        f" It is a file of version {version} of a table: one that was cleaned up (vacuumed), or "
        "written anew in its place. Read a version whose files are all there."
    )


def make_raw(
    info: ShardInfo, path: Path, target: Path, *, size: int, digest: Digest | None = None
) -> None:
    """Make the raw file of a shard from its compressed one, or from what its format decodes.

    Args:
        info: The shard.
        path: The compressed file.
        target: The raw file.
        size: Bytes that it must have, where that is known before.
        digest: Is given all that is decompressed.

    Raises:
        ShardCorruptError: The file is not what it should be.
    """
    decode = formats.get(info.format).decode
    if decode is not None:
        decode(info, path, target)
        return
    assert info.compression is not None  # The index was checked for it.
    decompress_file(info.compression, path, target, size=size, digest=digest)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name beside its own, which it gets if the block succeeds."""
    part = path.with_name(f"{path.name}.{_node()}-{uuid.uuid4().hex[:16]}.part")
    try:
        make_directory(path.parent)
    except OSError as error:
        raise from_os_error(error, f"Can't make the directory {path.parent}") from error
    try:
        yield part
        try:
            share(part)
            os.replace(part, path)
        except OSError as error:
            raise from_os_error(error, f"Can't give {part} the name {path.name}") from error
    finally:
        part.unlink(missing_ok=True)


def target_of_part(name: str, *, any_node: bool) -> str | None:
    """The name that a temporary file of `replacing`, or of a download into it, would have got.

    Args:
        name: Name of a file.
        any_node: Whether those of other nodes count.

    Returns:
        None if it is no such file.
    """
    match = _PART.fullmatch(name)
    return match["name"] if match and (any_node or match["node"] == _node()) else None


_PART = re.compile(r"(?P<name>.+?)\.(?P<node>[0-9a-f]{8})-[0-9a-f]{16}\.part(\..+)?")


@cache
def _node() -> str:
    return get_hash("xxh32", os.uname().nodename.encode())


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise from_os_error(error, f"Can't look at {path}") from error
