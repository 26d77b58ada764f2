"""How often each stream and shard is drawn in an epoch."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.schedule import Course, Schedule
from streaming.util.checking import check_number, check_whole

__all__ = [
    "Share",
    "Weight",
    "describe_shares",
    "get_sampling",
    "has_own_sizes",
    "sample_shards",
    "weigh",
]

_LIMIT = 2**63  # Ids are int64.
_DESCRIBED = 1000  # characters of a description that are worth reading
_CHUNK = 1 << 20  # picks looked at together, to need little memory beside their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How much of a stream its user asked for; at most one of the first three is set.

    Attributes:
        proportion: Share of the epoch, relative to the other streams', perhaps changing.
        repeat: How often it comes, times its own size.
        choose: Samples.
        batch_size: Samples of a rank's batch where a batch is of one stream; None: as all.

    Raises:
        ConfigError: A number can't be meant as it is, or there are two of them.
    """

    proportion: float | Schedule | None = None
    repeat: float | None = None
    choose: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        size = self.batch_size
        is_number = isinstance(size, int | np.integer) and not isinstance(size, bool)
        if size is not None and not (is_number and 0 < size < _LIMIT):
            raise ConfigError(
                f"The `batch_size` of a stream must be a whole number above 0, but is {size!r}."
            )
        given = [
            name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ConfigError(
                f"A stream takes one of `proportion` (share of the epoch), `repeat` (times its "
                f"size) and `choose` (samples), but {' and '.join(given)} are given."
            )
        for name in given:
            value = getattr(self, name)
            if isinstance(value, Schedule):
                continue  # It has checked itself.
            if name == "choose":
                check_whole(name, value, 0)
            else:
                check_number(name, value)


@dataclass(frozen=True, slots=True)
class Share:
    """What a stream gives to each epoch. The first three say the same in different units.

    Attributes:
        choose: Samples. With a schedule, those of the first epoch, before batches are made of them;
            only the streams' sum is the same in each epoch.
        repeat: Times its size.
        proportion: Of the epoch.
        schedule: How its weight changes, if that of any stream does.
        batch_size: Samples of a rank's batch of it; None: as the order says.
    """

    choose: int
    repeat: float
    proportion: float
    schedule: Schedule | None = None
    batch_size: int | None = None


def has_own_sizes(shares: Sequence[Share]) -> bool:
    """Whether any stream has a batch size of its own."""
    return any(share.batch_size is not None for share in shares)


def weigh(
    weights: Sequence[Weight],
    samples_per_stream: Sequence[int] | NDArray[np.int64],
    epoch_size: int | None,
    seed: int,
) -> tuple[list[Share], int]:
    """Turn what users asked for into numbers of samples.

    Args:
        weights: One for each stream; all proportions, or none of them a proportion.
        samples_per_stream: Their sizes.
        epoch_size: Samples of an epoch, all streams together. None or 0: what the weights give.
        seed: Decides which streams get what rounding leaves over.

    Returns:
        The shares, and the samples of an epoch.

    Raises:
        ConfigError: Weights of different kinds, or weights that can't be met.
    """
    sizes = [int(size) for size in samples_per_stream]
    if len(weights) != len(sizes) or not sizes:
        raise ConfigError(f"{len(weights)} weights for {len(sizes)} streams; one each is needed.")
    if epoch_size is not None and not 0 <= epoch_size < _LIMIT:
        raise ConfigError(f"`epoch_size` must be in [0, 2^63), but is {epoch_size}.")
    if len({weight.proportion is None for weight in weights}) > 1:
        missing = [i for i, weight in enumerate(weights) if weight.proportion is None]
        raise ConfigError(
            f"Some streams have a `proportion` and others (number {missing[0]} is the first) have "
            f"not. Give a proportion to all streams or to none."
        )
    shares, total = _weigh(weights, sizes, epoch_size, seed)
    return [
        replace(share, batch_size=weight.batch_size and int(weight.batch_size))
        for share, weight in zip(shares, weights, strict=True)
    ], total


def _weigh(
    weights: Sequence[Weight], sizes: list[int], epoch_size: int | None, seed: int
) -> tuple[list[Share], int]:
    """Tell the kinds of weights apart."""
    if any(isinstance(weight.proportion, Schedule) for weight in weights):
        return _schedule(weights, sizes, epoch_size or sum(sizes), seed)
    if weights[0].proportion is not None:
        proportions = [
            0.0 if isinstance(weight.proportion, Schedule) else float(weight.proportion or 0)
            for weight in weights
        ]
        return _split(proportions, sizes, epoch_size or sum(sizes), seed)
    if epoch_size:
        if any(weight.repeat is not None or weight.choose is not None for weight in weights):
            raise ConfigError(
                f"`epoch_size` is {epoch_size}, but streams with `repeat` or `choose` make an "
                f"epoch of their own size. Drop it, or give all streams a `proportion`."
            )
        return _split([float(size) for size in sizes], sizes, epoch_size, seed)
    return _add_up(weights, sizes)


def describe_shares(shares: Sequence[Share]) -> str:
    """What streams give, for a user to compare; as a digest where there are many."""
    words = []
    for share in shares:
        words.append(f"{share.choose} samples")
        if share.schedule is not None:
            words[-1] = json.dumps(share.schedule.to_json(), separators=(",", ":"))
        if share.batch_size is not None:
            words[-1] += f" in batches of {share.batch_size}"
    text = "; ".join(words)
    if len(text) <= _DESCRIBED:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{len(shares)} weights with digest {digest}"


def _split(
    proportions: list[float], sizes: list[int], total: int, seed: int
) -> tuple[list[Share], int]:
    """Divide an epoch of `total` samples in proportion, with rounding as the predecessor does."""
    whole = float(np.sum(proportions))
    if not 0 < whole < math.inf:
        raise ConfigError(
            f"The proportions of the streams add up to {whole:g}; at least one must be above 0."
        )
    shares = [proportion / whole for proportion in proportions]
    choose = [int(total * share) for share in shares]
    shortfall = total - sum(choose)
    if not 0 <= shortfall <= len(sizes):
        raise ConfigError(
            f"An epoch of {total} samples is too large to be divided exactly among {len(sizes)} "
            f"streams: float64 counts to 2^53. Choose a smaller `epoch_size`."
        )
    lucky = np.random.default_rng(seed).choice(len(sizes), shortfall, replace=False)
    for i in lucky.tolist():
        choose[i] += 1
    _check_drawable(choose, sizes)
    return [
        Share(count, count / size if size else 0.0, share)
        for count, size, share in zip(choose, sizes, shares, strict=True)
    ], total


def _schedule(
    weights: Sequence[Weight], sizes: list[int], total: int, seed: int
) -> tuple[list[Share], int]:
    """Let weights change. What each stream gives in the first epoch stands for what it gives."""
    schedules = [
        weight.proportion
        if isinstance(weight.proportion, Schedule)
        else Schedule(((0, float(weight.proportion or 0)),))
        for weight in weights
    ]
    for i, (schedule, size) in enumerate(zip(schedules, sizes, strict=True)):
        if not size and any(weight for _, weight in schedule.points):
            raise ConfigError(f"Stream {i} has no samples, but its schedule asks for some.")
    last = max(schedule.points[-1][0] for schedule in schedules)
    Course(schedules, 0, max(last + 1, total))  # Are there weights everywhere?
    given = Course(schedules, 0, total)(np.array([float(total)]))[0]
    shares, total = _split(given.tolist(), sizes, total, seed) if total else _add_up(weights, sizes)
    return [
        replace(share, schedule=schedule) for share, schedule in zip(shares, schedules, strict=True)
    ], total


def _add_up(weights: Sequence[Weight], sizes: list[int]) -> tuple[list[Share], int]:
    """Let every stream give what it was asked for, or itself once."""
    choose = []
    for weight, size in zip(weights, sizes, strict=True):
        if weight.repeat is not None:
            choose.append(int(weight.repeat * size))
        else:
            choose.append(size if weight.choose is None else int(weight.choose))
    _check_drawable(choose, sizes)
    total = sum(choose)
    return [
        Share(count, count / size if size else 0.0, count / total if total else 0.0)
        for count, size in zip(choose, sizes, strict=True)
    ], total


def _check_drawable(choose: list[int], sizes: list[int]) -> None:
    if sum(choose) >= _LIMIT:
        raise ConfigError(
            f"The weights make an epoch of {sum(choose)} samples; 2^63 - 1 is the most."
        )
    for i, (count, size) in enumerate(zip(choose, sizes, strict=True)):
        if count and not size:
            raise ConfigError(
                f"Stream {i} has no samples, but its weight asks for {count} an epoch."
            )


def get_sampling(
    samples_per_shard: NDArray[np.int64],
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool,
) -> NDArray[np.int64]:
    """Decide how many samples of each shard of a stream are drawn in an epoch.

    Args:
        samples_per_shard: Shape (num_shards,).
        choose: Samples to draw, all shards together; may exceed their number.
        granularity: Samples taken from a shard at a time.
        seed: Seed of the run.
        epoch: Number of the epoch.
        use_epoch: Whether each epoch decides anew.

    Returns:
        Draws from each shard, shape (num_shards,).

    Raises:
        ConfigError: A number is out of range, or there is nothing to draw from.
    """
    for name, value, least in (
        ("choose", choose, 0),
        ("granularity", granularity, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
    ):
        if value < least:
            raise ConfigError(f"`{name}` must be at least {least}, but is {value}.")
    sizes = np.asarray(samples_per_shard, np.int64)
    return sample_shards(sizes, choose, granularity, seed + epoch if use_epoch else seed)


def sample_shards(
    sizes: NDArray[np.int64], choose: int, granularity: int, seed: int
) -> NDArray[np.int64]:
    """`get_sampling` of checked numbers. Needs 4 bytes a sample unless whole streams are drawn."""
    total = int(sizes.sum())
    if not total:
        if choose:
            raise ConfigError(f"{choose} samples are to be drawn from a stream that has none.")
        return np.zeros_like(sizes)
    repeats, left = divmod(choose, total)
    chosen = sizes * repeats
    return chosen + _pick(sizes, left, granularity, seed) if left else chosen


def _pick(sizes: NDArray[np.int64], left: int, granularity: int, seed: int) -> NDArray[np.int64]:
    """Draw `left` samples, fewer than there are, in random picks of `granularity` each."""
    picks = -(-sizes // granularity)
    bounds = np.concatenate([[0], np.cumsum(picks)])
    # What `permutation` gives, in half the memory where that is possible.
    order = np.arange(bounds[-1], dtype=np.uint32 if bounds[-1] <= 1 << 32 else np.int64)
    np.random.default_rng(seed).shuffle(order)
    last_worth = sizes - (picks - 1) * granularity
    taken = np.zeros_like(sizes)
    for start in range(0, len(order), _CHUNK):
        pick = order[start : start + _CHUNK].astype(np.int64)
        shard = np.searchsorted(bounds, pick, "right") - 1
        worth = np.where(pick == bounds[shard + 1] - 1, last_worth[shard], granularity)
        part = np.clip(left - (np.cumsum(worth) - worth), 0, worth)
        np.add.at(taken, shard, part)
        left -= int(part.sum())
        if not left:
            break
    return taken
