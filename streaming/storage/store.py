"""The seam to whatever holds the objects: a store moves bytes under keys."""

import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from streaming.errors import AccessDeniedError, ObjectNotFoundError, StoreError, from_os_error

if TYPE_CHECKING:
    from streaming.storage.guard import FetchHelper

__all__ = [
    "Buffer",
    "ObjectInfo",
    "Store",
    "StreamStore",
    "check_key",
    "check_prefix",
    "find",
    "is_part",
    "join_key",
    "part_path",
    "translated",
    "write_pieces",
]

logger = logging.getLogger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object without giving it: key, bytes, and a mark of its version."""

    key: str
    size: int
    etag: str | None = None


class Store(Protocol):
    """Immutable objects under "/"-joined keys.

    Threads may share a store; processes may not (see `close`, and never pickle an open one).
    Everything raised is a StoreError or one of its children. A store neither retries nor renames:
    `fetch` and `publish` do, once for all stores. Its `repr` names the place, for messages, and no
    secret.
    """

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        ...

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        ...

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class StreamStore(Store, Protocol):
    """A store that gives the bytes of an object while they come, from any place on.

    What `fetch` needs to check bytes as they pass, to go on after a broken connection, and to get
    the parts of a large object side by side.
    """

    def stream(
        self, key: str, start: int = 0, stop: int | None = None
    ) -> tuple[ObjectInfo, Iterator[Buffer]]:
        """Ask for the bytes [start, stop) of an object, `start` being in it, or 0.

        Returns:
            What the whole object is, as the answer to this very request says; and the bytes, in
            pieces of some MiB at most.
        """
        ...

    def helper(self) -> "FetchHelper | None":
        """Who must read it; None if this process may."""
        ...


# What S3 and what speaks it say of keys that are wrong or have expired, in the body of an answer.
_BAD_KEYS = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|TokenRefreshRequired"
    r"|RequestTimeTooSkewed|have expired"
)


def find(store: Store, key: str) -> ObjectInfo | None:
    """What a store says of an object; None if there is none, or none that we may see.

    S3 and Google say 403 of an object that is missing to who may not list the bucket, and so do
    web servers before them. So "denied" is no answer to whether something is there. If all is
    denied, the request that comes next says so.

    Raises:
        AccessDeniedError: The keys are no good, as far as the server tells.
        StoreError: The store failed.
    """
    try:
        return store.stat(key)
    except ObjectNotFoundError:
        return None
    except AccessDeniedError as error:
        _check_keys(store, key)
        logger.info("Taking it that there is no %s: %s", key, error)
        return None


def _check_keys(store: Store, key: str) -> None:
    """Ask once more for an object that was denied: answers to a look at one have no body."""
    try:
        store.read(key, 0, 1)
    except ObjectNotFoundError:
        return
    except AccessDeniedError as error:
        if _BAD_KEYS.search(str(error)):
            raise


def join_key(prefix: str, key: str) -> str:
    """The key of an object that is named from a place on."""
    return f"{prefix}/{key}" if prefix else key


def check_key(key: str) -> str:
    """Give a key back if every store can hold it.

    Raises:
        StoreError: It has a part that is empty, "." or "..", or characters that no path can have.
            As a path it would leave the root of the store, or mean another object.
    """
    try:
        os.fsencode(key)
    except UnicodeEncodeError as error:  # Half of a surrogate pair, which JSON can hold.
        raise StoreError(f"{key!r} can't be the key of an object: {error}.") from error
    if "\0" in key or not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise StoreError(
            f"{key!r} can't be the key of an object: its parts must be names joined by single "
            f'slashes, and none of them "." or "..".'
        )
    return key


def check_prefix(prefix: str) -> str:
    """Give a prefix back if keys can start with it.

    Raises:
        StoreError: A whole part of it is such that `check_key` refuses it.
    """
    directory, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(directory)
    return prefix


# Names of files that are not whole yet. The random part keeps processes out of each other's way,
# and tells such a file from an object that somebody named "x.part".
_PART = re.compile(r"\.[0-9a-f]{16}\.part$")


def part_path(path: Path) -> Path:
    """A new name beside `path` for what becomes `path` by a rename once it is whole."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")


def is_part(name: str) -> bool:
    """Whether a file has a name that `part_path` made."""
    return _PART.search(name) is not None


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn errors of the operating system into ours.

    Args:
        what: What fails if something does, as the beginning of a sentence.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise from_os_error(error, what) from error


def write_pieces(pieces: Iterable[Buffer], path: Path) -> None:
    """Write a file from the pieces of an object; on error part of it may be there.

    Args:
        pieces: What `StreamStore.stream` gives.
        path: Does not exist yet.

    Raises:
        StoreError: It can't be written, or a piece can't be had.
    """
    with translated(f"Can't write {path}"), path.open("xb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
