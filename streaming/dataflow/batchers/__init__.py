"""Batchers: which samples go together."""

from streaming.dataflow.batchers.bestfit import BestFitBatcher
from streaming.dataflow.batchers.bucket import BucketBatcher
from streaming.dataflow.batchers.concat import ConcatBatcher
from streaming.dataflow.batchers.packing import Budget, PackingBatcher
from streaming.dataflow.batchers.planned import PlannedBatcher
from streaming.dataflow.batchers.pool import PoolPackingBatcher
from streaming.dataflow.batchers.pooled import Pool, PoolBatcher
from streaming.dataflow.batchers.sequential import SequentialPackingBatcher
from streaming.dataflow.batchers.simple import SimpleBatcher
from streaming.dataflow.batchers.sizes import VisionTokens
from streaming.dataflow.batchers.window import WindowBatcher

__all__ = [
    "BestFitBatcher",
    "BucketBatcher",
    "Budget",
    "ConcatBatcher",
    "PackingBatcher",
    "PlannedBatcher",
    "Pool",
    "PoolBatcher",
    "PoolPackingBatcher",
    "SequentialPackingBatcher",
    "SimpleBatcher",
    "VisionTokens",
    "WindowBatcher",
]
