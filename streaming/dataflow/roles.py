"""The four roles of a loader as one value, and what they can be asked together."""

import multiprocessing
import pickle
from dataclasses import dataclass
from typing import Any

from streaming.dataflow.base import (
    BatchCollator,
    DataDistributor,
    RawItemProcessor,
    SampleBatcher,
)
from streaming.errors import ConfigError

__all__ = ["Roles", "ask", "check_pickle"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """What a loader is made of.

    Attributes:
        distributor: Who gets which items.
        processor: What a sample is made of an item by.
        batcher: Which samples go together.
        collator: The shape of a batch.
        seed: Seed of what is random in processing.
        seed_globals: Whether to seed the global generators before each item is processed.
        stamp: Whether batches tell where their samples come from.
    """

    distributor: DataDistributor
    processor: RawItemProcessor
    batcher: SampleBatcher
    collator: BatchCollator
    seed: int = 0
    seed_globals: bool = False
    stamp: bool = False

    @property
    def resumable(self) -> bool:
        """Whether the place of a stream can be told."""
        return bool(getattr(self.batcher, "resumable", True))


def ask(role: object, method: str, default: Any, *arguments: Any) -> Any:
    """What a method says, of a role that may lack it."""
    found = getattr(role, method, None)
    return default if found is None else found(*arguments)


class _Nowhere:
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)


def check_pickle(roles: Roles, context: Any) -> None:
    """Refuse roles that can't be sent to workers which don't begin as a copy of this process."""
    if context is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        method = chosen or multiprocessing.get_all_start_methods()[0]
    else:
        method = context if isinstance(context, str) else context.get_start_method()
    if method == "fork":
        return
    for name in ("distributor", "processor", "batcher", "collator"):
        role = getattr(roles, name)
        try:
            pickle.Pickler(_Nowhere()).dump(role)
        except Exception as error:
            raise ConfigError(
                f"The {name} ({type(role).__name__}) can't be pickled, which workers started by "
                f"{method!r} need: {type(error).__name__}: {error}. Take functions that have a "
                f"name of a module, not lambdas, and open files in the worker."
            ) from error
