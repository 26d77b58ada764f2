"""The resume state of a run as a dict: made, checked and taken in.

Five keys are the predecessor's, so its states load here and ours load there. Beside them ours says
of which order and which data it is a place, and a state that does not fit is refused.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from streaming.errors import StateError
from streaming.shared.epoch import Start

__all__ = ["STATE_VERSION", "check_state", "dump_state", "parse_state"]

STATE_VERSION = 2

# Fields of the order that a resumed run may change: `parse_state` takes the first two over from the
# state, and who reads how much at a time does not touch the order (but see `check_state`).
_FREE = {"num_canonical_nodes", "shuffle_seed", "batch_size", "replication"}
# These say how to shuffle, so nothing if nobody does.
_SHUFFLING = {"shuffle_algo", "shuffle_block_size"}

_WAY_OUT = (
    "Make the dataset as it was when the state was saved. To go to that position all the same, "
    "load the state without its keys 'order' and 'dataset'."
)


class _State(msgspec.Struct, kw_only=True):
    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    initial_ranks: int | None = None
    version: int = 1
    order: dict[str, Any] | None = None
    dataset: dict[str, Any] | None = None


def dump_state(
    start: Start, order: Mapping[str, Any], dataset: Mapping[str, Any]
) -> dict[str, Any]:
    """Write down a place in a run.

    Args:
        start: The place; all its fields are set, but for ranks that are not known.
        order: What decides the order, JSON.
        dataset: What the data are, JSON.
    """
    return {
        "epoch": start.epoch,
        "sample_in_epoch": start.seen,
        "num_canonical_nodes": start.num_canonical_nodes,
        "shuffle_seed": start.shuffle_seed,
        "initial_physical_nodes": start.initial_physical_nodes,
        **({} if start.initial_ranks is None else {"initial_ranks": start.initial_ranks}),
        "version": STATE_VERSION,
        "order": dict(order),
        "dataset": dict(dataset),
    }


def parse_state(state: object) -> tuple[Start, Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Take a state in.

    Args:
        state: A dict of the five old keys, with or without ours; unknown keys don't matter.

    Returns:
        The place, and what `dump_state` was told of the order and the data; None if unknown.

    Raises:
        StateError: It isn't a state, or one of a version that this library does not know.
    """
    try:
        found = msgspec.convert(state, _State)
    except msgspec.ValidationError as error:
        raise StateError(f"This is not the state of a dataset: {error}.") from error
    if found.version > STATE_VERSION:
        raise StateError(
            f"The state has version {found.version}, and this library knows versions up to "
            f"{STATE_VERSION}. A newer one wrote it; install that."
        )
    for name, least in (("epoch", -1), ("sample_in_epoch", 0), ("shuffle_seed", 0)):
        if (value := getattr(found, name)) is not None and value < least:
            raise StateError(f"`{name}` of a state must be at least {least}, but is {value}.")
    for name in ("num_canonical_nodes", "initial_physical_nodes", "initial_ranks"):
        if (value := getattr(found, name)) is not None and value < 1:
            raise StateError(f"`{name}` of a state must be at least 1, but is {value}.")
    versions = (found.dataset or {}).get("versions")
    if not (
        versions is None
        or (isinstance(versions, list) and {type(x) for x in versions} <= {int, type(None)})
    ):
        raise StateError(f"`versions` of a state must be numbers, but are {versions!r:.100}.")
    start = Start(
        epoch=found.epoch,
        seen=found.sample_in_epoch,
        num_canonical_nodes=found.num_canonical_nodes,
        shuffle_seed=found.shuffle_seed,
        initial_physical_nodes=found.initial_physical_nodes,
        initial_ranks=found.initial_ranks,
        versions=None if versions is None else tuple(versions),
    )
    return start, found.order, found.dataset


def check_state(
    order: Mapping[str, Any],
    saved_order: Mapping[str, Any] | None,
    dataset: Mapping[str, Any],
    saved_dataset: Mapping[str, Any] | None,
) -> None:
    """Make sure that a state is of this order and these data.

    Args:
        order: What decides the order here, with the state's own seed and canonical nodes.
        saved_order: What decided it when the state was saved; None if the state does not say.
        dataset: What the data are here.
        saved_dataset: What they were.

    Raises:
        StateError: Something differs; the message gives its name and both values.
    """
    for name, was in (saved_dataset or {}).items():
        if name == "global_batch_size" and order["batching_method"] == "random":
            continue  # The place is a number of samples, and samples come one after another.
        if name in dataset and dataset[name] != was:
            raise StateError(
                f"The state is of a dataset whose {name} was {was}; here it is {dataset[name]}. "
                f"{_WAY_OUT}"
            )
    free = _FREE if order["shuffle"] else _FREE | _SHUFFLING
    for name, was in (saved_order or {}).items():
        if name in order and name not in free and order[name] != was:
            raise StateError(
                f"The state was saved with `{name}` {was!r}; here it is {order[name]!r}. {_WAY_OUT}"
            )
