"""Directories that several users write: whoever may write there can use what is made there.

A directory is shared if its group, or anybody, may write to it and remove what others made: if it
is writable for them and not sticky. What is made in it is shared with the same users, whatever the
umask says. A sticky one, such as /tmp, hands nothing on: there each user has a folder of his own.
"""

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["make_directory", "may_change", "share", "write_whole"]

_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def make_directory(path: Path) -> None:
    """Make a directory and those above it; one that is made in a shared one is shared as well.

    Raises:
        OSError: It can't be made.
    """
    try:
        try:
            path.mkdir()
        except FileNotFoundError:
            make_directory(path.parent)
            path.mkdir()  # Some directories, as of /proc, are there and take none.
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        share(path, is_written=True)


def share(path: Path | int, *, is_written: bool = False, parent: Path | None = None) -> None:
    """Let those use a new file or directory who share the directory that it is in.

    Args:
        path: Its path, or descriptor.
        is_written: Whether they may change it, too.
        parent: The directory; None: that of `path`.
    """
    if parent is None:
        assert isinstance(path, Path)
        parent = path.parent
    about = os.stat(parent)
    writers = about.st_mode & _WRITERS
    if not writers or about.st_mode & stat.S_ISVTX:
        return
    mine = os.stat(path)
    with contextlib.suppress(PermissionError):  # We are not of that group: others may be left.
        if mine.st_gid != about.st_gid:
            os.chown(path, -1, about.st_gid)
    mode = stat.S_IMODE(mine.st_mode) | (writers << 1)
    if is_written:
        mode |= writers
    if stat.S_ISDIR(mine.st_mode):
        mode |= writers >> 1 | about.st_mode & stat.S_ISGID
    os.chmod(path, mode)


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in place, whole or not at all. For the holder of a lock against others who do."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # Another user's, who was killed, could not be written over.
    try:
        part.write_bytes(data)
        share(part, is_written=True)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def may_change(directory: Path) -> bool:
    """Whether this user may make and remove files in a directory, or else make the directory.

    True as well where a file is in the way: who tries will learn that.
    """
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return not directory.is_dir() or os.access(directory, os.W_OK | os.X_OK)
