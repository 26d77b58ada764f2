"""Collators: the shape that the model wants. Those that need torch load on first use (PEP 562)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming.dataflow.collators.packed import PackedRowCollator
from streaming.dataflow.collators.padded import PaddedRowsCollator

if TYPE_CHECKING:
    from streaming.dataflow.collators.default import DefaultBatchCollator
    from streaming.dataflow.collators.vfm import VFMListCollator

__all__ = ["DefaultBatchCollator", "PackedRowCollator", "PaddedRowsCollator", "VFMListCollator"]

_HOMES = {
    "DefaultBatchCollator": "streaming.dataflow.collators.default",
    "VFMListCollator": "streaming.dataflow.collators.vfm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
