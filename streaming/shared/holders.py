"""Who holds the kernel's locks on files, as far as the system says."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Holder", "find_holders"]

_LOCKS = Path("/proc/locks")
_LINE = re.compile(
    r"\d+: (?P<waits>-> )?FLOCK +\S+ +(?P<mode>READ|WRITE) +(?P<pid>-?\d+) \S+:(?P<inode>\d+) "
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock, or waits for one.

    Attributes:
        pid: Its number.
        lock: Path of the lock file.
        command: What it runs, cut short; empty if it can't be told.
        is_shared: Whether it holds it together with others.
        is_waiting: Whether it only waits.
    """

    pid: int
    lock: Path
    command: str
    is_shared: bool
    is_waiting: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        state = "waits" if self.is_waiting else "shared" if self.is_shared else "alone"
        return {"pid": self.pid, "lock": self.lock.name, "how": state, "command": self.command}


def find_holders(paths: Iterable[Path]) -> tuple[Holder, ...]:
    """Those who hold locks on some files, or wait for them.

    Returns:
        Nobody on a system that does not say, as other than Linux.
    """
    inodes = {}
    for path in paths:
        try:
            inodes[str(path.stat().st_ino)] = path
        except FileNotFoundError:
            continue  # Nobody has ever taken it, or it was removed.
    try:
        lines = _LOCKS.read_text().splitlines() if inodes else []
    except OSError:
        return ()
    # The device is not compared: some file systems tell the two sides different ones.
    matches = [match for match in map(_LINE.match, lines) if match and match["inode"] in inodes]
    return tuple(
        Holder(
            pid=int(match["pid"]),
            lock=inodes[match["inode"]],
            command=_command(match["pid"]),
            is_shared=match["mode"] == "READ",
            is_waiting=match["waits"] is not None,
        )
        for match in matches
    )


def _command(pid: str) -> str:
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:80]
