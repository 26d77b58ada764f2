"""Compression by name and level ("zstd:7"): of bytes at hand, and from file to file.

What is decompressed is bounded: where it turns out longer than it should be, only a byte more than
expected is ever held, so a small hostile file fills neither memory nor disk. Everything that takes
long releases the GIL.
"""

import bz2
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import SEEK_CUR, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import cramjam
import numpy as np

from streaming.errors import ShardCorruptError, UnknownNameError, from_os_error
from streaming.hashing import Digest
from streaming.util.importing import Registry

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Codec",
    "codecs",
    "compress",
    "decompress",
    "decompress_file",
    "get_compression_extension",
    "get_compressions",
    "is_compression",
]


class _TooLongError(Exception):
    """There are more bytes than there should be; the argument says how many."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A compressed form of bytes; its name is also the extension of its files."""

    encode: Callable[["Buffer", int], "Buffer"]  # whole bytes, level
    # All that is left in a file, piece by piece, and at most so many bytes. _TooLongError: there
    # is more. ValueError: these are not bytes that the codec makes, or not all of them.
    decode: Callable[[BinaryIO, int | None], Iterator["Buffer"]]
    levels: range = range(0)
    level: int = 0  # if none is asked for


class _Inflater(Protocol):
    """What bz2 and zstd make for one stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzipper:
    """The same for gzip, over the older form that zlib has."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not (self._inner.eof or self._inner.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail or data, max_length)


def _inflate(
    new: Callable[[], _Inflater], source: BinaryIO, limit: int | None
) -> Iterator["Buffer"]:
    """Decode streams that follow each other without a gap (zstd frames, gzip members)."""
    left = sys.maxsize if limit is None else limit
    while data := source.read(1 << 10):
        inflater, step, is_dry = new(), 1 << 11, False
        while not inflater.eof:
            try:
                piece = inflater.decompress(data, min(left + 1, 1 << 20))
            except (zlib.error, zstd.ZstdError, OSError) as error:
                raise ValueError(str(error)) from error
            left -= len(piece)
            if left < 0:
                raise _TooLongError(f"over {limit}")
            yield piece
            if is_dry and not piece and not inflater.eof:
                raise ValueError("the end is missing")
            data = b""
            if inflater.needs_input:
                # Small at first: what is read beyond the end of this stream is copied and read
                # again, and a hostile file may hold millions of empty streams.
                data, step = source.read(step), min(2 * step, 1 << 20)
                is_dry = not data  # Then there may still be output that was held back.
        source.seek(-len(inflater.unused_data), SEEK_CUR)


def _room(size: int) -> memoryview:
    """Memory that takes up room only as far as it is written to: `size` may be a lie."""
    return np.empty(size, np.uint8).data


def _unbrotli(source: BinaryIO, limit: int | None) -> Iterator["Buffer"]:
    """Decode one brotli stream. The library takes no notice of bytes after its end."""
    data = source.read()
    try:
        if limit is None:
            yield cramjam.brotli.decompress(data)
        else:
            out = _room(limit)
            yield out[: cramjam.brotli.decompress_into(data, out)]
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise _TooLongError(f"over {limit}") from None
        raise ValueError(str(error)) from error


def _unsnappy(source: BinaryIO, limit: int | None) -> Iterator["Buffer"]:
    """Decode one raw snappy block, which begins with its decoded length."""
    data = source.read()
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if limit is not None and size > limit:
            raise _TooLongError(str(size))
        if 3 * size > 64 * len(data):  # 3 bytes can stand for 64, and none for more.
            raise ValueError(f"{len(data)} bytes can't hold the {size} that they promise")
        out = _room(size)
        yield out[: cramjam.snappy.decompress_raw_into(data, out)]
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


codecs: Registry[Codec] = Registry(
    "compression",
    {
        "br": Codec(cramjam.brotli.compress, _unbrotli, range(12), 11),
        "bz2": Codec(bz2.compress, partial(_inflate, bz2.BZ2Decompressor), range(1, 10), 9),
        # Not gzip.compress: that writes the time into the file.
        "gz": Codec(partial(zlib.compress, wbits=31), partial(_inflate, _Gunzipper), range(10), 9),
        "snappy": Codec(lambda data, _: cramjam.snappy.compress_raw(data), _unsnappy),
        "zstd": Codec(zstd.compress, partial(_inflate, zstd.ZstdDecompressor), range(1, 23), 3),
    },
    group="streaming.codecs",
)


