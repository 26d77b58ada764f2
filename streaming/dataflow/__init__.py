"""The dataflow rail: any dataset into training by four small roles that can be swapped.

    DataDistributor -> RawItemProcessor -> SampleBatcher -> BatchCollator -> batches

All names load on first use (PEP 562). The loader, and the collators that stack tensors, need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming.errors import MissingExtraError

if TYPE_CHECKING:
    from streaming.dataflow.base import (
        BatchCollator,
        Cursor,
        DataDistributor,
        Group,
        RawItemProcessor,
        SampleBatcher,
        SkipItem,
        StreamPlan,
        Token,
    )
    from streaming.dataflow.batchers import (
        BestFitBatcher,
        BucketBatcher,
        Budget,
        ConcatBatcher,
        PackingBatcher,
        PlannedBatcher,
        Pool,
        PoolBatcher,
        PoolPackingBatcher,
        SequentialPackingBatcher,
        SimpleBatcher,
        VisionTokens,
        WindowBatcher,
    )
    from streaming.dataflow.callback import (
        CosmosDataLoaderStateCallback,
        JointCosmosDataLoaderStateCallback,
    )
    from streaming.dataflow.collators import (
        DefaultBatchCollator,
        PackedRowCollator,
        PaddedRowsCollator,
        VFMListCollator,
    )
    from streaming.dataflow.distributors import (
        IterableDistributor,
        MapDistributor,
        MixtureDistributor,
        RankPartitionedDistributor,
        StreamingDistributor,
    )
    from streaming.dataflow.joint import (
        JointCosmosDataLoader,
        JointDataflowLoader,
    )
    from streaming.dataflow.loader import (
        CosmosDataLoader,
        DataflowLoader,
    )
    from streaming.dataflow.processors import (
        Chain,
        ChatProcessor,
        ExpandProcessor,
        FilterProcessor,
        IdentityProcessor,
        ImageProcessor,
        MapProcessor,
        TextProcessor,
        VideoProcessor,
    )
    from streaming.dataflow.state import (
        merge_states,
    )

__all__ = [
    "BatchCollator",
    "BestFitBatcher",
    "BucketBatcher",
    "Budget",
    "Chain",
    "ChatProcessor",
    "ConcatBatcher",
    "CosmosDataLoader",
    "CosmosDataLoaderStateCallback",
    "Cursor",
    "DataDistributor",
    "DataflowLoader",
    "DefaultBatchCollator",
    "ExpandProcessor",
    "FilterProcessor",
    "Group",
    "IdentityProcessor",
    "ImageProcessor",
    "IterableDistributor",
    "JointCosmosDataLoader",
    "JointCosmosDataLoaderStateCallback",
    "JointDataflowLoader",
    "MapDistributor",
    "MapProcessor",
    "MixtureDistributor",
    "PackedRowCollator",
    "PackingBatcher",
    "PaddedRowsCollator",
    "PlannedBatcher",
    "Pool",
    "PoolBatcher",
    "PoolPackingBatcher",
    "RankPartitionedDistributor",
    "RawItemProcessor",
    "SampleBatcher",
    "SequentialPackingBatcher",
    "SimpleBatcher",
    "SkipItem",
    "StreamPlan",
    "StreamingDistributor",
    "TextProcessor",
    "Token",
    "VFMListCollator",
    "VideoProcessor",
    "VisionTokens",
    "WindowBatcher",
    "merge_states",
]

_HOMES = {
    "base": """
        BatchCollator Cursor DataDistributor Group RawItemProcessor SampleBatcher SkipItem
        StreamPlan Token
    """,
    "batchers": """
        BestFitBatcher BucketBatcher Budget ConcatBatcher PackingBatcher PlannedBatcher Pool
        PoolBatcher PoolPackingBatcher SequentialPackingBatcher SimpleBatcher VisionTokens
        WindowBatcher
    """,
    "callback": """
        CosmosDataLoaderStateCallback JointCosmosDataLoaderStateCallback
    """,
    "collators": """
        DefaultBatchCollator PackedRowCollator PaddedRowsCollator VFMListCollator
    """,
    "distributors": """
        IterableDistributor MapDistributor MixtureDistributor RankPartitionedDistributor
        StreamingDistributor
    """,
    "joint": """
        JointCosmosDataLoader JointDataflowLoader
    """,
    "loader": """
        CosmosDataLoader DataflowLoader
    """,
    "processors": """
        Chain ChatProcessor ExpandProcessor FilterProcessor IdentityProcessor ImageProcessor
        MapProcessor TextProcessor VideoProcessor
    """,
    "state": """
        merge_states
    """,
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for.

    Raises:
        MissingExtraError: The name needs torch, which is not installed.
    """
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingExtraError(
            f"`{__name__}.{name}` needs the package 'torch', which is not installed. "
            f'Install it with: pip install "goldenspike[torch]"'
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
