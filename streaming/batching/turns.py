"""Whose turn it is, where each batch comes from one stream."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streaming.idmap import Ids, grouped
from streaming.mixing import Turns, fixed_due
from streaming.sampling import Share
from streaming.schedule import Course, Schedule
from streaming.shuffle.bijection import Use, derive

if TYPE_CHECKING:  # The plan imports this package.
    from streaming.plan import OrderSpec

__all__ = [
    "TakeTurns",
    "epoch_course",
    "has_schedules",
    "make_turns",
    "scheduled_turns",
    "turns_key",
]


class TakeTurns(Protocol):
    """Says whose turn it is."""

    def __call__(self, lanes: Ids, turns: Ids, /) -> tuple[Ids, Ids]:
        """For each turn of a lane who has it, and how many turns he had before in that lane.

        Args:
            lanes: Lanes, shape (n,): a sequence of turns each.
            turns: Turns of these lanes, shape (n,).
        """
        ...


def make_turns(spec: "OrderSpec", epoch: int, counts: Ids, num_lanes: int) -> TakeTurns:
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


def scheduled_turns(course: Course, totals: Ids, key: int) -> tuple[TakeTurns, Ids, Ids]:
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