def _parse(spec: str) -> tuple[str, Codec, int]:
    """Get name, codec and level of "zstd:7"."""
    name, colon, level = spec.partition(":")
    codec = codecs.get(name)
    if not colon:
        return name, codec, codec.level
    if level not in map(str, codec.levels):
        known = f"from {codec.levels[0]} to {codec.levels[-1]}" if codec.levels else "none"
        raise UnknownNameError(f"{spec!r}: there is no such level of {name}, but {known}.")
    return name, codec, int(level)


def get_compressions() -> set[str]:
    """All that may be asked for: each codec as it is, and with each of its levels."""
    return {
        spec
        for name in codecs
        for spec in (name, *(f"{name}:{i}" for i in codecs.get(name).levels))
    }


def is_compression(algo: str) -> bool:
    """Whether there is such a codec, and such a level of it."""
    try:
        _parse(algo)
    except UnknownNameError:
        return False
    return True


def get_compression_extension(algo: str) -> str:
    """The extension of compressed files, without a dot.

    Raises:
        UnknownNameError: There is no such compression.
    """
    return _parse(algo)[0]


def compress(algo: str | None, data: "Buffer") -> bytes:
    """Compress bytes; equal bytes give equal bytes.

    Args:
        algo: Codec, and level if it has any ("zstd", "zstd:7"). None: leave them as they are.
        data: The bytes.

    Raises:
        UnknownNameError: There is no such compression.
    """
    if algo is None:
        return bytes(data)
    _, codec, level = _parse(algo)
    return bytes(codec.encode(data, level))


def decompress(algo: str | None, data: "Buffer", *, size: int | None = None) -> bytes:
    """Decompress bytes.

    Args:
        algo: Codec; a level makes no difference. None: they are as they should be.
        data: Compressed bytes.
        size: How many bytes must come out. None: as many as do, without any bound.

    Raises:
        UnknownNameError: There is no such compression.
        ShardCorruptError: Not that many bytes, or not bytes that the codec makes.
    """
    found = memoryview(data).nbytes
    if algo is None:
        if size not in (None, found):
            raise ShardCorruptError(f"There should be {size} bytes, but there are {found}.")
        return bytes(data)
    sink = BytesIO()
    _decode(algo, BytesIO(data), sink, size, None, f"The compressed data ({found} bytes)")
    return sink.getvalue()


def decompress_file(
    algo: str, src: Path, dst: Path, *, size: int | None, digest: Digest | None = None
) -> int:
    """Decompress a file to another one, which is there at the end only if all went well.

    Args:
        algo: Codec; a level makes no difference.
        src: The compressed file.
        dst: The file to write; one that is there is replaced.
        size: How many bytes must come out. None: as many as do, without any bound.
        digest: Takes in what is written, while it passes.

    Returns:
        Bytes written.

    Raises:
        UnknownNameError: There is no such compression.
        ShardCorruptError: Not that many bytes, or not bytes that the codec makes.
        StoreError: A file can't be read or written.
    """
    try:
        with src.open("rb") as source, dst.open("wb") as sink:
            return _decode(algo, source, sink, size, digest, f"The compressed file {src}")
    except BaseException as error:
        dst.unlink(missing_ok=True)
        if isinstance(error, OSError):
            what = f"Can't decompress {src} to {dst} ({_show(size)} bytes)"
            raise from_os_error(error, what) from error
        raise


def _decode(
    algo: str, source: BinaryIO, sink: BinaryIO, size: int | None, digest: Digest | None, what: str
) -> int:
    name, codec, _ = _parse(algo)
    found = 0
    try:
        for piece in codec.decode(source, size):
            sink.write(piece)
            if digest is not None:
                digest.update(piece)
            found += memoryview(piece).nbytes
    except _TooLongError as error:
        raise ShardCorruptError(
            f"{what} should decompress to {size} bytes, but gives {error}."
        ) from None
    except (MemoryError, OverflowError):
        raise ShardCorruptError(f"{what} does not fit into memory decompressed.") from None
    except ValueError as error:
        raise ShardCorruptError(
            f"{what} is no valid {name}: {error} ({found} of {_show(size)} bytes came out)."
        ) from error
    if size is not None and found != size:
        raise ShardCorruptError(f"{what} should decompress to {size} bytes, but gives {found}.")
    return found


def _show(size: int | None) -> str:
    return "an unknown number of" if size is None else str(size)
