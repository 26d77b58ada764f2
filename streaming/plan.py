"""The plan of an epoch: which samples a worker reads, in which order.

slot --Layout--> position --Shuffle--> draw --Resample--> sample --Spanner--> shard, offset
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streaming.batching import Arrangement, Source, batchings
from streaming.batching.arrangement import StreamLayout
from streaming.batching.dealing import DealtLayout
from streaming.batching.random import Mixture
from streaming.batching.turns import has_schedules
from streaming.errors import ConfigError, StateError
from streaming.idmap import Chain, Hold, IdMap, Joined, Pool, Recipe, in_memory
from streaming.partition import Layout, partitions
from streaming.resampling import Resample, Sampling, resample, resample_by_arithmetic
from streaming.sampling import Share, has_own_sizes
from streaming.shuffle import ArithmeticShuffle, ShuffleSpec, shuffles
from streaming.spanner import Spanner
from streaming.table import ShardTable
from streaming.util.checking import check_flag, check_whole
from streaming.world import World

__all__ = [
    "EpochPlan",
    "Hold",
    "IdMap",
    "OrderSpec",
    "Position",
    "arrange",
    "build_plan",
    "count_samples",
    "in_memory",
    "open_draws",
    "open_order",
]

logger = logging.getLogger(__name__)

_LIMIT = 2**63
_SCAN = 1 << 16  # slots that are looked through at a time for the next shards


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderSpec:
    """All that decides who sees what and when, but for the shards, their weights and the position.

    JSON in and out; the digest names the plan.

    Attributes:
        batch_size: Samples of one rank's batch.
        shuffle: Whether the samples are shuffled.
        shuffle_algo: How; a name of `streaming.shuffle.shuffles`.
        shuffle_seed: Seed of all that is random in the order.
        shuffle_block_size: Samples over which shuffles that work with blocks spread a sample.
            None: `max(4_000_000 // num_canonical_nodes, 2**18)`.
        num_canonical_nodes: Parts of the epoch that are shuffled and read side by side. None: 64
            for each node for `py1s` and `py2s`, one for each node otherwise.
        sampling_method: `balanced` draws partial shards anew in each epoch, `fixed` doesn't.
        sampling_granularity: Samples taken from a shard at a time if a stream isn't drawn whole.
        partition_algo: A name of `streaming.partition.partitions`.
        batching_method: A name of `streaming.batching.batchings`.
        replication: Consecutive ranks that see the same samples.

    Raises:
        ConfigError: A value is out of range.
        UnknownNameError: There is no such algorithm; the message lists those there are.
    """

    batch_size: int
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    batching_method: str = "random"
    replication: int = 1

    def __post_init__(self) -> None:
        for name, least, optional in (
            ("batch_size", 1, False),
            ("shuffle_seed", 0, False),
            ("shuffle_block_size", 1, True),
            ("num_canonical_nodes", 1, True),
            ("sampling_granularity", 1, False),
            ("replication", 1, False),
        ):
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, check_whole(name, value, least))
        if self.sampling_method not in ("balanced", "fixed"):
            raise ConfigError(
                f"`sampling_method` must be 'balanced' or 'fixed', but is {self.sampling_method!r}."
            )
        object.__setattr__(self, "shuffle", check_flag("shuffle", self.shuffle))
        for name in ("partition_algo", "shuffle_algo", "batching_method"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"`{name}` must be a name, but is {getattr(self, name)!r}.")
        partitions.get(self.partition_algo)
        shuffles.get(self.shuffle_algo)
        batchings.get(self.batching_method)

    @property
    def canonical_nodes(self) -> int:
        """`num_canonical_nodes` once it is resolved."""
        return _resolved("num_canonical_nodes", self.num_canonical_nodes)

    @property
    def block_size(self) -> int:
        """`shuffle_block_size` once it is resolved."""
        return _resolved("shuffle_block_size", self.shuffle_block_size)

    @property
    def is_arithmetic(self) -> bool:
        """Whether sampling, shuffling and batching are computed at any place, without tables."""
        return shuffles.get(self.shuffle_algo).is_arithmetic

    @property
    def epoch_seed(self) -> bool:
        """Whether what is sampled and batched is decided anew in each epoch."""
        return self.shuffle and self.sampling_method == "balanced"

    def resolve(self, num_nodes: int) -> "OrderSpec":
        """Fill in the defaults that depend on the nodes of a run."""
        nodes = self.num_canonical_nodes
        if nodes is None:
            nodes = 64 * num_nodes if self.shuffle_algo in ("py1s", "py2s") else num_nodes
        block = self.shuffle_block_size
        if block is None:
            block = max(4_000_000 // nodes, 1 << 18)
        return replace(self, num_canonical_nodes=nodes, shuffle_block_size=block)

    def to_json(self) -> dict[str, Any]:
        """The fields, as values that JSON has."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "OrderSpec":
        """Take what `to_json` gave, perhaps in a release that had fewer fields.

        Raises:
            StateError: A field is unknown, impossible, or missing and without a default.
        """
        unknown = obj.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise StateError(
                f"The order of a run has settings that this release does not know: "
                f"{', '.join(sorted(map(str, unknown)))}. Resume it with the release that wrote it."
            )
        if "batch_size" not in obj:
            raise StateError("The order of a run has no `batch_size`.")
        try:
            return cls(**obj)
        except ConfigError as error:
            raise StateError(f"The order of a run can't be this: {error}") from error

    def digest(self) -> str:
        """A name for all fields together: 32 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def differences(self, other: "OrderSpec") -> dict[str, tuple[Any, Any]]:
        """The fields that are not equal, with both values."""
        mine, theirs = self.to_json(), other.to_json()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come.

    Attributes:
        epoch: Number of the epoch, from 0.
        seen: Samples of it that were given out before, by all ranks together.
        initial_nodes: Nodes at the start of a resumed run; None if it began on those it has now.
        initial_ranks: Likewise its ranks; None also if that is not known.
    """

    epoch: int = 0
    seen: int = 0
    initial_nodes: int | None = None
    initial_ranks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epoch", check_whole("epoch", self.epoch, 0))
        object.__setattr__(self, "seen", check_whole("seen", self.seen, 0))
        for name in ("initial_nodes", "initial_ranks"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(name, value, 1))


