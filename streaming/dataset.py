"""A dataset that streams: table, plan, cache and position put together."""

import dataclasses
import itertools
import logging
import operator
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from streaming.access import ShardAccess
from streaming.array import Array
from streaming.batching.dealing import DealtLayout
from streaming.cache import CachePart
from streaming.config import DatasetConfig, default_predownload
from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.direct import DirectRuntime
from streaming.distributed import agree, all_gather_object
from streaming.errors import ConfigError, StateError
from streaming.foreign import refuse_accelerate
from streaming.format.column import Column
from streaming.format.index import get_index_basename
from streaming.format.reader import Sample
from streaming.format.tables import VersionLike
from streaming.hashing import get_hash
from streaming.idmap import Recipe
from streaming.iteration import (
    BlockSizes,
    BlockSource,
    ColumnBatches,
    Lists,
    Output,
    Samples,
    StackedBatches,
    Stacks,
    iterate,
)
from streaming.partition import Layout
from streaming.plan import EpochPlan, OrderSpec, Position, arrange, build_plan
from streaming.prefetch import LookAhead, Prefetcher, default_threads
from streaming.runtime import PerProcess, Runtime, checked_ids
from streaming.sampling import describe_shares, has_own_sizes
from streaming.shared.counts import CountsFolder, Stats
from streaming.shared.directory import holders_of, state_path
from streaming.shared.epoch import EpochRecord, RunDirectory, Start
from streaming.shared.ids import Materialised, temporary_orders
from streaming.shared.orphans import end_with_parent
from streaming.shared.plain import describe_change
from streaming.shared.source import public_address
from streaming.spanner import Spanner
from streaming.state import check_state, dump_state, parse_state
from streaming.stream import Stream, make_streams, weigh_streams
from streaming.table import ShardTable
from streaming.util.checking import check_flag, check_whole
from streaming.util.pretty import prettify_dec_bytes
from streaming.world import World, process_group

__all__ = ["Handoff", "StreamingDataset"]

logger = logging.getLogger(__name__)

# Samples of a block: enough that what is done once a block costs nothing beside them.
MAX_BLOCK = 4096
# Slots that are looked at at a time, however large a batch is.
MAX_SLOTS = 1 << 20
# Decoded samples stay in memory until they are given out.
MAX_BLOCK_BYTES = 16 << 20
# What a worker has on its way or at hand, if nobody says: two or three large shards.
AHEAD_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Handoff:
    """What a StreamingDataLoader tells those who iterate for it.

    Attributes:
        start: Where the first iteration begins.
        key: Under which name the loader announces later ones to workers that live on.
        is_persistent: Whether workers live on.
        stacks: What is given out: None for single samples, else batches that torch's default
            collate has not much to do with.
    """

    start: Start
    key: str
    is_persistent: bool = False
    stacks: Stacks | None = None


