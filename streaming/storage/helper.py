"""The program of a FetchHelper: does what it is asked to, many things at a time, until the end."""

import logging
import os
import pickle
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from streaming.errors import StoreError
from streaming.storage.guard import IDLE_EXIT, stay_single

__all__ = ["main"]

# Requests at a time. The threads mostly wait.
THREADS = 64
# Without anything to do for so long (in seconds) the helper ends; the next call starts another.
IDLE = 60.0


class _Collector(logging.Handler):
    """Collects what a job logs, for the process that asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs = threading.local()

    def begin(self) -> list[tuple[str, int, str]]:
        """Collect anew, for what this thread does now."""
        records: list[tuple[str, int, str]] = []
        self._jobs.records = records
        return records

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, if it is of a job."""
        records = getattr(self._jobs, "records", None)
        if records is not None:
            records.append((record.name, record.levelno, record.getMessage()))


class _Server:
    """One connection, and the threads that work for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._collector = _Collector()
        self._lock = threading.Lock()  # guards sending and the count
        self._under_way = 0

    def run(self) -> bool:
        """Serve until the other side ends, or has had nothing to ask for a while.

        Returns:
            Whether it was the latter.
        """
        logger = logging.getLogger("streaming")
        logger.addHandler(self._collector)
        logger.propagate = False
        threads = ThreadPoolExecutor(THREADS)
        while True:
            readable, _, _ = select.select([self._connection], [], [], IDLE)
            if not readable:
                with self._lock:
                    if not self._under_way:
                        return True
                continue
            try:
                job = self._connection.recv()
            except (EOFError, OSError):
                return False
            with self._lock:
                self._under_way += 1
            threads.submit(self._do, *job)

    def _do(self, number: int, job: bytes) -> None:
        records = self._collector.begin()
        try:
            level, function, args, kwargs = pickle.loads(job)
            logging.getLogger("streaming").setLevel(level)
            value = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # Raised by whoever asked.
            value = error
        with self._lock:
            self._under_way -= 1
            try:
                self._connection.send((number, (records, value)))
            except OSError:
                os._exit(0)  # Nobody is there any more.
            except Exception as error:  # noqa: BLE001  # It does not pickle.
                text = f"An answer can't be sent: {type(error).__name__}: {error}"
                self._connection.send((number, (records, StoreError(f"{text}: {value!r}"))))


def main(descriptor: int) -> None:
    """Serve whoever has the other end of a socket, then end this process.

    Args:
        descriptor: Of the socket.
    """
    stay_single()
    is_idle = _Server(Connection(descriptor)).run()
    os._exit(IDLE_EXIT if is_idle else 0)  # At once: nobody waits for what is still under way.