class EpochPlan:
    """One worker's part of one epoch.

    Slots are the worker's places in the epoch, batch after batch. Every method may be called with
    any slots in any order, by one thread at a time.
    """

    def __init__(
        self,
        layout: Layout,
        world: World,
        order: IdMap,
        spanner: Spanner,
        pool: Pool,
    ) -> None:
        self._layout = layout
        self._world = world
        self._order = order
        self._spanner = spanner
        self._pool = pool

    def __len__(self) -> int:
        """Slots, padding included."""
        return self._layout.num_slots

    @property
    def recipe(self) -> Recipe | None:
        """How to make the table that it reads; None if it needs none."""
        return self._pool.recipe

    def open_table(self) -> None:
        """Let the table that it reads be made, as far as that can go on by itself."""
        _ = self._pool.table

    @property
    def batch_size(self) -> int:
        """Slots of each batch. Those that a smaller batch does not need are padding."""
        return self._layout.batch_size

    @property
    def num_samples(self) -> int:
        """Slots that are not padding."""
        return self._layout.num_samples(self._world)

    @property
    def num_full_slots(self) -> int:
        """Slots of the batches that are full for every rank."""
        full, workers = self._layout.full, self._world.workers_per_rank
        return max(0, -((self._world.worker_of_rank - full) // workers)) * self.batch_size

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """The samples at slots [start, stop), -1 for padding; shape (stop - start,).

        Raises:
            IndexError: These are not slots of this worker.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"Slots [{start}, {stop}) are not in [0, {len(self)}).")
        return self._order(self._layout.of_worker(self._world, np.arange(start, stop)))

    def shards(self, start: int, limit: int, stop: int | None = None) -> list[int]:
        """The next distinct shards that are needed from slot `start` on, in order of first use.

        Args:
            start: Slot to begin with.
            limit: At most so many shards.
            stop: Slot before which to end; None is the end of the epoch.
        """
        stop = len(self) if stop is None else min(stop, len(self))
        found: dict[int, None] = {}
        step = min(_SCAN, 64 * max(limit, 1))
        while start < stop and len(found) < limit:
            ids = self.ids(start, min(start + step, stop))
            found.update(dict.fromkeys(self._spanner.in_turn(ids)))
            start += step
            step = min(2 * step, _SCAN)
        return list(found)[: max(limit, 0)]


def arrange(
    spec: OrderSpec,
    shares: Sequence[Share],
    world: World,
    at: Position,
    *,
    as_recorded: bool = False,
) -> Arrangement:
    """Lay out an epoch without shuffling it: cheap, and enough to count with.

    Args:
        spec: The order.
        shares: What each stream gives.
        world: The parallel world: ranks that see the same samples count as one.
        at: Where to begin.
        as_recorded: Leave rows as the predecessor has them: laid out for `world`, though the run
            began on another, and at the end without a batch for some ranks.

    Raises:
        ConfigError: The numbers don't fit each other.
        StateError: The position is behind the end of the epoch, or the run can't go on here.
    """
    method = batchings.get(spec.batching_method)
    if not as_recorded and spec.batching_method != "random":
        begun = _initial_world(spec, shares, world, at)
        batch_size = spec.batch_size * world.num_ranks // begun.num_ranks
        initial_nodes = at.initial_nodes if at.initial_ranks is None else None
        whole = method(
            replace(spec.resolve(world.num_nodes), batch_size=batch_size),
            shares,
            begun,
            Position(at.epoch, 0, initial_nodes),
        )
        if isinstance(whole.layout, StreamLayout):
            return Arrangement(DealtLayout(whole.layout, world, at.seen), whole.sources)
    return method(spec.resolve(world.num_nodes), shares, world, at)


def _initial_world(spec: OrderSpec, shares: Sequence[Share], world: World, at: Position) -> World:
    """The ranks that a run began on, as far as that is known.

    Raises:
        StateError: Its batches can't be dealt to the ranks there are.
    """
    if at.initial_ranks is None:
        return world
    ranks, nodes = at.initial_ranks, at.initial_nodes or 1
    if ranks % nodes or (spec.batch_size * world.num_ranks) % ranks:
        raise StateError(
            f"A run that began on {nodes} nodes with {ranks} ranks has no global batches of "
            f"{world.num_ranks} times {spec.batch_size} samples. Use ranks and a batch size of "
            f"the same global batch, or load the state without its key 'initial_ranks'."
        )
    if has_own_sizes(shares) and ranks != world.num_ranks:
        raise StateError(
            f"The run began on {ranks} ranks and has streams with batch sizes of their own, so it "
            f"can't go on with the same batches on {world.num_ranks} ranks. Use as many, or load "
            f"the state without its key 'initial_ranks', for other batches."
        )
    return World(nodes, ranks // nodes, world.workers_per_rank)


def count_samples(
    spec: OrderSpec, shares: Sequence[Share], world: World, at: Position, worker: int | None = None
) -> int:
    """How many samples a worker has from a position to the end of the epoch; repeats count.

    Args:
        spec: The order.
        shares: What each stream gives.
        world: The parallel world.
        at: The position. At the exact end of an epoch nothing is left.
        worker: Which worker of this rank; None is the one `world` tells of.

    Raises:
        ConfigError: The numbers don't fit each other.
        StateError: The position is behind the end of the epoch.
    """
    if worker is not None:
        world = world.with_workers(world.workers_per_rank, worker)
    return arrange(spec, shares, world, at).layout.num_samples(world)


def open_draws(
    spec: OrderSpec,
    table: ShardTable,
    shares: Sequence[Share],
    epoch: int,
    stream: int | None = None,
    hold: Hold = in_memory,
    hold_choices: Hold | None = None,
) -> Resample:
    """Map the draws of an epoch, of all streams or of one, to samples."""
    sampling = Sampling(
        seed=spec.shuffle_seed,
        epoch=epoch,
        granularity=spec.sampling_granularity,
        is_balanced=spec.sampling_method == "balanced",
        use_epoch=spec.epoch_seed,
    )
    if spec.is_arithmetic:
        return resample_by_arithmetic(table, shares, sampling, stream)
    return resample(table, shares, sampling, stream, hold, hold_choices)


def build_plan(
    spec: OrderSpec,
    table: ShardTable,
    shares: Sequence[Share],
    world: World,
    at: Position,
    hold: Hold = in_memory,
    *,
    is_ahead: bool = False,
    as_recorded: bool = False,
) -> EpochPlan:
    """Plan one worker's part of an epoch. What is held is made when ids are first asked for.

    Args:
        spec: The order.
        table: The shards of all streams; those of a stream stand together, streams in order.
        shares: What each stream gives.
        world: The parallel world and the worker: ranks that see the same samples count as one.
        at: Where to begin.
        hold: Keeps the tables that exact shuffles and partial shards need.
        is_ahead: It is a look at an epoch that is not due: what a user should know is not said yet.
        as_recorded: See `arrange`.

    Raises:
        ConfigError: The numbers don't fit each other.
        StateError: The position is behind the end of the epoch.
    """
    spec = spec.resolve(world.num_nodes)
    arrangement = arrange(spec, shares, world, at, as_recorded=as_recorded)
    layout, sources = arrangement.layout, arrangement.sources
    pool = Pool(hold)
    is_own = len(sources) == len(wanted := layout.reads(world.node))
    opening = _Opening(spec, table, shares, at.epoch, hold, pool)
    order = opening.open(sources, wanted if is_own else [None] * len(sources))
    if world.is_leader and not is_ahead:
        for note in (*layout.notes, *opening.notes[:1]):
            logger.warning("%s", note)
        if len(opening.notes) > 1:
            logger.warning("So it is with %d more streams.", len(opening.notes) - 1)
    return EpochPlan(layout, world, order, Spanner(table.samples), pool)


def open_order(
    spec: OrderSpec,
    table: ShardTable,
    shares: Sequence[Share],
    epoch: int,
    sources: Sequence[Source],
    hold: Hold,
) -> IdMap:
    """Map the positions of an arrangement, of whatever layout, to samples.

    Args:
        spec: The order, without open defaults.
        table: The shards of all streams.
        shares: What each stream gives.
        epoch: Number of the epoch.
        sources: The sources of the arrangement.
        hold: Keeps the tables that exact shuffles and partial shards need.
    """
    opening = _Opening(spec, table, shares, epoch, hold, Pool(hold))
    return opening.open(sources, [None] * len(sources))


class _Opening:
    """Opens the maps from the positions of an epoch to its samples.

    Args:
        hold: Keeps tables that are needed at once.
        pool: Keeps those that are read when positions are mapped.
    """

    def __init__(
        self,
        spec: OrderSpec,
        table: ShardTable,
        shares: Sequence[Share],
        epoch: int,
        hold: Hold,
        pool: Pool,
    ) -> None:
        self._spec = spec
        self._table = table
        self._shares = shares
        self._epoch = epoch
        self._hold = hold
        self._pool = pool
        self.notes: list[str] = []

    def open(self, sources: Sequence[Source], wanted: Sequence[tuple[int, ...] | None]) -> IdMap:
        """Open all sources.

        Args:
            sources: One after the other.
            wanted: The canonical nodes of each that will be asked for; None: any.
        """
        spec = self._spec
        is_mixture = spec.batching_method == "random" and has_schedules(self._shares)
        mixture = Mixture(spec, self._shares, self._epoch) if is_mixture else None
        # Schedules say what each stream gives only here, where batches are known.
        self._shares = _settle(self._shares, sources)
        if spec.is_arithmetic:
            order = self._open_arithmetic(sources)
        else:
            opened = [self._open_exact(*each) for each in zip(sources, wanted, strict=True)]
            order = Joined(opened)
        return order if mixture is None else Chain(mixture, order)

    def _open_exact(self, source: Source, wanted: tuple[int, ...] | None) -> IdMap:
        spec = self._spec
        draws = open_draws(
            spec,
            self._table,
            self._shares,
            self._epoch,
            source.stream,
            self._hold,
            self._pool,
        )
        if not spec.shuffle or not draws.size:
            return draws
        what = self._what(draws, source, wanted)
        return Chain(shuffles.get(spec.shuffle_algo).open(what, self._pool), draws)

    def _open_arithmetic(self, sources: Sequence[Source]) -> IdMap:
        spec = self._spec
        draws = open_draws(spec, self._table, self._shares, self._epoch)
        if not spec.shuffle or not draws.size:
            return draws
        whats = []
        for source in sources:
            own = draws
            if source.stream is not None:
                own = open_draws(spec, self._table, self._shares, self._epoch, source.stream)
            whats.append(self._what(own, source, None))
        shuffle = cast(ArithmeticShuffle, shuffles.get(spec.shuffle_algo))
        return Chain(shuffle.open_all(whats, self._pool), draws)

    def _what(self, draws: Resample, source: Source, wanted: tuple[int, ...] | None) -> ShuffleSpec:
        """What is to be shuffled of a source."""
        spec = self._spec
        groups = None
        if source.stream is None and len(self._shares) > 1 and spec.is_arithmetic:
            groups = draws.of_units(self._table.stream)
        is_short = draws.size < spec.canonical_nodes
        what = ShuffleSpec(
            sizes=draws.units,
            # More canonical nodes than samples are the same as one for each sample, and py1e,
            # which wants none to be empty, can do it.
            canonical_nodes=max(1, min(spec.canonical_nodes, draws.size)),
            seed=spec.shuffle_seed,
            epoch=self._epoch,
            block_size=source.block_size,
            wanted=None if is_short else wanted,
            groups=groups,
            source=0 if source.stream is None else source.stream,
        )
        self.notes += shuffles.get(spec.shuffle_algo).check(what)
        return what


def _settle(shares: Sequence[Share], sources: Sequence[Source]) -> list[Share]:
    """The shares, with what each stream gives in this epoch."""
    if any(source.stream is None for source in sources) or not has_schedules(shares):
        return list(shares)
    gives = {source.stream: source.size for source in sources}
    return [replace(share, choose=gives.get(i, 0)) for i, share in enumerate(shares)]


def _resolved(name: str, value: int | None) -> int:
    if value is None:
        raise ConfigError(f"`{name}` depends on the number of nodes here: call `resolve` first.")
    return value
