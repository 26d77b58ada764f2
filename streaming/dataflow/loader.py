"""The loader: runs the four roles in torch's workers or here, and knows the place of the run."""

import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import streaming
from streaming.dataflow.base import (
    Batch,
    BatchCollator,
    DataDistributor,
    Json,
    RawItemProcessor,
    SampleBatcher,
    StreamPlan,
)
from streaming.dataflow.batchers.simple import SimpleBatcher
from streaming.dataflow.collators.default import DefaultBatchCollator
from streaming.dataflow.coordinates import find_coordinates
from streaming.dataflow.distributors.map import MapDistributor
from streaming.dataflow.processors.basic import IdentityProcessor
from streaming.dataflow.roles import Roles, ask, check_pickle
from streaming.dataflow.schedule import Schedule, plan_streams, usable_workers
from streaming.dataflow.state import (
    FORMAT,
    LoaderState,
    StreamState,
    differences,
    parse_states,
)
from streaming.dataflow.tensors import with_tensors
from streaming.dataflow.turns import Delivery, Turns
from streaming.errors import ConfigError, StateError, WorkerError
from streaming.shared.orphans import end_with_parent

__all__ = ["CosmosDataLoader", "DataflowLoader"]

logger = logging.getLogger(__name__)


class DataflowLoader(DataLoader[Any]):
    """Batches of four roles: distributor, processor, batcher, collator.

    An iteration goes on for ever, or for the epochs that the distributor says. Iterating again goes
    on behind the last batch that was given out; `restart` begins anew. One iterator lives at a
    time: a new one takes over. Numpy arrays in a batch become tensors.

    `state_dict` is the place of the run after the last batch that was given out, to the sample,
    with whatever waits in a batcher; it asks no worker. It may be loaded on other numbers of ranks
    and workers, as long as the ranks divide the logical streams.

    Args:
        distributor: Who gets which items.
        processor: Makes samples of items; None: items are samples.
        batcher: Puts samples together.
        collator: Makes the batch of a group; None: torch's default.
        batch_size: In place of a batcher: groups of so many samples.
        num_workers: Processes of this rank; 0 does the work in this one.
        prefetch_factor: Batches that each worker makes ahead; torch's default if None.
        persistent_workers: Whether workers live on between iterations.
        pin_memory: Whether to put batches into pinned memory.
        parallel_dims: Tells which ranks split the data: see `find_coordinates`.
        num_streams: Logical streams of the whole job. None: one for each worker of each rank. A job
            whose size will change takes a number with many divisors, such as 48 or 240.
        seed: Seed of random processing.
        seed_globals: Also seed the global generators of Python, numpy and torch before each item is
            processed, for processors that draw from these.
        stamp: Add to each batch `sample_worker_id`, `sample_epoch` and `sample_index`, one entry
            for each sample, for trainers that save these.
        allow_empty: Allow logical streams without items, as long as each rank has one with some.
        timeout: Seconds to wait for a worker's batch; 0 waits for ever.
        multiprocessing_context: How workers are started: a name or a context of multiprocessing.
        worker_init_fn: Called in each worker with its number.

    Attributes:
        dp_rank: This data-parallel rank.
        dp_world_size: How many there are.
        plan: How the data are dealt out to logical streams.

    Raises:
        ConfigError: Arguments contradict each other, or can't be meant as they are.
        StateError: The ranks don't divide the logical streams.
    """

    def __init__(
        self,
        distributor: DataDistributor,
        processor: RawItemProcessor | None = None,
        batcher: SampleBatcher | None = None,
        collator: BatchCollator | None = None,
        batch_size: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        parallel_dims: Any = None,
        *,
        num_streams: int | None = None,
        seed: int = 0,
        seed_globals: bool = False,
        stamp: bool = False,
        allow_empty: bool = False,
        timeout: float = 0,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        if (batcher is None) == (batch_size is None):
            raise ConfigError(
                f"Give one of `batcher` and `batch_size` (which is short for SimpleBatcher), not "
                f"{'neither' if batcher is None else 'both'}."
            )
        self.distributor = distributor
        self.processor = IdentityProcessor() if processor is None else processor
        self.batcher = SimpleBatcher(batch_size or 0) if batcher is None else batcher
        self.collator = DefaultBatchCollator() if collator is None else collator
        self.dp_rank, self.dp_world_size = find_coordinates(parallel_dims)
        self.plan = plan_streams(num_streams, self.dp_world_size, num_workers)
        self._schedule = Schedule(self.plan.num_streams, self.dp_rank, self.dp_world_size)
        self._roles = Roles(
            distributor=self.distributor,
            processor=self.processor,
            batcher=self.batcher,
            collator=self.collator,
            seed=seed,
            seed_globals=seed_globals,
            stamp=stamp,
        )
        self._check_counts(allow_empty)
        usable = usable_workers(self.plan.num_streams, self.dp_world_size, num_workers)
        if usable != num_workers:
            logger.warning(
                "%d workers can't share the %d logical streams of a rank evenly; there will be %d.",
                num_workers,
                self.plan.num_streams // self.dp_world_size,
                usable,
            )
            num_workers = usable
        if persistent_workers and not num_workers:
            logger.info("`persistent_workers` has no effect without workers.")
            persistent_workers = False
        if isinstance(distributor, MapDistributor) and num_workers and not persistent_workers:
            logger.info("`persistent_workers` is turned on, as for every MapDistributor.")
            persistent_workers = True
        if num_workers:
            check_pickle(self._roles, multiprocessing_context)
        if not self._roles.resumable:
            logger.warning(
                "%s says that it is not resumable: this loader can't save its place.",
                type(self.batcher).__name__,
            )
        self._places: dict[int, StreamState | Callable[[], StreamState]] = {}
        self._num_turns = 0  # since the schedule's start
        self._feed = _Feed(self._roles)
        self._here: Turns | None = None
        self._deliveries: Iterator[Delivery] | None = None
        self._newest: weakref.ref[_Batches] | None = None
        has_tensors = getattr(self.collator, "leaves_no_arrays", False) and not stamp
        super().__init__(
            self._feed,
            batch_size=None,
            collate_fn=_unchanged if has_tensors else _with_tensors,  # type: ignore[arg-type]
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
            pin_memory=pin_memory,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context if num_workers else None,
            worker_init_fn=worker_init_fn,
        )

    def __enter__(self) -> "DataflowLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its own class.
        """Go on behind the last batch that was given out."""
        return self.batches()

    def batches(self, *, restart: bool = False) -> Iterator[Batch]:
        """Iterate: behind the last batch that was given out, or from the beginning."""
        if restart:
            self._go_to({}, 0)
        newest = None if self._newest is None else self._newest()
        deliveries = None if newest is None else newest.hand_over()
        deliveries = self._deliveries if deliveries is None else deliveries
        deliveries = self._begin() if deliveries is None else deliveries
        # What lives on between iterations; other workers end with their iteration.
        is_kept = self.persistent_workers or not self.num_workers
        self._deliveries = deliveries if is_kept else None
        batches = _Batches(self, deliveries)
        self._newest = weakref.ref(batches)
        return batches

    def state_dict(self) -> dict[str, Json]:
        """The place of this rank's logical streams after the last batch that was given out.

        May be called between any two batches. A checkpoint holds the states of all ranks, saved
        after the same number of batches; `merge_states` joins them.

        Raises:
            ConfigError: The batcher says that it can't be resumed.
        """
        if not self._roles.resumable:
            raise ConfigError(
                f"{type(self.batcher).__name__} is not resumable (its attribute `resumable` says "
                f"so), so the place of this loader can't be saved."
            )
        places = self._known_places()
        return LoaderState(
            format=FORMAT,
            streams={str(s): places.get(s, StreamState()) for s in self._schedule.streams()},
            delivered=self._schedule.made(self._num_turns),
            num_streams=self.plan.num_streams,
            origin=self.plan.origin,
            fingerprint=self._fingerprint(),
        ).to_json()

    def load_state_dict(
        self, state: Mapping[str, Json] | Sequence[Mapping[str, Json]], *, strict: bool = True
    ) -> None:
        """Go on from a place at the next iteration, whose workers begin anew.

        Args:
            state: What the ranks have saved: joined, or as a list. Other ranks' streams may be in
                it, and this rank's must be.
            strict: Whether settings must be equal that only change what comes: those of the
                batcher, and `seed`. A warning if not. What a place means must always be equal.

        Raises:
            StateError: It is no state, it is of other data or other settings, a stream is missing,
                or ranks or workers don't divide the logical streams.
        """
        found = parse_states(state)
        self._check_fingerprint(found, strict)
        is_over = all(place.ended for place in found.streams.values())
        start = 0 if is_over else found.delivered
        schedule = Schedule(found.num_streams, self.dp_rank, self.dp_world_size, start)
        streams = schedule.streams()
        missing = [stream for stream in streams if str(stream) not in found.streams]
        if missing:
            raise StateError(
                f"The state lacks logical stream {missing[0]}, which rank {self.dp_rank} of "
                f"{self.dp_world_size} makes: it holds {len(found.streams)} of "
                f"{found.num_streams}. Give the states of all ranks."
            )
        usable = usable_workers(found.num_streams, self.dp_world_size, self.num_workers)
        if usable != self.num_workers:
            raise StateError(
                f"{self.num_workers} workers can't share evenly the {len(streams)} logical streams "
                f"that each rank has in this state. Use {usable}."
            )
        places = {stream: found.streams[str(stream)] for stream in streams}
        if is_over:
            places = _begun(places)
        self.plan = StreamPlan(found.num_streams, found.origin)
        self._go_to(places, start)

    def stats(self) -> dict[str, int]:
        """What this rank's logical streams have come to since the run began.

        Batches made, items that the processor dropped, and samples that the batcher dropped.
        """
        places = self._known_places().values()
        return {
            "batches": sum(place.groups for place in places),
            "skipped": sum(place.skipped for place in places),
            "dropped": sum(place.dropped for place in places),
        }

    def close(self) -> None:
        """End the workers and whatever else runs in the background. Iterating begins it anew."""
        self._go_to(self._known_places(), self._schedule.made(self._num_turns))

    # --- Beginning and ending -----------------------------------------------------------------

    def _begin(self) -> Iterator[Delivery]:
        """Start to make batches, in workers or here."""
        places = self._known_places()
        start = self._schedule.made(self._num_turns)
        self._schedule = dataclasses.replace(self._schedule, start=start)
        self._num_turns = 0
        self._feed.begin = (self.plan, self._schedule, places)
        if self.num_workers:
            return super().__iter__()
        self._here = self._feed.turns()
        return map(self._finish, self._here)

    def _go_to(self, places: Mapping[int, StreamState], start: int) -> None:
        """End what makes batches, and note from where on others are to make them."""
        newest = None if self._newest is None else self._newest()
        _end_workers(None if newest is None else newest.hand_over())
        _end_workers(self._iterator)
        if self._here is not None:
            self._here.close()
        self._here = self._deliveries = self._newest = self._iterator = None
        self._places = dict(places)
        self._schedule = Schedule(self.plan.num_streams, self.dp_rank, self.dp_world_size, start)
        self._num_turns = 0

    def _note(self, delivery: Delivery) -> None:
        """Note a turn that is over."""
        self._num_turns = delivery.turn + 1
        if delivery.state is not None:
            self._places[delivery.stream] = delivery.state
            if delivery.ended:
                place = self._known_places()[delivery.stream]
                self._places[delivery.stream] = msgspec.structs.replace(place, ended=True)

    def _note_end(self) -> None:
        """Note that all logical streams of this rank have ended: the next epochs are next."""
        self._places = dict(_begun(self._known_places()))
        begun, self._schedule = self._schedule, self._schedule.next_round()
        self._num_turns = 0
        if self.num_workers:
            self._deliveries = None
            if (begun.start - self._schedule.start) % (self.num_workers * self.dp_world_size):
                _end_workers(self._iterator)  # The streams of each would be another's now.
                self._iterator = None

    def _known_places(self) -> dict[int, StreamState]:
        """The places of the logical streams that have begun."""
        return {
            stream: place() if callable(place) else place
            for stream, place in sorted(self._places.items())
        }

    def _finish(self, delivery: Delivery) -> Delivery:
        """What torch does with what comes from workers."""
        delivery = self.collate_fn(delivery)  # type: ignore[arg-type]  # Made for deliveries.
        return delivery.pin_memory() if self.pin_memory else delivery

    # --- Checks -------------------------------------------------------------------------------

    def _fingerprint(self) -> dict[str, Json]:
        found = {
            name: {"kind": type(role).__name__, **ask(role, "fingerprint", {})}
            for name, role in (("distributor", self.distributor), ("batcher", self.batcher))
        }
        return {**found, "seed": self._roles.seed, "library": streaming.__version__}

    def _check_fingerprint(self, state: LoaderState, strict: bool) -> None:
        mine, other = self._fingerprint(), dict(state.fingerprint)
        del mine["library"]
        other.pop("library", None)
        different = differences(mine, other)
        fatal = [line for line in different if strict or line.startswith("distributor")]
        if fatal:
            raise StateError(
                f"The state is of a run that was set up in another way: {'; '.join(fatal)}. Set up "
                f"this one as that was; for the batcher and `seed` `strict=False` is enough."
            )
        for line in different:
            logger.warning("Going on with another setting: %s.", line)

    def _check_counts(self, allow_empty: bool) -> None:
        """Refuse logical streams without items: their rank would stop, and others wait for it."""
        counts = ask(self.distributor, "counts", None, self.plan)
        if counts is None or all(counts) or not any(counts):
            return
        ranks = range(self.dp_world_size)
        idle = [rank for rank in ranks if not any(counts[rank :: self.dp_world_size])]
        if allow_empty and not idle:
            return
        empty = [stream for stream, count in enumerate(counts) if not count]
        waiting = (
            f"Rank {idle[0]} would have nothing to do, and others wait for it. " if idle else ""
        )
        raise ConfigError(
            f"{len(empty)} of the {len(counts)} logical streams have no items (number {empty[0]} "
            f"is the first), while all together have {sum(counts)}. {waiting}Use "
            f"fewer workers or ranks, or a smaller `num_streams`. `allow_empty=True` allows it as "
            f"long as each rank has something to do."
        )


CosmosDataLoader = DataflowLoader
"""The name in NVIDIA's cosmos-framework."""


class _Batches(Iterator[Batch]):
    """One iteration over a loader."""

    def __init__(self, loader: DataflowLoader, deliveries: Iterator[Delivery]) -> None:
        self._loader = loader
        self._deliveries: Iterator[Delivery] | None = deliveries
        self._is_over = False

    def __next__(self) -> Batch:
        while self._deliveries is not None:
            try:
                delivery = next(self._deliveries)
            except StopIteration:
                self._deliveries, self._is_over = None, True
                self._loader._note_end()
                raise
            except RuntimeError as error:
                if str(error).startswith("DataLoader"):  # torch's own: a worker died, or is stuck.
                    self._loader.close()
                raise
            self._loader._note(delivery)
            if delivery.batches:
                return delivery.batches[0]
        if self._is_over:
            raise StopIteration
        raise WorkerError(
            "This iteration is over: the loader was iterated anew, closed or given another place "
            "since. One iterator of a loader lives at a time."
        )

    def hand_over(self) -> Iterator[Delivery] | None:
        """Give up what this iteration reads from."""
        deliveries, self._deliveries = self._deliveries, None
        return deliveries


def _end_workers(deliveries: Any) -> None:
    """End the workers that make deliveries now, not when their last reference goes."""
    end = getattr(deliveries, "_shutdown_workers", None)  # torch has no public name for it.
    if end is not None:
        end()


def _unchanged(delivery: Delivery) -> Delivery:
    """What torch calls where nothing is to be done."""
    return delivery


def _with_tensors(delivery: Delivery) -> Delivery:
    """What torch does with batches that workers collate."""
    delivery.batches = tuple(map(with_tensors, delivery.batches))
    return delivery


class _Feed(IterableDataset[Delivery]):
    """What torch's workers iterate. A worker's copy lives as long as the worker."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._turns: Turns | None = None
        self.begin: tuple[StreamPlan, Schedule, dict[int, StreamState]] | None = None

    def __iter__(self) -> Iterator[Delivery]:
        if self._turns is None:
            info = get_worker_info()
            assert info is not None
            end_with_parent()
            self._turns = self.turns(info.id, info.num_workers)
        return self._turns

    def turns(self, worker: int = 0, num_workers: int = 0) -> Turns:
        """The turns of one worker."""
        assert self.begin is not None
        plan, schedule, places = self.begin
        return Turns(self._roles, plan, schedule, places, worker, num_workers)


def _begun(places: Mapping[int, StreamState]) -> dict[int, StreamState]:
    """Places at the end of some epochs as places at the beginning of the next."""
    return {stream: msgspec.structs.replace(place, ended=False) for stream, place in places.items()}
