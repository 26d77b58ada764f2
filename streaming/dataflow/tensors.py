"""Numpy arrays and numbers in a batch as tensors, as a DataLoader of torch makes them."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch.utils.data import default_convert

from streaming.dataflow.base import Batch

__all__ = ["with_tensors"]

_convert_all: Callable[[Any], Any] = default_convert
# What that leaves as it is.
_PLAIN = {torch.Tensor, str, bytes, int, float, bool, type(None)}


def with_tensors(batch: Batch) -> Batch:
    """Convert a batch; what there is nothing to do with is given back as it is."""
    if type(batch) is not dict:
        return batch if _is_plain(batch) else _convert_all(batch)
    return {key: value if _is_plain(value) else _convert_all(value) for key, value in batch.items()}


def _is_plain(value: Any) -> bool:
    """Whether it is seen at once that there is nothing to convert."""
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))
        if kinds == {dict}:
            kinds = set(map(type, chain.from_iterable(map(dict.values, value))))
        return kinds <= _PLAIN
    return type(value) in _PLAIN
