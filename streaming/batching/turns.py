"""Whose turn it is, where each batch comes from one stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streaming.batching.arrangement import (
    Arrangement,
    Source,
    StreamLayout,
    batch_sizes,
    make_sources,
)
from streaming.idmap import Ids, grouped
from streaming.mixing import Turns, fixed_due
from streaming.partition import Layout
from streaming.sampling import Share
from streaming.schedule import Course, Schedule
from streaming.shuffle.bijection import Use, derive

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec, Position

__all__ = ["ByTurns", "TakeTurns", "epoch_course", "has_schedules", "turns_key"]


class TakeTurns(Protocol):
    """Says whose turn it is."""

    def __call__(self, lanes: Ids, turns: Ids, /) -> tuple[Ids, Ids]:
        """For each turn of a lane who has it, and how many turns he had before in that lane.

        Args:
            lanes: Lanes, shape (n,): a sequence of turns each.
            turns: Turns of these lanes, shape (n,).
        """
        ...


@dataclass(frozen=True)
class ByTurns:
    """A batching method in which each turn is one stream's.

    Attributes:
        lanes: Sequences of turns.
        ranks: Ranks that a turn gives a batch.
        deal: Makes the partition of each source, of the sources and the samples of their batches.
        count: How many turns each part fills in a lane, of the parts and the same sizes.
        lay_out: Makes the layout, of the sources, their parts, the sizes, the turns of a lane, and
            whose each of these is.
    """

    lanes: int
    ranks: int
    deal: Callable[[Sequence[Source], Ids], list[Layout]]
    count: Callable[[Sequence[Layout], Ids], Ids]
    lay_out: Callable[[Sequence[Source], list[Layout], Ids, int, TakeTurns], StreamLayout]

    def arrange(self, spec: "OrderSpec", shares: Sequence[Share], at: "Position") -> Arrangement:
        """Deal out each stream by itself, and say whose turn it is."""
        sizes = batch_sizes(shares, spec.batch_size)
        if has_schedules(shares):  # They say how many turns each has.
            unit = self.lanes * self.ranks * spec.batch_size
            samples = sum(share.choose for share in shares)
            full = max(samples // unit, min(samples, 1))
            turns, counts, there = _scheduled_turns(
                epoch_course(shares, at.epoch, unit, sizes),
                np.full(self.lanes, full, np.int64),
                turns_key(spec, at.epoch),
            )
            sources = make_sources(
                (counts * self.ranks * sizes).tolist(),
                (counts / max(full * self.lanes, 1)).tolist(),
                spec.block_size,
            )
            sizes = sizes[there]
            parts = self.deal(sources, sizes)
        else:
            sources = make_sources(
                [share.choose for share in shares],
                [share.proportion for share in shares],
                spec.block_size,
            )
            sizes = sizes[[source.stream for source in sources if source.stream is not None]]
            parts = self.deal(sources, sizes)
            counts = self.count(parts, sizes)
            full = int(counts.sum())
            turns = _make_turns(spec, at.epoch, counts, self.lanes)
        return Arrangement(self.lay_out(sources, parts, sizes, full, turns), sources)


def _make_turns(spec: "OrderSpec", epoch: int, counts: Ids, num_lanes: int) -> TakeTurns:
    """Put turns in order, in each lane as many of each source as `counts` says."""
    if spec.is_arithmetic:
        totals = np.full(num_lanes, counts.sum(), np.int64)
        return Turns(fixed_due(counts), len(counts), totals, turns_key(spec, epoch))
    return _DrawnTurns(counts, spec.shuffle_seed + (epoch if spec.epoch_seed else 0))


def turns_key(spec: "OrderSpec", epoch: int) -> int:
    """Key of all turns of an epoch that are not drawn as the predecessor does."""
    return derive(spec.shuffle_seed, (Use.TURNS, epoch) if spec.epoch_seed else (Use.TURNS,))


def has_schedules(shares: Sequence[Share]) -> bool:
    """Whether the weights of streams change in the run: then all of them have a schedule."""
    return any(share.schedule is not None for share in shares)


def epoch_course(
    shares: Sequence[Share], epoch: int, unit: int = 1, sizes: Ids | None = None
) -> Course:
    """How much streams with schedules give in an epoch.

    Args:
        shares: What each stream gives in all.
        epoch: Number of the epoch.
        unit: Samples that are counted as one.
        sizes: Samples of each stream's batch, if shares of batches are asked for.
    """
    length = sum(share.choose for share in shares)
    schedules = [share.schedule or Schedule(((0, share.proportion),)) for share in shares]
    relative = None if sizes is None else sizes.astype(np.float64)
    return Course(schedules, epoch * length, length, unit, relative)


def _scheduled_turns(course: Course, totals: Ids, key: int) -> tuple[TakeTurns, Ids, Ids]:
    """Put turns in an order that follows the streams' schedules.

    Args:
        course: How many turns of a lane each stream should have had by when.
        totals: Turns of each lane, shape (lanes,).
        key: Key of the order.

    Returns:
        Whose turn it is, counted among the streams that have any; how many turns each stream has in
        all lanes together, shape (streams,); the streams that have any.
    """
    turns = Turns(course, course.num_streams, totals, key)
    counts = turns.totals()
    there = np.flatnonzero(counts).astype(np.int64)
    numbers = np.cumsum(counts > 0) - 1

    def take_turns(lanes: Ids, turns_of_lanes: Ids, /) -> tuple[Ids, Ids]:
        streams, before = turns(lanes, turns_of_lanes)
        return numbers[streams], before

    return take_turns, counts, there


class _DrawnTurns:
    """Turns in a random order that one generator draws, lane by lane, as the predecessor does."""

    def __init__(self, counts: Ids, seed: int) -> None:
        self._counts = counts
        self._seed = seed
        self._drawn: dict[int, tuple[Ids, Ids]] = {}

    def __call__(self, lanes: Ids, turns: Ids, /) -> tuple[Ids, Ids]:
        sources, before = np.empty_like(turns), np.empty_like(turns)
        for lane, mine in grouped(lanes):
            lane_sources, lane_before = self._lane(lane)
            sources[mine], before[mine] = lane_sources[turns[mine]], lane_before[turns[mine]]
        return sources, before

    def _lane(self, lane: int) -> tuple[Ids, Ids]:
        if lane not in self._drawn:
            rng = np.random.default_rng(self._seed)
            for _ in range(lane + 1):  # A rank reads one lane, but one generator draws them all.
                sources = np.repeat(np.arange(len(self._counts)), self._counts)
                rng.shuffle(sources)
            before = np.empty_like(sources)
            before[np.argsort(sources, kind="stable")] = np.arange(len(sources)) - np.repeat(
                np.cumsum(self._counts) - self._counts, self._counts
            )
            self._drawn[lane] = sources, before
        return self._drawn[lane]
