"""The reading seam: random access to the samples of one whole, raw, local shard."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.array import Array
from streaming.errors import CacheError, ConfigError
from streaming.format.column import Column, Pieces, Stack
from streaming.format.index import ShardInfo

if TYPE_CHECKING:
    from streaming.format.lazy import Reader

__all__ = ["Column", "LostIndexError", "Remote", "Sample", "ShardReader", "lost_index"]

Sample = dict[str, Any]


_BLOCK = 256  # samples that iteration decodes at once


class LostIndexError(CacheError):
    """What was made with the index is gone while shards are read."""


def lost_index(path: str | os.PathLike[str]) -> LostIndexError:
    """The error for a file that was made with the index, and is gone while shards are read."""
    return LostIndexError(
        f"{os.fspath(path)} is gone, which was made when the data were indexed. Something has "
        "removed or moved the cache under this run, and only a new dataset makes it anew: start "
        "again, from the last checkpoint if there is one, and leave a cache alone while it is "
        "used. `streaming cache DIR` names the users of one."
    )


class Remote(Protocol):
    """Where shards are that are read from afar."""

    @property
    def root(self) -> str:
        """URL or path of the directory that they are in."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """How to reach it; see `StoreOptions`."""
        ...


class ShardReader(Array, ABC):
    """Random access to the samples of one shard. Opens its files once and maps them.

    Made in the process that reads; never pickled. Threads may share it. What it gives stays good
    after `close` and after the files are unlinked. Bytes of a shard are data from outside: whatever
    they are, only errors of this library come out, and nothing larger than the files is allocated.

    Args:
        info: What the index says of the shard.
        paths: Its raw files, in the order of `info.files`.
        columns: Give only these; None gives all.
        allow_unsafe_types: Decode columns whose decoding runs code from the data.

    Raises:
        FileNotFoundError: A file is missing.
        ShardCorruptError: The files aren't what `info` promises.
        UnsafeTypeError: A column would run code, and that was not allowed.

    Attributes:
        reads_once: Whether `take` and `take_columns` give only what follows what they gave before,
            in order. Asked for anything else, such a reader raises MissingFileError.
    """

    reads_once: ClassVar[bool] = False

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        self.check_types(info, allow_unsafe_types, columns)
        self.info = info
        self.paths = tuple(paths)

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        """Check the columns of a shard by what its index says, without opening it.

        Raises:
            IndexFormatError: The index contradicts itself.
            UnknownNameError: A column has an encoding that is not registered, or isn't there.
            UnsafeTypeError: A column would run code, and that was not allowed.
        """

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: Mapping[str, Any]) -> "Reader":
        """Describe a shard by its entry in an index; see `reader_from_json`."""
        from streaming.format import reader_from_json

        return reader_from_json(dirname, split, obj)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.info.samples

    @property
    def mean_bytes(self) -> int:
        """Bytes of a sample, if the index could only estimate them; else 0."""
        return 0

    @property
    def samples(self) -> int:
        """Number of samples (the predecessor's name)."""
        return self.info.samples

    def use_decoders(self, decoders: Mapping[str, Callable[[bytes], Any]]) -> None:
        """Decode columns by functions of one's own, from the bytes of a value as it is stored.

        Called before anything is read.

        Args:
            decoders: Column to function.

        Raises:
            ConfigError: The format does not store values as bytes.
            UnknownNameError: There is no such column.
        """
        if decoders:
            raise ConfigError(
                f"`decoders` can't be used: the format {self.info.format!r} does not store each "
                "value as bytes."
            )

    @abstractmethod
    def take(self, offsets: NDArray[np.int64]) -> list[Sample]:
        """Decode a block of samples.

        Args:
            offsets: Places in the shard, in [0, len), in any order, repeats allowed, shape (n,).

        Returns:
            One dict a sample, in the order asked.

        Raises:
            IndexError: A place is not in the shard.
            ShardCorruptError: The bytes of a sample don't fit together.
            SampleError: A value can't be decoded. Both name file, sample and column.
        """

    @abstractmethod
    def take_columns(self, offsets: NDArray[np.int64]) -> Mapping[str, Column]:
        """Decode a block of samples column by column; arguments and errors as for `take`.

        Returns:
            Numbers and arrays of one shape as an array with a row per sample, texts and bytes as
            BytesColumn, anything else as a list.
        """

    def take_parts(self, offsets: NDArray[np.int64]) -> Mapping[str, Column | Pieces]:
        """As `take_columns`, but large arrays may stay where they are until all is put together."""
        return self.take_columns(offsets)

    def take_stacked(self, offsets: NDArray[np.int64]) -> Mapping[str, Stack] | None:
        """A block of samples as torch's default collate would see them, column by column.

        Returns:
            An array, or Pieces, where the collate would make one tensor of the values of `take`, of
            the same type and shape; else the list of these values. None if a format can't tell.
        """
        return None

    @property
    def group(self) -> Hashable:
        """Shards whose readers have the same group are read by one `take_group`; None: alone.

        For formats in which it is faster to put values in order before samples are made of them, or
        of which a call costs much.
        """
        return None

    @classmethod
    def take_group(
        cls,
        parts: "Sequence[tuple[ShardReader, NDArray[np.int64]]]",
        places: "NDArray[np.int64] | None",
        method: Literal["take", "take_columns"],
    ) -> Any:
        """Decode samples of several shards of a group.

        Args:
            parts: Readers, and offsets as for `take`; each of one at least.
            places: Where each of their samples, one part after another, belongs; a permutation.
                None: in that order.
            method: What to give.

        Returns:
            What the method gives, of all of them.
        """
        raise NotImplementedError

    def reopen(self) -> None:
        """Look at the files anew: some were not there, and may have been brought since."""

    @abstractmethod
    def get_item(self, idx: int) -> Sample:
        """Decode one sample; `idx` is in [0, len). Errors as for `take`."""

    def getter(self) -> Callable[[int], Sample]:
        """What `get_item` does for a place that is known to be there, in fewer steps.

        Made when all is set up. If it raises anything at all, `get_item` says what is wrong.
        """
        return self.get_item

    @abstractmethod
    def read_raw(self, index: int) -> memoryview:
        """The encoded bytes of one sample, without a copy."""

    @abstractmethod
    def decode_sample(self, data: bytes) -> Sample:
        """Decode the encoded bytes of one sample.

        Raises:
            SampleError: The bytes aren't a sample of this shard's columns.
        """

    def get_sample_data(self, idx: int) -> bytes:
        """The encoded bytes of one sample."""
        return bytes(self.read_raw(idx))

    @abstractmethod
    def close(self) -> None:
        """Let go of the files. Samples given out stay good; the reader is of no more use."""

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), _BLOCK):
            yield from self.take(np.arange(start, min(start + _BLOCK, len(self))))

    def _place(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Check places in the shard."""
        places = np.asarray(offsets, np.int64)
        if places.size and not (places.min() >= 0 and places.max() < len(self)):
            raise IndexError(
                f"Samples {places.min()} to {places.max()} were asked of {self.paths[-1]}, "
                f"which has {len(self)}."
            )
        return places
