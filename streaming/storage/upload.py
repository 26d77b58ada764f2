"""Publish files as objects: one, or many in a bounded pool of threads."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streaming.constant import DEFAULT_UPLOADS, DEFAULT_UPLOADS_AHEAD
from streaming.errors import ConfigError, StoreError, TransientStoreError
from streaming.storage.store import Store, join_key, translated
from streaming.util.retrying import Retry

if TYPE_CHECKING:
    from streaming.storage.clouds import (
        UPLOADERS,
        AlipanUploader,
        AzureDataLakeUploader,
        AzureUploader,
        CloudUploader,
        DatabricksUnityCatalogUploader,
        DatabricksUploader,
        DBFSUploader,
        GCSAuthentication,
        GCSUploader,
        HFUploader,
        LocalUploader,
        OCIUploader,
        S3Uploader,
    )

__all__ = [
    "UPLOADERS",
    "AlipanUploader",
    "AzureDataLakeUploader",
    "AzureUploader",
    "CloudUploader",
    "DBFSUploader",
    "DatabricksUnityCatalogUploader",
    "DatabricksUploader",
    "GCSAuthentication",
    "GCSUploader",
    "HFUploader",
    "LocalUploader",
    "OCIUploader",
    "S3Uploader",
    "UploadPool",
    "publish",
]

logger = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """The predecessor's names, which are in `streaming.storage.clouds` (PEP 562)."""
    if name in __all__:
        globals()[name] = value = getattr(import_module("streaming.storage.clouds"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _MismatchError(TransientStoreError):
    """The store holds something else than what was sent."""


def publish(store: Store, path: Path, key: str, *, retry: Retry) -> None:
    """Put a file as an object, and ask the store whether it has all of it.

    Args:
        store: Where to.
        path: The file.
        key: Key of the object; one that is there is replaced.
        retry: How often the whole is tried.

    Raises:
        StoreError: It can't be put there, or arrives with another size each time.
    """

    def attempt() -> None:
        with translated(f"Can't read {path}"):
            size = path.stat().st_size
        store.put_file(path, key)
        found = store.stat(key).size
        if found != size:
            raise _MismatchError(f"{store!r} has {found} of {size} bytes of {key} after an upload.")

    try:
        retry.call(attempt)
    except _MismatchError as error:
        raise StoreError(str(error)) from error
    logger.debug("Published %s to %r.", key, store)


class UploadPool:
    """Uploads in the background, in a few threads. Made and used in one process, by one thread.

    The first failure calls off everything that has not begun, and is raised by whichever method is
    called next. `close` leaves no thread behind, whatever happened; leaving a ``with`` block waits
    for the uploads first, or calls them off if the block raised.

    Args:
        store: Where to.
        prefix: Comes before each key, and a slash.
        workers: Threads.
        retry: How often each upload is tried.
        max_pending: Uploads that may be under way or waiting; `submit` waits while there are more.

    Raises:
        ConfigError: A number is below 1.
    """

    def __init__(
        self,
        store: Store,
        prefix: str = "",
        *,
        workers: int = DEFAULT_UPLOADS,
        retry: Retry | None = None,
        max_pending: int = DEFAULT_UPLOADS_AHEAD,
    ) -> None:
        for name, value in (("workers", workers), ("max_pending", max_pending)):
            if value < 1:
                raise ConfigError(f"`{name}` must be at least 1, but is {value}.")
        self._store = store
        self._prefix = prefix
        self._max_pending = max_pending
        self._retry = retry or Retry()
        self._pending = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()  # guards the two above
        self._called_off = threading.Event()
        if self._retry.sleep is time.sleep:  # So that `close` need not wait for a long pause.
            self._retry = replace(self._retry, sleep=self._called_off.wait)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="streaming-upload")

    def submit(self, path: Path, key: str, *, then: Callable[[], object] | None = None) -> None:
        """Have a file uploaded, as soon as there is room.

        Args:
            path: The file; it must stay as it is until then.
            key: Key of the object, without the prefix.
            then: Called in the thread once the object is there; its failure counts as one.

        Raises:
            BaseException: What an upload failed with.
            ConfigError: The pool is closed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending < self._max_pending or self._failure is not None
            )
            self._check()
            if self._called_off.is_set():
                raise ConfigError(f"{key} can't be uploaded: the pool of uploads is closed.")
            self._threads.submit(self._upload, path, key, then)
            self._pending += 1

    def check(self) -> None:
        """See whether all went well up to now.

        Raises:
            BaseException: What an upload failed with.
        """
        with self._changed:
            self._check()

    def wait(self) -> None:
        """Wait until everything submitted is there.

        Raises:
            BaseException: What an upload failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0 or self._failure is not None)
            self._check()

    def close(self) -> None:
        """Call off what has not begun, and wait for the threads to end."""
        self._called_off.set()
        try:
            self._threads.shutdown()
        except BaseException:  # Ctrl-C: the threads have to go before it goes on.
            self._threads.shutdown()
            raise

    def __enter__(self) -> "UploadPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _upload(self, path: Path, key: str, then: Callable[[], object] | None) -> None:
        failure: BaseException | None = None
        try:
            if self._called_off.is_set():
                raise StoreError(f"{key} was not uploaded: its turn had not come at the end.")
            publish(self._store, path, join_key(self._prefix, key), retry=self._retry)
            if then is not None:
                then()
        except BaseException as error:  # noqa: BLE001  # Kept, and raised in the caller's thread.
            failure = error
        with self._changed:
            if failure is not None:
                self._failure = self._failure or failure
                self._called_off.set()
            self._pending -= 1
            self._changed.notify_all()
