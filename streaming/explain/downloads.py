"""What nodes download when, how long steps wait for it, and how much of it must lie on a disk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.explain.epoch import WholeEpoch
from streaming.idmap import Ids

__all__ = ["Downloads", "Network", "NodeUse", "foresee_downloads", "use_of_node"]

_POINTS = 50  # of a timeline


@dataclass(frozen=True, slots=True)
class Network:
    """What time things take.

    Attributes:
        bandwidth: Bytes a second that each node downloads.
        step_time: Seconds that a step takes when its samples are there.
        predownload: Samples that a worker looks ahead for shards.
    """

    bandwidth: float
    step_time: float
    predownload: int


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The shards that a node needs, in order of first use.

    Attributes:
        shards: Which, shape (n,).
        first: Step of the first use of each.
        last: Step of the last.
    """

    shards: Ids
    first: Ids
    last: Ids


@dataclass(frozen=True, slots=True)
class Downloads:
    """What nodes download, in an epoch that begins with nothing.

    Attributes:
        nodes: The nodes that were looked at; all of them count for time.
        steps: The steps that were looked at, from the first.
        shards: Shards that each of these nodes needs.
        bytes: Bytes that each of them downloads.
        cache_limit: Bytes of shards that a node must be able to keep: with less some are fetched
            again. The most of any node.
        first_batch: Seconds until the first step begins.
        seconds: Seconds for all steps, waiting included.
        waiting: Of those, seconds in which steps wait for shards, the first one too.
        slow_steps: Steps that wait, but for the first.
        last_wait: The last step that waits.
        timeline: Step, seconds at its beginning, bytes downloaded by then by all of these nodes.
    """

    nodes: tuple[int, ...]
    steps: int
    shards: tuple[int, ...]
    bytes: tuple[int, ...]
    cache_limit: int
    first_batch: float
    seconds: float
    waiting: float
    slow_steps: int
    last_wait: int
    timeline: tuple[tuple[int, float, int], ...]


def use_of_node(epoch: WholeEpoch, node: int, steps: int) -> NodeUse:
    """Look through the first steps of a node for the shards that they need."""
    first = np.full(len(epoch.table), -1, np.int64)
    last = np.full(len(epoch.table), -1, np.int64)
    for start, ids in epoch.walk(steps, [node]):
        flat = ids.ravel()
        step = start + np.arange(len(flat)) // (flat.size // ids.shape[0])
        real = flat >= 0
        shard, step = epoch.spanner(flat[real])[0], step[real]
        last[shard] = step  # Of equal indices the last counts.
        here = np.full(len(first), -1, np.int64)
        here[shard[::-1]] = step[::-1]
        first = np.where(first < 0, here, first)
    shards = np.flatnonzero(first >= 0)
    shards = shards[np.argsort(first[shards], kind="stable")]
    return NodeUse(shards, first[shards], last[shards])


def foresee_downloads(
    epoch: WholeEpoch, network: Network, nodes: Sequence[int], steps: int
) -> Downloads:
    """Work out what some nodes download in the first steps, and how long steps wait for it.

    Each node fetches its shards in order of first use, one after the other with its whole
    bandwidth, none earlier than its workers look ahead. A step begins when the one before is done
    and every node has its shards: then all ranks take it together.

    Args:
        epoch: The epoch.
        network: What time things take.
        nodes: The nodes to look at.
        steps: How many steps.
    """
    steps = min(steps, epoch.num_steps)
    table = epoch.table
    sizes = np.where(table.zip_bytes > 0, table.zip_bytes, table.raw_bytes)
    uses = [use_of_node(epoch, node, steps) for node in nodes]
    # A worker has every workers-th step of its rank.
    batches = -(-network.predownload // epoch.spec.batch_size)
    ahead = batches * epoch.world.workers_per_rank
    clock = _Clock(network.step_time)
    arrivals = _run(uses, sizes, network.bandwidth, ahead, clock)
    limit = max((_peak(use, table.raw_bytes, ahead) for use in uses), default=0)
    return Downloads(
        nodes=tuple(nodes),
        steps=steps,
        shards=tuple(len(use.shards) for use in uses),
        bytes=tuple(int(sizes[use.shards].sum()) for use in uses),
        cache_limit=limit,
        first_batch=clock.begin(0),
        seconds=clock.begin(steps),
        waiting=clock.waited,
        slow_steps=sum(1 for step in clock.waits if step),
        last_wait=max(clock.waits, default=0),
        timeline=_timeline(clock, arrivals, steps),
    )


class _Clock:
    """When steps begin: in even steps from each one that had to wait."""

    def __init__(self, step_time: float) -> None:
        self.step_time = step_time
        self.waits: list[int] = []
        self._begins: list[float] = []
        self.waited = 0.0

    def begin(self, step: int) -> float:
        """Seconds at the beginning of a step, as far as is known."""
        at = int(np.searchsorted(self.waits, step, "right")) - 1
        if at < 0:
            return step * self.step_time
        return self._begins[at] + (step - self.waits[at]) * self.step_time

    def wait(self, step: int, until: float) -> None:
        """Let a step, not before any that waited, begin no earlier."""
        planned = self.begin(step)
        if until > planned:
            self.waited += until - planned
            if self.waits and self.waits[-1] == step:
                self._begins[-1] = until
            else:
                self.waits.append(step)
                self._begins.append(until)


def _run(
    uses: Sequence[NodeUse],
    sizes: NDArray[np.int64],
    bandwidth: float,
    ahead: int,
    clock: _Clock,
) -> NDArray[np.float64]:
    """Let nodes download and steps wait: seconds and bytes of all arrivals, shape (n, 2)."""
    free = [0.0] * len(uses)  # when the line of each node is free
    order = [
        (step, node, size)
        for node, use in enumerate(uses)
        for step, size in zip(use.first.tolist(), sizes[use.shards].tolist(), strict=True)
    ]
    order.sort(key=lambda event: event[0])
    arrivals = np.empty((len(order), 2))
    for i, (step, node, size) in enumerate(order):
        # Workers come to a step when the one before it is done.
        asked = clock.begin(step - ahead - 1) + clock.step_time if step > ahead else 0.0
        free[node] = max(free[node], asked) + size / bandwidth
        clock.wait(step, free[node])
        arrivals[i] = free[node], size
    return arrivals


def _peak(use: NodeUse, sizes: NDArray[np.int64], ahead: int) -> int:
    """The most bytes of shards that are in use at a time, or looked ahead to."""
    begin = np.maximum(use.first - ahead, 0)
    steps = np.concatenate([begin, use.last + 1])
    changes = np.concatenate([sizes[use.shards], -sizes[use.shards]])
    # What ends at a step goes before what begins there.
    order = np.lexsort((changes, steps))
    return int(np.cumsum(changes[order]).max(initial=0))


def _timeline(
    clock: _Clock, arrivals: NDArray[np.float64], steps: int
) -> tuple[tuple[int, float, int], ...]:
    by_time = arrivals[np.argsort(arrivals[:, 0], kind="stable")]
    total = np.concatenate([[0], np.cumsum(by_time[:, 1])])
    points = []
    for step in np.unique(np.linspace(0, steps, _POINTS + 1).astype(int)).tolist():
        seconds = clock.begin(step)
        arrived = int(np.searchsorted(by_time[:, 0], seconds, "right"))
        points.append((step, seconds, int(total[arrived])))
    return tuple(points)
