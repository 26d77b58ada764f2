"""What becomes of a worker process whose parent was killed."""

import multiprocessing
import multiprocessing.util
import os
import threading
import time
from pathlib import Path

__all__ = ["end_with_parent"]

_LOOK_SECONDS = 2.0
_GRACE_SECONDS = 10.0  # for a worker that notices by itself

_is_arranged_in = 0


def end_with_parent() -> None:
    """Let this worker process really end when its parent is gone.

    A DataLoader worker looks whether its parent is still the one that it had when it began to look:
    if that was killed before, it waits for ever. And one that notices returns; but then
    multiprocessing waits until the batches it has read ahead are taken out of a pipe, which nobody
    will do any more: batches larger than the pipe keep the process, its memory and its locks for
    ever. So it leaves before, and a thread sees to it that it does.
    """
    global _is_arranged_in
    if _is_arranged_in == os.getpid():
        return
    _is_arranged_in = os.getpid()
    maker = multiprocessing.parent_process()
    parent = os.getppid()

    def is_orphan() -> bool:
        # The maker is not the parent where a fork server stands between.
        return os.getppid() != parent or (maker is not None and not _exists(maker.pid))

    def leave() -> None:
        if is_orphan():
            os._exit(1)

    def watch() -> None:
        while not is_orphan():
            time.sleep(_LOOK_SECONDS)
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    # Finalizers from priority 0 on run before queues are waited for, which have -5.
    multiprocessing.util.Finalize(None, leave, exitpriority=0)
    threading.Thread(target=watch, name="streaming-parent", daemon=True).start()


def _exists(pid: int | None) -> bool:
    """Whether a process lives; one that has ended and was not waited for does not."""
    try:
        os.kill(pid or 0, 0)
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except ProcessLookupError:
        return False
    except (PermissionError, FileNotFoundError):
        return True  # Another user's, or there is no /proc to tell more.
