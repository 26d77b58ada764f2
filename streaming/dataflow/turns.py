"""The batches of one worker, logical stream after logical stream, and how they travel."""

from collections.abc import Callable, Mapping
from itertools import islice

from streaming.dataflow.base import Batch, StreamPlan
from streaming.dataflow.pipeline import Pipeline
from streaming.dataflow.roles import Roles
from streaming.dataflow.schedule import Schedule
from streaming.dataflow.state import StreamState

__all__ = ["Delivery", "Turns"]


class Delivery:
    """What comes of one turn of a rank.

    Attributes:
        turn: Number of the turn since the schedule's start.
        stream: The logical stream whose turn it is.
        batches: The batch; empty if the stream has ended.
        state: The stream's place then, or what tells it as long as no more is asked for. None: it
            has ended before, or can't be told.
        ended: Whether this is the end of the stream.
    """

    __slots__ = ("batches", "ended", "state", "stream", "turn")

    def __init__(
        self,
        turn: int,
        stream: int,
        batches: tuple[Batch, ...] = (),
        state: StreamState | Callable[[], StreamState] | None = None,
        ended: bool = False,
    ) -> None:
        self.turn = turn
        self.stream = stream
        self.batches = batches
        self.state = state
        self.ended = ended

    def pin_memory(self) -> "Delivery":
        """Pin the batch. torch calls this if it is told to pin."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.batches = tuple(map(pin_memory, self.batches))
        return self


class Turns:
    """Takes the turns of one worker of a rank. An iterator; StopIteration: all its streams ended.

    The next call after the end begins the next epochs. A turn in which something fails is over.

    Args:
        roles: What batches are made by.
        plan: How the data are dealt out.
        schedule: Whose turn it is.
        states: Where streams go on; others begin at the beginning.
        worker: Number of this worker, from 0.
        num_workers: How many workers the rank has; 0: this is the rank's own process. Then places
            are not worked out until they are asked for.
    """

    def __init__(
        self,
        roles: Roles,
        plan: StreamPlan,
        schedule: Schedule,
        states: Mapping[int, StreamState],
        worker: int = 0,
        num_workers: int = 0,
    ) -> None:
        self._roles = roles
        self._plan = plan
        self._schedule = schedule
        self._worker = worker
        self._in_worker = num_workers > 0
        self._step = max(num_workers, 1)
        self._turn = worker
        self._streams = schedule.streams(worker, self._step)
        self._states = {stream: states[stream] for stream in self._streams if stream in states}
        self._live = [
            stream for stream in self._streams if stream not in states or not states[stream].ended
        ]
        self._pipelines: dict[int, Pipeline] = {}

    def __iter__(self) -> "Turns":
        return self

    def __next__(self) -> Delivery:
        while self._live:
            turn = self._turn
            stream = self._schedule.stream(turn)
            self._turn += self._step
            if stream in self._live:
                return self._take(turn, stream)
            if self._in_worker:  # Workers are asked in turn, so each turn needs an answer.
                return Delivery(turn, stream)
        self._schedule = self._schedule.next_round()
        self._turn = self._worker
        self._live = list(self._streams)
        raise StopIteration

    def close(self) -> None:
        """End what the sources run in the background."""
        for pipeline in self._pipelines.values():
            pipeline.close()

    def _take(self, turn: int, stream: int) -> Delivery:
        """The next batch of a stream."""
        if stream not in self._pipelines:
            state = self._states.pop(stream, None)
            self._pipelines[stream] = Pipeline(self._roles, stream, self._plan, state, self._worker)
        pipeline = self._pipelines[stream]
        batches = tuple(islice(pipeline, 1))
        if not batches:
            self._live.remove(stream)
        place: StreamState | Callable[[], StreamState] | None = None
        if self._roles.resumable:
            place = pipeline.state() if self._in_worker else pipeline.state
        return Delivery(turn, stream, batches, place, not batches)
