"""Which logical stream makes which batch, on which rank and in which worker. Pure arithmetic.

The micro-batches of a job are numbered over all ranks: m is made by logical stream m % S. Rank r of
W takes every W-th of them, worker w of N every N-th of the rank's. So the sequence of the job is
the same whatever W and N are, as long as W divides S.
"""

from dataclasses import dataclass, replace

from streaming.dataflow.base import StreamPlan
from streaming.errors import ConfigError, StateError

__all__ = ["Schedule", "plan_streams", "usable_workers"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The turns of one rank.

    Attributes:
        num_streams: Logical streams of the job.
        rank: This data-parallel rank.
        num_ranks: Of how many.
        start: Micro-batches that all ranks together have made before turn 0.

    Raises:
        ConfigError: There is no such rank.
        StateError: The ranks don't divide the logical streams.
    """

    num_streams: int
    rank: int
    num_ranks: int
    start: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ConfigError(f"There is no data-parallel rank {self.rank} of {self.num_ranks}.")
        if self.num_streams % self.num_ranks:
            raise StateError(_uneven(self.num_streams, self.num_ranks))

    def stream(self, turn: int) -> int:
        """The logical stream that makes the batch of a turn of this rank."""
        return (self.start + turn * self.num_ranks + self.rank) % self.num_streams

    def streams(self, worker: int = 0, num_workers: int = 1) -> list[int]:
        """The logical streams of this rank, or of one of its workers, in order of their turns."""
        turns = range(worker, self.num_streams // self.num_ranks, num_workers)
        return [self.stream(turn) for turn in turns]

    def next_round(self) -> "Schedule":
        """The turns after a common end: as from the beginning, but each rank keeps its streams."""
        return replace(self, start=self.start % self.num_ranks)

    def made(self, turns: int) -> int:
        """Micro-batches that all ranks together have made when each has had so many turns."""
        return self.start + turns * self.num_ranks


def usable_workers(num_streams: int, num_ranks: int, num_workers: int) -> int:
    """The most workers, up to a number, that share a rank's logical streams evenly.

    A stream belongs to one worker, whose turns come in the order that torch asks its workers.
    """
    own = num_streams // num_ranks
    return next(n for n in range(min(num_workers, own), -1, -1) if n < 1 or own % n == 0)


def plan_streams(num_streams: int | None, num_ranks: int, num_workers: int) -> StreamPlan:
    """The plan of a job that starts now; by default one logical stream for each worker.

    Raises:
        ConfigError: The ranks don't divide the logical streams.
    """
    workers = max(num_workers, 1)
    plan = StreamPlan(
        num_ranks * workers if num_streams is None else num_streams, (num_ranks, workers)
    )
    if plan.num_streams % num_ranks:
        raise ConfigError(_uneven(plan.num_streams, num_ranks))
    return plan


def _uneven(num_streams: int, num_ranks: int) -> str:
    possible = [n for n in range(1, num_streams + 1) if num_streams % n == 0]
    return (
        f"{num_streams} logical streams can't be shared evenly by {num_ranks} ranks. They can by "
        f"{', '.join(map(str, possible))}. A new job may choose another number, with many "
        f"divisors, by `num_streams`."
    )
