"""Where this process is among those that read different data."""

import logging
from typing import Any

from streaming.errors import ConfigError
from streaming.world import World

__all__ = ["find_coordinates"]

logger = logging.getLogger(__name__)

# What the dimensions of a mesh are called over which data are split.
_DATA_DIMS = ("data", "ddp", "dp", "dp_replicate", "dp_shard", "fsdp", "hsdp")


def find_coordinates(parallel_dims: Any = None) -> tuple[int, int]:
    """The data-parallel rank of this process, and how many there are.

    Args:
        parallel_dims: An object with `dp_coord`, a pair of the two; or a DeviceMesh of torch, of
            one dimension or with dimensions whose names tell which ones split the data. None: all
            ranks of torch.distributed split it; where that is not initialised there is one.

    Raises:
        ConfigError: It is none of these, or the mesh does not tell.
    """
    if parallel_dims is None:
        return _from_world()
    if hasattr(parallel_dims, "dp_coord"):
        coord = parallel_dims.dp_coord
        rank, size = coord() if callable(coord) else coord
        return _checked(rank, size)
    if hasattr(parallel_dims, "get_local_rank") and hasattr(parallel_dims, "mesh_dim_names"):
        return _from_mesh(parallel_dims)
    raise ConfigError(
        f"`parallel_dims` must have `dp_coord`, a pair (rank, size), or be a DeviceMesh, but is a "
        f"{type(parallel_dims).__name__}."
    )


def _from_world() -> tuple[int, int]:
    world = World.detect()
    if world.num_ranks > 1:
        logger.info(
            "Each of the %d ranks gets data of its own. With tensor, pipeline or context "
            "parallelism give `parallel_dims`, so that ranks of one group get the same.",
            world.num_ranks,
        )
    return world.rank, world.num_ranks


def _from_mesh(mesh: Any) -> tuple[int, int]:
    """Count through the dimensions of a mesh that split the data, the first as the slowest."""
    names = mesh.mesh_dim_names
    if mesh.ndim == 1:
        return _checked(mesh.get_local_rank(), mesh.size())
    dims = [dim for dim, name in enumerate(names or ()) if name in _DATA_DIMS]
    if not dims:
        raise ConfigError(
            f"None of the mesh's dimensions ({', '.join(names) if names else 'without names'}) is "
            f"known to split the data ({', '.join(_DATA_DIMS)} are). Give the part of the mesh "
            f"that does, such as `mesh[{names[0] if names else 'dp'!r}]`."
        )
    rank, size = 0, 1
    for dim in dims:
        rank = rank * mesh.size(dim) + mesh.get_local_rank(dim)
        size *= mesh.size(dim)
    return _checked(rank, size)


def _checked(rank: Any, size: Any) -> tuple[int, int]:
    if not (isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size):
        raise ConfigError(f"There is no data-parallel rank {rank!r} of {size!r}.")
    return rank, size
