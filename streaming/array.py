"""numpy-style indexing for anything that has a size and gives items one by one."""

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from streaming.errors import ConfigError

__all__ = ["Array"]


class Array:
    """Base of readers and datasets: a subclass gives `size` and `get_item`."""

    @property
    def size(self) -> int:
        """Number of items."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def get_item(self, idx: int) -> Any:
        """Get one item; `idx` is in [0, size)."""
        raise NotImplementedError

    def __getitem__(self, at: Any) -> Any:
        """Get an item, or a list of items.

        Args:
            at: A whole number (negative counts from the end), a slice, or any nesting of lists and
                numpy arrays of those; an array of bools is a mask.

        Raises:
            IndexError: A number is out of range, or a mask has another length than the array.
            ConfigError: Not an index at all.
        """
        if type(at) is int and 0 <= at < self.size:  # Nearly always: nothing else need be asked.
            return self.get_item(at)
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.size))]
        if isinstance(at, np.ndarray) and at.ndim:
            if at.dtype == np.bool_:
                if at.shape != (self.size,):
                    raise IndexError(f"A mask of shape {at.shape} can't index {self.size} items.")
                at = np.flatnonzero(at)
            return [self[i] for i in at]
        if isinstance(at, list):
            return [self[i] for i in at]
        try:
            index = operator.index(at)
        except TypeError:
            raise ConfigError(
                f"An index is a whole number, a slice, a list or an array, but not {at!r}."
            ) from None
        if not -self.size <= index < self.size:
            raise IndexError(f"Index {index} is not in [-{self.size}, {self.size}).")
        return self.get_item(index + self.size if index < 0 else index)

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.size):
            yield self[index]
