"""From a sample id to the shard that holds it."""

import operator
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError

__all__ = ["Spanner"]

# Bounds that are held as Python numbers too, at 40 bytes each: a look-up is three times as fast.
_MOST_LISTED = 1 << 16


class Spanner:
    """Finds the shard of a sample, and the place in it, by binary search.

    Immutable, so threads may share it. Holds 8 bytes a shard.

    Args:
        shard_sizes: Samples of each shard; empty shards are allowed.
        span_size: Unused; old code passes it.

    Raises:
        ConfigError: There are 2^63 samples or more.
    """

    def __init__(
        self, shard_sizes: NDArray[np.int64] | Sequence[int], span_size: int = 1 << 10
    ) -> None:
        # In float64, which does not wrap around.
        if (total := float(np.sum(shard_sizes, dtype=np.float64))) >= 2.0**63:
            raise ConfigError(f"Shards of {total:g} samples in all are over 2^63: ids are int64.")
        self._bounds = np.zeros(len(shard_sizes) + 1, np.int64)
        np.cumsum(shard_sizes, out=self._bounds[1:])
        self._size = int(self._bounds[-1])
        # For one id at a time: numpy's calls take longer than the search itself.
        is_short = len(self._bounds) <= _MOST_LISTED
        self._scalars: Any = self._bounds.tolist() if is_short else self._bounds

    @property
    def size(self) -> int:
        """Samples of all shards."""
        return self._size

    @property
    def bounds(self) -> Sequence[int]:
        """First sample of each shard, and the total, for `bisect`."""
        return self._scalars  # type: ignore[no-any-return]

    def __call__(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find shards and offsets of many samples.

        Args:
            ids: Sample ids, any shape. -1 is padding and gives (-1, -1).

        Returns:
            Shard ids and offsets in the shard, each of the shape of `ids`.

        Raises:
            IndexError: An id is not below the total.
        """
        only = self.only(ids)
        if only is not None:  # As in a sequential pass: no search is needed.
            return np.full(ids.shape, only[0], np.int64), ids - only[1]
        shard = np.searchsorted(self._bounds, ids, "right") - 1
        offset = np.where(ids < 0, -1, ids - self._bounds[np.maximum(shard, 0)])
        return shard, offset

    def only(self, ids: NDArray[np.int64]) -> tuple[int, int] | None:
        """The shard that holds all of some samples, and its first sample; None: there are several.

        Args:
            ids: Sample ids, any shape; with padding they are not all in one.

        Raises:
            IndexError: An id is not below the total.
        """
        low, high = (int(ids.min()), int(ids.max())) if ids.size else (-1, -1)
        if high >= self.size:
            raise IndexError(f"Sample {high} is not in a dataset of {self.size} samples.")
        if low < 0:
            return None
        shard, place = self[low]
        return (shard, low - place) if high < self._bounds[shard + 1] else None

    def shards(self, ids: NDArray[np.int64]) -> list[int]:
        """The distinct shards of some samples, ascending; ids without padding, shape (n,)."""
        return [shard for shard, *_ in self.runs(np.sort(ids))]

    def in_turn(self, ids: NDArray[np.int64]) -> list[int]:
        """The distinct shards of some samples, in order of first use.

        Args:
            ids: Sample ids, shape (n,). -1 is padding.

        Raises:
            IndexError: An id is not below the total.
        """
        if len(ids) and ids[0] >= 0 and bool((ids[1:] >= ids[:-1]).all()):
            return [shard for shard, *_ in self.runs(ids)]
        shards = self(ids)[0]
        shards = shards[shards >= 0]
        low, high = int(shards.min(initial=0)), int(shards.max(initial=-1))
        if high - low >= 4 * len(shards):  # To sort them takes less than a table of all.
            distinct, first = np.unique(shards, return_index=True)
        else:
            places = np.full(high - low + 1, -1)
            # Backwards, for the first is to stay of those that are written to one place.
            places[shards[::-1] - low] = np.arange(len(shards) - 1, -1, -1)
            distinct = np.flatnonzero(places >= 0)
            first, distinct = places[distinct], distinct + low
        found: list[int] = distinct[np.argsort(first)].tolist()
        return found

    def split(self, ids: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """The shards of samples that are given as for `runs`, and their offsets in each."""
        return [(i, ids[a:b] - self._bounds[i]) for i, a, b in self.runs(ids)]

    def runs(self, ids: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Which of some samples are in which shard.

        Args:
            ids: Sample ids, ascending, without padding, shape (n,).

        Returns:
            For each shard that has any of them: the shard, the first of their places, and the end.

        Raises:
            IndexError: An id is not below the total.
        """
        if not len(ids):
            return []
        if ids[-1] >= self.size:
            raise IndexError(f"Sample {ids[-1]} is not in a dataset of {self.size} samples.")
        if len(self._bounds) <= len(ids):
            ends = np.searchsorted(ids, self._bounds)
            shards = np.flatnonzero(ends[1:] > ends[:-1])
            starts, stops = ends[shards], ends[shards + 1]
        else:
            each = np.searchsorted(self._bounds, ids, "right") - 1
            starts = np.flatnonzero(np.diff(each, prepend=-1))
            shards, stops = each[starts], np.append(starts[1:], len(ids))
        return list(zip(shards.tolist(), starts.tolist(), stops.tolist(), strict=True))

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Find the shard of one sample, and the place in it.

        Raises:
            IndexError: `index` is not in [0, size).
        """
        if type(index) is not int:
            index = operator.index(index)
        if not 0 <= index < self._size:
            raise IndexError(f"Sample {index} is not in [0, {self._size}).")
        bounds = self._scalars
        shard = bisect_right(bounds, index) - 1
        return shard, index - int(bounds[shard])
