"""Ranks from the environment, and collectives of torch for those who ask for them.

Ranks agree because they compute the same, so the datasets need no collectives, but for `follow`.
What one of them has looked up, the others are told of by `agree`, in which nobody waits.
"""

import os
from typing import Any, TypeVar, cast

from streaming.errors import ConfigError
from streaming.world import process_group

__all__ = [
    "agree",
    "all_gather",
    "all_gather_object",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_local_world_size",
    "get_rank",
    "get_world_size",
    "maybe_init_dist",
]

T = TypeVar("T")

_PROCESS = os.getpid()


def get_rank() -> int:
    """Number of this rank among all: the environment's RANK, or 0."""
    return _number("RANK", 0)


def get_world_size() -> int:
    """Number of ranks: the environment's WORLD_SIZE, or 1."""
    return _number("WORLD_SIZE", 1)


def get_local_rank() -> int:
    """Number of this rank on its node: the environment's LOCAL_RANK, or 0."""
    return _number("LOCAL_RANK", 0)


def get_local_world_size() -> int:
    """Number of ranks on this node: the environment's LOCAL_WORLD_SIZE, or 1."""
    return _number("LOCAL_WORLD_SIZE", 1)


def barrier() -> None:
    """Wait for all ranks of the process group; without one nothing happens."""
    if process_group() is not None:
        _torch().barrier()


def broadcast(tensor: Any, src: int) -> None:
    """Give all ranks the tensor of rank `src`, in place; without a process group nothing happens.

    Args:
        tensor: What to send, or where it goes.
        src: Rank that sends.
    """
    if process_group() is not None:
        _torch().broadcast(tensor, src)


def all_gather(tensor_list: list[Any], tensor: Any) -> None:
    """Collect a tensor of each rank; without a process group it is this one's alone.

    Args:
        tensor_list: Where they go, one for each rank.
        tensor: This rank's.
    """
    if process_group() is not None:
        _torch().all_gather(tensor_list, tensor)
    elif tensor_list:
        tensor_list[0].copy_(tensor)


def all_gather_object(obj: T) -> list[T]:
    """Collect an object of each rank; it must pickle. Without a process group it is this one's."""
    group = process_group()
    if group is None:
        return [obj]
    found: list[Any] = [None] * group[1]
    _torch().all_gather_object(found, obj)
    return cast(list[T], found)


def agree(key: str, value: str) -> str | None:
    """What the first rank of the process group to ask has given under a key: the same for all.

    No collective: nobody waits for another rank, so that ranks may ask in any order, or never.

    Args:
        key: Name of what is agreed on, for as long as the process group lives.
        value: What this rank would have; not empty.

    Returns:
        The value of all; None if there is no process group, or it has no store that can tell, or
        this is a forked process: its group may be its parent's, whose connection it can't use.
    """
    if process_group() is None or os.getpid() != _PROCESS:
        return None
    from torch.distributed import distributed_c10d

    # Not a public name, but the only way to the store of a group that somebody else has made.
    find = getattr(distributed_c10d, "_get_default_store", None)
    store = None if find is None else find()
    if store is None:
        return None
    try:
        found = store.compare_set(f"streaming/{key}", "", value)
    except NotImplementedError:  # Somebody's own kind of store.
        return None
    return bytes(found).decode()


def maybe_init_dist() -> bool:
    """Make torch's default process group if there is more than one rank and no group yet.

    Returns:
        Whether it was made here. Then whoever called also destroys it.
    """
    distributed = _torch()
    if get_world_size() == 1 or not distributed.is_available() or distributed.is_initialized():
        return False
    import torch

    with_gpu = torch.cuda.is_available() and distributed.is_nccl_available()
    distributed.init_process_group("nccl" if with_gpu else "gloo")
    return True


def _torch() -> Any:
    import torch.distributed

    return torch.distributed


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"The environment variable {name} must be a number: {text!r}.") from None
