"""The steps of a stream that subclasses override, and how the cache comes to call them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.cache import CacheDirectory, CachePart, ShardCache, Source
from streaming.compression import decompress_file
from streaming.errors import ConfigError, ShardCorruptError
from streaming.format import (
    FileInfo,
    Index,
    ShardInfo,
    check_types,
    dump_index,
    formats,
    get_index_basename,
    parse_index,
)
from streaming.format.lazy import Reader, to_json
from streaming.hashing import file_digest, get_hash
from streaming.sampling import Weight
from streaming.shared.files import ShardFiles
from streaming.util.migration import warn_user
from streaming.world import World

__all__ = [
    "OverriddenSource",
    "Overrides",
    "StreamSteps",
    "index_of",
    "is_overridden",
    "warn_of_gone_overrides",
]

_GONE = {
    "_get_temporary_directory": "give `local`, or set TMPDIR",
    "prepare_shard": "override `_prepare_shard_part`, which is called for each file",
    "set_up_local": "the cache looks at the directory itself",
    "get_index_size": "nothing asks for it",
}


class _Whole(Protocol):
    """What `StreamSteps` needs of the class that it is a part of, `Stream`."""

    remote: str | None
    local: str
    split: str
    validate_hash: str | None

    @property
    def directory(self) -> Path: ...
    @property
    def opened_directory(self) -> Path: ...
    @property
    def weight(self) -> Weight: ...
    def source(self) -> Source | None: ...
    def plain_source(self) -> Source | None: ...
    def obtain_index(self) -> tuple[Index, CacheDirectory]: ...
    def open(self, *, allow_unsafe_types: bool = False) -> CachePart: ...
    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str: ...
    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None: ...
    def _prepare_shard_part(
        self, raw_info: FileInfo, zip_info: FileInfo | None = None, compression: str | None = None
    ) -> int: ...


class StreamSteps:
    """What of the predecessor's `Stream` users override or call, as a part of `Stream`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != "streaming.stream":
            warn_of_gone_overrides(cls, _GONE)

    def _download_file(self: _Whole, from_basename: str, to_basename: str | None = None) -> str:
        """Fetch a file of the stream; for overriding. Called for the index and for each shard.

        Args:
            from_basename: Its name below `remote` and `split`.
            to_basename: Its name below `local` and `split`; None: the same.

        Returns:
            Where it is now. Somewhere else than asked for is fine too; it is moved.
        """
        path = self.directory / (to_basename or from_basename)
        source = self.plain_source()
        if source is None:
            raise ConfigError(f"{from_basename} can't be fetched: the stream has no `remote`.")
        source.fetch(FileInfo(from_basename, -1, {}), path)
        return str(path)

    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None:
        """Decompress a file of a shard; for overriding.

        Args:
            zip_info: What the index says of the compressed file.
            zip_filename: Where that is.
            raw_filename: Where the decompressed one shall be.
            compression: Codec, with or without level.
        """
        decompress_file(compression or "none", Path(zip_filename), Path(raw_filename), size=None)

    def _prepare_shard_part(
        self: _Whole,
        raw_info: FileInfo,
        zip_info: FileInfo | None = None,
        compression: str | None = None,
    ) -> int:
        """Fetch a file of a shard and decompress it; for overriding.

        Args:
            raw_info: What the index says of the file that is read.
            zip_info: What it says of the compressed one; None if there is none.
            compression: Codec, with or without level.

        Returns:
            Bytes by which the use of the disk has grown. The cache counts for itself.
        """
        info = ShardInfo("", 0, ((raw_info, zip_info),), compression if zip_info else None, {})
        steps = Overrides.of(self)
        files = ShardFiles(
            self.opened_directory,
            info,
            self.source(),
            self.validate_hash,
            None if steps is None else Overrides(self, steps.decompresses, False),
        )
        paths = [*files.raw_paths, *files.zip_paths]
        before = _measure(paths)
        files.make(lambda kind: None)
        return _measure(paths) - before

    def get_shards(self: _Whole, world: World, allow_unsafe_types: bool) -> list[Reader]:
        """The shards of the stream; for overriding: give less, other ones, or in another order.

        Args:
            world: This process's place among all.
            allow_unsafe_types: Whether columns may be read whose decoding runs code from the data.

        Returns:
            Readers, as `super().get_shards` or `streaming.format.reader_from_json` make them.
        """
        index, directory = self.obtain_index()
        dirname, split = self.local, self.split
        if directory.path != Path(os.path.abspath(self.directory)):
            dirname, split = str(directory.path), ""
        index.check(lambda info: check_types(info, allow_unsafe_types))
        return [
            Reader(info, dirname, split, allow_unsafe_types=allow_unsafe_types) for info in index
        ]

    def prepare_shard(self: _Whole, shard: Reader) -> int:
        """Bring a shard here.

        Returns:
            Bytes by which the use of the disk has grown.
        """
        part = self.open(allow_unsafe_types=True)
        wanted = shard.raw_data.basename
        numbers = (i for i, info in enumerate(part.index) if info.files[-1][0].basename == wanted)
        cache = ShardCache([part])
        try:
            before = cache.usage()
            cache.prepare(next(numbers))
            return cache.usage() - before
        finally:
            cache.close()

    def set_up_local(
        self: _Whole, shards: Sequence[Reader], cache_usage_per_shard: NDArray[np.int64]
    ) -> None:
        """Write down what each shard takes of the disk now, in bytes."""
        for i, shard in enumerate(shards):
            files = ShardFiles(Path(shard.dirname, shard.split), shard.info)
            cache_usage_per_shard[i] = _measure([*files.raw_paths, *files.zip_paths])

    def get_index_size(self: _Whole) -> int:
        """Bytes of the index on this node."""
        return _measure([self.opened_directory / get_index_basename()])

    @classmethod
    def validate_weights(cls, streams: Sequence[_Whole]) -> tuple[bool, bool]:
        """See of which kind the weights are.

        Returns:
            Whether they are relative (proportions), and whether there are none at all.

        Raises:
            ConfigError: They are of both kinds.
        """
        relative = [stream.weight.proportion is not None for stream in streams]
        absolute = [
            stream.weight.repeat is not None or stream.weight.choose is not None
            for stream in streams
        ]
        if any(relative) and not all(relative):
            raise ConfigError(
                "Some streams have a `proportion` and some have not. A proportion says how large a "
                "part of an epoch a stream is, so either all of them have one or none has."
            )
        return all(relative), not any(relative) and not any(absolute)


