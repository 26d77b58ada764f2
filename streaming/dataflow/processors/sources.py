"""Where the bytes of images and clips are in an item."""

import io
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from streaming.errors import DataError

__all__ = ["open_bytes"]


def open_bytes(source: Any) -> BinaryIO | str:
    """What a decoder can read: the path of a file, or bytes as a file.

    Args:
        source: Bytes, a path, or a dict with `bytes` or `path`, as Hugging Face has it.

    Raises:
        DataError: It is none of these.
    """
    if isinstance(source, Mapping):
        source = source.get("bytes") or source.get("path")
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source)
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    raise DataError(
        f"An image or clip must be bytes, a path, or a dict with `bytes` or `path`, but is "
        f"{type(source).__name__}."
    )
