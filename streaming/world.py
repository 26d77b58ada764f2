"""Who am I among nodes, ranks and workers: a plain value."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streaming.errors import ConfigError
from streaming.util.checking import check_whole

__all__ = ["World"]


@dataclass(frozen=True, slots=True)
class World:
    """One worker's place among all workers of a run.

    A rank without worker processes counts as one worker. Ranks are numbered node by node, workers
    rank by rank.

    Attributes:
        num_nodes: Nodes, at least 1.
        ranks_per_node: Ranks on each node, at least 1.
        workers_per_rank: Workers of each rank, at least 1.
        worker: Global index of this worker.
        data_ranks: For each rank its data rank, from 0 without gaps: ranks of equal data rank see
            the same samples, others see different ones. None: every rank is one of its own. Any
            layout of data, tensor, pipeline and context parallelism can be told like this.

    Raises:
        ConfigError: There can be no such world.
    """

    num_nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 1
    worker: int = 0
    data_ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_nodes", "ranks_per_node", "workers_per_rank"):
            check_whole(name, getattr(self, name), 1)
        check_whole("worker", self.worker, 0)
        if not 0 <= self.worker < self.num_workers:
            raise ConfigError(f"Worker {self.worker} is not among {self.num_workers} workers.")
        if self.data_ranks is not None:
            ranks = tuple(map(int, self.data_ranks))
            object.__setattr__(self, "data_ranks", ranks)
            self._check_data_ranks(ranks)

    def _check_data_ranks(self, ranks: tuple[int, ...]) -> None:
        if len(ranks) != self.num_ranks:
            raise ConfigError(
                f"`data_ranks` must name a data rank for each of the {self.num_ranks} ranks, but "
                f"has {len(ranks)}."
            )
        missing = set(range(max(ranks) + 1)) - set(ranks)
        if missing or min(ranks) < 0:
            raise ConfigError(
                f"`data_ranks` must count from 0 without gaps, but goes from {min(ranks)} to "
                f"{max(ranks)}"
                f"{f' without {min(missing)}' if missing else ''}."
            )

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def num_workers(self) -> int:
        return self.num_ranks * self.workers_per_rank

    @property
    def workers_per_node(self) -> int:
        return self.ranks_per_node * self.workers_per_rank

    @property
    def rank(self) -> int:
        return self.worker // self.workers_per_rank

    @property
    def rank_of_node(self) -> int:
        return self.rank % self.ranks_per_node

    @property
    def node(self) -> int:
        return self.worker // self.workers_per_node

    @property
    def worker_of_node(self) -> int:
        return self.worker % self.workers_per_node

    @property
    def worker_of_rank(self) -> int:
        return self.worker % self.workers_per_rank

    @property
    def is_multinode(self) -> bool:
        return self.num_nodes > 1

    @property
    def is_leader(self) -> bool:
        return self.worker == 0

    @property
    def is_local_leader(self) -> bool:
        return self.worker_of_node == 0

    def to_json(self) -> dict[str, Any]:
        """All fields, the derived ones too."""
        return {
            name: getattr(self, name)
            for name in (
                "node num_nodes is_multinode rank num_ranks rank_of_node ranks_per_node worker "
                "num_workers worker_of_node workers_per_node worker_of_rank workers_per_rank "
                "is_leader is_local_leader"
            ).split()
        }

    def copy(self) -> "World":
        """An equal value."""
        return replace(self)

    def with_data_ranks(self, data_ranks: Sequence[int]) -> "World":
        """The same rank among ranks of which some see the same samples; see `data_ranks`.

        Raises:
            ConfigError: These are not data ranks of this world.
        """
        return replace(self, data_ranks=tuple(data_ranks))

    def with_mesh(self, mesh: Any, data_dims: str | Sequence[str]) -> "World":
        """The same rank among ranks that a torch DeviceMesh lays out.

        Args:
            mesh: A `torch.distributed.device_mesh.DeviceMesh` of all ranks, with names of its
                dimensions.
            data_dims: Names of the dimensions along which samples differ, such as "dp"; along the
                others ranks see the same.

        Raises:
            ConfigError: There is no such dimension, or the mesh isn't of all ranks of this world.
        """
        wanted = (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
        names = tuple(mesh.mesh_dim_names or ())
        unknown = [name for name in wanted if name not in names]
        if unknown or len(set(wanted)) < len(wanted):
            raise ConfigError(
                f"`data_dims` must name dimensions of the mesh, which are "
                f"{', '.join(names) or 'without names'}, but is {', '.join(wanted)}."
            )
        sizes = dict(zip(names, mesh.mesh.shape, strict=True))
        data_rank_of = {}
        for place, rank in _places(mesh.mesh.tolist()):
            data_rank = 0
            for name in wanted:
                data_rank = data_rank * sizes[name] + place[names.index(name)]
            data_rank_of[rank] = data_rank
        if sorted(data_rank_of) != list(range(self.num_ranks)):
            raise ConfigError(
                f"The mesh has {len(data_rank_of)} of the ranks 0 to {self.num_ranks - 1} in "
                f"{' x '.join(names)}. Pass the whole mesh, not one of its dimensions."
            )
        return self.with_data_ranks([data_rank_of[rank] for rank in range(self.num_ranks)])

    @property
    def parallel(self) -> "World":
        """This rank's place where ranks that see the same samples count as one.

        Where the ranks of each node have a run of data ranks to themselves, as many on each, nodes
        stay what they are, so that each reads its own part of the data.
        """
        if self.data_ranks is None:
            return self
        count = max(self.data_ranks) + 1
        own = self.data_ranks[self.rank] * self.workers_per_rank + self.worker_of_rank
        per_node, rest = divmod(count, self.num_nodes)
        is_by_node = not rest and all(
            data_rank // per_node == rank // self.ranks_per_node
            for rank, data_rank in enumerate(self.data_ranks)
        )
        if not is_by_node:
            nodes = 1 if count % self.ranks_per_node else count // self.ranks_per_node
            per_node = count // nodes
        return World(count // per_node, per_node, self.workers_per_rank, own)

    def replicate(self, replication: int) -> "World":
        """See `replication` consecutive ranks as one; with 1, those of equal data rank.

        Raises:
            ConfigError: `replication` is not positive or does not divide the ranks, or there are
                data ranks as well.
        """
        if self.data_ranks is not None:
            if replication == 1:
                return self.parallel
            raise ConfigError(
                f"The world has data ranks, which say who sees the same samples; `replication` "
                f"({replication}) says it too. Drop one of the two."
            )
        if replication <= 0 or self.num_ranks % replication:
            raise ConfigError(
                f"`replication` must be positive and divide the number of ranks "
                f"({self.num_ranks}), but is {replication}."
            )
        num_ranks = self.num_ranks // replication
        num_nodes = 1 if num_ranks % self.ranks_per_node else num_ranks // self.ranks_per_node
        return World(
            num_nodes=num_nodes,
            ranks_per_node=num_ranks // num_nodes,
            workers_per_rank=self.workers_per_rank,
            worker=self.rank // replication * self.workers_per_rank + self.worker_of_rank,
        )

    def with_workers(self, num_workers: int, worker: int) -> "World":
        """The same rank, seen from worker `worker` of `num_workers` (0 means the rank itself)."""
        per_rank = max(num_workers, 1)
        return replace(self, workers_per_rank=per_rank, worker=self.rank * per_rank + worker)

    def detect_workers(self) -> "World":
        """The same rank, with what torch says of the DataLoader worker this process is."""
        count, worker = detect_worker()
        return self.with_workers(count, worker)

    @classmethod
    def detect(cls) -> "World":
        """Nodes and ranks from the environment as torchrun sets it, workers from torch.

        Reads RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Where none of them is set but a process group
        is initialised, its rank and size are taken, as if all ranks were on one node.

        Raises:
            ConfigError: The variables contradict each other or an initialised process group.
        """
        group = process_group()
        if group is not None and not {"RANK", "WORLD_SIZE"} & os.environ.keys():
            rank, size = group
            local = _number(os.environ, "LOCAL_WORLD_SIZE", size)
        else:
            rank, size = _number(os.environ, "RANK", 0), _number(os.environ, "WORLD_SIZE", 1)
            local = _number(os.environ, "LOCAL_WORLD_SIZE", 1)
        if size < 1 or local < 1 or size % local or not 0 <= rank < size:
            raise ConfigError(
                f"RANK={rank}, WORLD_SIZE={size} and LOCAL_WORLD_SIZE={local} can't be: the rank "
                f"must be below the world size, and the local size must divide it. Set them as "
                f"torchrun does, or pass `world=`."
            )
        world = cls(num_nodes=size // local, ranks_per_node=local, workers_per_rank=1, worker=rank)
        return world.checked_against_group().detect_workers()

    def checked_against_group(self) -> "World":
        """This world, after a look at torch's process group.

        Raises:
            ConfigError: A process group is initialised and has another rank or size. Both can't be
                right, and ranks that read the wrong part of the data train on without a complaint.
        """
        group = process_group()
        if group is not None and group != (self.rank, self.num_ranks):
            raise ConfigError(
                f"The initialised process group says rank {group[0]} of {group[1]}, but the "
                f"dataset was told rank {self.rank} of {self.num_ranks} (by `world=` or by RANK, "
                f"WORLD_SIZE and LOCAL_WORLD_SIZE). Start with torchrun, set these variables, or "
                f"pass `world=`."
            )
        return self


def _places(ranks: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each rank of nested lists, and where it stands."""
    if not isinstance(ranks, list):
        yield place, ranks
        return
    for i, inner in enumerate(ranks):
        yield from _places(inner, (*place, i))


def process_group() -> tuple[int, int] | None:
    """Rank and size of torch's default process group; None if there is none.

    torch is asked only if something else has imported it: without that there is no group.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def detect_worker() -> tuple[int, int]:
    """Number of DataLoader workers beside this one, and its index; (0, 0) outside a worker."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (0, 0) if info is None else (info.num_workers, info.id)


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigError(f"The environment variable {name} must be a number: {text!r}.") from None
