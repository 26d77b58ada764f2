"""The binary copy of an index: its columns as they are, to be mapped instead of parsed.

A copy says of which document it is one, by digest, and it is checked like the document itself: it
lies in a directory that others may write to. Whatever is wrong with one, there is none.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming.errors import StreamingError
from streaming.format.index import Index
from streaming.hashing import get_hash

__all__ = ["dump_columns", "load_columns"]

_MAGIC = b"STRMIDX1"  # The digit is the version of this layout.
_PREFIX = len(_MAGIC) + 16  # and the checksum of all that follows
_ALIGNMENT = 8


class _Header(msgspec.Struct, array_like=True, gc=False):
    digest: str  # of the document
    kinds: list[tuple[str, str | None, dict[str, Any]]]  # format, compression, extra
    arrays: list[tuple[str, str, int]]  # name, type, length


def dump_columns(index: Index, digest: str) -> bytes:
    """Write the copy of an index.

    Args:
        index: What `parse_index` made of the document.
        digest: Names the document.
    """
    kinds, arrays = index.to_columns()
    body = b"".join(_padded(array.tobytes()) for array in arrays.values())
    header = _Header(
        digest,
        [(format, compression, dict(extra)) for format, compression, extra in kinds],
        [(name, array.dtype.str, len(array)) for name, array in arrays.items()],
    )
    head = msgspec.json.encode(header)
    content = _padded(len(head).to_bytes(8, "little") + head) + body
    return _MAGIC + get_hash("xxh3_64", content).encode() + content


def load_columns(data: Any, digest: str, where: str) -> Index | None:
    """Read a copy.

    Args:
        data: The copy: bytes, or a map of the file, which the index then refers to.
        digest: Names the document that it must be a copy of.
        where: Path or URL of the document, for messages.

    Returns:
        The index; None if this is no good copy of the document.
    """
    view = memoryview(data)
    content = view[_PREFIX:]
    try:
        checksum = str(view[len(_MAGIC) : _PREFIX], "ascii")
        if view[: len(_MAGIC)] != _MAGIC or checksum != get_hash("xxh3_64", content):
            return None
        stop = 8 + int.from_bytes(content[:8], "little")
        header = msgspec.json.decode(content[8:stop], type=_Header)
        if header.digest != digest:
            return None
        body = content[stop + -stop % _ALIGNMENT :]
        return Index.from_columns(where, header.kinds, _take_apart(header, body))
    except (msgspec.MsgspecError, StreamingError, ValueError, KeyError):
        return None  # Another version of this library wrote it, or somebody has changed it.


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _take_apart(header: _Header, body: memoryview) -> dict[str, NDArray[Any]]:
    arrays, at = {}, 0
    for name, kind, length in header.arrays:
        if kind not in ("<i8", "<i4", "|u1"):
            raise ValueError(f"An index has no columns of type {kind}.")
        array = np.frombuffer(body, kind, length, at)
        arrays[name] = array
        at += array.nbytes + -array.nbytes % _ALIGNMENT
    return arrays
