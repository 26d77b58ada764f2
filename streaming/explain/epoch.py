"""One epoch as all ranks see it together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Hold, Ids, in_memory
from streaming.plan import OrderSpec, Position, arrange, open_order
from streaming.sampling import Share
from streaming.spanner import Spanner
from streaming.table import ShardTable
from streaming.world import World

__all__ = ["Drawn", "Occurrence", "WholeEpoch"]

_CHUNK = 1 << 19  # places that are looked at together


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sample in a batch, and where it lies.

    Attributes:
        worker: DataLoader worker of the rank.
        place: Place in the batch.
        sample: Sample id.
        stream: Stream.
        shard: Shard, counted through all streams.
        offset: Place in the shard.
    """

    worker: int
    place: int
    sample: int
    stream: int
    shard: int
    offset: int


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Where a sample comes in an epoch.

    Attributes:
        step: Global batch.
        rank: Rank, where ranks that see the same samples count as one.
        worker: DataLoader worker of it.
        place: Place in the rank's batch.
    """

    step: int
    rank: int
    worker: int
    place: int


class WholeEpoch:
    """All batches of an epoch, to be had in any order, a few at a time.

    A step is a global batch: what all ranks read together.

    Args:
        spec: The order.
        table: The shards of all streams.
        shares: What each stream gives.
        world: The parallel world; which worker it is does not matter.
        at: Where to begin. Steps count from there.
        hold: Keeps the tables that exact shuffles need.

    Raises:
        ConfigError: The numbers don't fit each other.
    """

    def __init__(
        self,
        spec: OrderSpec,
        table: ShardTable,
        shares: Sequence[Share],
        world: World,
        at: Position,
        hold: Hold = in_memory,
    ) -> None:
        self.spec = spec = spec.resolve(world.num_nodes)
        self.table = table
        self.world = world
        self.arrangement = arrange(spec, shares, world, at)
        self.layout = self.arrangement.layout
        self.spanner = Spanner(table.samples)
        self._order = open_order(spec, table, shares, at.epoch, self.arrangement.sources, hold)

    @property
    def num_steps(self) -> int:
        """Global batches, those at the end that are padding for some workers included."""
        return self.layout.rows

    def ids(self, steps: slice, nodes: Sequence[int] | None = None) -> Ids:
        """Sample ids of some steps, -1 for padding.

        Args:
            steps: Which; its step is 1.
            nodes: Of which nodes; None: all.

        Returns:
            Shape (steps, nodes, ranks of a node, places of a batch).
        """
        return self._order(self._positions(steps, nodes))

    def walk(self, limit: int, nodes: Sequence[int] | None = None) -> Iterator[tuple[int, Ids]]:
        """The first `limit` steps, some at a time: the first step, and the ids as `ids` gives."""
        count = self.world.num_nodes if nodes is None else len(nodes)
        places = max(count * self.world.ranks_per_node * self.layout.batch_size, 1)
        size = max(_CHUNK // places, 1)
        limit = min(limit, self.num_steps)
        for start in range(0, limit, size):
            yield start, self.ids(slice(start, min(start + size, limit)), nodes)

    def batch(self, step: int, rank: int) -> list[Drawn]:
        """The samples that make a step on a rank.

        Raises:
            ConfigError: There is no such step or rank.
        """
        world = self.world
        for name, value, size in (("step", step, self.num_steps), ("rank", rank, world.num_ranks)):
            if not 0 <= value < size:
                raise ConfigError(f"There is no {name} {value}: they go from 0 to {size - 1}.")
        node, rank_of_node = divmod(rank, world.ranks_per_node)
        ids = self.ids(slice(step, step + 1), [node])[0, 0, rank_of_node]
        shards, offsets = self.spanner(ids)
        worker = step % world.workers_per_rank
        return [
            Drawn(worker, place, sample, int(self.table.stream[shard]), shard, offset)
            for place, (sample, shard, offset) in enumerate(
                zip(ids.tolist(), shards.tolist(), offsets.tolist(), strict=True)
            )
            if sample >= 0
        ]

    def find(self, sample: int) -> list[Occurrence]:
        """Where a sample comes, in order of steps. Looks through the whole epoch.

        Raises:
            ConfigError: There is no such sample.
        """
        if not 0 <= sample < self.spanner.size:
            raise ConfigError(
                f"There is no sample {sample}: they go from 0 to {self.spanner.size - 1}."
            )
        positions = self._positions_of(sample)
        found: list[Occurrence] = []
        world = self.world
        places = max(world.num_ranks * self.layout.batch_size, 1)
        size = max(_CHUNK // places, 1)
        for start in range(0, self.num_steps if positions else 0, size):
            here = self._positions(slice(start, min(start + size, self.num_steps)), None)
            is_it = np.zeros(here.shape, np.bool_)
            for position in positions:
                is_it |= here == position
            for step, node, rank, place in np.argwhere(is_it).tolist():
                worker = (start + step) % world.workers_per_rank
                rank += node * world.ranks_per_node
                found.append(Occurrence(start + step, rank, worker, place))
        return found

    def _positions_of(self, sample: int) -> list[int]:
        """Positions that a sample has. In their order, so that tables are read in theirs."""
        total = self._order.size
        found: list[int] = []
        for start in range(0, total, _CHUNK):
            ids = self._order(np.arange(start, min(start + _CHUNK, total)))
            found += (np.flatnonzero(ids == sample) + start).tolist()
        return found

    def _positions(self, steps: slice, nodes: Sequence[int] | None) -> NDArray[np.int64]:
        world = self.world
        which = range(world.num_nodes) if nodes is None else nodes
        shape = (steps.stop - steps.start, len(which), world.ranks_per_node, self.layout.batch_size)
        rows, node, ranks, places = np.ix_(
            np.arange(steps.start, steps.stop),
            np.array(which, np.int64),
            np.arange(world.ranks_per_node),
            np.arange(self.layout.batch_size),
        )
        return np.broadcast_to(self.layout.positions(rows, node, ranks, places), shape)
