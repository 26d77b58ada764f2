"""Which samples the draws of an epoch are.

A shard of s samples that is drawn c times gives all its samples c // s times, then a random choice
of c % s. Where the shuffle is a predecessor's, shards and choices are drawn as it draws them, and
are tables; with an arithmetic shuffle they are arithmetic too.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Hold, Ids, IdTable, Recipe, in_memory
from streaming.sampling import Share, sample_shards
from streaming.shuffle.bijection import MAX_SIZE, Use, derive, mix_array, permute_each
from streaming.table import ShardTable

__all__ = [
    "HeldChoices",
    "Resample",
    "Sampling",
    "resample",
    "resample_by_arithmetic",
    "systematic",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an epoch that is not made of whole streams is filled."""

    seed: int
    epoch: int
    granularity: int = 1
    is_balanced: bool = True  # partial shards are drawn anew in each epoch
    use_epoch: bool = False  # which shards give more is decided anew in each epoch


def resample(
    table: ShardTable,
    shares: Sequence[Share],
    sampling: Sampling,
    stream: int | None = None,
    hold: Hold = in_memory,
    hold_choices: Hold | None = None,
) -> "Resample":
    """Map the draws of an epoch to samples as the predecessor does.

    Args:
        table: All shards; those of a stream stand together, streams in order.
        shares: What each stream gives.
        sampling: How.
        stream: Only this stream's draws; None is all of them. The random choices of one stream
            alone are other than those of the same stream among all, as in the predecessor.
        hold: Keeps how often each shard is drawn; read at once.
        hold_choices: Keeps the choice of each shard that isn't drawn a whole number of times, read
            when draws are mapped; None: `hold`.

    Raises:
        ConfigError: A stream has no share, or nothing to draw from.
    """
    streams, edges = _shards_of(table, shares, stream)
    start, stop = edges[0], edges[-1]
    sizes = table.samples[start:stop]
    seed = sampling.seed + sampling.epoch if sampling.use_epoch else sampling.seed
    parts = [
        (table.samples[first:last], shares[i].choose)
        for i, first, last in zip(streams, edges, edges[1:], strict=False)
    ]
    chosen = _choose(parts, sampling.granularity, seed, hold)
    seed = sampling.seed + sampling.epoch if sampling.is_balanced else sampling.seed
    rests = HeldChoices(sizes, chosen, seed, hold_choices or hold)
    return Resample(int(table.samples[:start].sum()), sizes, chosen, rests)


def resample_by_arithmetic(
    table: ShardTable, shares: Sequence[Share], sampling: Sampling, stream: int | None = None
) -> "Resample":
    """Map the draws of an epoch to samples without a table; arguments as for `resample`.

    Each shard gives its share of a stream within one granule. A stream's draws are the same alone
    and among all.

    Raises:
        ConfigError: A stream has no share, or nothing to draw from, or a shard has 2^32 samples or
            more and isn't drawn a whole number of times.
    """
    streams, edges = _shards_of(table, shares, stream)
    start, stop = edges[0], edges[-1]
    sizes = table.samples[start:stop]
    epoch = (sampling.epoch,) if sampling.use_epoch else ()
    chosen = np.empty(stop - start, np.int64)
    for i, first, last in zip(streams, edges, edges[1:], strict=False):
        key = derive(sampling.seed, (Use.SAMPLED_SHARDS, i, *epoch))
        chosen[first - start : last - start] = systematic(
            table.samples[first:last], shares[i].choose, sampling.granularity, key
        )
    epoch = (sampling.epoch,) if sampling.is_balanced else ()
    rests = _KeyedChoices(sizes, chosen, start, derive(sampling.seed, (Use.CHOICES, *epoch)))
    return Resample(int(table.samples[:start].sum()), sizes, chosen, rests)


