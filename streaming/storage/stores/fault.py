"""A store that fails by script: what tests of everything above the seam are made of."""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from streaming.errors import StoreError, StoreTimeoutError, TransientStoreError
from streaming.storage.store import ObjectInfo, Store, translated

__all__ = ["Corrupt", "Delay", "Fail", "Fault", "FaultStore", "ShortRead", "Stall"]

_LIMIT = 60.0  # seconds; where an event never comes, the test should fail and not hang


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to some calls.

    Of the calls that match, each `every`-th is meant, beginning with the first, until `times` were
    (None: for ever). With a `chance` below 1, calls that are meant are spared at random: what is
    drawn depends on the seed, the call and how often it came before, not on the order of threads.
    """

    op: str = "*"  # pattern for the name of the method
    key: str = "*"  # pattern
    times: int | None = None
    every: int = 1
    chance: float = 1.0

    def before(self) -> None:
        """What happens before the call."""

    def change(self, content: bytes, start: int) -> bytes:
        """What becomes of an object's bytes from `start` on while they are on their way."""
        return content

    def after(self) -> None:
        """What happens when the bytes have passed."""


@dataclass(frozen=True)
class Delay(Fault):
    """The call waits for `until`; `reached` is set once it does."""

    until: threading.Event
    reached: threading.Event = field(default_factory=threading.Event)

    def before(self) -> None:
        """Wait."""
        self.reached.set()
        _wait(self.until)


@dataclass(frozen=True)
class Fail(Fault):
    """The call raises an error and does nothing."""

    error: Exception = field(default_factory=lambda: TransientStoreError("503: I am busy."))

    def before(self) -> None:
        """Raise."""
        raise copy(self.error)  # A copy: one instance would gather the tracebacks of all threads.


@dataclass(frozen=True)
class ShortRead(Fault):
    """Only the first `at` bytes of an object pass, and nobody says so."""

    at: int

    def change(self, content: bytes, start: int) -> bytes:
        """Cut."""
        return content[: max(self.at - start, 0)]


@dataclass(frozen=True)
class Corrupt(Fault):
    """The byte `at` of an object changes on its way."""

    at: int = 0

    def change(self, content: bytes, start: int) -> bytes:
        """Flip all bits of the byte."""
        place = self.at - start
        if not 0 <= place < len(content):
            return content
        return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@dataclass(frozen=True)
class Stall(Fault):
    """The first `at` bytes of an object pass, then nothing, until the time limit (at `until`)."""

    at: int = 0
    until: threading.Event | None = None
    reached: threading.Event = field(default_factory=threading.Event)

    def change(self, content: bytes, start: int) -> bytes:
        """Cut."""
        return content[: max(self.at - start, 0)]

    def after(self) -> None:
        """Wait, and raise."""
        self.reached.set()
        if self.until is not None:
            _wait(self.until)
        raise StoreTimeoutError(f"Nothing came after byte {self.at}.")


def _wait(event: threading.Event) -> None:
    if not event.wait(_LIMIT):
        raise StoreError(f"A fault waited {_LIMIT:g} s for an event that did not come.")


class FaultStore:
    """Another store, with faults.

    Args:
        inner: The store that does the work.
        plan: The faults; those that are meant all happen, in this order.
        seed: Of the random ones.
    """

    def __init__(self, inner: Store, plan: Sequence[Fault] = (), *, seed: int = 0) -> None:
        self.calls: list[tuple[str, str]] = []  # method and key of each call up to now
        self._inner = inner
        self._plan = plan
        self._seed = seed
        self._counts: Counter[tuple[str, str]] = Counter()
        self._matches: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultStore({self._inner!r})"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        faults = self._begin("read", key)
        content = _change(faults, self._inner.read(key, start, stop), start)
        _end(faults)
        return content

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        faults = self._begin("get_file", key)
        self._inner.get_file(key, path)
        if faults:
            with translated(f"Can't change {path}"):
                path.write_bytes(_change(faults, path.read_bytes(), 0))
        _end(faults)

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        faults = self._begin("put_file", key)
        if not faults:
            self._inner.put_file(path, key)
            return
        with translated(f"Can't copy {path}"), TemporaryDirectory() as directory:
            changed = Path(directory, path.name)
            changed.write_bytes(_change(faults, path.read_bytes(), 0))
            self._inner.put_file(changed, key)
        _end(faults)

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        faults = self._begin("stat", key)
        found = self._inner.stat(key)
        _end(faults)
        return found

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        faults = self._begin("list", prefix)
        yield from self._inner.list(prefix)
        _end(faults)

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        faults = self._begin("delete", key)
        self._inner.delete(key)
        _end(faults)

    def close(self) -> None:
        """Let go of connections."""
        self._inner.close()

    def _begin(self, op: str, key: str) -> Sequence[Fault]:
        """Note a call, choose the faults that happen to it, and let them begin."""
        with self._lock:
            nth = self._counts[op, key]
            self._counts[op, key] += 1
            self.calls.append((op, key))
            faults = [fault for i, fault in enumerate(self._plan) if self._is_hit(i, op, key, nth)]
        for fault in faults:
            fault.before()
        return faults

    def _is_hit(self, i: int, op: str, key: str, nth: int) -> bool:
        fault = self._plan[i]
        if not (fnmatchcase(op, fault.op) and fnmatchcase(key, fault.key)):
            return False
        meant, rest = divmod(self._matches[i], fault.every)
        self._matches[i] += 1
        if rest or (fault.times is not None and meant >= fault.times):
            return False
        return random.Random(f"{self._seed} {i} {op} {key!a} {nth}").random() < fault.chance


def _change(faults: Sequence[Fault], content: bytes, start: int) -> bytes:
    for fault in faults:
        content = fault.change(content, start)
    return content


def _end(faults: Sequence[Fault]) -> None:
    for fault in faults:
        fault.after()
