"""Safety under fork: which process may use a client itself, and what must not live over a fork.

The Rust runtime under obstore is one per process, made by the first request, and its threads do not
survive a fork: a child of a process that made a request waits for ever for the first answer, also
with a client of its own. So:

- A process that may still fork asks a helper to make its requests: one that is started anew, so
  that it inherits nothing, and that ends with the process, or when it has had nothing to do.
- A process that does not fork any more, such as a DataLoader worker, makes them itself, unless it
  was forked from a process that already had.
- Clients and tokens are kept by process (`kept`). A child starts without; what it got is dropped.
"""

import atexit
import itertools
import logging
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

from streaming.errors import TransientStoreError

__all__ = [
    "IDLE_EXIT",
    "FetchHelper",
    "drop_kept",
    "end_helper",
    "helper",
    "inherited_runtime",
    "kept",
    "note_inherited",
    "stay_single",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Clients of different places, or tokens, that a process keeps; each may hold idle connections.
_MAX_KEPT = 64
# What a helper exits with that has had nothing to do.
IDLE_EXIT = 3
# Whose runtime does not survive a fork, and what it calls its threads: "tokio-rt-worker",
# "tokio-runtime-w", "lance-cpu", "lance_backgroun".
_RUNTIME_PACKAGES = frozenset(("obstore", "deltalake", "lance"))
_RUNTIME_THREADS = ("tokio-", "lance")


class _Process:
    """What is known of this process, and what it keeps."""

    def __init__(self, parent: "_Process | None" = None) -> None:
        # A child must not destroy what it got of its parent's clients: that could wait for threads
        # that are not there. They end with the process.
        self.parent = parent
        self.inherited: bool = parent is not None and (parent.inherited or parent.started)
        self.started: bool = False  # the runtime, by us
        self.single = False
        self.lock = threading.RLock()
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.helper: FetchHelper | None = None


_here = _Process()


def inherited_runtime() -> bool:
    """Whether an ancestor had started the Rust runtime when this process was forked."""
    return _here.inherited


def stay_single() -> None:
    """Promise that this process will not fork: it makes its requests itself from now on."""
    _here.single = True


def note_inherited() -> None:
    """Note what a library found out: that an ancestor had started its runtime before a fork."""
    _here.inherited = True


def helper() -> "FetchHelper | None":
    """Who makes this process's requests: a helper, or None for the process itself."""
    process = _here
    if not process.inherited and (process.single or multiprocessing.current_process().daemon):
        process.started = True
        return None
    with process.lock:
        if process.helper is None:
            process.helper = FetchHelper()
        return process.helper


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """A value that this process makes once and keeps, until it is dropped or others crowd it out.

    Args:
        key: What it is known by.
        make: Makes it.
    """
    process = _here
    with process.lock:
        if key not in process.kept:
            value = make()
            process.kept[key] = value
            while len(process.kept) > _MAX_KEPT:
                process.kept.popitem(last=False)
        process.kept.move_to_end(key)
        return cast(T, process.kept[key])


def drop_kept(key: Hashable | None = None) -> None:
    """Let go of a kept value; without a key, of all of them. Those with a `close` are closed."""
    process = _here
    with process.lock:
        keys = list(process.kept) if key is None else [key]
        values = [process.kept.pop(key) for key in keys if key in process.kept]
    for value in values:
        close = getattr(value, "close", None)
        if close is not None:
            close()


def end_helper() -> None:
    """End the helper of this process, if it has one, with what it is at work on."""
    process = _here
    with process.lock:
        helper, process.helper = process.helper, None
    if helper is not None:
        helper.close()


class FetchHelper:
    """A process that makes requests for this one. Threads share it; forked children may not.

    It is started by the first call, and again by a later one if it has ended. Nothing runs in this
    process on its behalf: of the threads that wait for answers, one reads for all.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()  # guards all below
        self._is_reading = False
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function there. All of it travels by pickle.

        Returns:
            What the function returns.

        Raises:
            BaseException: What the function raises.
            TransientStoreError: The helper ended; the next call starts another.
        """
        level = logging.getLogger("streaming").getEffectiveLevel()
        while True:
            try:
                records, value = self._ask((level, function, args, kwargs))
                break
            except _IdleError:
                continue  # It had ended before it could hear of this.
        for name, severity, text in records:
            logging.getLogger(name).log(severity, "%s", text)
        if isinstance(value, BaseException):
            raise value
        return cast(T, value)

    @property
    def pid(self) -> int | None:
        """Its process; None if it has not been started, or has ended and that was noticed."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End it, with what it is at work on."""
        with self._turn:
            if self._connection is None or self._process is None:
                return
            self._process.kill()
            if not self._is_reading:  # Else the thread that waits in it sees the end.
                self._fail(self._connection, EOFError())

    def forget(self) -> None:
        """In a forked child: close the copy of the connection; the process is not ours to wait for.

        Without this, the helper would not see the end of the process that it works for.
        """
        if self._process is not None:
            self._process.returncode = 0  # Otherwise it warns that it is still running.
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> Connection:
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            # -S and this process's path: no time is lost on looking for packages again.
            package = str(Path(__file__).parents[2])
            path = list(dict.fromkeys([*filter(None, sys.path), package]))
            code = (
                f"import sys; sys.path[:] = {path!r}; "
                f"from streaming.storage.helper import main; main({theirs.fileno()})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the process that it works for.
            )
        self._connection = Connection(ours.detach())
        return self._connection

    def _ask(self, job: tuple[Any, ...]) -> Any:
        answer: Future[Any] = Future()
        message = pickle.dumps(job)
        with self._turn:
            connection = self._open()
            number = next(self._numbers)
            self._waiting[number] = answer
            with self._failing(connection):
                connection.send((number, message))
        self._read_until(answer, connection)
        return answer.result()

    def _read_until(self, answer: "Future[Any]", connection: Connection) -> None:
        """Wait for an answer: another thread reads it, or this one does, for all."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: answer.done() or not self._is_reading)
                if answer.done():
                    return
                self._is_reading = True
            try:
                with self._failing(connection):
                    number, value = connection.recv()
                    self._waiting.pop(number).set_result(value)
            finally:
                with self._turn:
                    self._is_reading = False
                    self._turn.notify_all()

    @contextmanager
    def _failing(self, connection: Connection) -> Iterator[None]:
        """Whatever goes wrong between us, be it Ctrl-C in mid-message, ends this helper."""
        try:
            yield
        except BaseException as error:
            with self._turn:
                self._fail(connection, error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, connection: Connection, error: BaseException) -> None:
        """End the helper, tell everybody who waits, and make way for another. Turn is held."""
        if self._connection is not connection or self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1 if isinstance(error, (EOFError, OSError)) else 0)
        self._process.kill()
        is_idle = self._process.wait() == IDLE_EXIT
        text = f"The process that makes requests for us ended: {error!r}."
        for answer in self._waiting.values():
            answer.set_exception(_IdleError() if is_idle else TransientStoreError(text))
        self._waiting.clear()
        connection.close()
        self._connection = self._process = None
        self._turn.notify_all()


class _IdleError(Exception):
    """The helper had ended for lack of work when it was called."""


def _sees_runtime() -> bool:
    """Whether there is a Rust runtime in this process, whoever started it. Linux only."""
    if not _RUNTIME_PACKAGES & sys.modules.keys():
        return False
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # The thread ended a moment ago.
            if name.read_text().startswith(_RUNTIME_THREADS):
                return True
    return False


def _before_fork() -> None:
    _here.started = _here.started or _sees_runtime()


def _after_fork() -> None:
    global _here  # Not its fields: a thread that is not there may have left them halfway.
    _here = _Process(parent=_here)
    if _here.parent and _here.parent.helper is not None:
        _here.parent.helper.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


@atexit.register
def _end() -> None:
    drop_kept()
    end_helper()
