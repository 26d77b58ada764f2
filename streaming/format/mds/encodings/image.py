"""Encodings of images, by Pillow."""

import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Any

from streaming.errors import SampleError
from streaming.format.mds.encodings.base import Encoding, refuse
from streaming.util.importing import lazy

__all__ = ["JPEG", "PIL", "PNG", "JPEGArray", "split_blobs"]

# Bytes of a pixel as `Image.tobytes` gives it. "1" has 8 pixels a byte, each row filled up.
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


class _Image(Encoding):
    def _validate_image(self, obj: Any) -> None:
        image = lazy("PIL.Image", "image")
        if not isinstance(obj, image.Image):
            refuse(obj, "PIL.Image.Image")


class PIL(_Image):
    """Pixels as they are: u32 width, height and length of the mode; the mode; the pixels."""

    takes_views = True

    def encode(self, obj: Any) -> bytes:
        self._validate_image(obj)
        if obj.mode in ("P", "PA"):
            # There is no place for the palette, without which the pixels mean nothing.
            has_alpha = obj.mode == "PA" or "transparency" in obj.info
            obj = obj.convert("RGBA" if has_alpha else "RGB")
        mode: bytes = obj.mode.encode()
        return struct.pack("<3I", *obj.size, len(mode)) + mode + bytes(obj.tobytes())

    def decode(self, data: bytes) -> Any:
        image, view = lazy("PIL.Image", "image"), memoryview(data)
        width, height, length = struct.unpack_from("<3I", view)
        mode = str(view[12 : 12 + length], "ascii")
        pixels = view[12 + length :]
        # Before Pillow makes an image of the size that the data ask for.
        row = (width + 7) // 8 if mode == "1" else width * _PIXEL_BYTES[mode]
        if row * height != len(pixels) or (not pixels and max(width, height) > 1 << 16):
            raise SampleError(
                f"an image of {width} x {height} {mode} takes {row * height} bytes, but there are "
                f"{len(pixels)}"
            )
        return image.frombytes(mode, (width, height), bytes(pixels))


class _File(_Image):
    """An image file. What is decoded is read to its pixels only when they are asked for."""

    format: str

    def encode(self, obj: Any) -> bytes:
        self._validate_image(obj)
        out = BytesIO()
        obj.save(out, format=self.format)
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        return lazy("PIL.Image", "image").open(BytesIO(data))


class PNG(_File):
    """A PNG file."""

    format = "PNG"


class JPEG(_File):
    """A JPEG file. An image opened from one and not changed since is not compressed again."""

    format = "JPEG"

    def encode(self, obj: Any) -> bytes:
        return self._original(obj) or super().encode(obj)

    @staticmethod
    def _original(obj: Any) -> bytes | None:
        """The file that an image was opened from, if its pixels are still those of the image."""
        jpeg = lazy("PIL.JpegImagePlugin", "image")
        if not isinstance(obj, jpeg.JpegImageFile) or not obj.filename:
            return None
        try:
            with open(obj.filename, "rb") as file:
                data = file.read()
            with lazy("PIL.Image", "image").open(BytesIO(data), formats=["JPEG"]) as again:
                same = again.mode == obj.mode and again.size == obj.size
                # With tiles left the image was never loaded, so nobody has touched its pixels.
                same = same and bool(obj.tile or again.tobytes() == obj.tobytes())
                return data if same else None
        except (OSError, SyntaxError, ValueError):
            return None  # It is gone, or another kind of file by now.


class JPEGArray(Encoding):
    """JPEG files: u32 count, u32 size of each, the files. Given as bytes-like, read as images."""

    def encode(self, obj: Any) -> bytes:
        if isinstance(obj, (str, bytearray, memoryview)) or not hasattr(obj, "__iter__"):
            refuse(obj, "a sequence of encoded JPEG files")
        blobs = [bytes(blob) if isinstance(blob, (bytearray, memoryview)) else blob for blob in obj]
        for blob in blobs:
            self._validate(blob, bytes)
        sizes = map(len, blobs)
        return struct.pack(f"<I{len(blobs)}I", len(blobs), *sizes) + b"".join(blobs)

    def decode(self, data: bytes) -> list[Any]:
        image = JPEG()
        images = [image.decode(bytes(blob)) for blob in split_blobs(memoryview(data), 0)]
        if not images:
            raise SampleError("a jpegarray holds one image at least")
        return images


def split_blobs(view: memoryview, at: int) -> Iterator[memoryview]:
    """Take apart a u32 count, the u32 size of each blob, and the blobs, which fill the rest.

    Raises:
        SampleError: The sizes don't match the bytes.
    """
    if len(view) < at + 4:
        raise SampleError(f"a count was expected, but there are only {len(view)} bytes")
    (count,) = struct.unpack_from("<I", view, at)
    at += 4
    if at + 4 * count > len(view):
        raise SampleError(f"{count} sizes were expected, but there are {len(view) - at} bytes")
    sizes = struct.unpack_from(f"<{count}I", view, at)
    at += 4 * count
    if at + sum(sizes) != len(view):
        raise SampleError(f"the parts take {sum(sizes)} bytes, but there are {len(view) - at}")
    return (view[start:stop] for start, stop in pairwise(accumulate(sizes, initial=at)))
