"""How an epoch is dealt out: rows are global batches, cut over nodes and ranks."""

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from streaming.errors import ConfigError, StateError
from streaming.idmap import Ids
from streaming.world import World

__all__ = ["Layout", "PartitionSpec", "RestLayout"]

_LIMIT = 2**63  # Positions are int64.
_CHUNK = 1 << 15  # places that are laid out together: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """What is to be dealt out, and to whom.

    Attributes:
        num_samples: Positions of the epoch.
        canonical_nodes: Parts of the epoch that are read side by side.
        world: Nodes, ranks and workers; which worker it is does not matter.
        batch_size: Samples of one rank's batch.
        seen: Samples of the epoch that were given out before, by all ranks together.
        initial_nodes: Nodes at the start of a resumed run; None if it did not begin elsewhere.
    """

    num_samples: int
    canonical_nodes: int
    world: World
    batch_size: int
    seen: int = 0
    initial_nodes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("num_samples", 0),
            ("canonical_nodes", 1),
            ("batch_size", 1),
            ("seen", 0),
            ("initial_nodes", 1),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < _LIMIT:
                raise ConfigError(
                    f"`{name}` must be at least {least} and below 2^63, but is {value}."
                )
        if (self.num_samples + self.canonical_nodes) * self.canonical_nodes >= _LIMIT:
            raise ConfigError(
                f"{self.num_samples} samples times {self.canonical_nodes} canonical nodes is over "
                f"2^63. Lower `num_canonical_nodes`."
            )
        if self.batch_size * self.world.num_workers >= _LIMIT:
            raise ConfigError(
                f"A batch of {self.batch_size} for each of {self.world.num_workers} workers is "
                f"over 2^63 samples. Lower `batch_size`."
            )

    def check_seen(self, repeated: int = 0) -> None:
        """Refuse a place behind the end of the epoch.

        Args:
            repeated: Samples that come more than once, as far as they are known.

        Raises:
            StateError: More samples were seen than an epoch has, repeated ones included.
        """
        ranks = self.world.num_ranks
        most = self.num_samples + ranks - self.num_samples % ranks + repeated
        if self.seen > most:
            raise StateError(
                f"{self.seen} samples of the epoch are said to be seen, but it has "
                f"{self.num_samples} (at most {most} with those repeated for {ranks} ranks)."
            )


class Layout(ABC):
    """Which position of the epoch stands at each place of each batch.

    Row j of the epoch is its j-th global batch. Every rank of every node has `batch_size` places
    in it, node by node and rank by rank, and worker j % workers_per_rank of the rank reads them.
    So the row is what all ranks see at once, whatever the number of workers. Immutable.

    Args:
        world: The nodes, ranks and workers it is for.
        batch_size: Places of a rank in a row.
        rows: Rows of the epoch; rounded up to the same number for each worker.
        full: Rows at the start that hold no padding.
        notes: What a user should know of this layout, as sentences.
    """

    def __init__(
        self, world: World, batch_size: int, rows: int, full: int, notes: tuple[str, ...] = ()
    ) -> None:
        workers = world.workers_per_rank
        self.world = world
        self.batch_size = batch_size
        self.rows_per_worker = -(-rows // workers)
        self.rows = self.rows_per_worker * workers
        self.full = full
        self.notes = notes

    @property
    def global_batch(self) -> int:
        """Places of a row."""
        return self.world.num_ranks * self.batch_size

    @property
    def num_slots(self) -> int:
        """Places of each worker, padding included."""
        return self.rows_per_worker * self.batch_size

    @abstractmethod
    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        """Position at places of the epoch; -1 for padding.

        Args:
            row: Rows, any shape, in [0, rows).
            node: Nodes; the four arrays are broadcast.
            rank: Ranks in the node.
            place: Places in the rank's batch.
        """

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        """For each source of positions the canonical nodes that a node reads, ascending.

        None: it may read any. A layout that knows of no sources has one.
        """
        return [None]

    @abstractmethod
    def count(self, row: Ids, node: int, rank: int) -> Ids:
        """How many places of a rank's batches are not padding; the shape of `row`."""

    def traverse(self, places: Ids) -> Ids:
        """Position at places counted through all rows: node by node and rank by rank in each."""
        ranks, size = self.world.ranks_per_node, self.batch_size
        return self.positions(
            places // self.global_batch,
            places // (ranks * size) % self.world.num_nodes,
            places // size % ranks,
            places % size,
        )

    def of_worker(self, world: World, slots: Ids) -> Ids:
        """Position at slots of the worker that `world` tells of, which has this layout's shape."""
        batch = slots // self.batch_size
        place = slots - batch * self.batch_size  # numpy's remainder takes three times as long.
        row = batch * world.workers_per_rank + world.worker_of_rank
        node, rank = np.int64(world.node), np.int64(world.rank_of_node)
        return self.positions(row, np.array(node), np.array(rank), place)

    def num_samples(self, world: World) -> int:
        """How many slots of a worker are not padding. Looks only at the end of the epoch."""
        workers, worker = world.workers_per_rank, world.worker_of_rank
        whole = max(0, -((worker - self.full) // workers))  # batches of it that are full
        tail = np.arange(whole * workers + worker, self.rows, workers)
        rest = int(self.count(tail, world.node, world.rank_of_node).sum())
        return whole * self.batch_size + rest

    def most_left(self, enough: int) -> int:
        """The most samples that one worker of any rank has; not counted further than `enough`."""
        world = self.world
        batches = min(-(-enough // self.batch_size), self.rows_per_worker)
        rows = np.arange(batches) * world.workers_per_rank  # The first worker has the most.
        most = 0
        for node, rank in itertools.product(range(world.num_nodes), range(world.ranks_per_node)):
            most = max(most, int(self.count(rows, node, rank).sum()))
            if most >= enough:
                break
        return most

    def whole(self) -> Ids:
        """The layout as an array: shape (nodes, ranks, workers, batches, batch size)."""
        world = self.world
        shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank)
        out = np.empty((*shape, self.rows_per_worker, self.batch_size), np.int64)
        step = max(_CHUNK * self.rows_per_worker // max(out.size, 1), 1)
        for start in range(0, self.rows_per_worker, step):
            nodes, ranks, workers, batches, places = np.ogrid[
                : world.num_nodes,
                : world.ranks_per_node,
                : world.workers_per_rank,
                start : min(start + step, self.rows_per_worker),
                : self.batch_size,
            ]
            rows = batches * world.workers_per_rank + workers
            out[..., start : start + step, :] = self.positions(rows, nodes, ranks, places)
        return out


class RestLayout(Layout):
    """The rows of another layout without the first ones.

    Args:
        whole: The layout.
        skip: How many.
    """

    def __init__(self, whole: Layout, skip: int) -> None:
        self._whole = whole
        self._skip = skip = min(skip, whole.rows)
        rows, full = whole.rows - skip, max(whole.full - skip, 0)
        super().__init__(whole.world, whole.batch_size, rows, full, whole.notes)

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        return self._whole.reads(node)

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        out = np.zeros_like(row)
        is_there = row + self._skip < self._whole.rows
        out[is_there] = self._whole.count(row[is_there] + self._skip, node, rank)
        return out

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        row = row + self._skip
        last = max(self._whole.rows - 1, 0)
        found = self._whole.positions(np.minimum(row, last), node, rank, place)
        return np.where(row <= last, found, -1)
