"""Waiting for a file that another process will write."""

import os
import time

from streaming.errors import WorkerError

__all__ = ["wait_for_file_to_exist"]


def wait_for_file_to_exist(
    filename: str, poll_interval: float, timeout: float, err_msg: str
) -> None:
    """Wait until a file is there, and one interval more.

    Args:
        filename: The file.
        poll_interval: Seconds between two looks.
        timeout: Seconds to wait at most.
        err_msg: How the message of a failure begins.

    Raises:
        WorkerError: It is not there in time.
    """
    start = time.monotonic()
    while not os.path.exists(filename):
        time.sleep(poll_interval)
        waited = time.monotonic() - start
        if waited > timeout:
            raise WorkerError(
                f"{err_msg} {filename} did not come: waited {waited:.3f} of {timeout:.3f} seconds."
            )
    time.sleep(poll_interval)
