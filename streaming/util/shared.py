"""Removal of what the predecessor has left in shared memory, and of dead run directories.

This library leaves nothing with a global name: its shared state is files under kernel locks.
"""

import errno
import fcntl
import logging
import os
import re
import tempfile
from collections import defaultdict
from pathlib import Path

from streaming.shared.epoch import sweep_runs

__all__ = ["clean_stale_shared_memory"]

logger = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_BLOCK = re.compile(
    r"(\d{6,})_(locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume"
    r"|epoch_shape|epoch_data)"
)
_LOCK = re.compile(r"(\d{6,})_(barrier|cache)_filelock")


def clean_stale_shared_memory() -> None:
    """Remove what dead processes of the predecessor, and of this library, have left behind.

    That is: blocks of shared memory and lock files that nobody has open, and run directories whose
    owner is gone. Running jobs are left alone, so it may be called at any time, by any number of
    processes at once; it makes no process group and touches no GPU.
    """
    blocks, locks = _collect(_SHARED_MEMORY, _BLOCK), _collect(Path(tempfile.gettempdir()), _LOCK)
    in_use = _mapped() if blocks else set()
    removed = 0
    for prefix in blocks.keys() | locks.keys():
        # One block in use means a running job, and then the others are its as well.
        if not in_use.isdisjoint(map(str, blocks[prefix])):
            continue
        removed += sum(map(_unlink, blocks[prefix]))
        removed += sum(_unlink(path) for path in locks[prefix] if not _is_locked(path))
    removed += sweep_runs()
    if removed:
        logger.info("Removed %d files and directories of dead processes.", removed)


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
