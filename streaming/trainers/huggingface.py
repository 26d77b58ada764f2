"""The state of a loader in the checkpoints of Hugging Face's Trainer."""

from typing import TYPE_CHECKING, Any

from streaming.errors import ConfigError
from streaming.util.importing import lazy

if TYPE_CHECKING:  # transformers need not be there to check types, and is untyped here.

    class TrainerCallback: ...

    class ExportableState: ...
else:
    lazy("transformers", "transformers")
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

__all__ = ["LoaderState"]


class LoaderState(TrainerCallback, ExportableState):
    """Keeps the place of the training loader in `trainer_state.json`, and goes on from there.

    The Trainer itself would begin the epoch anew and read what it has seen once more, to skip it.
    Give it the settings that leave this to us::

        TrainingArguments(
            ignore_data_skip=True, restore_callback_states_from_checkpoint=True, ...
        )

    and let its `get_train_dataloader` return a StreamingDataLoader.

    Args:
        loader_state: For the Trainer, which makes the callback of a checkpoint itself.
    """

    def __init__(self, loader_state: dict[str, Any] | None = None) -> None:
        self._loaded = loader_state
        self._loader: Any = None

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take over the loader, and bring it to where the checkpoint was."""
        if not hasattr(train_dataloader, "load_state_dict"):
            raise ConfigError(
                f"The Trainer's loader is a {type(train_dataloader).__name__}, which has no state. "
                f"Let its `get_train_dataloader` return a StreamingDataLoader."
            )
        self._loader = train_dataloader
        if self._loaded is not None:
            if not args.ignore_data_skip:
                raise ConfigError(
                    "The loader goes on where it was. Set `ignore_data_skip=True` in "
                    "TrainingArguments, or the Trainer would skip as many batches once more."
                )
            self._loader.load_state_dict(self._loaded)
            self._loaded = None

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into its checkpoints."""
        found = self._loaded if self._loader is None else self._loader.state_dict()
        return {"args": {"loader_state": found}, "attributes": {}}
