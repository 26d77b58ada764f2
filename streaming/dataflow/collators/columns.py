"""Columns of samples as arrays, where that is possible. Without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_array", "stack"]


def as_array(value: Any) -> NDArray[Any]:
    """A sequence of numbers as an array: a list, an array, or a tensor on the CPU."""
    return np.asarray(value)


def stack(values: Sequence[Any]) -> Any:
    """One value a sample as one array: numbers, and arrays of one shape. Others stay a list."""
    if all(isinstance(value, int | float | np.generic) for value in values):
        return np.array(values)
    if all(hasattr(value, "shape") for value in values):
        arrays = [as_array(value) for value in values]
        if len({array.shape for array in arrays}) == 1:
            return np.stack(arrays)
    return list(values)
