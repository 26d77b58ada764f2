"""Fetch an object as a whole file: under its name there is all of it, or nothing."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.errors import ShardCorruptError, StoreTimeoutError, TransientStoreError
from streaming.hashing import Digest, file_digest, hashes
from streaming.storage.store import (
    Buffer,
    ObjectInfo,
    Store,
    StreamStore,
    part_path,
    translated,
)
from streaming.util.retrying import Retry

if TYPE_CHECKING:
    from streaming.storage.clouds import (
        DOWNLOADER_MAPPINGS,
        AlipanDownloader,
        AzureDataLakeDownloader,
        AzureDownloader,
        CloudDownloader,
        DatabricksUnityCatalogDownloader,
        DBFSDownloader,
        GCSDownloader,
        HFDownloader,
        LocalDownloader,
        OCIDownloader,
        S3Downloader,
        SFTPDownloader,
    )

__all__ = [
    "DOWNLOADER_MAPPINGS",
    "AlipanDownloader",
    "AzureDataLakeDownloader",
    "AzureDownloader",
    "CloudDownloader",
    "DBFSDownloader",
    "DatabricksUnityCatalogDownloader",
    "GCSDownloader",
    "HFDownloader",
    "LocalDownloader",
    "OCIDownloader",
    "S3Downloader",
    "SFTPDownloader",
    "fetch",
    "retries_of_thread",
]

logger = logging.getLogger(__name__)

# An object of more bytes comes in parts, some side by side: one connection to a cloud is slower
# than the line. Smaller ones do not gain, as several objects are fetched at a time anyway.
LARGE = 64 << 20
PART = 16 << 20
PARTS_AT_A_TIME = 4


def __getattr__(name: str) -> Any:
    """The predecessor's names, which are in `streaming.storage.clouds` (PEP 562)."""
    if name in __all__:
        globals()[name] = value = getattr(import_module("streaming.storage.clouds"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Tally(threading.local):
    retries = 0


_tally = _Tally()


def retries_of_thread() -> int:
    """Attempts of this thread after the first of each `fetch`, since it began."""
    return _tally.retries


class _MismatchError(TransientStoreError):
    """What came is not what was promised: maybe cut on its way."""


class _ReplacedError(TransientStoreError):
    """The object became another one while it was fetched."""


def fetch(
    store: Store,
    key: str,
    path: Path,
    *,
    size: int | None = None,
    digest: tuple[str, str] | None = None,
    retry: Retry,
) -> int:
    """Get an object as a file.

    It comes under a name that ends with ".part" beside `path` and is renamed when it has been
    checked, so nobody ever sees a piece of it, and of a failure nothing is left. What has come
    before a failure is kept for the next attempt, as long as the object stays the same. Large
    objects come in parts, a few at a time.

    Args:
        store: Where the object is.
        key: Its key.
        path: The file to become; one that is there is replaced. Its directory is made.
        size: Bytes it must have. None: as many as the store says that it has, which it is asked.
        digest: Name of a hash, and what it must be, in hex. None: not known.
        retry: How often the whole is tried; a wrong digest is worth two attempts at most.

    Returns:
        Bytes of the file.

    Raises:
        UnknownNameError: There is no such hash.
        ShardCorruptError: The object has another size or digest.
        StoreError: It can't be had, or can't be written.
    """
    if digest is not None:
        hashes.get(digest[0])  # An unknown name should be news before the download.
    with translated(f"Can't make the directory of {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(path)
    wanted = _Wanted(key, part, size, digest)
    try:
        other = store.helper() if isinstance(store, StreamStore) else None
        if other is None:
            found, tried = _bring(store, wanted, retry)
        else:  # All attempts at once, so that it can go on where one ended.
            found, tried = other.call(_bring, store, wanted, replace(retry, sleep=time.sleep))
        _tally.retries += tried - 1
        with translated(f"Can't rename what was fetched to {part}"):
            part.replace(path)
    except _MismatchError as error:
        _tally.retries += retry.attempts - 1
        raise ShardCorruptError(str(error)) from error
    except (StoreTimeoutError, TransientStoreError):
        _tally.retries += retry.attempts - 1
        raise
    finally:
        part.unlink(missing_ok=True)
    logger.debug("Fetched %s from %r (%d bytes).", key, store, found)
    return found


@dataclass(frozen=True)
class _Wanted:
    """What is to be brought where. Plain data."""

    key: str
    part: Path
    size: int | None
    digest: tuple[str, str] | None


def _bring(store: Store, wanted: _Wanted, retry: Retry) -> tuple[int, int]:
    """Write an object to its temporary file, in some attempts.

    Returns:
        Its bytes, and the number of attempts.
    """
    transfer: _Copy | _Transfer
    transfer = (_Transfer if isinstance(store, StreamStore) else _Copy)(store, wanted)  # type: ignore[arg-type]
    tried = 0
    wrong_digests = 0

    def attempt() -> int:
        nonlocal tried, wrong_digests
        tried += 1
        found = transfer.attempt()
        actual = transfer.digest()
        if wanted.digest is not None and actual != wanted.digest[1]:
            wrong_digests += 1
            transfer.forget()
            error = _MismatchError if wrong_digests == 1 else ShardCorruptError
            raise error(
                f"{wanted.key} in {store!r} should have {wanted.digest[0]} {wanted.digest[1]}, but "
                f"has {actual}."
            )
        return found

    try:
        return retry.call(attempt), tried
    except (StoreTimeoutError, TransientStoreError) as error:
        if tried > 1:
            error.args = (f"{error} It was tried {tried} times.",)
        raise


class _Copy:
    """Attempts at an object of a store that copies files in one go."""

    def __init__(self, store: Store, wanted: _Wanted) -> None:
        self._store = store
        self._wanted = wanted

    def attempt(self) -> int:
        """Copy all of it, and check its size."""
        key, part = self._wanted.key, self._wanted.part
        part.unlink(missing_ok=True)
        self._store.get_file(key, part)
        expected = self._wanted.size
        if expected is None:
            expected = self._store.stat(key).size
        with translated(f"Can't look at {part}"):
            found = part.stat().st_size
        _check_size(self._store, key, found, expected)
        return found

    def digest(self) -> str | None:
        """Of what was copied."""
        if self._wanted.digest is None:
            return None
        with translated(f"Can't read {self._wanted.part}"):
            return file_digest(self._wanted.digest[0], self._wanted.part)

    def forget(self) -> None:
        """The next attempt begins anew: every one does."""


class _Transfer:
    """Attempts at an object whose bytes come one after another; each goes on where one ended."""

    def __init__(self, store: StreamStore, wanted: _Wanted) -> None:
        self._store = store
        self._wanted = wanted
        self.forget()

    def forget(self) -> None:
        """Begin anew with the next attempt."""
        self._info: ObjectInfo | None = None
        self._spans: list[_Span] = []
        self._digest = Digest(self._wanted.digest[0]) if self._wanted.digest else None
        self._digested = 0

    def attempt(self) -> int:
        """Bring what is missing."""
        try:
            with self._opened() as file:
                self._bring(file)
                self._digest_rest(file)
        except _ReplacedError:
            self.forget()
            raise
        assert self._info is not None
        return self._info.size

    def digest(self) -> str | None:
        """Of all that was brought."""
        return None if self._digest is None else self._digest.hexdigest()

    @contextmanager
    def _opened(self) -> Iterator[int]:
        part = self._wanted.part
        with translated(f"Can't write {part}"):
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if self._info is None:
                os.ftruncate(file, 0)
            yield file
        finally:
            os.close(file)

    def _bring(self, file: int) -> None:
        first: Iterator[Buffer] | None = None
        if self._info is None:
            size = self._wanted.size
            is_large = size is not None and size > LARGE
            info, first = self._store.stream(self._wanted.key, 0, PART if is_large else None)
            self._begin(info)
        missing = [span for span in self._spans if span.at < span.stop]
        if len(missing) > 1:
            self._side_by_side(file, missing, first)
        elif missing:
            self._write(file, missing[0], first or self._rest(missing[0]))

    def _begin(self, info: ObjectInfo) -> None:
        """Note what is coming, and in which spans."""
        size = self._wanted.size
        _check_size(self._store, self._wanted.key, info.size, info.size if size is None else size)
        step = PART if info.size > LARGE else max(info.size, 1)
        self._spans = [
            _Span(start, min(start + step, info.size)) for start in range(0, info.size, step)
        ]
        self._info = info

    def _rest(self, span: "_Span") -> Iterator[Buffer]:
        """The bytes of a span that are missing, if the object is still the same."""
        info, pieces = self._store.stream(self._wanted.key, span.at, span.stop)
        if info != self._info:
            raise _ReplacedError(
                f"{self._wanted.key} in {self._store!r} was replaced while it was fetched: first "
                f"it was {self._info}, now it is {info}."
            )
        return pieces

    def _write(
        self,
        file: int,
        span: "_Span",
        pieces: Iterator[Buffer],
        is_called_off: threading.Event | None = None,
    ) -> None:
        for piece in pieces:
            if is_called_off is not None and is_called_off.is_set():
                return
            piece = memoryview(piece)[: span.stop - span.at]
            with translated(f"Can't write {self._wanted.part} ({span.stop} bytes)"):
                _write_all(file, piece, span.at)
            if self._digest is not None and self._digested == span.at:
                self._digest.update(piece)
                self._digested += len(piece)
            span.at += len(piece)
            if span.at == span.stop:
                return
        if span.at < span.stop:
            raise _MismatchError(
                f"{self._wanted.key} in {self._store!r} ended after {span.at} bytes, where "
                f"{span.stop} had been announced."
            )

    def _side_by_side(
        self, file: int, missing: "list[_Span]", first: Iterator[Buffer] | None
    ) -> None:
        """Bring spans in a few threads; the first failure calls off the rest."""
        is_called_off = threading.Event()

        def bring(span: _Span) -> None:
            try:
                if not is_called_off.is_set():
                    pieces = first if first is not None and span is missing[0] else self._rest(span)
                    self._write(file, span, pieces, is_called_off)
            except BaseException:
                is_called_off.set()
                raise

        with ThreadPoolExecutor(PARTS_AT_A_TIME, thread_name_prefix="streaming-part") as threads:
            jobs = [threads.submit(bring, span) for span in missing]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                is_called_off.set()
                raise

    def _digest_rest(self, file: int) -> None:
        """Digest what did not come in order, from the file, whose pages are still in memory."""
        assert self._info is not None
        while self._digest is not None and self._digested < self._info.size:
            piece = os.pread(file, 1 << 20, self._digested)
            self._digest.update(piece)
            self._digested += len(piece)


@dataclass(slots=True)
class _Span:
    """A part [start, stop) of an object. What comes before `at` is there; one thread changes it."""

    start: int
    stop: int
    at: int = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.start


def _check_size(store: Store, key: str, found: int, expected: int) -> None:
    if found != expected:
        raise _MismatchError(f"Got {found} of {expected} bytes of {key} in {store!r}.")


def _write_all(file: int, piece: Buffer, at: int) -> None:
    view = memoryview(piece)
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count
