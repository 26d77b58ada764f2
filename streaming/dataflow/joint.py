"""Several loaders as one: each batch comes from one of them, the same on all ranks."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from streaming.dataflow.base import Batch, Json
from streaming.dataflow.seeding import hashed_fraction
from streaming.errors import ConfigError, EmptyDatasetError, StateError

__all__ = ["JointCosmosDataLoader", "JointDataflowLoader"]

_RESERVED = "global_id"
_STEP = "step"


class JointDataflowLoader:
    """Draws the loader of each batch by weight. Goes on for ever.

    The draw of a step follows from the seed and the number of the step alone, so all ranks draw
    alike and the number is all the state there is beside the loaders'. Each batch, a dict, gets the
    name of its loader as `dataset_name`. A loader that ends is iterated again.

    Args:
        dataloaders: Name to ``{"dataloader": ..., "ratio": number}``. Entries without a ratio, or
            with one of 0 or less, are left out.
        seed: Seed of the draws.
        rng: "hash" draws independently for each seed. "numpy" draws as NVIDIA's cosmos-framework
            does, where seed + 1 makes the draws of seed, one step later.

    Raises:
        ConfigError: No loader is left, or one has the reserved name "global_id".
    """

    def __init__(
        self,
        dataloaders: Mapping[str, Mapping[str, Any]],
        seed: int = 42,
        *,
        rng: Literal["hash", "numpy"] = "hash",
    ) -> None:
        if rng not in ("hash", "numpy"):
            raise ConfigError(f'`rng` must be "hash" or "numpy", but is {rng!r}.')
        if _RESERVED in dataloaders:
            raise ConfigError(
                f"No loader can be named {_RESERVED!r}: saved states call the number of steps so."
            )
        kept = {name: entry for name, entry in dataloaders.items() if (entry.get("ratio") or 0) > 0}
        if not kept:
            raise ConfigError(
                f"At least one loader needs a ratio above 0; of the {len(dataloaders)} given none "
                f"has."
            )
        self.dataloaders = {name: entry["dataloader"] for name, entry in kept.items()}
        total = sum(entry["ratio"] for entry in kept.values())
        self._names = list(kept)
        self._probs = [entry["ratio"] / total for entry in kept.values()]
        self._seed = seed
        self._rng = rng
        self._global_id = 0
        self._iterators: dict[str, Iterator[Batch]] = {}

    def __iter__(self) -> Iterator[Batch]:
        """Go on with the next step, in loaders that go on where they were."""
        while True:
            name = self.choose(self._global_id)
            batch = self._next(name)
            self._global_id += 1
            yield {**batch, "dataset_name": name} if isinstance(batch, dict) else batch

    def choose(self, step: int) -> str:
        """The name of the loader that makes the batch of a step."""
        if self._rng == "numpy":
            import numpy as np

            draw = np.random.RandomState(self._seed + step)
            return self._names[int(draw.choice(len(self._names), p=self._probs))]
        left = hashed_fraction("joint", self._seed, step)
        for name, share in zip(self._names, self._probs, strict=True):
            left -= share
            if left < 0:
                return name
        return self._names[-1]

    def set_start_iteration(self, iteration: int) -> None:
        """Let the next batch be that of a step."""
        self._global_id = iteration

    def state_dict(self) -> dict[str, Json]:
        """The number of steps, and the place of each loader that can tell it, under its name."""
        inner = {
            name: loader.state_dict()
            for name, loader in self.dataloaders.items()
            if hasattr(loader, "state_dict")
        }
        return {_STEP: self._global_id, "loaders": inner}

    def load_state_dict(self, state: Mapping[str, Json]) -> None:
        """Go on from a place, at the next iteration.

        Raises:
            StateError: It lacks a loader, or has one that is not here.
        """
        able = {name for name, loader in self.dataloaders.items() if hasattr(loader, "state_dict")}
        if not isinstance(state, Mapping) or type(state.get(_STEP)) is not int:
            raise StateError(
                f"The state of a joint loader is a dict with the number of steps, {_STEP!r}, but "
                f"this is {state!r:.100}."
            )
        inner = state.get("loaders")
        if not isinstance(inner, Mapping) or inner.keys() != able:
            names = sorted(map(str, inner)) if isinstance(inner, Mapping) else ()
            raise StateError(
                f"The state is of loaders {', '.join(names) or 'of no name'}; here "
                f"there are {', '.join(sorted(able)) or 'none'}."
            )
        for name in able:
            self.dataloaders[name].load_state_dict(inner[name])
        self._global_id = state[_STEP]
        self._iterators = {}

    def _next(self, name: str) -> Batch:
        for _ in range(2):  # The end of a loader is the beginning of its next iteration.
            if name not in self._iterators:
                self._iterators[name] = iter(self.dataloaders[name])
            try:
                return next(self._iterators[name])
            except StopIteration:
                del self._iterators[name]
        raise EmptyDatasetError(f"The loader {name!r} ended twice in a row without a batch.")


class JointCosmosDataLoader(JointDataflowLoader):
    """The same with the draws, and the name, of NVIDIA's cosmos-framework."""

    def __init__(self, dataloaders: Mapping[str, Mapping[str, Any]], seed: int = 42) -> None:
        super().__init__(dataloaders, seed, rng="numpy")
