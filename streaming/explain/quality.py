"""How well an order is shuffled, in numbers to be compared with those of perfect shuffling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids

__all__ = ["Quality", "measure_quality"]

_SQUARES = 64  # parts of the epoch and of the data, each, that are compared


@dataclass(frozen=True, slots=True)
class Quality:
    """How well an order is shuffled. In brackets what a full random permutation has.

    Attributes:
        samples: Samples that were looked at.
        distance: Mean distance of neighbours, in units of a third of the samples (1).
        same_shard: Pairs of neighbours from one shard, in units of what chance gives (1).
        shards: Different shards in a window, on average.
        shards_by_chance: What a full permutation would have on average.
        shards_least: In the window that has the fewest.
        stream_error: Difference of a stream's share in a window from its share in all, root of the
            mean square (what `stream_error_by_chance` says).
        stream_error_by_chance: What independent draws would have.
        chi_square: Chi-square of place in the epoch against place in the data, 64 parts each, by
            its degrees of freedom (1).
        window: Samples of a window.
    """

    samples: int
    distance: float
    same_shard: float
    shards: float
    shards_by_chance: float
    shards_least: int
    stream_error: float
    stream_error_by_chance: float
    chi_square: float
    window: int


def measure_quality(
    ids: Ids,
    shards: NDArray[np.integer],
    streams: NDArray[np.integer],
    num_samples: int,
    window: int,
) -> Quality:
    """Measure an order.

    Args:
        ids: Sample ids in the order in which they come, shape (n,): all of an epoch, or part of it.
        shards: Shard of each, shape (n,).
        streams: Stream of each, shape (n,).
        num_samples: Samples there are.
        window: Samples of a window: those that should be a mixture, such as a global batch.
    """
    count = len(ids)
    window = max(1, min(window, count))
    cut = count // window * window
    in_windows = shards[:cut].reshape(-1, window)
    # Shards per window: sort each window, count changes.
    ordered = np.sort(in_windows, axis=1)
    distinct = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    by_shard = np.bincount(shards, minlength=1) / max(count, 1)
    by_shard = by_shard[by_shard > 0]
    share, error, chance = _streams(streams[:cut].reshape(-1, window))
    steps = np.abs(np.diff(ids))
    same = float((np.diff(shards) == 0).mean()) if count > 1 else 0.0
    return Quality(
        samples=count,
        distance=float(steps.mean()) / (num_samples / 3) if count > 1 else 0.0,
        same_shard=same / float((by_shard**2).sum()) if len(by_shard) else 0.0,
        shards=float(distinct.mean()) if len(distinct) else 0.0,
        shards_by_chance=float((1 - (1 - by_shard) ** window).sum()),
        shards_least=int(distinct.min(initial=0)) if not len(distinct) else int(distinct.min()),
        stream_error=error if share > 1 else 0.0,
        stream_error_by_chance=chance if share > 1 else 0.0,
        chi_square=_chi_square(ids, num_samples),
        window=window,
    )


def _streams(streams: NDArray[np.integer]) -> tuple[int, float, float]:
    """Streams there are, the error of their shares in windows, and what chance would give."""
    if not streams.size:
        return 0, 0.0, 0.0
    number = int(streams.max()) + 1
    windows, window = streams.shape
    keys = np.arange(windows)[:, None] * number + streams
    counts = np.bincount(keys.ravel(), minlength=windows * number).reshape(windows, number)
    shares = counts / window
    mean = shares.mean(axis=0)
    error = float(np.sqrt(((shares - mean) ** 2).mean()))
    chance = float(np.sqrt((mean * (1 - mean) / window).mean()))
    return int((mean > 0).sum()), error, chance


def _chi_square(ids: Ids, num_samples: int) -> float:
    """Of place against id, in squares that all should be equally full; by degrees of freedom."""
    count = len(ids)
    if count < _SQUARES**2:
        return 0.0
    place = np.arange(count) * _SQUARES // count
    part = np.minimum(ids * _SQUARES // max(num_samples, 1), _SQUARES - 1)
    table = np.bincount(place * _SQUARES + part, minlength=_SQUARES**2).reshape(_SQUARES, -1)
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / count
    freedom = max((table.shape[0] - 1) * (table.shape[1] - 1), 1)
    return float(((table - expected) ** 2 / expected).sum()) / freedom
