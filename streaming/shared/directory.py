"""What the processes of a node know together of one directory of shards.

Beside the shards, in `.streaming/`, are a lease that every user holds, the lock files, the table of
what is there, and `source.json`, which says where it came from. All of it can be removed when
nobody is at work; it is made again from what lies in the directory.
"""

import itertools
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.errors import CacheError, StreamingError
from streaming.format.index import Index
from streaming.format.indexing import DECODED_FOLDER
from streaming.hashing import get_hash
from streaming.shared.counts import Counts, Stats, gather
from streaming.shared.files import Claim, ShardFiles, target_of_part
from streaming.shared.holders import Holder, find_holders
from streaming.shared.lock import FileLock, Stripes
from streaming.shared.needs import Needs
from streaming.shared.sharing import make_directory
from streaming.shared.table import SharedTable

__all__ = [
    "STATE_VARIABLE",
    "CacheDirectory",
    "DirectoryState",
    "holders_of",
    "is_filled",
    "is_seen_by_all",
    "measure",
    "state_errors",
    "state_path",
    "stats_of",
    "sweep_directory",
    "sweep_parts",
    "users_of",
]

logger = logging.getLogger(__name__)

STATE_VARIABLE = "STREAMING_STATE_DIR"

_COUNTS = "counts"
_STRANGERS_SECONDS = 0.5  # for which the bytes of others' files are believed
_STRANGERS_SHARE = 50  # times as long as it takes to measure them, if that is more

_RAW_OURS, _ZIP_OURS, _ZIP_KEPT = 1, 2, 4
_MADE = 8  # From this bit on, the flags count how often the shard was made.

# A record of the table. Bytes are those that lie there, or are promised to a shard that is being
# prepared. They and the flags change under the shard's lock, `last_use_ns` under none.
_RECORD = np.dtype([("raw", "<i8"), ("zip", "<i8"), ("last_use_ns", "<i8"), ("flags", "<i8")])


@dataclass(frozen=True, slots=True)
class CacheDirectory:
    """A directory of shards. Plain data.

    Attributes:
        path: Where it is.
        digest: Digest of its index.
        is_chosen: Whether that has been made of some shards of the index that is there.
        is_made: Whether the index was made here. Then there may be others of the same directory,
            as of other columns or versions, each with a table of its own.
    """

    path: Path
    digest: str
    is_chosen: bool = False
    is_made: bool = False

    @property
    def table(self) -> Path:
        """What is known of the shards."""
        return state_path(self.path) / f"shards{self.suffix}.tbl"

    @property
    def suffix(self) -> str:
        """What tells files of several indexes apart."""
        return f"-{self.digest[:16]}" if self.is_made else ""


