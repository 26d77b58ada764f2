"""Each rank's batch comes from one stream; streams take turns at random in each node."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from streaming.batching.arrangement import Arrangement, Source, StreamLayout
from streaming.batching.turns import ByTurns, TakeTurns
from streaming.batching.work import Dataset, generate
from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.sampling import Share, has_own_sizes
from streaming.world import World

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["DevicePerStreamLayout", "arrange", "generate_work_device_per_stream_batching"]


class DevicePerStreamLayout(StreamLayout):
    """Every node has a list of batches, each of one stream; batches are taken from each in turn.

    A node reads its own canonical nodes. What doesn't fill a stream's last batch is left out. A
    stream too small for a single batch has one with padding, at the end of the epoch.

    Args:
        spec: The order.
        sources: The sources.
        parts: Partition of each source, to the canonical nodes.
        sizes: Samples of a rank's batch of each source.
        full: Batches of a node that are not padded.
        turns: Whose turn it is in each of them; a lane for each node.
        world: The nodes, ranks and workers it is for.
        at: Where to begin.
        named_batch_size: Samples by which a rank's batch is counted; None: as many as it has.
    """

    def __init__(
        self,
        spec: "OrderSpec",
        sources: Sequence[Source],
        parts: Sequence[Layout],
        sizes: Ids,
        full: int,
        turns: TakeTurns,
        world: World,
        at: "Position",
        named_batch_size: int | None = None,
    ) -> None:
        self._sizes = sizes
        self._turns = turns
        self._full = full
        self._nodes_each = spec.canonical_nodes // world.num_nodes
        self._entries = _entries(parts, self._nodes_each, world)
        self._tiny = np.flatnonzero(self._entries < sizes)
        notes: tuple[str, ...] = ()
        if len(self._tiny):
            notes = (
                f"{len(self._tiny)} of {len(parts)} streams have less than a batch of "
                f"{spec.batch_size} samples for each node in an epoch. Each gives one batch that "
                f"is not full, at the end.",
            )
        self._batches = full + len(self._tiny)
        slots = int(sizes.max()) if len(sizes) else spec.batch_size
        # Padded to a multiple of the ranks, by a whole one where it is one: the predecessor does.
        rows = (self._batches // world.num_ranks + 1) * world.num_nodes if parts else 0
        super().__init__(
            world,
            slots,
            parts,
            sources,
            rows,
            full // world.ranks_per_node if (sizes == slots).all() else 0,
            at.seen,
            notes,
            named_batch_size,
            full // world.ranks_per_node,
        )

    def reads_by(self, ranks: Collection[int]) -> list[tuple[int, ...] | None]:
        origins = {rank % self.world.num_nodes for rank in ranks}
        wanted = tuple(
            canonical
            for origin in sorted(origins)
            for canonical in range(origin * self._nodes_each, (origin + 1) * self._nodes_each)
        )
        # A part that is too small for the canonical nodes is read by any of them.
        return [None if part.reads(0)[0] is None else wanted for part in self._parts]

    def _who(self, batch: Ids) -> tuple[Ids, Ids, Ids]:
        """Of batches, counted as ranks take them: source, batches before it, node of the list.

        The source is -1 behind the end of a list.
        """
        batch, node = np.divmod(batch, self.world.num_nodes)
        source, before = np.full_like(batch, -1), np.zeros_like(batch)
        is_full = batch < self._full
        source[is_full], before[is_full] = self._turns(node[is_full], batch[is_full])
        is_tiny = ~is_full & (batch < self._batches)
        source[is_tiny] = self._tiny[batch[is_tiny] - self._full]
        return source, before, node

    def _real_count(self, row: Ids, node: int, rank: int) -> Ids:
        batch = row * self.world.num_ranks + node * self.world.ranks_per_node + rank
        if not len(self._sizes):
            return np.zeros_like(row)
        counts = np.zeros_like(row)
        # Where all batches have one size, it need not be drawn whose a full one is.
        is_plain = (self._sizes == self.batch_size).all()
        is_full = (batch // self.world.num_nodes < self._full) & is_plain
        counts[is_full] = self.batch_size
        source, _, _ = self._who(batch[~is_full])
        counts[~is_full] = np.where(source < 0, 0, np.minimum(self._sizes, self._entries)[source])
        return counts

    def _real_positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        ranks = self.world.ranks_per_node
        source, before, origin = self._who(row * self.world.num_ranks + node * ranks + rank)
        size = self._sizes[source]
        source = np.where(place < size, source, -1)
        entry = before * size + place

        def find(i: int, mine: Ids) -> Ids:
            step, rest = np.divmod(entry[mine], self._nodes_each * ranks)
            canonical = origin[mine] * self._nodes_each + rest // ranks
            return self._parts[i].positions(step, canonical, rest % ranks, np.array(0))

        return self._collect(source, find)


def arrange(
    spec: "OrderSpec", shares: Sequence[Share], world: World, at: "Position"
) -> Arrangement:
    """Deal out each stream by itself, sample by sample, to the canonical nodes."""
    if spec.canonical_nodes % world.num_nodes:
        raise ConfigError(
            f"`device_per_stream` batching needs canonical nodes that {world.num_nodes} nodes can "
            f"share evenly, but `num_canonical_nodes` is {spec.canonical_nodes}."
        )
    partition = partitions.get(spec.partition_algo)
    canonical = World(spec.canonical_nodes, world.ranks_per_node, world.workers_per_rank)
    nodes_each = spec.canonical_nodes // world.num_nodes

    named = spec.batch_size if has_own_sizes(shares) else None

    def deal(sources: Sequence[Source], sizes: Ids) -> list[Layout]:
        return [
            partition(
                PartitionSpec(
                    source.size, spec.canonical_nodes, canonical, 1, initial_nodes=at.initial_nodes
                )
            )
            for source in sources
        ]

    def count(parts: Sequence[Layout], sizes: Ids) -> Ids:
        return _entries(parts, nodes_each, world) // sizes

    def lay_out(
        sources: Sequence[Source], parts: list[Layout], sizes: Ids, full: int, turns: TakeTurns
    ) -> DevicePerStreamLayout:
        return DevicePerStreamLayout(spec, sources, parts, sizes, full, turns, world, at, named)

    return ByTurns(world.num_nodes, 1, deal, count, lay_out).arrange(spec, shares, at)


def _entries(parts: Sequence[Layout], nodes_each: int, world: World) -> Ids:
    """Places that each part has for a node, shape (parts,)."""
    per_step = nodes_each * world.ranks_per_node
    return np.array([part.full * per_step for part in parts], np.int64)


def generate_work_device_per_stream_batching(
    dataset: Dataset, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """A whole epoch as an array: see `streaming.batching.generate_work`."""
    return generate("device_per_stream", dataset, world, epoch, sample_in_epoch)
