"""Where the files of a stream come from: whole, or parts of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streaming.errors import ShardCorruptError, StoreError
from streaming.format import FileInfo
from streaming.format.indexing import in_threads
from streaming.storage import Store, join_key, open_store
from streaming.storage.download import fetch
from streaming.storage.store import translated
from streaming.util.retrying import Retry

__all__ = ["StreamSource"]

# Parts of files come by requests of so many bytes, and so many of these at a time.
_PIECE = 2 << 20
_PIECES_AT_A_TIME = 4


@dataclass(frozen=True)
class StreamSource:
    """Brings files of one remote directory here. Plain data.

    Opens a store for each call, which costs nothing: connections are kept by the process.

    Attributes:
        root: URL or path of the directory.
        attempts: How often each file is tried.
        options: How to reach it.
    """

    root: str
    attempts: int
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def url(self, basename: str) -> str:
        """Address of a file, for messages."""
        return f"{self.root}/{basename}"

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        """Copy a file to `path`, whole or not at all; see `storage.download.fetch`."""
        with self._opened(file.basename) as (store, key):
            size = file.bytes if file.bytes >= 0 else None
            found = fetch(store, key, path, size=size, digest=digest, retry=self._retry)
        self.check(file)
        return found

    def version(self, basename: str) -> str | None:
        """A mark that changes with a file, by one request and no second try."""
        with self._opened(basename) as (store, key):
            about = store.stat(key)
        return f"{about.etag or ''}-{about.size}"

    def fetch_ranges(self, file: FileInfo, ranges: Sequence[Sequence[int]], path: Path) -> None:
        """Copy parts of a file to `path`, one after another; see `RangeSource`."""
        pieces = [
            (at, min(at + _PIECE, stop))
            for start, stop in ranges
            for at in range(start, stop, _PIECE)
        ]
        with self._opened(file.basename) as (store, key), path.open("wb") as out:

            def read(span: tuple[int, int]) -> bytes:
                data = self._retry.call(store.read, key, *span)
                if len(data) != span[1] - span[0]:
                    raise ShardCorruptError(
                        f"{self.url(file.basename)} should have {file.bytes} bytes, but ends after "
                        f"{span[0] + len(data)}."
                    )
                return data

            # Some at a time, so that they are in memory for a moment only.
            for first in range(0, len(pieces), _PIECES_AT_A_TIME):
                some = pieces[first : first + _PIECES_AT_A_TIME]
                for data in in_threads(read, some, len(some)):
                    with translated(f"Can't write {path}"):
                        out.write(data)
            if file.etag is not None and file.etag != self._retry.call(store.stat, key).etag:
                raise ShardCorruptError(
                    f"{self.url(file.basename)} was replaced after it was indexed. Make the "
                    f"dataset anew, and it is indexed again."
                )

    def read(self, basename: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of a file; fewer if it ends before `stop`."""
        with self._opened(basename) as (store, key):
            return self._retry.call(store.read, key, start, stop)

    def check(self, file: FileInfo) -> None:
        """See that a file that came without an index is as it was indexed.

        Raises:
            ShardCorruptError: It was replaced.
        """
        if file.etag is None:
            return
        with self._opened(file.basename) as (store, key):
            if not self._retry.call(_has_etag, store, key, file.etag):
                raise ShardCorruptError(
                    f"{self.url(file.basename)} was replaced after it was indexed. Make the "
                    f"dataset anew, and it is indexed again."
                )

    @property
    def _retry(self) -> Retry:
        return Retry(max(self.attempts, 1))

    @contextmanager
    def _opened(self, basename: str) -> Iterator[tuple[Store, str]]:
        store, prefix = open_store(self.root, self.options)
        try:
            yield store, join_key(prefix, basename)
        finally:
            store.close()


def _has_etag(store: Store, key: str, etag: str) -> bool:
    """Whether an object still has a mark. Some stores list another than they give for one object.

    Some also put quotes around one of them.
    """
    if str(store.stat(key).etag).strip('"') == etag.strip('"'):
        return True
    try:
        listed = next(iter(store.list(key)), None)
    except StoreError:
        return False  # Then it did not come from a list either.
    return listed is not None and (listed.key, listed.etag) == (key, etag)
