"""What caches have done: counters in files, each written by one process and read by any.

A process counts in a file of its own, so nobody waits for anybody, and a process that is killed or
stopped leaves no number half changed. What the dead have counted is added up in one file by whoever
comes next.
"""

import contextlib
import logging
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.shared.holders import Holder
from streaming.shared.lock import FileLock
from streaming.shared.own import OwnFile, is_dead, own_files, read_own_file, sweep_unborn
from streaming.shared.sharing import make_directory, write_whole

__all__ = ["WAIT_BOUNDS", "Counts", "CountsFolder", "Stats", "gather"]

logger = logging.getLogger(__name__)

_MARK = b"STRMCNT1"
_COUNTERS = (
    "hits",
    "misses",
    "fetched_bytes",
    "retries",
    "evictions",
    "evicted_bytes",
    "repairs",
    "wait_us",
)
# Waits by length: each range is a fifth longer than the one before, from 1 microsecond to 3 hours,
# so a percentile is off by a tenth at most.
_STEP = 1.2
_RANGES = 128
WAIT_BOUNDS = tuple(1e-6 * _STEP**i for i in range(_RANGES))  # seconds; the lower end of each
_SIZE = len(_COUNTERS) + _RANGES
_PAST = "past.cnt"
_FOLDED = 256  # tokens of those who were added up, kept until their files are surely gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """What caches have done, and who holds their locks now.

    Attributes:
        hits: Openings of a shard that was here.
        misses: Shards that were not, and were fetched or decompressed.
        fetched_bytes: Bytes of files that were fetched.
        retries: Attempts at a download after its first.
        evictions: Shards that were removed to keep to a limit.
        evicted_bytes: Bytes of their files.
        repairs: Damaged shards that were made anew.
        wait_seconds: How long readers stood still for shards, in all.
        waits: How often they did, by length: the ranges begin at WAIT_BOUNDS.
        holders: Processes that hold locks on shards now, or wait for them.
    """

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    retries: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    repairs: int = 0
    wait_seconds: float = 0.0
    waits: tuple[int, ...] = (0,) * _RANGES
    holders: tuple[Holder, ...] = ()

    @classmethod
    def of(cls, values: NDArray[np.int64], holders: tuple[Holder, ...] = ()) -> "Stats":
        """Those of counters as they stand in a file."""
        counters = dict(zip(_COUNTERS, values.tolist(), strict=False))
        wait_us = counters.pop("wait_us")
        waits = tuple(values[len(_COUNTERS) :].tolist())
        return cls(**counters, wait_seconds=wait_us / 1e6, waits=waits, holders=holders)

    def __repr__(self) -> str:
        """What `to_json` has, which leaves out the many ranges of `waits`."""
        values = (f"{name}={value!r}" for name, value in self.to_json().items())
        return f"Stats({', '.join(values)})"

    @property
    def num_waits(self) -> int:
        """How often readers stood still."""
        return sum(self.waits)

    @property
    def wait_p50(self) -> float:
        """Seconds that half of the waits did not exceed; 0 if there were none."""
        return self.wait_quantile(0.5)

    @property
    def wait_p99(self) -> float:
        """Seconds that 99 of 100 waits did not exceed; 0 if there were none."""
        return self.wait_quantile(0.99)

    def wait_quantile(self, part: float) -> float:
        """Seconds that this part of the waits did not exceed, to a tenth; 0 if there were none."""
        if not self.num_waits:
            return 0.0
        reached = np.cumsum(self.waits) >= part * self.num_waits
        return float(WAIT_BOUNDS[int(reached.argmax())] * _STEP**0.5)

    def since(self, other: "Stats") -> "Stats":
        """What has come since `other` was taken."""
        changes: dict[str, Any] = {  # Never below 0, also if something has removed the files.
            name: max(0, getattr(self, name) - getattr(other, name))
            for name in (*_COUNTERS[:-1], "wait_seconds")
        }
        waits = tuple(max(0, now - then) for now, then in zip(self.waits, other.waits, strict=True))
        return Stats(**changes, waits=waits, holders=self.holders)

    def to_json(self) -> dict[str, Any]:
        """As plain values; waits as their number, sum and percentiles in seconds."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS[:-1]},
            "waits": self.num_waits,
            "wait_seconds": round(self.wait_seconds, 6),
            "wait_p50": round(self.wait_p50, 6),
            "wait_p99": round(self.wait_p99, 6),
            "holders": [holder.to_json() for holder in self.holders],
        }


