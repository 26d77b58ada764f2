"""Distributors: who gets which items, in which order."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming.dataflow.distributors.iterable import IterableDistributor
from streaming.dataflow.distributors.map import MapDistributor
from streaming.dataflow.distributors.mixture import MixtureDistributor
from streaming.dataflow.distributors.ranked import RankPartitionedDistributor

if TYPE_CHECKING:
    from streaming.dataflow.distributors.streaming import StreamingDistributor

__all__ = [
    "IterableDistributor",
    "MapDistributor",
    "MixtureDistributor",
    "RankPartitionedDistributor",
    "StreamingDistributor",
]


def __getattr__(name: str) -> Any:
    """Load what needs the datasets of this library only when it is asked for (PEP 562)."""
    if name != "StreamingDistributor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("streaming.dataflow.distributors.streaming").StreamingDistributor