def systematic(
    sizes: NDArray[np.int64], choose: int, granularity: int, key: int
) -> NDArray[np.int64]:
    """Decide how often each shard is drawn: in proportion to its size, rounded where `key` says.

    Beside whole repeats, the shards up to the i-th together give (W * choose + offset) // total
    draws, W being their samples and the offset random; with a granularity, up to one granule more.

    Args:
        sizes: Samples of each shard, shape (num_shards,).
        choose: Samples to draw, all shards together; may exceed their number.
        granularity: Samples taken from a shard at a time.
        key: Below 2^64.

    Raises:
        ConfigError: There is nothing to draw from.
    """
    total = int(sizes.sum())
    if not total:
        if choose:
            raise ConfigError(f"{choose} samples are to be drawn from a stream that has none.")
        return np.zeros_like(sizes)
    repeats, left = divmod(choose, total)
    chosen = sizes * repeats
    if not left:
        return chosen
    offset = key % total
    if (total + 1) * left < 1 << 63:
        upto = (np.cumsum(sizes) * left + offset) // total
    else:
        whole = np.cumsum(sizes).tolist()  # Python's numbers don't overflow.
        upto = np.array([(samples * left + offset) // total for samples in whole], np.int64)
    if granularity == 1:
        return chosen + np.diff(upto, prepend=0)
    done = 0
    for shard, (size, wanted) in enumerate(zip(sizes.tolist(), upto.tolist(), strict=True)):
        granules = -(-max(wanted - done, 0) // granularity)
        taken = min(granules * granularity, size, left - done)
        chosen[shard] += taken
        done += taken
    return chosen


class _Choices(Protocol):
    """The random choice of samples in each shard that is drawn c times, c % size of them."""

    def __call__(self, shard: Ids, number: Ids) -> Ids:
        """Offsets in their shards of the n-th samples of choices; arrays of shape (n,).

        Args:
            shard: Which, counted among shards that are drawn at all.
            number: In [0, c % size).
        """
        ...


class Resample:
    """Maps the n-th draw of an epoch to a sample id.

    Args:
        first: Sample id at which the shards begin.
        sizes: Samples of each shard, one shard after the other.
        chosen: Draws from each.
        choices: What is drawn where it isn't a whole shard.
    """

    def __init__(
        self, first: int, sizes: NDArray[np.int64], chosen: NDArray[np.int64], choices: _Choices
    ) -> None:
        self._first = first
        self.is_identity = bool(np.array_equal(sizes, chosen))
        drawn = self._is_drawn = chosen > 0
        self._sizes, self._chosen = sizes[drawn], chosen[drawn]
        self._size = int(self._chosen.sum())
        if not self.is_identity:
            self._firsts = first + (np.cumsum(sizes) - sizes)[drawn]
            self._ends = np.cumsum(self._chosen)
            self._choices = choices

    @property
    def size(self) -> int:
        """Draws."""
        return self._size

    @property
    def units(self) -> NDArray[np.int64]:
        """Lengths of the runs of draws that are shuffled as one: whole shards and partial ones."""
        if self.is_identity:
            return self._sizes
        whole, rest = np.divmod(self._chosen, self._sizes)
        lengths = np.stack([self._sizes, rest], axis=1).ravel()
        return np.repeat(lengths, np.stack([whole, rest > 0], axis=1).ravel())

    def of_units(self, of_shards: NDArray[np.integer]) -> NDArray[np.int64]:
        """For each unit what its shard has, of an array with a value for each shard."""
        of_drawn = of_shards[self._is_drawn].astype(np.int64)
        if self.is_identity:
            return of_drawn
        return np.repeat(of_drawn, -(-self._chosen // self._sizes))

    def __call__(self, ids: Ids, /) -> Ids:
        if self.is_identity or not self._size:
            return np.where(ids < 0, -1, ids + self._first) if self._first else ids
        flat = ids.ravel()
        shard = np.minimum(np.searchsorted(self._ends, flat, "right"), len(self._ends) - 1)
        size, chosen = self._sizes[shard], self._chosen[shard]
        number = flat - self._ends[shard] + chosen  # of the draw among those of its shard
        repeat, offset = np.divmod(number, size)
        # A shard's last draws are its random choice.
        partial = np.flatnonzero((repeat == chosen // size) & (flat >= 0))
        if len(partial):
            offset[partial] = self._choices(shard[partial], offset[partial])
        out = self._firsts[shard] + offset
        out[flat < 0] = -1
        return out.reshape(ids.shape)


class HeldChoices:
    """Choices that one generator makes shard after shard, ascending in each: a table."""

    def __init__(
        self, sizes: NDArray[np.int64], chosen: NDArray[np.int64], seed: int, hold: Hold
    ) -> None:
        drawn = chosen > 0
        sizes, counts = sizes[drawn], chosen[drawn] % sizes[drawn]
        self._starts = np.cumsum(counts) - counts
        self._table: IdTable = np.empty(0, np.int64)
        if not counts.any():
            return
        pairs = np.stack([sizes, counts], axis=1)[counts > 0]
        digest = hashlib.blake2b(f"choices {seed} {np.__version__} ".encode(), digest_size=16)
        digest.update(pairs.astype("<i8").tobytes())
        recipe = Recipe(
            digest=digest.hexdigest(),
            sizes=[int(counts.sum())],
            stop=int(pairs[:, 0].max()),
            open=lambda part: _choices(pairs, seed),
        )
        self._table = hold(recipe)

    def __call__(self, shard: Ids, number: Ids) -> Ids:
        return self._table[self._starts[shard] + number]


class _KeyedChoices:
    """Choices that are the first places of a keyed permutation of each shard."""

    def __init__(
        self, sizes: NDArray[np.int64], chosen: NDArray[np.int64], first_shard: int, key: int
    ) -> None:
        shards = np.flatnonzero(chosen)
        self._sizes = sizes[shards]
        self._keys = mix_array((shards + first_shard).astype(np.uint64) ^ np.uint64(key))
        partial = self._sizes[chosen[shards] % self._sizes > 0]
        if len(partial) and int(partial.max()) > MAX_SIZE:
            raise ConfigError(
                f"A shard of {int(partial.max())} samples can't be drawn in part: 2^32 samples are "
                f"the most. Let its stream give whole repeats, or use an exact shuffle."
            )

    def __call__(self, shard: Ids, number: Ids) -> Ids:
        return permute_each(number, self._sizes[shard], self._keys[shard])


def _shards_of(
    table: ShardTable, shares: Sequence[Share], stream: int | None
) -> tuple[range, list[int]]:
    """The streams that are meant, the first shard of each, and the end of the last."""
    if len(table) and table.stream[-1] >= len(shares):
        raise ConfigError(f"Stream {table.stream[-1]} has no share: there are {len(shares)}.")
    streams = range(len(shares)) if stream is None else range(stream, stream + 1)
    wanted = np.arange(streams.start, streams.stop + 1, dtype=table.stream.dtype)
    return streams, np.searchsorted(table.stream, wanted).tolist()


def _choose(
    parts: Sequence[tuple[NDArray[np.int64], int]], granularity: int, seed: int, hold: Hold
) -> NDArray[np.int64]:
    """How often each shard is drawn, stream after stream: (shard sizes, draws) each.

    It takes a permutation of all samples of a stream to say so, of which the numbers are all that
    is needed: so they are held like a table.
    """
    totals = [int(sizes.sum()) for sizes, _ in parts]
    work = sum(
        total for total, (_, choose) in zip(totals, parts, strict=True) if total and choose % total
    )

    def chunks(part: int) -> Iterator[Ids]:
        for sizes, choose in parts:
            yield sample_shards(sizes, choose, granularity, seed)

    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"draws {seed} {granularity} {np.__version__} ".encode())
    for sizes, choose in parts:
        digest.update(f"{len(sizes)} {choose} ".encode() + sizes.astype("<i8").tobytes())
    recipe = Recipe(
        digest=digest.hexdigest(),
        sizes=[sum(len(sizes) for sizes, _ in parts)],
        stop=max((choose for _, choose in parts), default=0) + 1,
        open=chunks,
        work=work,
    )
    return np.asarray(hold(recipe)[np.arange(recipe.size)] if work else in_memory(recipe))


def _choices(pairs: NDArray[np.int64], seed: int) -> Iterator[Ids]:
    """For each (size, count) a random choice of offsets in the shard, ascending."""
    rng = np.random.default_rng(seed)
    for size, count in pairs.tolist():
        yield np.sort(rng.choice(size, count, replace=False))
