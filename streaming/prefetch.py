"""Look ahead: bring shards here in threads before they are needed."""

import atexit
import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from streaming.cache import ShardCache
from streaming.errors import CacheError, StreamingError, WorkerError
from streaming.pace import Pace

__all__ = ["LookAhead", "Prefetcher", "default_threads"]

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # How long to wait for downloads that are under way when all else has ended.


class LookAhead(Protocol):
    """What a plan of an epoch can say of its shards."""

    def __len__(self) -> int:
        """Slots."""
        ...

    def shards(self, start: int, limit: int, stop: int | None = None) -> Sequence[int]:
        """At most `limit` distinct shards of the slots [start, stop), in order of first use."""
        ...


def default_threads(processes: int = 1, *, is_remote: bool = False) -> int:
    """How many threads a process should have to fetch and decompress, from 1 to 8.

    Args:
        processes: How many processes of this node do so.
        is_remote: Files come from far away, so that threads mostly wait: at least 4.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(8, max(4 if is_remote else 1, (cores or 1) // max(processes, 1)))


class Prefetcher:
    """Brings the shards of one iteration here, some slots ahead of it.

    Made, advanced, waited for and closed by one thread. It has no threads until a shard is missing,
    and ends them in `close`, when it is garbage, or when the interpreter exits.

    Under a limit it looks only as far ahead as the observed rates ask for: what lies here too early
    takes the room of what will be read again.

    Args:
        cache: Where the shards are brought to.
        plan: Which shards are needed when.
        predownload: How many slots to look ahead at most.
        threads: How many shards to fetch at a time; None: `default_threads()`.
    """

    def __init__(
        self, cache: ShardCache, plan: LookAhead, *, predownload: int, threads: int | None = None
    ) -> None:
        self._cache = cache
        cache.begin_epoch()
        self._plan = plan
        self._pace = Pace(max(predownload, 0))
        self._step = max(1, self._pace.most // 8)
        self._size = len(plan)
        self._seen = 0  # the slot up to which shards are known
        self._window: deque[tuple[int, Sequence[int]]] = deque()  # (end slot, shards)
        self._jobs: dict[int, _Job] = {}
        self._crew = _Crew(self._timed(cache, self._pace), threads or default_threads())
        self._finalizer = weakref.finalize(self, self._crew.stop)

    def __reduce__(self) -> NoReturn:
        raise TypeError("A prefetcher belongs to one process; it can't be pickled.")

    def advance(self, slot: int) -> None:
        """Look ahead from a slot: what comes before it is no longer needed. Does not wait."""
        if self._cache.is_inert():
            return
        is_moved = False
        while self._window and self._window[0][0] <= slot:
            self._window.popleft()
            is_moved = True
        self._pace.moved(slot, time.monotonic())
        target = min(slot + self._ahead(), self._size)
        start = max(self._seen, slot)
        if target - start >= self._step or self._seen < target == self._size:
            new = self._plan.shards(start, target - start, target)
            self._window.append((target, new))
            self._seen = target
            is_moved = True
        if is_moved:
            self._look_ahead()

    def wait(self, shards: Sequence[int]) -> None:
        """Wait until shards are here; they come before all that is only looked ahead to.

        Under a limit they come as far as there is room for them together. `ShardCache.open` brings
        the others, one after another.

        Raises:
            StreamingError: What `ShardCache.prepare` raised for one of them, as soon as it did. The
                next call tries again.
            WorkerError: Any other exception, which is its cause.
            CacheError: The prefetcher is closed.
        """
        needed = dict.fromkeys(self._cache.absent(shards))
        if self._cache.limit is not None:
            # One that is here, but not yet let go of, could not be evicted when its turn is over.
            needed.update(dict.fromkeys(shard for shard in shards if self._is_at_work_on(shard)))
        if not needed:
            return
        jobs = {shard: self._submit(shard, is_urgent=True) for shard in needed}
        begun = time.monotonic()
        wait([job.future for job in jobs.values()], return_when=FIRST_EXCEPTION)
        waited = time.monotonic() - begun
        self._pace.waited(waited)
        self._cache.note_wait(next(iter(needed)), waited)
        for shard, job in jobs.items():
            if job.future.done():
                self._jobs.pop(shard, None)
                _check(job)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """End all threads. Nothing that waits in line is begun.

        Args:
            timeout: Seconds to wait for what is under way. What takes longer is finished alone and
                does no harm: a file has its name only when it is whole.
        """
        self._finalizer()
        self._jobs.clear()
        self._cache.pin([])
        self._crew.join(timeout)

    def finish(self, upcoming: Callable[[], Sequence[int]] | None = None) -> None:
        """End when all has been read, but go on with what comes next meanwhile.

        Args:
            upcoming: Gives the shards that are needed first after this iteration, in order; called
                in a thread. None: nothing comes next.
        """
        self._jobs.clear()
        self._cache.pin([])
        if upcoming is None or self._cache.is_inert():
            self.close()
            return
        self._crew.end_with(upcoming, self._cache)

    @staticmethod
    def _timed(cache: ShardCache, pace: Pace) -> Callable[..., bool]:
        """What prepares shards; not a method, or the threads would keep the prefetcher alive."""

        def prepare(shard: int, *, ahead: bool) -> bool:
            begun = time.monotonic()
            is_here = cache.prepare(shard, ahead=ahead)
            pace.brought(time.monotonic() - begun)
            return is_here

        return prepare

    def _ahead(self) -> int:
        """Slots to look ahead now."""
        if self._cache.limit is None:
            return self._pace.most
        return self._pace.ahead(self._crew.rounds(len(self._jobs)))

    def _is_at_work_on(self, shard: int) -> bool:
        job = self._jobs.get(shard)
        return job is not None and job.future.running()

    def _look_ahead(self) -> None:
        """Ask for what is missing in the window; forget what is no longer in it."""
        coming = dict.fromkeys(itertools.chain.from_iterable(part for _, part in self._window))
        if self._cache.limit is not None:
            self._cache.pin(list(coming))
        for shard in [shard for shard in self._jobs if shard not in coming]:
            self._crew.cancel(self._jobs.pop(shard))
        for shard in self._cache.absent(list(coming)):
            self._submit(shard, is_urgent=False)

    def _submit(self, shard: int, *, is_urgent: bool) -> "_Job":
        job = self._jobs.get(shard)
        if job is None or job.is_out_of_date:
            job = self._jobs[shard] = _Job(shard)
        elif job.is_urgent or not is_urgent or job.future.done():
            return job
        job.is_urgent = is_urgent
        self._crew.submit(job)
        return job


@dataclass(slots=True, eq=False)
class _Job:
    """One shard to be prepared. It may stand in line twice, the second time as urgent."""

    shard: int
    is_urgent: bool = False
    is_begun: bool = False
    action: Callable[[], bool] | None = None  # in place of preparing the shard
    future: Future[bool] = field(default_factory=Future)

    @property
    def is_out_of_date(self) -> bool:
        """Whether the shard was prepared, or put off for lack of room: it may be asked for anew."""
        return self.future.done() and not self.future.cancelled() and not self.future.exception()


def _check(job: _Job) -> None:
    """Raise what became of a job that is done, if that is an error."""
    try:
        job.future.result()
    except StreamingError:
        raise
    except CancelledError:
        raise CacheError("The prefetcher was closed while shards were waited for.") from None
    except Exception as error:
        raise WorkerError(
            f"Preparing shard {job.shard} failed: {type(error).__name__}: {error}"
        ) from error


class _Crew:
    """Threads that do jobs, urgent ones first, else in the order they came.

    Not a ThreadPoolExecutor: that has one line for all, and keeps the interpreter from exiting
    until the last job in it is done.
    """

    def __init__(self, prepare: Callable[..., bool], size: int) -> None:
        self._prepare = prepare
        self._size = size
        self._line: list[tuple[bool, int, _Job]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_stopped = False
        self._is_finishing = False  # to be stopped when nothing is left in line
        self._pid = os.getpid()

    def submit(self, job: _Job) -> None:
        """Put a job in line."""
        with self._changed:
            if self._is_stopped:
                self._cancel(job)
                return
            heapq.heappush(self._line, (not job.is_urgent, next(self._number), job))
            self._changed.notify()
            if len(self._line) > self._idle and len(self._threads) < self._size:
                name = f"streaming-prefetch-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                _crews.add(self)
                thread.start()

    def cancel(self, job: _Job) -> None:
        """Take a job out of line, if it is not begun."""
        with self._changed:
            self._cancel(job)

    def stop(self) -> None:
        """Begin nothing more; cancel what is in line. Threads end when their job does."""
        if os.getpid() != self._pid:
            return  # A forked child has copies of the locks, in whatever state, and no threads.
        with self._changed:
            self._is_stopped = True
            while self._line:
                self._cancel(self._line.pop()[-1])
            self._changed.notify_all()

    def rounds(self, jobs: int) -> int:
        """How many jobs a thread has to do of so many."""
        return -(-max(jobs, 1) // self._size)

    def end_with(self, upcoming: Callable[[], Sequence[int]], cache: ShardCache) -> None:
        """Bring what comes next, and end the threads then. Begins nothing if there is nothing."""
        job = _Job(-1)
        job.future.add_done_callback(lambda _: self._finish())

        def look() -> bool:
            shards = upcoming()
            if cache.limit is not None:
                cache.pin(shards)
            for shard in cache.absent(shards):
                self.submit(_Job(shard))
            return True

        job.action = look
        self.submit(job)

    def _finish(self) -> None:
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, at most so many seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads if os.getpid() == self._pid else ():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.future.set_result(
                    job.action() if job.action else self._prepare(job.shard, ahead=True)
                )
            except BaseException as error:
                logger.debug("Shard %d could not be prepared.", job.shard, exc_info=error)
                job.future.set_exception(error)
            del job  # An idle thread keeps no job, and no error with its frames.

    def _next(self) -> _Job | None:
        """The next job that is not begun and not cancelled; None at the end."""
        with self._changed:
            while not self._is_stopped:
                while self._line:
                    job = heapq.heappop(self._line)[-1]
                    if not job.is_begun and not job.future.cancelled():
                        job.is_begun = job.future.set_running_or_notify_cancel()
                        return job
                if self._is_finishing:
                    self._is_stopped = True
                    self._changed.notify_all()
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
        return None

    @staticmethod
    def _cancel(job: _Job) -> None:
        if not job.future.cancelled() and job.future.cancel():
            job.future.set_running_or_notify_cancel()  # Wakes whoever waits for it.


# At exit, threads get a moment to come to an end: one that is frozen by the interpreter's end in
# the middle of foreign code may take the process down with it.
_crews: "weakref.WeakSet[_Crew]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    crews = list(_crews)
    for crew in crews:
        crew.stop()
    deadline = time.monotonic() + CLOSE_SECONDS
    for crew in crews:
        crew.join(deadline - time.monotonic())
