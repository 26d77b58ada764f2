"""What becomes of a worker process whose parent was killed."""

import multiprocessing.util
import os

__all__ = ["end_with_parent"]

_is_arranged_in = 0


def end_with_parent() -> None:
    """Let this worker process really end when it finds that its parent is gone.

    A DataLoader worker notices within seconds and returns. But then multiprocessing waits until
    the batches it has read ahead are taken out of a pipe, which nobody will do any more: batches
    larger than the pipe keep the process, its memory and its locks for ever. So it leaves before.
    """
    global _is_arranged_in
    if _is_arranged_in == os.getpid():
        return
    _is_arranged_in = os.getpid()
    parent = os.getppid()

    def leave() -> None:
        if os.getppid() != parent:
            os._exit(1)

    # Finalizers from priority 0 on run before queues are waited for, which have -5.
    multiprocessing.util.Finalize(None, leave, exitpriority=0)
