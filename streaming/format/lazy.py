"""A shard as its index describes it, which is opened when it is first read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.array import Array
from streaming.errors import RemovedError
from streaming.format.index import FileInfo, ShardInfo
from streaming.format.reader import Sample, ShardReader
from streaming.format.registry import formats

__all__ = ["Reader", "to_json"]


class Reader(Array):
    """One shard of a dataset, with the names that the predecessor's readers have.

    Plain data until a sample is asked for: it pickles, and its files need not be here. It fetches
    nothing; `StreamingDataset.prepare_shard` does.

    Args:
        info: What the index says of the shard.
        dirname: Directory of the dataset.
        split: Directory under it that holds the index; None or "" for none.
        allow_unsafe_types: Decode columns whose decoding runs code from the data.

    Attributes:
        compression: Codec, with or without level; None if the shard is not compressed.
        file_pairs: (raw, compressed or None) of each file.
        hashes: Names of the digests that its files have.
        samples: Number of samples.
        raw_data, zip_data, raw_meta, zip_meta: What the index says of these files; None for no such
            file.
        column_names, column_encodings, ...: What the index says for the format, by its keys.
    """

    def __init__(
        self,
        info: ShardInfo,
        dirname: str,
        split: str | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        self.info = info
        self.dirname = dirname
        self.split = split or ""
        self.compression = info.compression
        self.samples = info.samples
        self.file_pairs = list(info.files)
        self.hashes = sorted(info.files[0][0].hashes)
        self.raw_data, self.zip_data = info.files[-1]
        self.raw_meta: FileInfo | None = None
        self.zip_meta: FileInfo | None = None
        if len(info.files) > 1:
            self.raw_meta, self.zip_meta = info.files[0]
        self._allow_unsafe_types = allow_unsafe_types
        self._opened: ShardReader | None = None

    def __getattr__(self, name: str) -> Any:
        # Not of private names: pickle asks for some before there is an `info`.
        if not name.startswith("_") and name in self.info.extra:
            return self.info.extra[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.samples

    @property
    def paths(self) -> list[Path]:
        """The raw files."""
        return [Path(self.dirname, self.split, raw.basename) for raw, _ in self.file_pairs]

    def validate(self, allow_unsafe_types: bool) -> None:
        """Check what the columns are, and remember what is allowed.

        Raises:
            UnsafeTypeError: Reading a column would run code, and that was not allowed.
        """
        formats.get(self.info.format).reader.check_types(self.info, allow_unsafe_types)
        self._allow_unsafe_types = allow_unsafe_types

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: Mapping[str, Any]) -> "Reader":
        """Describe a shard by its entry in an index; see `reader_from_json`."""
        from streaming.format import reader_from_json

        return reader_from_json(dirname, split, obj)

    def evict(self) -> NoReturn:
        """Of the predecessor: the cache drops shards now."""
        raise RemovedError("`Reader.evict` is gone: use `evict_shard` of the dataset.")

    def set_up_local(self, listing: object, safe_keep_zip: bool) -> NoReturn:
        """Of the predecessor: the cache looks at the directory now."""
        raise RemovedError(
            "`Reader.set_up_local` is gone: the cache looks at the directory by itself; "
            "`cache_usage` of the dataset says what it holds."
        )

    def get_raw_size(self) -> int:
        """Bytes of the files as they are read."""
        return self.info.raw_bytes

    def get_zip_size(self) -> int | None:
        """Bytes of the compressed files; None if there are none."""
        return self.info.zip_bytes if self.compression else None

    def get_max_size(self) -> int:
        """Bytes that the shard takes while it is prepared."""
        return self.info.raw_bytes + self.info.zip_bytes

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Bytes that it takes once it is prepared."""
        return self.get_max_size() if keep_zip else self.info.raw_bytes

    def get_item(self, idx: int) -> Sample:
        """Decode one sample; `idx` is in [0, len).

        Raises:
            FileNotFoundError: The files are not here.
        """
        return self._open().get_item(idx)

    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        """Decode a block of samples; see `ShardReader.take`."""
        return self._open().take(offsets)

    def get_sample_data(self, idx: int) -> bytes:
        """The encoded bytes of one sample."""
        return self._open().get_sample_data(idx)

    def decode_sample(self, data: bytes) -> Sample:
        """Decode the encoded bytes of one sample."""
        return self._open().decode_sample(data)

    def _open(self) -> ShardReader:
        if self._opened is None:
            reader = formats.get(self.info.format).reader
            self._opened = reader(
                self.info, self.paths, allow_unsafe_types=self._allow_unsafe_types
            )
        return self._opened


def to_json(reader: Reader) -> Mapping[str, Any]:
    """The entry that an index has for a shard."""
    info = reader.info
    entry: dict[str, Any] = {
        **info.extra,
        "compression": info.compression,
        "format": info.format,
        "hashes": reader.hashes,
        "samples": info.samples,
        "version": 2,
    }
    for key in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
        file = getattr(reader, key)
        if file is not None:
            entry[key] = {
                "basename": file.basename,
                "bytes": file.bytes,
                "hashes": dict(file.hashes),
            }
    return entry