class DirectoryState:
    """The shared state of one directory, open in one process. Threads may share it.

    Holds the lease of the directory until `close`, or until the process ends in whatever way. Its
    disk use is the sum of the records, not a number of its own that a killed process could leave
    wrong; a record that one left wrong is put right by the next who takes the shard's lock.

    Args:
        directory: The directory.
        index: Its index.

    Raises:
        CacheError: The directory can't hold the state: it is read-only or has no locks.
    """

    def __init__(self, directory: CacheDirectory, index: Index) -> None:
        self._root = state_path(directory.path)
        self._directory, self._index = directory, index
        self._strangers, self._measured = 0, -math.inf
        self._stripes = Stripes(self._root)
        self._lease = FileLock(self._root / "lease")
        self._own_lease = FileLock(self._root / f"shards{directory.suffix}.lease")
        try:
            with state_errors(directory.path):
                make_directory(self._root)
                is_alone = self._lease.acquire(blocking=False)
                if not is_alone:
                    self._lease.acquire(shared=True)
                with self.room().exclusive():
                    records = self._open_table(directory, index, is_alone).records
                    self._inode = directory.table.stat().st_ino
                    if directory.is_made:
                        self._own_lease.acquire(shared=True)
                if is_alone:
                    self._lease.acquire(shared=True)
        except BaseException:
            self._own_lease.release()
            self._lease.release()  # An error may be kept, and this object with it.
            raise
        self._raw, self._zip = records["raw"], records["zip"]
        self._last_use_ns, self._flags = records["last_use_ns"], records["flags"]
        self.counts = Counts(self._root / _COUNTS)
        self.needs = Needs(self._root / f"needs{directory.suffix}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("The state of a directory is open in one process; it can't be pickled.")

    def __len__(self) -> int:
        return len(self._raw)

    def close(self) -> None:
        """Give back the lease."""
        self.needs.close()
        self.counts.close()
        self._own_lease.release()
        self._lease.release()

    def is_current(self) -> bool:
        """Whether this is still what others find at its place: it may have been removed, or moved.

        Raises:
            OSError: It can't be told.
        """
        try:
            return self._directory.table.stat().st_ino == self._inode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def lock(self, shard: int) -> FileLock:
        """The lock under which the files of a shard change; other shards may have the same."""
        return self._stripes.lock(shard)

    def room(self) -> FileLock:
        """The lock of whoever makes room. Its holder waits for no other lock."""
        return FileLock(self._root / "total")

    def has_raw(self, shards: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether raw files of these shards are known to be there."""
        found: NDArray[np.bool_] = self._raw[shards] > 0
        return found

    def marks(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """A number for each shard that changes when it is removed or made; -1 if it is not here."""
        return np.where(self._raw[shards] > 0, self._flags[shards] // _MADE, -1)

    def touch(self, shards: int | NDArray[np.int64]) -> None:
        """Note that shards are in use. Takes no lock."""
        self._last_use_ns[shards] = time.time_ns()

    def last_use_ns(self) -> NDArray[np.int64]:
        """When each shard was last in use, in ns since 1970; 0 if never. A copy."""
        return self._last_use_ns.copy()

    def used(self, *, zips: bool) -> int:
        """Bytes of all shards that are here or promised, with or without the compressed files."""
        return int(self._raw.sum()) + (int(self._zip.sum()) if zips else 0)

    def own_bytes(self) -> NDArray[np.int64]:
        """Bytes of each shard in files that this library made or fetched, shape (num_shards,)."""
        own: NDArray[np.int64] = self._raw * (self._flags & _RAW_OURS != 0)
        own += self._zip * (self._flags & _ZIP_OURS != 0)
        return own

    def strangers(self) -> int:
        """Bytes of decoded files and parts of files that belong to other indexes.

        Of another version or other columns, and of a job that is at work or was. As they were some
        seconds ago.
        """
        begun = time.monotonic()
        if self._directory.is_made and begun >= self._measured:
            self._strangers = measure(Path(entry.path) for entry in self._stranger_files())
            took = time.monotonic() - begun
            self._measured = begun + max(_STRANGERS_SECONDS, _STRANGERS_SHARE * took)
        return self._strangers

    def drop_strangers(self, excess: int) -> int:
        """Remove others' files, the oldest first, if nobody is at work who could need them.

        For the holder of `room`.

        Args:
            excess: Bytes to remove, if there are as many.

        Returns:
            Bytes that were removed.
        """
        if not self._strangers or self._has_others():
            return 0
        freed = 0
        for entry in sorted(self._stranger_files(), key=_age):
            if freed >= excess:
                break
            with suppress(FileNotFoundError, PermissionError):
                size = entry.stat().st_size
                os.unlink(entry.path)
                freed += size
        self._strangers -= min(freed, self._strangers)
        return freed

    def _has_others(self) -> bool:
        """Whether there are processes here that read by another index."""
        for path in self._root.glob("shards-*.lease"):
            lease = FileLock(path)
            if path == self._own_lease.path:
                continue
            if not lease.acquire(blocking=False):
                return True
            lease.release()
        return False

    def _stranger_files(self) -> list[os.DirEntry[str]]:
        names = itertools.chain.from_iterable(
            self._index.basenames("raw") + self._index.basenames("zip")
        )
        known = {name for name in names if name.startswith(f"{DECODED_FOLDER}/")}
        try:
            with os.scandir(self._directory.path / DECODED_FOLDER) as entries:
                return [
                    entry
                    for entry in entries
                    if f"{DECODED_FOLDER}/{entry.name}" not in known
                    and target_of_part(entry.name, any_node=True) is None
                ]
        except FileNotFoundError:
            return []

    # For the holder of the shard's lock.

    def promise(self, shard: int, files: ShardFiles, *, raw: bool = True) -> None:
        """Count the bytes that a shard will have when it is prepared, before it is.

        Args:
            shard: Which.
            files: Its files.
            raw: Whether it will have raw files, too.
        """
        if raw:
            self._raw[shard] = files.info.raw_bytes
        if files.source is not None:
            self._zip[shard] = files.info.zip_bytes

    def record(self, shard: int, files: ShardFiles) -> None:
        """Count what is there of a shard."""
        raw, zip = measure(files.raw_paths), measure(files.zip_paths)
        zip_flags = _ZIP_OURS | _ZIP_KEPT if zip else 0
        self._flags[shard] &= -_MADE | (_RAW_OURS if raw else 0) | zip_flags
        self._raw[shard], self._zip[shard] = raw, zip

    def note_made(self, shard: int) -> None:
        """Note that raw files were made: whoever has the former ones open has others."""
        self._flags[shard] += _MADE

    def claims(self, shard: int, *, keep_zip: bool = False) -> Claim:
        """What notes that files of a shard are made by this library, and which shall stay."""
        zip_flags = _ZIP_OURS | _ZIP_KEPT if keep_zip else _ZIP_OURS

        def claim(kind: Literal["raw", "zip"]) -> None:
            self._flags[shard] |= _RAW_OURS if kind == "raw" else zip_flags

        return claim

    def is_own(self, shard: int, kind: Literal["raw", "zip"]) -> bool:
        """Whether this library made the raw files, or fetched the compressed ones."""
        return bool(self._flags[shard] & (_RAW_OURS if kind == "raw" else _ZIP_OURS))

    def _open_table(self, directory: CacheDirectory, index: Index, is_alone: bool) -> SharedTable:
        """The table, built anew from a listing unless it is there and others use it."""
        path = directory.table
        if is_alone:
            _drop_others(self._root, directory.suffix)
        old = SharedTable.open(path, _RECORD, len(index), directory.digest)
        if old is not None and not is_alone:
            return old
        listing = _Listing(directory.path, index)
        if is_alone:
            listing.remove_parts()
        records = np.zeros(len(index), _RECORD) if old is None else old.records.copy()
        records["raw"], records["zip"] = listing.measure()
        records["flags"] &= (
            -_MADE
            | np.where(records["raw"] > 0, _RAW_OURS, 0)
            | np.where(records["zip"] > 0, _ZIP_OURS | _ZIP_KEPT, 0)
        )
        if is_alone:
            spent = _find_spent_zips(records) & (records["raw"] == index.table.raw_bytes)
            listing.remove_zips(np.flatnonzero(spent).tolist())
            records["zip"][spent] = 0
        return SharedTable.create(path, records, directory.digest)


def holders_of(directory: Path) -> tuple[Holder, ...]:
    """Processes that hold locks of a directory now, or wait for them, but for its lease."""
    root = state_path(directory)
    return find_holders(path for path in _lock_files(root) if path.name != "lease")


def users_of(directory: Path) -> tuple[Holder, ...]:
    """Processes that use a directory now."""
    return find_holders([state_path(directory) / "lease"])


def stats_of(directory: Path) -> Stats:
    """What all who ever used a directory have done in it."""
    return Stats.of(gather(state_path(directory) / _COUNTS), holders_of(directory))


def _lock_files(root: Path) -> Iterator[Path]:
    yield from (root / "lease", root / "total", root / "index.lock")
    yield from root.glob("lock.??")


def is_filled(directory: CacheDirectory, index: Index) -> bool:
    """Whether all raw files are there, by their sizes."""
    raw, _ = _Listing(directory.path, index).measure()
    return bool((raw == index.table.raw_bytes).all())


def sweep_parts(directory: CacheDirectory, index: Index) -> None:
    """Remove what killed processes have left, if there is any and nobody uses the directory.

    Where no shard is missing, nobody would open the state, which does so.
    """
    try:
        names = os.listdir(directory.path)
        has_left = ".part" in "/".join(names) and any(  # At once: there may be a million of them.
            target_of_part(name, any_node=True) for name in names
        )
        if not has_left and index.table.zip_bytes.any():
            table = SharedTable.open(directory.table, _RECORD, len(index), directory.digest)
            has_left = table is not None and bool(_find_spent_zips(table.records).any())
        if has_left:
            DirectoryState(directory, index).close()
    except (OSError, CacheError) as error:
        logger.debug("Temporary files in %s are left as they are: %s", directory.path, error)


def _find_spent_zips(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Which shards still have a compressed file that somebody fetched for its content only.

    It goes once that is unpacked; whoever is killed in between leaves it.
    """
    is_spent = records["flags"] & (_ZIP_OURS | _ZIP_KEPT) == _ZIP_OURS
    found: NDArray[np.bool_] = is_spent & (records["raw"] > 0) & (records["zip"] > 0)
    return found


def sweep_directory(directory: Path, *, is_dry: bool = False) -> list[Path]:
    """Remove parts of files that killed processes have left, if nobody uses the directory now.

    Args:
        directory: A cache directory; folders in it are looked through as well.
        is_dry: Only find them.

    Returns:
        Those that were removed, or would be.
    """
    lease = FileLock(state_path(directory) / "lease")
    if not lease.path.exists() or not lease.acquire(blocking=False):
        return []
    found = []
    try:
        for path in directory.rglob("*.part*"):
            if target_of_part(path.name, any_node=is_seen_by_all(directory)) is not None:
                found.append(path)
                if not is_dry:
                    path.unlink(missing_ok=True)
    finally:
        lease.release()
    return found


def _drop_others(root: Path, suffix: str) -> None:
    """Remove what is known of shards by other indexes than this one. For whoever is alone."""
    own = {f"shards{suffix}.tbl", f"shards{suffix}.lease"}
    for path in itertools.chain(root.glob("shards*.tbl"), root.glob("shards-*.lease")):
        if path.name not in own:
            with suppress(PermissionError):  # Another user's.
                path.unlink(missing_ok=True)
    for path in root.glob("needs-*"):
        if path.name != f"needs{suffix}":
            shutil.rmtree(path, ignore_errors=True)


def _age(entry: os.DirEntry[str]) -> float:
    with suppress(FileNotFoundError):
        return entry.stat().st_mtime
    return 0.0


class _Listing:
    """What lies in a directory, and in the folders that its index names."""

    def __init__(self, directory: Path, index: Index) -> None:
        self._directory = directory
        self._raw, self._zip = index.basenames("raw"), index.basenames("zip")
        self._length = len(index)
        names = itertools.chain.from_iterable(self._raw + self._zip)
        heads = {name[: name.rfind("/") + 1] for name in names}
        self._sizes: dict[str, int] = {}
        for head in heads:
            try:
                with os.scandir(directory / head) as entries:
                    self._sizes.update({head + entry.name: measure([entry]) for entry in entries})
            except FileNotFoundError:
                continue  # No file has come to this folder yet.

    def measure(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bytes that are there of the raw and of the compressed files of each shard."""
        sizes = self._sizes

        def total(parts: list[list[str]]) -> NDArray[np.int64]:
            found = np.zeros(self._length, np.int64)
            for names in parts:
                found += np.fromiter((sizes.get(name, 0) for name in names), np.int64)
            return found

        return total(self._raw), total(self._zip)

    def remove_parts(self) -> None:
        """Remove the temporary files of processes that were killed. For whoever is alone."""
        known = set(itertools.chain.from_iterable(self._raw + self._zip))
        any_node = is_seen_by_all(self._directory)
        for name in self._sizes:
            if target_of_part(name, any_node=any_node) in known:
                logger.debug("Removing %s, which a killed process left.", self._directory / name)
                (self._directory / name).unlink(missing_ok=True)

    def remove_zips(self, shards: Sequence[int]) -> None:
        """Remove the compressed files of some shards. For whoever is alone."""
        for name in filter(None, (names[shard] for names in self._zip for shard in shards)):
            logger.debug("Removing %s, which a killed process left.", self._directory / name)
            (self._directory / name).unlink(missing_ok=True)


def state_path(directory: Path) -> Path:
    """Where the state of a directory is kept: in it, or below STREAMING_STATE_DIR."""
    root = os.environ.get(STATE_VARIABLE)
    if not root:
        return directory / ".streaming"
    name = get_hash("xxh3_128", os.path.realpath(directory).encode())
    return Path(os.path.expanduser(root)) / name


def is_seen_by_all(directory: Path) -> bool:
    """Whether all who use a directory, on other nodes too, meet at one state."""
    return state_path(directory).parent == directory


@contextmanager
def state_errors(directory: Path) -> Iterator[None]:
    """Turn what the system says of a state that can't be kept into our error."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamingError):
            raise
        if isinstance(error, FileNotFoundError):
            raise CacheError(
                f"The state of the shards in {directory} is gone from {state_path(directory)}: "
                f"{error}. Something has removed it under a living run. Start the run again from "
                f"its last checkpoint; what is missing is fetched again."
            ) from error
        raise CacheError(
            f"The state of the shards in {directory} can't be kept and locked in "
            f"{state_path(directory)}: {error}. If that directory is read-only or on a file system "
            f"without locks, set {STATE_VARIABLE} to a directory on a local disk."
        ) from error


def measure(paths: Iterable[Path | os.DirEntry[str]]) -> int:
    """Bytes of those of the files that are there."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return total
