"""Loaders of others that would deal samples out a second time: found, and refused."""

import sys
from types import FrameType

from streaming.errors import ConfigError
from streaming.world import World

__all__ = ["refuse_accelerate", "refuse_preparation"]

_LOADER = "accelerate.data_loader"
_WAY_OUT = (
    "A StreamingDataset already gives each of the {ranks} ranks its own samples; Accelerate would "
    "divide those once more, and most of the data would never be seen. Do not `prepare` the "
    "loader. Iterate a StreamingDataLoader as it is, move its batches to `accelerator.device`, and "
    "for checkpoints call `accelerator.register_for_checkpointing(loader)`. In a Hugging Face "
    "Trainer, let `get_train_dataloader` return it. See docs/migrating.md."
)


def refuse_accelerate(world: World) -> None:
    """Make sure that it is not one of Accelerate's loaders that asks for samples.

    Looks at who called: Accelerate wraps a torch loader, or the dataset, and tells neither.

    Args:
        world: The parallel world. With one rank (all may be replicas of one) nothing is wrong.

    Raises:
        ConfigError: It is.
    """
    if world.num_ranks == 1 or _LOADER not in sys.modules:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _LOADER:
            raise ConfigError(_WAY_OUT.format(ranks=world.num_ranks))
        frame = frame.f_back


def refuse_preparation(world: World) -> None:
    """Refuse to be prepared by Accelerate, for a loader that is asked whether it was already.

    Args:
        world: The parallel world of its dataset.

    Raises:
        ConfigError: There is more than one rank.
    """
    if world.num_ranks > 1:
        raise ConfigError(_WAY_OUT.format(ranks=world.num_ranks))
