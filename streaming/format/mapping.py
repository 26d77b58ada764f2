"""Files in memory, read-only."""

import ctypes
import errno
import mmap
import os
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from streaming.errors import ShardCorruptError

__all__ = ["Mapped", "map_file"]

Mapped = mmap.mmap | bytes

_MAP_FIXED = 0x10  # Linux, macOS and the BSDs agree; `mmap` has no name for it.


def map_file(path: Path, size: int) -> Mapped:
    """Map a file for reading. No descriptor stays open; the map lasts while it is referred to.

    Args:
        path: The file. It must never be changed in place, only replaced or unlinked.
        size: Bytes it must have.

    Raises:
        ShardCorruptError: It has another size.
    """
    with open(path, "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ShardCorruptError(
                f"Shard file {path} has {found} bytes, but the index says {size}. It was cut short "
                "or belongs to another index; delete it to have it fetched again."
            )
        if not size:
            return b""  # An empty file can't be mapped.
        try:
            return _map(file, size)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return file.read()  # A file system that can't map, as some in user space.


def _map(file: BinaryIO, size: int) -> mmap.mmap:
    """Map without the descriptor that `mmap` keeps: a process may have far more shards than those.

    From Python 3.13 on it can be told not to. Before, the file is laid over an anonymous map, which
    has no descriptor, and which Python takes away in time.
    """
    if sys.version_info >= (3, 13):
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, trackfd=False)
    if sys.platform == "win32":
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=mmap.PROT_READ)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    flags = mmap.MAP_PRIVATE | _MAP_FIXED
    if _libc_mmap(address, size, mmap.PROT_READ, flags, file.fileno(), 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(file.name))
    return mapped


if sys.platform != "win32":
    _libc_mmap = ctypes.CDLL(None, use_errno=True).mmap
    _libc_mmap.restype = ctypes.c_void_p
    _libc_mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    ]
