"""Whose turn it is where streams take turns, computed at any turn from what they give by then.

The mixtures of the arithmetic family and those with schedules are made of turns: a turn gives a
sample, a rank's batch or a global batch. After every turn each stream has had its due, within one
or so; turns are put in random order only within windows.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids, grouped
from streaming.shuffle.bijection import Use, derive, mix_array, permute

__all__ = ["WINDOW", "Due", "Turns", "fixed_due"]

WINDOW = 4096
"""Turns that are put in random order together."""

_KEPT = 1 << 20  # turns of windows that are kept, the newest

Floats = NDArray[np.float64]
Due = Callable[[Floats], Floats]
"""What each stream should have given at places (n,): (n, streams), never falling. The streams'
sum is the place itself, within rounding, until all have given all."""


def fixed_due(counts: Ids) -> Due:
    """Let streams with so many turns each, shape (streams,), have them evenly."""
    total = max(int(counts.sum()), 1)

    def due(places: Floats) -> Floats:
        given = np.minimum(places[:, None] * counts / total, counts)
        return np.where(places[:, None] >= total, counts, given)  # Exact there in any case.

    return due


class Turns:
    """Sequences of turns, side by side in lanes that have their turns in different orders.

    Not to be shared by threads.

    Args:
        due: What each stream should have given in a lane.
        num_streams: Streams.
        totals: Turns of each lane, shape (lanes,).
        key: Says where streams begin and how windows are ordered; below 2^64.
        window: Turns that are put in random order together.
    """

    def __init__(
        self, due: Due, num_streams: int, totals: Ids, key: int, window: int = WINDOW
    ) -> None:
        self._due = due
        self._totals = totals
        self._key = key
        self._window = window
        streams = np.arange(num_streams, dtype=np.uint64)
        words = mix_array(streams ^ np.uint64(derive(key, (Use.PHASES,))))
        self._phases = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1)
        self._windows: OrderedDict[tuple[int, int], tuple[Ids, Ids]] = OrderedDict()

    def totals(self) -> Ids:
        """Turns of each stream in all lanes together, shape (streams,)."""
        lengths, times = np.unique(self._totals, return_counts=True)
        totals: Ids = (self.counts(lengths) * times[:, None]).sum(axis=0)
        return totals

    def counts(self, turns: Ids) -> Ids:
        """How many of the first so many turns each stream has, shape (turns, streams).

        The streams' sum is the number of turns, and no stream's count falls.
        """
        # A stream has a turn whenever what it should have given passes its phase, more or less
        # one whole number. The place where all of these together are `turns` is looked for.
        low = np.maximum(turns - len(self._phases) - 1, 0)
        high = turns + len(self._phases) + 1
        while (open_ := low < high).any():
            middle = (low + high) // 2
            is_enough = self._passed(middle).sum(axis=1) >= turns
            high = np.where(open_ & is_enough, middle, high)
            low = np.where(open_ & ~is_enough, middle + 1, low)
        upto = self._passed(np.maximum(low - 1, 0)) * (low > 0)[:, None]
        # Streams that pass between two places have their turn in the order of their numbers.
        more = self._passed(low) - upto
        missing = (turns - upto.sum(axis=1))[:, None]
        result: Ids = upto + np.clip(missing - (np.cumsum(more, axis=1) - more), 0, more)
        return result

    def __call__(self, lanes: Ids, turns: Ids) -> tuple[Ids, Ids]:
        """For each turn of a lane the stream, and how many turns it had before in that lane.

        Args:
            lanes: Lanes, shape (n,).
            turns: Turns of these lanes, shape (n,).
        """
        streams, before = np.empty_like(turns), np.empty_like(turns)
        per_lane = int(self._totals.max(initial=0)) // self._window + 1
        groups = list(grouped(lanes * per_lane + turns // self._window))
        keys = [divmod(key, per_lane) for key, _ in groups]
        self._open([key for key in keys if key not in self._windows])
        for (lane, window), (_, mine) in zip(keys, groups, strict=True):
            found_streams, found_before = self._windows[lane, window]
            place = turns[mine] - window * self._window
            streams[mine], before[mine] = found_streams[place], found_before[place]
        while len(self._windows) > max(_KEPT // self._window, 1):
            self._windows.popitem(last=False)
        return streams, before

    def _passed(self, places: Ids) -> Ids:
        due = self._due(places.astype(np.float64))
        passed: Ids = np.floor(due + self._phases).astype(np.int64)
        return passed

    def _open(self, keys: Sequence[tuple[int, int]]) -> None:
        """Deal out windows, each (lane, number)."""
        if not keys:
            return
        starts = np.array([window for _, window in keys], np.int64) * self._window
        totals = self._totals[[lane for lane, _ in keys]]
        upto = self.counts(np.concatenate([starts, np.minimum(starts + self._window, totals)]))
        for key, before, behind in zip(keys, upto, upto[len(keys) :], strict=False):
            counts = behind - before
            size = int(counts.sum())
            places = permute(
                np.arange(size, dtype=np.uint32), size, derive(self._key, (Use.WINDOWS, *key))
            )
            self._windows[key] = _deal(before, counts, places)


def _deal(before: Ids, counts: Ids, places: NDArray[np.uint32]) -> tuple[Ids, Ids]:
    """Deal out a window: the stream of each turn, and how many turns the stream had before.

    Args:
        before: Turns of each stream before the window.
        counts: Turns of each in it.
        places: A permutation; streams take the places from the lowest on.
    """
    streams = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[places]
    number = np.empty(len(places), np.int64)
    number[np.argsort(streams, kind="stable")] = np.arange(len(places))
    first = np.cumsum(counts) - counts  # number of the first of each stream
    return streams.astype(np.int64), before[streams] + number - first[streams]
