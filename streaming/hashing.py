"""Digests by name: of bytes at hand, of bytes as they pass, of a file."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from streaming.util.importing import Registry

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Digest", "file_digest", "get_hash", "get_hashes", "hashes", "is_hash"]


class _Hasher(Protocol):
    """What hashlib and xxhash make."""

    def update(self, data: "Buffer", /) -> None: ...
    def hexdigest(self) -> str: ...


# Everything of hashlib whose digest has one length (not shake), and xxhash with its default seed.
# `usedforsecurity`: against rot and mix-ups, so md5 works where a FIPS build forbids it.
hashes: Registry[Callable[[], _Hasher]] = Registry(
    "hash",
    {
        **{
            name: partial(getattr(hashlib, name), usedforsecurity=False)
            for name in hashlib.algorithms_guaranteed
            if not name.startswith("shake_")
        },
        **{name: f"xxhash:{name}" for name in "xxh32 xxh64 xxh128 xxh3_64 xxh3_128".split()},
    },
    group="streaming.hashes",
)


class Digest:
    """The digest of bytes that are given piece by piece. For one thread.

    Args:
        algo: Name of the hash.

    Raises:
        UnknownNameError: There is no such hash.
    """

    def __init__(self, algo: str) -> None:
        self.algo = algo
        self._hasher = hashes.get(algo)()

    def update(self, data: "Buffer") -> None:
        """Take in the next bytes."""
        self._hasher.update(data)

    def hexdigest(self) -> str:
        """The digest of all bytes up to now, in lower-case hex."""
        return self._hasher.hexdigest()


def get_hashes() -> set[str]:
    """The names of all hashes."""
    return set(hashes)


def is_hash(algo: str) -> bool:
    """Whether there is a hash of this name."""
    return algo in hashes


def get_hash(algo: str, data: "Buffer") -> str:
    """Hash bytes.

    Args:
        algo: Name of the hash.
        data: What to hash.

    Returns:
        The digest in lower-case hex.

    Raises:
        UnknownNameError: There is no such hash.
    """
    digest = Digest(algo)
    digest.update(data)
    return digest.hexdigest()


def file_digest(algo: str, path: Path) -> str:
    """Hash a file, with a buffer of 1 MiB whatever its size.

    Args:
        algo: Name of the hash.
        path: The file.

    Returns:
        The digest in lower-case hex.

    Raises:
        UnknownNameError: There is no such hash.
        OSError: The file can't be read.
    """
    digest = Digest(algo)
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()