@dataclass(frozen=True)
class Overrides:
    """Which steps of a stream a subclass has overridden, for the cache. Pickles with the stream."""

    stream: _Whole
    decompresses: bool
    prepares: bool

    @classmethod
    def of(cls, stream: _Whole) -> "Overrides | None":
        """Those of a stream; None if all is as usual."""
        decompresses = is_overridden(stream, "_decompress_shard_part")
        prepares = is_overridden(stream, "_prepare_shard_part")
        return cls(stream, decompresses, prepares) if decompresses or prepares else None

    def decompress(self, zip: FileInfo, path: Path, target: Path, compression: str) -> None:
        """Decompress a file in the subclass's way."""
        self.stream._decompress_shard_part(zip, str(path), str(target), compression)

    def prepare(self, raw: FileInfo, zip: FileInfo | None, compression: str | None) -> None:
        """Make a raw file in the subclass's way."""
        self.stream._prepare_shard_part(raw, zip, compression)


@dataclass(frozen=True)
class OverriddenSource:
    """Fetches files by a subclass's `_download_file`. Pickles with the stream."""

    stream: _Whole

    @property
    def root(self) -> str:
        """Address of the directory, for messages."""
        stream = self.stream
        return "/".join(
            part.rstrip("/") for part in (stream.remote or stream.local, stream.split) if part
        )

    def url(self, basename: str) -> str:
        """Address of a file, for messages."""
        return f"{self.root}/{basename}"

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        """Have a file fetched, and move it to `path`; see `Source`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        for is_last in (False, True):
            wanted = os.path.relpath(path, self.stream.directory)
            found = Path(self.stream._download_file(file.basename, wanted))
            if not found.exists():
                raise ConfigError(
                    f"`_download_file` of {type(self.stream).__name__} must give the path of the "
                    f"file it has fetched, but there is no {found}."
                )
            if found.absolute() != path.absolute():
                os.replace(found, path)
            actual = None if digest is None else file_digest(digest[0], path)
            if digest is None or actual == digest[1]:
                break
            path.unlink()
            if is_last:
                raise ShardCorruptError(
                    f"{self.url(file.basename)} should have {digest[0]} {digest[1]}, but has "
                    f"{actual}, also when it was fetched again."
                )
        return path.stat().st_size


def index_of(readers: Iterable[Any], stream: _Whole) -> tuple[Index, CacheDirectory]:
    """The index of the shards that an overridden `get_shards` gave, and where they are."""
    readers = list(readers)
    for reader in readers:
        if not isinstance(reader, Reader) or reader.info.format not in formats:
            raise ConfigError(
                f"`get_shards` of {type(stream).__name__} must give readers as "
                f"`super().get_shards` or `streaming.format.reader_from_json` make them, but gave "
                f"a {type(reader).__name__}. A format of your own is registered first, as "
                f"`streaming.format.own.own_format` makes it."
            )
    where = {Path(os.path.abspath(Path(reader.dirname, reader.split))) for reader in readers}
    if len(where) > 1:
        raise ConfigError(f"The shards of one stream lie in one directory, not in {where}.")
    data = dump_index([to_json(reader) for reader in readers])
    directory = where.pop() if where else stream.directory
    index = parse_index(data, f"made of what `{type(stream).__name__}.get_shards` gave")
    return index, CacheDirectory(directory, get_hash("xxh3_128", data), is_chosen=True)


def is_overridden(stream: _Whole, name: str) -> bool:
    """Whether a method is not the one of this module: by a subclass, a patch or on the object."""
    method = getattr(stream, name)
    return getattr(method, "__func__", None) is not getattr(StreamSteps, name)


def warn_of_gone_overrides(cls: type, gone: Mapping[str, str]) -> None:
    """Warn of methods of a new class that nothing calls any more."""
    for name in sorted(gone.keys() & vars(cls).keys()):
        warn_user(
            f"{cls.__name__}.{name} overrides a method that nothing calls any more: {gone[name]}.",
            UserWarning,
        )


def _measure(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())
