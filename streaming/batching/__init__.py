"""Batching methods: how streams share the batches of an epoch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from streaming.batching.arrangement import Arrangement, Source
from streaming.batching.work import Dataset, generate
from streaming.idmap import Ids
from streaming.sampling import Share
from streaming.util.importing import Registry
from streaming.world import World

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["Arrangement", "Batching", "Source", "batching_methods", "batchings", "generate_work"]


class Batching(Protocol):
    """Lays out an epoch without shuffling it; `spec` has no open defaults, `world` is parallel."""

    def __call__(
        self, spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
    ) -> Arrangement: ...


batchings: Registry[Batching] = Registry(
    "batching method",
    {
        "device_per_stream": "streaming.batching.device_per_stream:arrange",
        "per_stream": "streaming.batching.per_stream:arrange",
        "random": "streaming.batching.random:arrange",
        "stratified": "streaming.batching.stratified:arrange",
    },
    group="streaming.batchings",
)
batching_methods = batchings.table
"""The old name."""


def generate_work(
    batching_method: str, dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch of work as an array. Plans don't need it: this is for old code and tests.

    Args:
        batching_method: Name of the batching method.
        dataset: Gives the settings, shards and weights.
        world: The parallel world; which worker it is does not matter.
        epoch: Number of the epoch.
        sample_in_epoch: Samples of it that were given out before, by all ranks together.

    Returns:
        Sample ids, -1 for padding, shape (nodes, ranks, workers, batches, batch size).

    Raises:
        UnknownNameError: There is no such method.
        ConfigError: The numbers don't fit each other, or a setting is still open.
        StateError: `sample_in_epoch` is behind the end of the epoch.
    """
    return generate(batching_method, dataset, world, epoch, sample_in_epoch)