class Counts:
    """The counters of one process. Threads may share it; of no use after a fork.

    Args:
        folder: Where its file is made, for as long as the object lives; what dead processes have
            left there is added up. None, or a folder that can't be written: nobody else sees them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._guard = threading.Lock()
        self._values = np.zeros(_SIZE, np.int64)
        self._file: OwnFile | None = None
        if folder is not None:
            try:
                make_directory(folder)
                _fold(folder)
                self._file = OwnFile(folder, _MARK, _SIZE)
                self._values = self._file.values
            except OSError as error:
                logger.debug("What this process counts stays its own: %s", error)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Counters belong to one process; they can't be pickled.")

    def add(self, **amounts: int) -> None:
        """Add to some counters, by name."""
        with self._guard:
            for name, amount in amounts.items():
                self._values[_COUNTERS.index(name)] += amount

    def add_wait(self, seconds: float) -> None:
        """Count a wait of a reader."""
        place = int(np.searchsorted(WAIT_BOUNDS, seconds, side="right")) - 1
        with self._guard:
            self._values[_COUNTERS.index("wait_us")] += int(seconds * 1e6)
            self._values[len(_COUNTERS) + max(place, 0)] += 1

    def close(self) -> None:
        """Leave the numbers to the sum of the folder."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):  # The folder went with the run, or the cache.
                _fold(self._file.path.parent)
            self._file = None

    def values(self) -> NDArray[np.int64]:
        """All counters. A copy."""
        return self._values.copy()


@dataclass(slots=True)
class CountsFolder:
    """Where the processes of one dataset object count; it moves when a copy goes its own way.

    Attributes:
        run: The run directory; None: nowhere.
    """

    run: Path | None = field(default=None)

    def open(self) -> Counts:
        """Counters for this process."""
        has_run = self.run is not None and self.run.exists()
        return Counts(self.run / "counts" if self.run is not None and has_run else None)

    def gather(self) -> NDArray[np.int64]:
        """The sum of all processes."""
        return gather(None if self.run is None else self.run / "counts")


def gather(folder: Path | None) -> NDArray[np.int64]:
    """The sum of all counters in a folder, of the living and of the dead; zeros if it is gone.

    Never less than before, whatever is added up or ends meanwhile.
    """
    if folder is None:
        return np.zeros(_SIZE, np.int64)
    found = {path: _read(path) for path in own_files(folder, _MARK) if path.name != _PAST}
    past, folded = _read_past(folder)  # Last: what has gone meanwhile is in there.
    return sum((values for path, values in found.items() if _token(path) not in folded), past)


def _read(path: Path) -> NDArray[np.int64]:
    return read_own_file(path, _MARK, _SIZE)


def _read_past(folder: Path) -> tuple[NDArray[np.int64], list[int]]:
    """The sum of the dead, and the tokens of those who were added last: their files may be left."""
    values = read_own_file(folder / _PAST, _MARK, _SIZE + _FOLDED)
    return values[:_SIZE], values[_SIZE:].tolist()


def _token(path: Path) -> int:
    """A number that is a file's own."""
    return 1 + zlib.crc32(path.name.encode())


def _fold(folder: Path) -> None:
    """Add up what dead processes have counted. Does nothing if another process is at it."""
    lock = FileLock(folder / "fold.lock")
    if not lock.acquire(blocking=False):
        return
    try:
        sweep_unborn(folder)
        dead = [path for path in own_files(folder, _MARK) if path.name != _PAST and is_dead(path)]
        if not dead:
            return
        past, folded = _read_past(folder)
        new = [path for path in dead if _token(path) not in folded][:_FOLDED]
        tokens = ([_token(path) for path in new] + folded)[:_FOLDED]
        total = sum(map(_read, new), past)
        write_whole(folder / _PAST, _MARK + total.tobytes() + np.array(tokens, np.int64).tobytes())
        for path in dead:
            if _token(path) in tokens:
                path.unlink(missing_ok=True)
    finally:
        lock.release()
