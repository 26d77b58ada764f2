"""What a format of a user's own is made of, in the way of the predecessor: subclasses.

A writer overrides `encode_sample`, and `encode_joint_shard` or `encode_split_shard`, of a class in
`writer.py`; a reader overrides `get_sample_data` and `decode_sample` of one here, of which
`own_format` makes what datasets read such shards with.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.format.column import Column
from streaming.format.index import FileInfo, ShardInfo
from streaming.format.lazy import Reader, to_json
from streaming.format.reader import Sample, ShardReader
from streaming.format.registry import Format

__all__ = ["JointReader", "OwnEncoder", "SplitReader", "own_format"]


class _OwnReader(Reader, ABC):
    """A shard that a user's class reads: its files are opened by nobody else."""

    format: ClassVar[str] = ""

    @classmethod
    def of(cls, info: ShardInfo, dirname: str) -> Reader:
        """Make one of what an index says; by the class's own `from_json`, if it has one."""
        described = Reader(info, dirname)
        if cls.from_json.__func__ is not Reader.from_json.__func__:  # type: ignore[attr-defined]
            return cls.from_json(dirname, None, to_json(described))
        reader = cls.__new__(cls)
        reader.__dict__.update(described.__dict__)
        return reader

    def validate(self, allow_unsafe_types: bool) -> None:
        """Nothing to object to, unless a subclass has something."""

    @abstractmethod
    def get_sample_data(self, idx: int) -> bytes:
        """The encoded bytes of one sample."""

    @abstractmethod
    def decode_sample(self, data: bytes) -> Sample:
        """Decode the encoded bytes of one sample."""

    def get_item(self, idx: int) -> Sample:
        """Decode one sample; `idx` is in [0, len)."""
        return self.decode_sample(self.get_sample_data(idx))

    def take(self, offsets: Any) -> list[Sample]:
        """Decode a block of samples."""
        return [self.get_item(int(offset)) for offset in offsets]

    def __iter__(self) -> Iterator[Sample]:
        return map(self.get_item, range(len(self)))


class JointReader(_OwnReader):
    """Base of readers of shards of one file.

    Args:
        dirname: Directory of the dataset.
        split: Directory under it; None or "" for none.
        compression: Codec, with or without level; None if the shard is not compressed.
        hashes: Names of the digests that its files have.
        raw_data: The file as it is read.
        samples: Number of samples.
        size_limit: Bytes that a shard was to have at most.
        zip_data: The compressed file.
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: Sequence[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        extra = {"size_limit": size_limit}
        info = ShardInfo(self.format, samples, ((raw_data, zip_data),), compression, extra)
        super().__init__(info, dirname, split)
        self.hashes = list(hashes)


class SplitReader(_OwnReader):
    """Base of readers of shards of two files; arguments as for `JointReader`.

    Args:
        raw_meta: The file that says where the samples are.
        zip_meta: The same, compressed.
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: Sequence[str],
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        files = ((raw_meta, zip_meta), (raw_data, zip_data))
        info = ShardInfo(self.format, samples, files, compression, {"size_limit": size_limit})
        super().__init__(info, dirname, split)
        self.hashes = list(hashes)


class _OwnShard(ShardReader):
    """A shard of a dataset, read by a reader of the user's."""

    kind: ClassVar[type[_OwnReader]]

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        basename = info.files[-1][0].basename
        self._own = self.kind.of(info, str(paths[-1]).removesuffix(basename) or ".")
        self._own.validate(allow_unsafe_types)
        self._columns = columns

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        return [self.get_item(place) for place in self._place(offsets).tolist()]

    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        samples = self.take(offsets)
        return {name: [sample[name] for sample in samples] for name in samples[0]}

    def get_item(self, idx: int) -> Sample:
        sample: Sample = self._own.get_item(idx)
        return sample if self._columns is None else {name: sample[name] for name in self._columns}

    def read_raw(self, index: int) -> memoryview:
        return memoryview(self._own.get_sample_data(index))

    def decode_sample(self, data: bytes) -> Sample:
        return self._own.decode_sample(data)

    def close(self) -> None:
        """Nothing: its files are opened for each read."""


def own_format(name: str, reader: type[JointReader] | type[SplitReader]) -> Format:
    """What to register for datasets to read shards with a reader of one's own.

    As in ``formats.register("lines", own_format("lines", LineReader))``, where the reader is
    defined, so that workers that import that have it too. Of an entry in the index such a reader
    knows the keys that other formats have.

    Args:
        name: What the index calls the format.
        reader: The class.
    """
    kind = type(f"{reader.__name__}Shard", (_OwnShard,), {"kind": reader})
    return Format(name, reader=kind, has_meta=issubclass(reader, SplitReader))


class _Own(Protocol):
    """What `OwnEncoder` needs of the writer that it stands for."""

    format: str
    extra_bytes_per_shard: int
    extra_bytes_per_sample: int


class OwnEncoder:
    """The layout of a writer that brings its own by overriding; see `ShardEncoder`.

    Args:
        writer: The writer.
    """

    max_bytes = (1 << 32) - 1
    settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, writer: _Own) -> None:
        self._writer = writer
        self.format = writer.format
        self.sample_bytes = writer.extra_bytes_per_sample

    def encode(self, sample: Sample) -> bytes:
        """Not called: the writer's class overrides what would call it."""
        raise ConfigError(f"{type(self._writer).__name__} must define `encode_sample`.")

    def empty_bytes(self, config: bytes) -> int:
        """Bytes of a shard without samples, as far as the limit on its size counts them."""
        return self._writer.extra_bytes_per_shard

    def join(self, records: Sequence[bytes], config: bytes) -> Mapping[str, bytes]:
        """Not called, either."""
        raise ConfigError(
            f"{type(self._writer).__name__} must define `encode_joint_shard`, or "
            f"`encode_split_shard` if it is a SplitWriter."
        )