class StreamingDataset(ShardAccess, Array, IterableDataset[Sample]):
    """Samples of one or several streams, in a shuffled order that is the same whoever reads.

    Every rank makes one with equal arguments. Iterating gives this rank's (and, in a DataLoader
    worker, this worker's) samples of the next epoch; indexing gives any sample at random. Nothing
    but the run directory lives on between calls until a process iterates: the object pickles and
    forks, and each process opens what it needs. A state (`state_dict`) belongs to the run: it may
    be loaded on another number of nodes, ranks and workers.

    Args:
        streams: Streams to mix. Excludes `remote` and `local`.
        remote: URL or path of the dataset, as for a Stream.
        local: Directory for its files on this node, as for a Stream.
        split: Sub-directory of both.
        download_retry: How often a download is tried in all.
        download_timeout: Seconds after which a download that gives no bytes counts as failed.
        validate_hash: Name of a hash in the index that downloads are checked against.
        keep_zip: Keep compressed files after they are decompressed.
        epoch_size: Samples of an epoch over all ranks, as a number or a text such as "100k". None
            or 0: as many as the streams' weights make.
        predownload: Samples a worker looks ahead for shards. None: 8 batches, and at least 64 MiB
            if shards come from a remote and may all stay. Of Parquet at least 8,192 samples, and
            64 MiB without `cache_limit`.
        cache_limit: Bytes that downloaded shards may take on this node, or a text such as "10gb".
        cache: "shards" keeps shards on this node; "none" reads only the samples that are asked for,
            by ranges, and keeps nothing but the index: for few samples of a large dataset. Of
            Parquet, "file" and "row_group" say what a shard is; see docs/parquet.md.
        sampling_method: "balanced" draws partial repeats anew each epoch, "fixed" the same.
        sampling_granularity: Samples taken from one shard at a time for partial repeats.
        partition_algo: How an epoch is dealt to workers.
        num_canonical_nodes: Parts of the epoch that are read side by side. It fixes the order
            whatever the number of nodes is.
        batch_size: Samples of a batch of one rank. Needed to iterate.
        shuffle: Whether to shuffle.
        shuffle_algo: How.
        shuffle_seed: Equal seeds give equal orders.
        shuffle_block_size: How far samples travel, in samples.
        batching_method: How streams share a batch.
        allow_unsafe_types: Allow columns whose decoding runs code that the data holds (pickle).
        batched: Iterate over batches as dicts of columns, of `batch_size` samples or what is left,
            without a dict a sample. Columns are arrays, BytesColumn or lists; see `take_columns`.
        decoders: Column to function: it makes the value of the stored bytes, in place of the
            column's encoding. `ImageToArray`, for one. It must pickle if workers do.
        replication: Number of consecutive ranks that get the same samples.
        stream_name: Registered name of the class that `remote` and `local` make a stream of.
        stream_config: More arguments for it.
        format: As for a Stream; so are the next five.
        columns: Names of the columns that samples shall have.
        format_options: More about data without an index.
        allow_schema_mismatch: Unite files whose columns differ.
        version: Version of a table.
        follow: Go on with new versions of the table.
        world: This process's place among all; None: as the environment or torch says.

    Raises:
        ConfigError: An argument can't be meant as it is.
        EmptyDatasetError: A stream holds no samples.
        IndexFormatError: The index of a stream is broken.
        UnsafeTypeError: A column would run code, and `allow_unsafe_types` is not set.
        StoreError: The index can't be had.
    """

    _laid_out: tuple[tuple[OrderSpec, World, Position], Layout] | None = None

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = DEFAULT_RETRY,
        download_timeout: float = DEFAULT_TIMEOUT,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        cache: str = "shards",
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        batched: bool = False,
        decoders: Mapping[str, Callable[[bytes], Any]] | None = None,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        format: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        format_options: Mapping[str, Any] | None = None,
        allow_schema_mismatch: bool = False,
        version: VersionLike | None = None,
        follow: bool = False,
        world: World | None = None,
    ) -> None:
        order = OrderSpec(
            batch_size=1 if batch_size is None else batch_size,
            shuffle=shuffle,
            shuffle_algo=shuffle_algo,
            shuffle_seed=shuffle_seed,
            shuffle_block_size=shuffle_block_size,
            num_canonical_nodes=num_canonical_nodes,
            sampling_method=sampling_method,
            sampling_granularity=sampling_granularity,
            partition_algo=partition_algo,
            batching_method=batching_method,
            replication=1 if replication is None else replication,
        )
        self._config = DatasetConfig.check(
            order=order,
            batch_size=batch_size,
            epoch_size=epoch_size,
            predownload=predownload,
            cache_limit=cache_limit,
            allow_unsafe_types=allow_unsafe_types,
        )
        self.batched, self._has_decoders = batched, bool(decoders)
        if batched and (batch_size is None or self._transforms()):
            raise ConfigError(
                "batched=True needs `batch_size`, and a class that does not override `get_item` or "
                "`__getitem__`: they are given one sample, and here there is none."
            )
        if not isinstance(world, World | None):
            raise ConfigError(f"`world` must be a World, but is {world!r}.")
        if not isinstance(stream_config, Mapping | None):
            raise ConfigError(f"`stream_config` must be a dict, but is {stream_config!r}.")
        self._world = (World.detect() if world is None else world).with_workers(0, 0)
        self._world.replicate(order.replication)  # Its error should come before any I/O.
        defaults: dict[str, Any] = {
            "download_retry": download_retry,
            "download_timeout": download_timeout,
            "validate_hash": validate_hash,
            "keep_zip": keep_zip,
        }
        said: dict[str, Any] = {
            "format": format,
            "columns": columns,
            "format_options": format_options,
            "version": version,
        }
        said = {name: value for name, value in said.items() if value is not None}
        flags = {"allow_schema_mismatch": allow_schema_mismatch, "follow": follow}
        said |= {name: True for name, value in flags.items() if check_flag(name, value)}
        if streams is not None and said:
            raise ConfigError(f"Of `streams`, say {', '.join(said)} to each Stream.")
        self.streams = make_streams(
            streams,
            stream_name,
            {
                "remote": remote,
                "local": local,
                "split": split,
                **defaults,
                **said,
                **(stream_config or {}),
            },
        )
        defaults["cache"] = cache
        for stream in self.streams:
            stream.apply_default(defaults)
        self._cache, self._decoders = cache, decoders
        self._run: RunDirectory | None = RunDirectory()
        self._counting = CountsFolder(self._run.path)
        try:
            self._open_streams([None] * len(self.streams))
            self._has_agreed = self._world.num_ranks == 1 or self._agree_on_versions()
        except BaseException:
            self._run.close()  # An error may be kept, and this object with it.
            raise
        if not self._has_agreed:
            self._warn_of_newest()
        if self.num_samples and not self.epoch_size:
            logger.warning(
                "No stream gives a sample: their `choose`, or `repeat` times their size, comes to "
                "0, so that epochs are empty. Raise one of them to 1 sample or more."
            )
        self._orders = PerProcess(partial(_make_orders, self._parts[0].directory.path))
        self._iterations = PerProcess(itertools.count)
        self._handoff: Handoff | None = None
        self._record = EpochRecord.create(self._run.path)
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        refuse_accelerate(self._parallel_world())
        # A DataLoader worker goes on with the record; whoever else has a copy makes his own.
        return {**self.__dict__, "_run": None, "_owner": 0, "_laid_out": None}

    # --- What there is ------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of samples in all streams, each counted once."""
        return self.num_samples

    def __len__(self) -> int:
        """Samples of this rank in an epoch."""
        return -(-self.epoch_size // self._parallel_world().num_ranks)

    def get_item(self, sample_id: int, retry: int = 7) -> Sample:
        """Get one sample, from a shard that is downloaded first if need be.

        Subclasses may override this to transform samples; indexing and iterating go through it.

        Args:
            sample_id: In [0, size).
            retry: Has no effect: a sample that is read can't be evicted meanwhile.
        """
        runtime = self._runtime.value or self._runtime.get()
        return runtime.get(operator.index(sample_id))

    def __getitem__(self, at: Any) -> Any:
        """See `Array.__getitem__`."""
        if type(at) is int and 0 <= at < self._known_size:  # Nearly always.
            return (self._runtime.value or self._runtime.get()).get(at)
        return super().__getitem__(at)

    def take_columns(self, sample_ids: Sequence[int] | NDArray[np.int64]) -> dict[str, Column]:
        """Get many samples by columns, in the order asked, without a dict a sample.

        A subclass's `get_item` does not see them.

        Args:
            sample_ids: In [0, size), or negative to count from the end.

        Returns:
            Column to values: numbers and arrays of one shape as an array with a row per sample,
            which `torch.as_tensor` takes without a copy; texts and bytes as BytesColumn, which
            pyarrow takes without a copy; anything else as a list. Empty if there are no ids.

        Raises:
            IndexError: A sample is out of range.
            DataError: Samples of several streams have different columns.
        """
        return self._runtime.get().take_columns(checked_ids(sample_ids, self.size))

    def stats(self) -> Stats:
        """What the caches of this dataset object have done: of this rank, with all its workers.

        Numbers since the object was made. Cheap enough to be asked for after each batch.
        """
        self._own_record()
        directories = {part.directory.path for part in self._parts if part.can_make}
        holders = itertools.chain.from_iterable(map(holders_of, sorted(directories)))
        return Stats.of(self._counting.gather(), tuple(holders))

    # --- Iterating ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, or go on where a loaded state says.

        Raises:
            ConfigError: `batch_size` was not given.
        """
        if self._config.batch_size is None:
            raise ConfigError(
                "To iterate, StreamingDataset needs `batch_size`, the number of samples in a batch "
                "of one rank: it decides which worker reads what."
            )
        refuse_accelerate(self._parallel_world())
        start = self._begin()
        self._read_versions(start.versions)
        world = self._parallel_world(detect=True)
        plan = self._plan(start, world)
        if plan.recipe is not None:
            plan.open_table()
            # The next epoch's order, which takes seconds if there are many samples.
            upcoming = partial(_upcoming_recipe, weakref.ref(self), start.next_epoch(), world)
            self._orders.get().prepare(upcoming)
        stacks = None if self._handoff is None else self._handoff.stacks
        following = None
        if get_worker_info() is None or (self._handoff is not None and self._handoff.is_persistent):
            following = partial(_first_shards, weakref.ref(self), start.next_epoch(), world)
        # What one process reads but once, in order, need not be kept in the form it is read in.
        is_alone = self._world.num_ranks == 1 and world.num_workers == 1
        reads_once = is_alone and start.epoch == 0 and not self._config.order.shuffle
        self._runtime.get().begin(reads_once=reads_once)
        return BlockSource.of(self._iterate(plan, stacks, following))

    def begin_epoch(self, is_over: Callable[[Start], bool]) -> Start:
        """Open the next epoch in the rank process, for a loader that hands it on to its workers.

        Args:
            is_over: Whether a place is the end of its epoch.
        """
        self._world.checked_against_group()
        if not self._has_agreed:  # A process group may have come since.
            self._has_agreed = self._agree_on_versions()
        return self._own_record().begin(is_over, self._renews)

    @contextmanager
    def handing_over(self, handoff: Handoff) -> Iterator[None]:
        """Let iterations that begin in this block, and in processes made in it, begin there."""
        self._own_record().announce(handoff.key, handoff.start)
        self._handoff = handoff
        try:
            yield
        finally:
            self._handoff = None

    @property
    def parallel_world(self) -> World:
        """This rank's place among all, where ranks that get the same samples count as one."""
        return self._parallel_world()

    def to_global(self, num_samples: int) -> int:
        """Samples that all ranks together have consumed when each has `num_samples`."""
        return num_samples * self._parallel_world().num_ranks

    def is_over(self, start: Start, num_workers: int = 0, least: int = 1) -> bool:
        """Whether nothing is left of an epoch: for no rank of the run, so that all agree.

        Args:
            start: A place in the epoch.
            num_workers: DataLoader workers of each rank.
            least: Samples that a worker must have to give out anything.
        """
        return self._layout(start, num_workers).most_left(least) < least

    def num_batches(
        self, start: Start, num_workers: int, batch_size: int, *, drop_last: bool = False
    ) -> int:
        """Batches that a loader of this rank gives out, from a place to the end of the epoch.

        Args:
            start: The place.
            num_workers: DataLoader workers of each rank.
            batch_size: Samples of the loader's batches; if it is the dataset's, or the dataset
                gives batches, it gives those of the plan.
            drop_last: Whether the loader leaves out what is not full.
        """
        layout = self._layout(start, num_workers)
        has_rows = self.gives_lists or (self.gives_rows and batch_size == self.batch_size)
        if isinstance(layout, DealtLayout) and has_rows:
            return layout.full if drop_last else layout.num_rows
        counts = [
            layout.num_samples(self._parallel_world().with_workers(num_workers, worker))
            for worker in range(layout.world.workers_per_rank)
        ]
        return sum((n if drop_last else n + batch_size - 1) // batch_size for n in counts)

    def seen_after(self, start: Start, batches: int) -> int:
        """Samples of the epoch that all ranks have had after some batches of the plan."""
        layout = self._layout(start)
        assert isinstance(layout, DealtLayout)
        return layout.seen_after(batches)

    def _layout(self, start: Start, num_workers: int = 0) -> Layout:
        """The batches from a place to the end of the epoch; the newest is kept."""
        self._read_versions(start.versions)
        world = self._world.with_workers(num_workers, 0).replicate(self._config.order.replication)
        asked = (self._order(start), world, self._position(start))
        if self._laid_out is None or self._laid_out[0] != asked:
            order, world, position = asked
            self._laid_out = asked, arrange(order, self._shares, world, position).layout
        return self._laid_out[1]

    def _begin(self) -> Start:
        info, handoff = get_worker_info(), self._handoff
        if info is not None:
            end_with_parent()
        times = next(self._iterations.get())
        if handoff is not None:
            is_later = info is not None and times > 0
            return self._record.announced(handoff.key) if is_later else handoff.start
        if info is None:
            return self.begin_epoch(self.is_over)
        ticket = (info.seed - info.id, times, info.num_workers)
        return self._record.join(ticket, info.id, self.is_over, self._renews)

    def _iterate(
        self,
        plan: EpochPlan,
        stacks: Stacks | None = None,
        upcoming: Callable[[], Sequence[int]] | None = None,
    ) -> Generator[Iterable[Any], None, None]:
        """Give out the samples of a plan by blocks, while the next shards are on their way.

        Args:
            plan: Of this process.
            stacks: What is given out, if not single samples.
            upcoming: Gives the first shards of the epoch after it, if this process goes on.
        """
        runtime, before = self._runtime.get(), self._stats_to_log()
        runtime.let_finish(None)
        prefetcher = self._look_ahead(plan)
        sizes = BlockSizes(
            # A batch size that is larger than any dataset is no reason to run out of memory.
            plan.batch_size if self.gives_lists else min(plan.batch_size, MAX_SLOTS),
            self._most_in_block(runtime),
            MAX_BLOCK_BYTES,
            is_whole=self.batched or self.gives_lists or self.gives_rows,
        )
        is_cut = stacks is not None and stacks.is_by_rows and stacks.drop_last
        num_slots = plan.num_full_slots if is_cut else len(plan)
        blocks = sizes.cut(num_slots, lambda: runtime.mean_bytes)
        output = self._output(plan, runtime, stacks)
        try:
            yield from iterate(plan, blocks, runtime, prefetcher, output)
            self._log_epoch(before)
            runtime.let_finish(prefetcher, upcoming)
        except BaseException:
            prefetcher.close()
            raise

    def _stats_to_log(self) -> Stats | None:
        """What a rank has counted so far, in the worker that logs its epochs; None in others."""
        info = get_worker_info()
        return None if info is not None and info.id else Stats.of(self._counting.gather())

    def _log_epoch(self, before: Stats | None) -> None:
        """Say once an epoch and rank what the cache has done, in its first worker."""
        if before is None:
            return
        done = Stats.of(self._counting.gather()).since(before)
        logger.info(
            "Rank %d, epoch read: %d shards were here and %d were not; %s fetched with %d retries, "
            "%s evicted; %.1f s of waiting (half of the waits under %.3f s, 99 %% under %.3f s).",
            self._world.rank,
            done.hits,
            done.misses,
            prettify_dec_bytes(done.fetched_bytes, digits=3),
            done.retries,
            prettify_dec_bytes(done.evicted_bytes, digits=3),
            done.wait_seconds,
            done.wait_p50,
            done.wait_p99,
        )

    def _take_list(self, ids: NDArray[np.int64], runtime: Runtime) -> Any:
        """The samples of a batch."""
        if self.batched:
            return runtime.take_columns(ids)
        if self._transforms() or self._has_decoders:
            return [self[i] for i in ids.tolist()]
        return runtime.take(ids)

    def _output(self, plan: EpochPlan, runtime: Runtime, stacks: Stacks | None) -> Output:
        """What is given out: of blocks, what the user sees."""
        if self.gives_lists or (stacks is not None and stacks.is_listed):
            return Lists(partial(self._take_list, runtime=runtime), plan.batch_size)
        if stacks is not None:
            return StackedBatches(
                runtime,
                stacks.batch_size,
                drop_last=stacks.drop_last,
                is_by_rows=stacks.is_by_rows,
            )
        if self.batched:
            batch_size = self._config.order.batch_size
            return ColumnBatches(runtime, batch_size, is_by_rows=self.gives_rows)
        if self._transforms() or self._has_decoders:
            return Samples(lambda ids: map(self.__getitem__, ids.tolist()))
        return Samples(runtime.take)

    def _most_in_block(self, runtime: Runtime) -> int:
        """Samples that may be decoded at once, as far as they stay small.

        Something should be left to look ahead to.
        """
        if self._has_decoders:
            return 1  # What they make may be many times as large.
        most = min(MAX_BLOCK, MAX_BLOCK_BYTES // self._mean_bytes)
        return most if runtime.cache.is_inert() else min(most, self._ahead // 2)

    @property
    def _mean_bytes(self) -> int:
        """Bytes of a sample."""
        return max(1, int(self._table.raw_bytes.sum()) // max(1, self.num_samples))

    @property
    def _is_remote(self) -> bool:
        """Whether files come from far away."""
        return any(part.source is not None for part in self._parts)

    def _look_ahead(self, plan: LookAhead, most: int = sys.maxsize) -> Prefetcher:
        """What brings the shards of a plan to this process, at most so many slots ahead of time."""
        processes = self._parallel_world(detect=True).workers_per_node
        return Prefetcher(
            self._runtime.get().cache,
            plan,
            predownload=min(self._ahead, most),
            threads=default_threads(processes, is_remote=self._is_remote),
        )

    @property
    def _ahead(self) -> int:
        """Slots that a worker looks ahead: as it was told, or else enough to keep a line busy."""
        told = self._config.predownload
        if any(part.decoded_limit is not None for part in self._parts):
            # Each block looks into many shards, which costs the same for few samples of them; and
            # the next ones should be decoded, wherever they come from, by the time they are needed.
            has_limit = self._config.cache_limit is not None
            return max(told, 2 * MAX_BLOCK, 0 if has_limit else AHEAD_BYTES // self._mean_bytes)
        is_told = told != default_predownload(self.batch_size)
        if any(part.version is not None for part in self._parts):
            told = max(told, 2 * MAX_BLOCK)  # A call to read rows of tables costs the same for few.
        if is_told or self._config.cache_limit is not None or not self._is_remote:
            return told
        return max(told, AHEAD_BYTES // self._mean_bytes)

    @property
    def gives_lists(self) -> bool:
        """Whether iterating gives batches, because streams have batch sizes of their own.

        Lists of samples, or columns with `batched`. A place in the epoch is then counted as if all
        batches had `batch_size` samples, so that ranks agree on it whatever they have read.
        """
        return has_own_sizes(self._shares)

    @property
    def gives_rows(self) -> bool:
        """Whether a loader must ask for the batches of the plan to get them as they are.

        So it is where batches are of single streams: at the end of an epoch some are short.
        """
        # Nobody has a batch of more samples than a block, but the slots would have to be counted.
        is_small = self._config.order.batch_size <= MAX_SLOTS
        return is_small and self.has_own_iteration and self._is_dealt

    @cached_property
    def _is_dealt(self) -> bool:
        return isinstance(self._layout(self.next_start), DealtLayout)

    @property
    def has_own_iteration(self) -> bool:
        """Whether no subclass gives out something else."""
        return type(self).__iter__ is StreamingDataset.__iter__

    @property
    def can_stack(self) -> bool:
        """Whether a loader may ask for batches that are nearly collated.

        A subclass that wants to see each sample, or the whole iteration, sees samples.
        """
        return self.has_own_iteration and not (
            self.batched or self.gives_lists or self._has_decoders or self._transforms()
        )

    def _transforms(self) -> bool:
        """Whether a subclass wants to see each sample."""
        cls = type(self)
        return (
            cls.get_item is not StreamingDataset.get_item
            or cls.__getitem__ is not StreamingDataset.__getitem__
        )

    # --- Where the run is ---------------------------------------------------------------------

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The place in the run, for a checkpoint. Called in the rank process.

        Equal on all ranks. Holds the predecessor's five keys, and ours beside them.

        Args:
            num_samples: Samples that all ranks together have consumed: in this epoch, or
            from_beginning: ... only since the place that this iteration began at.

        Raises:
            ConfigError: `num_samples` is no number of samples.
        """
        num_samples = check_whole("num_samples", num_samples, 0)
        start = self._own_record().position() or Start(epoch=-1)
        seen = num_samples if from_beginning else start.seen + num_samples
        return self.state_at(start, seen)

    def state_at(self, start: Start, seen: int) -> dict[str, Any]:
        """The state of a run that began an iteration at `start` and has now seen `seen` samples."""
        self._read_versions(start.versions)
        order = self._order(start)
        place = msgspec.structs.replace(
            start,
            seen=seen,
            num_canonical_nodes=order.num_canonical_nodes,
            shuffle_seed=order.shuffle_seed,
            initial_physical_nodes=start.initial_physical_nodes or self._parallel_world().num_nodes,
            # A run whose first state was the predecessor's does not know them.
            initial_ranks=self._parallel_world().num_ranks
            if start.initial_physical_nodes is None
            else start.initial_ranks,
        )
        return dump_state(place, order.to_json(), self._identity)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Go on from a state, of this library or of the predecessor, at the next iteration.

        The seed and the canonical nodes of the state hold from then on. Called in the process of
        each rank, any number of times; a state from before the first iteration changes nothing.

        Raises:
            StateError: It isn't a state, or it is of another order or other data.
        """
        start, order, dataset = parse_state(obj)
        if start.epoch < 0:
            return
        self._read_versions(start.versions)
        check_state(self._order(start).to_json(), order, self._identity, dataset)
        self.is_over(start)  # A place behind the end is an error here, not in a worker.
        self._own_record().load(start)

    @property
    def next_start(self) -> Start:
        """Where the next iteration will begin."""
        return self._own_record().upcoming()

    @property
    def next_epoch(self) -> int:
        """Epoch that the next iteration will be in."""
        return self.next_start.epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._own_record().skip_to(epoch)

    @property
    def initial_physical_nodes(self) -> int | None:
        """Nodes on which a run began that was resumed here; None if none was."""
        start = self._own_record().position()
        return None if start is None else start.initial_physical_nodes

    def _current_order(self) -> OrderSpec:
        return self._order(self._own_record().position() or Start(epoch=0))

    def _own_record(self) -> EpochRecord:
        """The record of this object in this process, unless it is a worker's: then the rank's."""
        if self._owner != os.getpid() and get_worker_info() is None:
            # A copy, by pickle or fork, that goes its own way from here.
            run = RunDirectory()
            self._record = self._record.copy_to(run.path)
            self._run, self._owner = run, os.getpid()
            self._counting.run = run.path
        return self._record

    def _order(self, start: Start) -> OrderSpec:
        """The order with what a loaded state has brought, without open defaults."""
        order = self._config.order
        if start.num_canonical_nodes is not None:
            order = dataclasses.replace(order, num_canonical_nodes=start.num_canonical_nodes)
        if start.shuffle_seed is not None:
            order = dataclasses.replace(order, shuffle_seed=start.shuffle_seed)
        return order.resolve(self._parallel_world().num_nodes)

    def _plan(self, start: Start, world: World, *, is_ahead: bool = False) -> EpochPlan:
        return build_plan(
            self._order(start),
            self._table,
            self._shares,
            world,
            self._position(start),
            self._orders.get(),
            is_ahead=is_ahead,
        )

    def _position(self, start: Start) -> Position:
        return Position(start.epoch, start.seen, start.initial_physical_nodes, start.initial_ranks)

    def _parallel_world(self, *, detect: bool = False) -> World:
        """Ranks that get the same samples as one; with `detect`, seen from the worker we are."""
        world = self._world.detect_workers() if detect else self._world
        return world.replicate(self._config.order.replication)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What the data are, as far as a state's place depends on them."""
        choose = np.array([share.choose for share in self._shares], np.int64)
        batch_size = self._config.batch_size
        shape = self._table.samples.tobytes() + self._table.stream.tobytes() + choose.tobytes()
        return {
            "num_samples": self.num_samples,
            "epoch_size": self.epoch_size,
            "global_batch_size": batch_size and batch_size * self._parallel_world().num_ranks,
            "weights": describe_shares(self._shares),
            "shards_and_weights": get_hash("xxh3_64", shape),
            **({} if all(x is None for x in self.versions) else {"versions": self.versions}),
        }

    # --- Versions of tables -------------------------------------------------------------------

    @property
    def versions(self) -> list[int | None]:
        """The version of each stream that is a table; None for other streams."""
        return [part.version for part in self._parts]

    def _read_versions(self, versions: Sequence[int | None] | None) -> None:
        """Read tables in these versions from now on; None: as it is.

        Raises:
            StateError: A stream was told to read another version.
        """
        if versions is None or list(versions) == self.versions or len(versions) != len(self._parts):
            return  # Of other streams it is; whoever compares states says so better.
        for stream, part, wanted in zip(self.streams, self._parts, versions, strict=True):
            if isinstance(stream.version, int) and wanted not in (None, part.version):
                raise StateError(
                    f"The state is of version {wanted} of {stream.remote or stream.local}, but "
                    f"`version` is {stream.version}. Leave it out, or give the state's."
                )
        runtime = self._runtime.value
        self._open_streams(versions)
        if runtime is not None:
            runtime.close()

    def _agree_on_versions(self) -> bool:
        """Take the versions that the first rank to ask has found, where ranks might differ.

        Nobody waits for another rank. What was agreed on holds as long as the process group, for
        all datasets that read the newest version of the same table, or the same tag or time.

        Returns:
            Whether all ranks have the same versions.
        """
        agreed: list[int | None] = []
        for stream, part in zip(self.streams, self._parts, strict=True):
            version = part.version
            if version is not None and not isinstance(stream.version, int):
                asked = f"{public_address(part.index.where)} {stream.version}"
                name = get_hash("xxh3_128", asked.encode())
                found = agree(f"version/{name}", str(version))
                if found is None:
                    return False
                version = int(found)
            agreed.append(version)
        if agreed != self.versions:
            logger.warning(
                "Rank %d found versions %s of its tables, and reads %s as all other ranks do.",
                self._world.rank,
                self.versions,
                agreed,
            )
            self._read_versions(agreed)
        return True

    def _warn_of_newest(self) -> None:
        """Ranks that look for the newest version each by itself may find different ones.

        One of them says so for all.
        """
        if self._world.rank == 0:
            for stream, version in zip(self.streams, self.versions, strict=True):
                if version is not None and stream.version is None:
                    logger.warning(
                        "Each of %d ranks takes the newest version of %s that it finds, here %d. "
                        "If the table is being written to, initialise torch.distributed first, so "
                        "that they agree, or give them all one, as in version=%d.",
                        self._world.num_ranks,
                        stream.remote or stream.local,
                        version,
                        version,
                    )

    def _renew(self, start: Start) -> Start:
        """The beginning of an epoch, with the newest versions of the tables that are followed.

        Raises:
            ConfigError: There are several ranks, and no way for them to agree.
        """
        self._read_versions(start.versions)
        found: list[int | None] = [
            stream.newest_version() if stream.follow else part.version
            for stream, part in zip(self.streams, self._parts, strict=True)
        ]
        if self._world.num_ranks > 1:
            if get_worker_info() is not None or process_group() is None:
                raise ConfigError(
                    "With several ranks, `follow` needs a process group and StreamingDataLoader, "
                    "so that all ranks go on with the same version of a table."
                )
            found = all_gather_object(found)[0]
        old = self._parts
        self._read_versions(found)
        for before, after in zip(old, self._parts, strict=True):
            if before.version != after.version:
                logger.info("%s", describe_change(before, after))
        return msgspec.structs.replace(start, versions=tuple(found))

    @property
    def _renews(self) -> Callable[[Start], Start] | None:
        return self._renew if any(stream.follow for stream in self.streams) else None

    # --- Making it ----------------------------------------------------------------------------

    def _open_streams(self, versions: Sequence[int | None]) -> None:
        """Open the streams, and set all that follows from what is in them.

        Args:
            versions: Of each, whatever it was told; None: as it was.
        """
        config = self._config
        self._parts = [
            stream.open(
                allow_unsafe_types=config.allow_unsafe_types, world=self._world, version=version
            )
            for stream, version in zip(self.streams, versions, strict=True)
        ]
        self._laid_out = None
        self._table = ShardTable.concatenate([part.index.table for part in self._parts])
        self._describe_shards()
        self._shares, self.epoch_size = weigh_streams(
            self.streams, self.samples_per_stream, config.epoch_size, config.order.shuffle_seed
        )
        self.length = len(self)
        # Not a method of ours: a cycle of references would keep leases until the next collection.
        self._runtime = PerProcess(
            partial(
                _choose_runtime(self._cache, self._parts),
                self._parts,
                self._table.samples,
                limit=config.cache_limit,
                ranks_per_node=self._world.ranks_per_node,
                allow_unsafe_types=config.allow_unsafe_types,
                decoders=self._decoders,
                counts=self._counting,
            )
        )
        for name in ("_identity", "_is_dealt", "shards"):
            self.__dict__.pop(name, None)

    def _describe_shards(self) -> None:
        """Set the attributes that tell of shards and samples, for users."""
        per_stream = [part.index.table.samples for part in self._parts]
        self.num_streams = len(per_stream)
        self.shards_per_stream = np.array([len(samples) for samples in per_stream], np.int64)
        self.samples_per_stream = np.array([samples.sum() for samples in per_stream], np.int64)
        self.shard_offset_per_stream = self.shards_per_stream.cumsum() - self.shards_per_stream
        self.sample_offset_per_stream = self.samples_per_stream.cumsum() - self.samples_per_stream
        self.stream_per_shard = self._table.stream.astype(np.int64)
        self.samples_per_shard = self._table.samples
        self.sample_offset_per_shard = self.samples_per_shard.cumsum() - self.samples_per_shard
        self.num_shards = len(self.samples_per_shard)
        self.num_samples = int(self.samples_per_stream.sum())
        # What `size` is where no subclass has a size or samples of its own, to save two calls.
        own, mine = type(self), StreamingDataset
        is_plain = own.size is mine.size and own.get_item is mine.get_item
        self._known_size = self.num_samples if is_plain else 0
        self.spanner = Spanner(self.samples_per_shard)


def _make_orders(directory: Path) -> Materialised:
    state = state_path(directory)
    # Nothing is written beside files that somebody else made.
    is_own = state.exists() or (directory / get_index_basename()).exists()
    return Materialised([state / "orders"] * is_own + [*temporary_orders()])


def _upcoming_recipe(
    dataset: "weakref.ref[StreamingDataset]", start: Start, world: World
) -> Recipe | None:
    """The table of ids that an epoch will need. Does not keep the dataset alive."""
    found = dataset()
    return None if found is None else found._plan(start, world, is_ahead=True).recipe


def _first_shards(
    dataset: "weakref.ref[StreamingDataset]", start: Start, world: World
) -> Sequence[int]:
    """The first shards that an epoch will need, as far as this process looks ahead."""
    found = dataset()
    if found is None:
        return ()
    plan, ahead = found._plan(start, world, is_ahead=True), found._ahead
    del found  # It may go while the table of ids is waited for.
    return plan.shards(0, len(plan), ahead)


def _choose_runtime(cache: str, parts: Sequence[CachePart]) -> type[Runtime]:
    """What reads samples: from shards that are kept here, or from afar."""
    if cache in ("shards", "file", "row_group"):
        return Runtime
    if cache != "none":
        raise ConfigError(f"`cache` is 'shards', 'file', 'row_group' or 'none', but is {cache!r}.")
    if not all(map(DirectRuntime.can_read, parts)):
        raise ConfigError("`cache` is 'none', but a stream has no `remote` to read from.")
    if any(part.validate_hash for part in parts):
        raise ConfigError("`validate_hash` needs whole shards, which cache='none' does not bring.")
    return DirectRuntime
