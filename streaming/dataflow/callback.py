"""States of the kind that NVIDIA's cosmos-framework saves, for runs that began with it.

A new run needs none of this: `DataflowLoader.state_dict` holds the whole place.
"""

import os
from collections.abc import Mapping
from typing import Any

from streaming.dataflow.base import Batch, Json
from streaming.errors import StateError

__all__ = [
    "CosmosDataLoaderStateCallback",
    "JointCosmosDataLoaderStateCallback",
    "worker_variable",
]


class CosmosDataLoaderStateCallback:
    """Keeps how far each worker is, by the stamps in batches (`stamp=True` of the loader).

    `state_dict` and `load_state_dict` are what a checkpoint calls. Loading sets the environment
    variables that `MapDistributor.stream` begins from.

    Args:
        name: Name of the distributor whose place it is.
        distributor_type: Has no effect; the predecessor takes it as well.
    """

    def __init__(self, name: str = "", distributor_type: Any = None) -> None:
        self.name = name
        self._places: dict[int, tuple[int, int]] = {}

    def update(self, batch: Batch) -> None:
        """Note a batch that was trained on. One without stamps changes nothing."""
        names = ("sample_worker_id", "sample_epoch", "sample_index")
        if not isinstance(batch, Mapping) or any(name not in batch for name in names):
            return
        for worker, epoch, index in zip(*(map(int, batch[name]) for name in names), strict=True):
            self._places[worker] = max(self._places.get(worker, (-1, -1)), (epoch, index))

    def state_dict(self) -> dict[str, Json]:
        """Epoch and index of the last sample of each worker."""
        return {
            str(worker): {"epoch": epoch, "index": index}
            for worker, (epoch, index) in self._places.items()
        }

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Let the next streams begin behind a place.

        Raises:
            StateError: It is no such state.
        """
        try:
            self._places = {
                int(worker): (int(place["epoch"]), int(place["index"]))
                for worker, place in state.items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"A state holds an epoch and an index for each worker, which this one does not: "
                f"{error!r}."
            ) from error
        for worker, (epoch, index) in self._places.items():
            prefix = worker_variable(self.name, worker)
            os.environ[f"{prefix}_EPOCH"] = str(epoch)
            os.environ[f"{prefix}_INDEX"] = str(index)


class JointCosmosDataLoaderStateCallback:
    """The same for the loaders in a joint loader; each one's distributor has the name it has there.

    Args:
        outer_loader: The joint loader.
    """

    def __init__(self, outer_loader: Any) -> None:
        self._loader = outer_loader
        self._callbacks = {
            name: CosmosDataLoaderStateCallback(name) for name in outer_loader._names
        }

    def update(self, batch: Batch) -> None:
        """Note a batch that was trained on."""
        if isinstance(batch, Mapping) and batch.get("dataset_name") in self._callbacks:
            self._callbacks[batch["dataset_name"]].update(batch)

    def state_dict(self) -> dict[str, Json]:
        """The number of steps, and the state of each loader under its name."""
        inner = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        return {"global_id": self._loader._global_id, **inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a place.

        Raises:
            StateError: It lacks the number of steps, or a loader.
        """
        missing = {"global_id", *self._callbacks} - state.keys()
        if missing:
            raise StateError(f"The state of a joint loader lacks {', '.join(sorted(missing))}.")
        self._loader.set_start_iteration(state["global_id"])
        for name, callback in self._callbacks.items():
            callback.load_state_dict(state[name])


def worker_variable(name: str, worker: int) -> str:
    """How the environment variables of a worker's place begin."""
    return "_".join(filter(None, ("COSMOS_DL_STATE", name, "WORKER", str(worker))))
