"""Removal of what dead runs have left, of this library and of the predecessor.

This library leaves nothing with a global name: its shared state is files under kernel locks.
"""

import errno
import fcntl
import logging
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from streaming.errors import MissingFileError
from streaming.format.publishing import SCRATCH_PREFIX
from streaming.shared.directory import sweep_directory
from streaming.shared.epoch import sweep_runs
from streaming.shared.pin import clean_made

__all__ = ["clean", "clean_stale_shared_memory"]

logger = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_BLOCK = re.compile(
    r"(\d{6,})_(locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume"
    r"|epoch_shape|epoch_data)"
)
_LOCK = re.compile(r"(\d{6,})_(barrier|cache)_filelock")


def clean_stale_shared_memory() -> None:
    """Remove what dead processes have left behind; see `clean`. A name of the predecessor's."""
    removed = clean()
    if removed:
        logger.info("Removed %d files and directories of dead processes.", len(removed))


def clean(directories: Sequence[Path] = (), *, is_dry: bool = False) -> list[Path]:
    """Remove what this user's dead processes of this library and of the predecessor have left.

    That is: blocks of shared memory and lock files that nobody has open, and directories of
    runs, and of the making of indexes, whose owner is gone. Running jobs are left alone, so it may
    be called at any time, by any number of processes at once; it makes no process group and touches
    no GPU.

    Args:
        directories: Cache directories in which to remove parts of files as well, where nobody is at
            work, and what was made for versions of tables that nobody reads. Whoever uses a
            directory next does so too.
        is_dry: Only find it.

    Returns:
        Paths of what was removed, or would be.

    Raises:
        MissingFileError: One of the directories is not there; nothing was removed then.
    """
    for directory in directories:
        if not directory.is_dir():
            raise MissingFileError(f"There is no directory {directory}. Name a cache directory.")
    blocks, locks = _collect(_SHARED_MEMORY, _BLOCK), _collect(Path(tempfile.gettempdir()), _LOCK)
    in_use = _mapped() if blocks else set()
    found: list[Path] = []
    for prefix in sorted(blocks.keys() | locks.keys()):
        # One block in use means a running job, and then the others are its as well.
        if not in_use.isdisjoint(map(str, blocks[prefix])):
            continue
        found += blocks[prefix] + [path for path in locks[prefix] if not _is_locked(path)]
    if not is_dry:
        found = list(filter(_unlink, found))
    found += sweep_runs(is_dry=is_dry) + sweep_runs(SCRATCH_PREFIX, is_dry=is_dry)
    for directory in directories:
        found += sweep_directory(directory, is_dry=is_dry)
        found += clean_made(directory, is_dry=is_dry)
    return found


def _collect(directory: Path, pattern: re.Pattern[str]) -> defaultdict[str, list[Path]]:
    """The files of this user whose names fit, by their prefix."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return found  # No such thing on this system.
    for entry in entries:
        match = pattern.fullmatch(entry.name)
        if match and _is_mine(Path(entry.path)):
            found[match[1]].append(Path(entry.path))
    return found


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False  # Its owner, or another cleaner, was quicker.


def _mapped() -> set[str]:
    """The files of shared memory that some process has mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM):
                raise
            continue  # It has ended, or is another user's, who can't have mapped our blocks.
        prefix = f"{_SHARED_MEMORY}/"
        found |= {line[line.index(prefix) :] for line in lines if prefix in line}
    return found


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
