"""Shards as columns: all that ordering and caching need to know of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ShardTable"]


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One row per shard, 28 bytes each.

    Attributes:
        samples: Samples in the shard.
        raw_bytes: Bytes of its files as they are read, all of them together.
        zip_bytes: Bytes of its files as they are fetched if compressed; 0 if they are not.
        stream: The stream it belongs to.
    """

    samples: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    zip_bytes: NDArray[np.int64]
    stream: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.samples)

    @staticmethod
    def concatenate(tables: Sequence["ShardTable"]) -> "ShardTable":
        """Put the shards of several streams one after another; stream i is the i-th table."""
        streams = [np.full(len(table), i, np.int32) for i, table in enumerate(tables)]
        return ShardTable(
            samples=np.concatenate([table.samples for table in tables]),
            raw_bytes=np.concatenate([table.raw_bytes for table in tables]),
            zip_bytes=np.concatenate([table.zip_bytes for table in tables]),
            stream=np.concatenate(streams),
        )
