"""Every exception this library raises on purpose, as one tree.

Where a class has a second base, that base is what the predecessor raised at the same place, so
that an old ``except`` clause still catches it.
"""

import errno

__all__ = [
    "AccessDeniedError",
    "CacheConflictError",
    "CacheError",
    "CacheLimitError",
    "ColumnError",
    "ConfigError",
    "DataError",
    "EmptyDatasetError",
    "EncodeError",
    "EncodeRangeError",
    "EncodeTextError",
    "EncodeTypeError",
    "EncodingNameError",
    "IndexFormatError",
    "MissingExtraError",
    "MissingFileError",
    "ObjectNotFoundError",
    "OutputExistsError",
    "RemovedError",
    "SampleError",
    "ShardCorruptError",
    "StateError",
    "StoreError",
    "StoreTimeoutError",
    "StreamingError",
    "TransientStoreError",
    "UnknownNameError",
    "UnsafeTypeError",
    "WorkerError",
    "from_os_error",
]


class StreamingError(Exception):
    """Base of everything below: one ``except`` for all faults that this library detects."""

    # KeyError shows repr() of its argument; a sentence should read as one whatever the second base.
    def __str__(self) -> str:
        return str(self.args[0]) if len(self.args) == 1 else Exception.__str__(self)


class ConfigError(StreamingError, ValueError):
    """The caller's mistake, found before any I/O."""


class UnknownNameError(ConfigError, KeyError):
    """No such format, codec, shuffle, ...; the message lists those there are."""


class EncodingNameError(UnknownNameError, TypeError, AttributeError, AssertionError):
    """No such column encoding; the bases are what the predecessor raised, by the kind of flaw."""


class OutputExistsError(ConfigError, FileExistsError):
    """There is something where a writer should begin anew."""


class RemovedError(StreamingError, NotImplementedError, AttributeError):
    """A name of the predecessor without a meaning here; the message says what replaced it."""


class StateError(StreamingError, ValueError):
    """A resume state does not fit this dataset or this run."""


class MissingExtraError(StreamingError, ImportError):
    """An optional dependency is not installed; the message gives the install line."""


class DataError(StreamingError, ValueError):
    """The bytes are there and wrong."""


class IndexFormatError(DataError):
    """An index (``index.json`` or the like) is broken, hostile or of an unknown version."""


class ShardCorruptError(DataError):
    """Size, digest or structure of a shard differs from what the index promises."""


class UnsafeTypeError(DataError):
    """Reading a column would run code from the data."""


class EncodeError(DataError, AttributeError):
    """A value does not suit the encoding of its column."""


class EncodeTypeError(EncodeError, TypeError):
    """The same, where the predecessor raised TypeError."""


class EncodeRangeError(EncodeError, OverflowError):
    """A number does not fit its encoding."""


class EncodeTextError(EncodeError, AssertionError):
    """A text holds what separates texts in its file. The predecessor raised AssertionError."""


class ColumnError(EncodeError, KeyError):
    """A sample lacks a column, or a value of fixed size has another number of bytes."""


class EmptyDatasetError(DataError, RuntimeError):
    """The dataset holds no samples."""


class SampleError(DataError):
    """One sample can't be decoded; the message carries its id."""


class StoreError(StreamingError, OSError):
    """The other side (object store, file system) failed for good."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No such object."""


class AccessDeniedError(StoreError, PermissionError):
    """The store knows us and says no, or doesn't know us."""


class StoreTimeoutError(StoreError, TimeoutError):
    """The store did not answer in time. Retried."""


class TransientStoreError(StoreError):
    """A fault that a later attempt may not meet. Retried."""


class CacheError(StreamingError, RuntimeError):
    """The node's cache can't be used as asked."""


class CacheLimitError(CacheError, ValueError):
    """``cache_limit`` can't work for this dataset; the message gives the least that can."""


class CacheConflictError(CacheError, ValueError):
    """Another source already lies in this directory."""


class MissingFileError(CacheError, FileNotFoundError):
    """A file of a dataset is not on this node, and there is no remote to fetch it from."""


class WorkerError(StreamingError, RuntimeError):
    """A thread or process failed; ``__cause__`` is why."""


_OS_ERRORS: dict[int | None, type[StoreError]] = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), ObjectNotFoundError),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), AccessDeniedError),
    errno.ETIMEDOUT: StoreTimeoutError,
    # What a network mount says while its server is away or has started anew.
    **dict.fromkeys((errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE), TransientStoreError),
}
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def from_os_error(error: OSError, what: str) -> StoreError:
    """Turn an error of the operating system into ours; its number is kept in `errno`.

    Args:
        error: The error, of any library that uses files.
        what: What failed, with path and bytes, as the beginning of a sentence.
    """
    why = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        why = f"no space left on device ({why}). Free some, or choose another directory"
    ours = _OS_ERRORS.get(error.errno, StoreError)(f"{what}: {why}.")
    ours.errno = error.errno
    return ours
