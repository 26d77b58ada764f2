"""How far to look ahead, by the rates that were observed."""

from collections import deque

__all__ = ["Pace"]

# Samples before which nothing is concluded, and that are looked back on.
_LEAST, _MOST = 3, 16
# What is looked ahead for in place of the time that a shard takes: times vary.
_SPARE = 2.0


class Pace:
    """Works out how many slots to look ahead, so that shards come just in time.

    `moved`, `waited` and `ahead` are for the thread that reads, `brought` for any. Knows no clock:
    it is told.

    Args:
        most: Slots to look ahead at most, and as long as nothing is known.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: deque[tuple[float, int]] = deque(maxlen=_MOST)  # (busy seconds, slot)
        self._times: deque[float] = deque(maxlen=_MOST)  # seconds that shards took
        self._idle = 0.0
        self._spare = _SPARE

    def moved(self, slot: int, now: float) -> None:
        """Note that the reader came to a slot at some time, in seconds."""
        self._places.append((now - self._idle, slot))

    def waited(self, seconds: float) -> None:
        """Note that the reader stood still. If it was for long, shards are to come earlier."""
        self._idle += seconds
        if self._times and seconds > 0.1 * max(self._times):
            self._spare = min(2 * self._spare, 64.0)

    def brought(self, seconds: float) -> None:
        """Note how long a shard took to come."""
        self._times.append(seconds)

    def ahead(self, rounds: int) -> int:
        """Slots to look ahead.

        Args:
            rounds: Shards that each thread has yet to bring before one that is asked for now.
        """
        times = tuple(self._times)
        if len(times) < _LEAST or len(self._places) < _LEAST:
            return self.most
        (begun, first), (now, last) = self._places[0], self._places[-1]
        if now <= begun:
            return self.most
        rate = (last - first) / (now - begun)
        wanted = rate * max(times) * rounds * self._spare
        return int(min(max(wanted, self.most // 8), self.most))
