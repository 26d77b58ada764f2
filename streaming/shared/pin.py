"""Folders of what was made for an index, which lie there as long as somebody may need it.

What a reader can't make again, such as the numbers of deleted rows of a version of a table, is in a
folder with a lock that all who read that version share. Whoever makes another index removes the
folders whose lock is free.
"""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from streaming.format.indexing import MADE_ENDING
from streaming.shared.directory import state_path
from streaming.shared.lock import FileLock

__all__ = ["Pin", "clean_made", "sweep_made"]

_LEASE = "lease"


class Pin:
    """Holds a folder of what was made for an index, as long as this object lives.

    A copy by pickle holds it too. A forked child does not: it ends with its parent. Make it under
    the lock of the index, which keeps `sweep_made` away.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lease = FileLock(folder / _LEASE)
        with suppress(FileNotFoundError):  # Nobody held it before this copy: reading says so.
            self._lease.acquire(shared=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pin, (self.folder,)


def sweep_made(kept: Path, but: Path | None = None, *, is_dry: bool = False) -> list[Path]:
    """Remove the folders that nobody holds. For the holder of the lock of the index.

    Args:
        kept: Where they are.
        but: One that stays.
        is_dry: Only find them.

    Returns:
        Those that were removed, or would be.
    """
    found = []
    for folder in kept.glob(f"*{MADE_ENDING}"):
        lease = FileLock(folder / _LEASE)
        if folder == but or not lease.acquire(blocking=False):
            continue
        try:
            if not is_dry:
                shutil.rmtree(folder)
            found.append(folder)
        except PermissionError:
            continue  # Another user's, who can remove it himself.
        finally:
            lease.release()
    return found


def clean_made(directory: Path, *, is_dry: bool = False) -> list[Path]:
    """Remove what nobody holds in a cache directory and the folders in it; see `sweep_made`.

    What is at this moment being made an index of is left alone.
    """
    found = []
    for place in (directory, *filter(Path.is_dir, directory.iterdir())):
        lock = FileLock(state_path(place) / "index.lock")
        if not lock.path.exists() or not lock.acquire(blocking=False):
            continue
        try:
            found += sweep_made(state_path(place) / "index", is_dry=is_dry)
        finally:
            lock.release()
    return found
