"""The partition that reads canonical nodes side by side, in closed form."""

import numpy as np

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.partition.layout import Layout, PartitionSpec
from streaming.world import World

__all__ = ["OrigLayout", "get_partitions_orig"]


class OrigLayout(Layout):
    """Canonical nodes take turns, one position each, and so do nodes and the ranks of a node.

    The epoch is a grid with a row for each canonical node, a run of consecutive positions, and it
    is read column by column. Node p takes every entry e with e % num_nodes == p, and its ranks
    take turns in turn. Where numbers don't divide, positions are repeated at the ends, so that all
    ranks get equally many.

    Raises:
        ConfigError: Canonical nodes and nodes don't divide each other, or there are too few
            samples to be spread over the nodes.
    """

    def __init__(self, spec: PartitionSpec) -> None:
        world, canonical = spec.world, spec.canonical_nodes
        nodes, ranks = world.num_nodes, world.ranks_per_node
        if max(canonical, nodes) % min(canonical, nodes):
            raise ConfigError(
                f"{canonical} canonical nodes can't be dealt to {nodes} nodes: one number must be "
                f"a multiple of the other. Change `num_canonical_nodes`, or use the `relaxed` "
                f"partition if the run began on another number of nodes."
            )
        notes = []
        self._samples = samples = spec.num_samples
        self._canonical = canonical
        self._longest = longest = -(-samples // canonical)  # positions of a canonical node
        ratio = nodes // canonical if canonical < nodes else 0
        self._pad = -longest % ratio if ratio else 0
        self._width = longest + self._pad
        self._is_cyclic = samples < canonical or (samples == canonical < nodes)
        if self._is_cyclic and samples:
            notes.append(
                f"An epoch of {samples} samples is too short for {canonical} canonical nodes on "
                f"{nodes} nodes: samples are repeated until there are {canonical * self._width}. "
                f"Lower `num_canonical_nodes`."
            )
        if self._pad and not self._is_cyclic:
            self._source = _find_padding(longest, self._pad, ratio, spec)

        self._skip = spec.seen - spec.seen % nodes
        if spec.seen % nodes:
            notes.append(
                f"{spec.seen} samples seen is not a multiple of {nodes} nodes: "
                f"{spec.seen - self._skip} of them come again."
            )
        self._per_node = max(canonical * self._width - self._skip, 0) // nodes
        self._per_rank = -(-self._per_node // ranks)
        self._missing = self._per_rank * ranks - self._per_node
        self._wraps_whole = ranks + self._missing - 1 > self._per_node
        # One rank reads one canonical node: what is left of the epoch, as it is.
        is_one = canonical == nodes == ranks == 1
        self._is_plain = is_one and not self._is_cyclic and not self._pad
        if self._missing and self._wraps_whole:
            notes.append(
                f"Only {self._per_node} samples are left for the {ranks} ranks of a node: some "
                f"are given to several ranks."
            )
        super().__init__(
            world,
            spec.batch_size,
            rows=-(-self._per_rank // spec.batch_size),
            full=self._per_rank // spec.batch_size,
            notes=tuple(notes),
        )

    def positions(self, row: Ids, node: Ids, rank: Ids, place: Ids) -> Ids:
        in_rank = row * self.batch_size + place
        in_node = in_rank * self.world.ranks_per_node + rank
        if self._missing:  # The last turn of the ranks is filled up with earlier entries.
            if self._wraps_whole:
                earlier = in_node % self._per_node
            else:
                earlier = in_node - (self.world.ranks_per_node + self._missing - 1)
            in_node = np.where(in_node >= self._per_node, earlier, in_node)
        entry = in_node * self.world.num_nodes + node + self._skip
        return np.where(in_rank < self._per_rank, self._read(entry), -1)

    def of_worker(self, world: World, slots: Ids) -> Ids:
        is_plain = self._is_plain and world.workers_per_rank == 1
        if is_plain and int(slots.max(initial=0)) < self._per_rank:
            return slots + self._skip
        return super().of_worker(world, slots)

    def reads(self, node: int) -> list[tuple[int, ...] | None]:
        if self._is_cyclic:
            return [None]
        step = self.world.num_nodes
        return [tuple(range(node % self._canonical, self._canonical, step))]

    def count(self, row: Ids, node: int, rank: int) -> Ids:
        return np.clip(self._per_rank - row * self.batch_size, 0, self.batch_size)

    def _read(self, entry: Ids) -> Ids:
        """The grid, read column by column."""
        canonical = entry % self._canonical
        column = entry // self._canonical
        if self._is_cyclic:
            return (canonical * self._width + column) % self._samples
        if self._pad:
            start, step = self._source
            beyond = column - self._longest
            column = np.where(beyond < 0, column, start + step * beyond)
        start_of = canonical * self._samples // self._canonical
        is_short = (canonical + 1) * self._samples // self._canonical - start_of < self._longest
        repeats: Ids = (is_short & (column == self._longest - 1)).astype(np.int64)
        return start_of + column - repeats


def _find_padding(longest: int, pad: int, ratio: int, spec: PartitionSpec) -> tuple[int, int]:
    """Columns that are repeated where canonical nodes are cut over several nodes.

    The predecessor copies a slice with bounds counted from the end, and numpy clips it: as long as
    the padding it is taken as it is, a single column is taken again and again, anything else fails.

    Returns:
        The first column, and the step to the next: 1 or 0.
    """
    stop = max(longest - ratio + 1, 0)
    start = max(longest - ratio + 1 - pad, 0)
    if stop - start not in (pad, 1):
        raise ConfigError(
            f"{spec.num_samples} samples in {spec.canonical_nodes} canonical nodes are too few for "
            f"{spec.world.num_nodes} nodes. Set `num_canonical_nodes` to a multiple of the nodes."
        )
    return start, int(stop - start == pad)


def get_partitions_orig(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """The `orig` partition as an array: see `streaming.partition.get_partitions`."""
    world = World(num_physical_nodes, ranks_per_node, workers_per_rank)
    spec = PartitionSpec(num_samples, num_canonical_nodes, world, batch_size, drop_first)
    spec.check_seen()
    return OrigLayout(spec).whole()
