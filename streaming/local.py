"""A finished dataset in a local directory, map-style."""

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from streaming.access import ShardList
from streaming.array import Array
from streaming.format.column import Column
from streaming.format.reader import Sample
from streaming.format.tables import VersionLike
from streaming.runtime import PerProcess, Runtime, checked_ids
from streaming.stream import Stream
from streaming.util.checking import check_text

__all__ = ["LocalDataset"]


class LocalDataset(Array, Dataset[Sample]):
    """Samples of a directory that holds all its shards, raw or compressed, at random.

    Compressed shards are decompressed beside their files when they are first read. Picklable; every
    process opens what it needs.

    Args:
        local: The directory.
        split: Sub-directory of it, such as "train".
        allow_unsafe_types: Allow columns whose decoding runs code that the data holds (pickle).
        decoders: Column to function: it makes the value of the stored bytes, in place of the
            column's encoding. `ImageToArray`, for one. It must pickle if workers do.
        format: Name of the format of data without an index, as for a Stream; so are the next three.
        columns: Names of the columns that samples shall have.
        format_options: More about data without an index.
        version: Version of a table.

    Raises:
        ConfigError: An argument can't be meant as it is.
        EmptyDatasetError: There are no samples.
        IndexFormatError: The index is broken.
        MissingFileError: There is no index.
        UnsafeTypeError: A column would run code, and `allow_unsafe_types` is not set.
    """

    def __init__(
        self,
        local: str | os.PathLike[str],
        split: str | None = None,
        *,
        allow_unsafe_types: bool = False,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        format: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        format_options: Mapping[str, Any] | None = None,
        version: VersionLike | None = None,
    ) -> None:
        stream = Stream(
            local=check_text("local", local, "a path"),
            split=split,
            format=format,
            columns=columns,
            format_options=format_options,
            version=version,
        )
        stream.apply_default({})
        self.local, self.split = stream.local, stream.split
        part = stream.open(allow_unsafe_types=allow_unsafe_types)
        self.num_samples = part.index.samples
        self.shards = ShardList([part], allow_unsafe_types=allow_unsafe_types)
        # Not a method of ours: a cycle of references would keep files until the next collection.
        self._runtime = PerProcess(
            partial(
                Runtime,
                [part],
                part.index.table.samples,
                allow_unsafe_types=allow_unsafe_types,
                decoders=decoders,
            )
        )

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.num_samples

    def get_item(self, sample_id: int) -> Sample:
        """Get one sample; `sample_id` is in [0, size)."""
        runtime = self._runtime.value or self._runtime.get()
        return runtime.get(operator.index(sample_id))

    def __getitems__(self, sample_ids: Sequence[int]) -> list[Any]:
        """Get a batch of samples at once. A DataLoader calls this where there is one.

        Raises:
            IndexError: A sample is out of range.
        """
        if type(self).get_item is not LocalDataset.get_item:
            return [self[sample_id] for sample_id in sample_ids]
        return self._runtime.get().take(checked_ids(sample_ids, self.size))

    def take_columns(self, sample_ids: Sequence[int] | NDArray[np.int64]) -> dict[str, Column]:
        """Get many samples by columns, as `StreamingDataset.take_columns` does."""
        return self._runtime.get().take_columns(checked_ids(sample_ids, self.size))
