"""torch's default: stacks what can be stacked."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from streaming.dataflow.base import Batch, BatchCollator, Sample

__all__ = ["DefaultBatchCollator"]

# Numbers of Python, and the arrays that become the tensors torch makes of them.
_NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64)}


class DefaultBatchCollator(BatchCollator):
    """Collates as torch's `default_collate` does, with the same errors.

    Columns of plain numbers and texts of dicts take a shorter way to the same result.
    """

    leaves_no_arrays = True  # A loader has nothing to make tensors of.

    def collate(self, samples: list[Sample]) -> Batch:
        first = samples[0]
        if type(first) is not dict:
            return default_collate(list(samples))
        return {key: _collate([sample[key] for sample in samples]) for key in first}


def _collate(values: list[Any]) -> Any:
    """One column of a batch."""
    kind = type(values[0])
    if kind is str:
        return values
    if kind in _NUMBERS:
        try:
            array = np.array(values)
        except ValueError:  # Numbers and sequences mixed: torch has its own words for it.
            return default_collate(values)
        if array.dtype == _NUMBERS[kind] and array.ndim == 1:
            return torch.from_numpy(array)
    return default_collate(values)
