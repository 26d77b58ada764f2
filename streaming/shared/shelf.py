"""The shards of several directories under one numbering, as one process sees them."""

import bisect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheError
from streaming.format.index import Index
from streaming.shared.directory import CacheDirectory, DirectoryState
from streaming.shared.files import ShardFiles, Source, Steps
from streaming.shared.pin import Pin

__all__ = ["CachePart", "Place", "Shelf"]


@dataclass(frozen=True, slots=True)
class CachePart:
    """The shards of one stream. Plain data.

    Attributes:
        directory: Where they are on this node, as `obtain_index` says.
        index: Their index.
        source: Where missing files come from; None if all are here.
        keep_zip: Keep a compressed file that was fetched, beside what was made from it.
        validate_hash: Name of the hash in the index that is checked on fetching; None for none.
        steps: How to make files, where it is done in another way than usual.
        columns: Those that samples shall have; None for all.
        decoded_limit: Bytes that raw files may take that can be made again from compressed ones
            that are here; None: any.
        version: Of the table that it is; None for other data.
        pin: Keeps what reading needs besides files and index; None if there is nothing.
        remake: Makes anew what an index that was made here needs beside the shards, once that was
            removed under a run, and gives what keeps that; None: it needs nothing.
    """

    directory: CacheDirectory
    index: Index
    source: Source | None = None
    keep_zip: bool = False
    validate_hash: str | None = None
    steps: Steps | None = None
    columns: tuple[str, ...] | None = None
    decoded_limit: int | None = None
    version: int | None = None
    pin: Pin | None = field(default=None, compare=False, repr=False)
    remake: Callable[[], Pin | None] | None = field(default=None, repr=False, compare=False)

    @property
    def can_make(self) -> bool:
        """Whether there can be files to fetch or to decompress, and so a state to share."""
        return self.source is not None or bool(self.index.table.zip_bytes.any())

    def files(self, shard: int) -> ShardFiles:
        """The files of shard `shard` of this stream."""
        info = self.index.shard(shard)
        return ShardFiles(self.directory.path, info, self.source, self.validate_hash, self.steps)


@dataclass(frozen=True, slots=True)
class Place:
    """One shard: its number among all, its part, its number in that, and its files."""

    shard: int
    part: CachePart
    local: int
    files: ShardFiles


class Shelf:
    """Shards numbered part after part, and the states of their directories.

    For one process; of no use after a fork. Threads may share it.

    Args:
        parts: The parts. Those in one directory share its state.

    Attributes:
        states: The states that are open now, by directory.
    """

    def __init__(self, parts: Sequence[CachePart]) -> None:
        self.parts = tuple(parts)
        self.firsts = [0, *np.cumsum([len(part.index) for part in parts]).tolist()]
        self._states: dict[Path, DirectoryState] = {}
        self.states: Mapping[Path, DirectoryState] = self._states
        self._opening = threading.Lock()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def has_states(self) -> bool:
        """Whether the state of any directory is open."""
        return bool(self._states)

    def find(self, shard: int) -> Place:
        """Where a shard is.

        Raises:
            IndexError: There is no such shard.
        """
        number, local = self._locate(shard)
        part = self.parts[number]
        return Place(shard, part, local, part.files(local))

    def state(self, part: CachePart) -> DirectoryState:
        """The state of a part's directory, opened on first use.

        Raises:
            CacheError: The directory can't hold it, or this is a copy in a forked child.
        """
        if os.getpid() != self._pid:
            raise CacheError(
                f"This shard cache was made in process {self._pid} and came to process "
                f"{os.getpid()} by a fork. Make one in each process."
            )
        with self._opening:
            state = self._states.get(part.directory.path)
            if state is None:
                state = DirectoryState(part.directory, part.index)
                self._states[part.directory.path] = state
        return state

    def renew(self, part: CachePart, gone: DirectoryState) -> None:
        """Forget the state of a part's directory, which is gone: the next use makes another.

        Nothing happens if another thread was quicker.
        """
        with self._opening:
            if self._states.get(part.directory.path) is not gone:
                return
            del self._states[part.directory.path]
        gone.close()

    def open_state(self, part: CachePart) -> DirectoryState | None:
        """The state of a part's directory if it is open."""
        return self._states.get(part.directory.path)

    def touch(self, shard: int) -> None:
        """Note that a shard is in use, where a state is open."""
        if not self._states:  # Single samples of a local dataset come this way, too.
            return
        number, local = self._locate(shard)
        state = self.open_state(self.parts[number])
        if state is not None:
            state.touch(local)

    def may_have_raw(self, shards: NDArray[np.int64]) -> NDArray[np.bool_]:
        """False for the shards of which an open state says that no raw file is here."""
        found: NDArray[np.bool_] = self.marks(shards) >= 0
        return found

    def marks(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """A number for each shard that changes when it is removed or made; -1 if it is not here.

        0 where no state is open.
        """
        found = np.zeros(len(shards), np.int64)
        if self._states:
            numbers = np.searchsorted(self.firsts, shards, side="right") - 1
            for number in np.unique(numbers).tolist():
                state = self.open_state(self.parts[number])
                if state is not None:
                    mine = numbers == number
                    found[mine] = state.marks(shards[mine] - self.firsts[number])
        return found

    def close(self) -> None:
        """Give back the leases; in a forked child nothing happens, they are its parent's."""
        if os.getpid() != self._pid:
            return
        with self._opening:
            for state in self._states.values():
                state.close()
            self._states.clear()

    def _locate(self, shard: int) -> tuple[int, int]:
        if not 0 <= shard < len(self):
            raise IndexError(f"Shard {shard} is not in a dataset of {len(self)} shards.")
        number = bisect.bisect_right(self.firsts, shard) - 1
        return number, shard - self.firsts[number]
