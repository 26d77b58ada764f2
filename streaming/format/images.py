"""Image files to arrays, as fast as this environment can."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.util.importing import lazy

__all__ = ["ImageToArray"]

# Larger ones are left to Pillow, which guards against files that claim to be huge.
_MOST_PIXELS = 1 << 26
_FACTORS = (8, 4, 2)


@dataclass(frozen=True)
class ImageToArray:
    """Decodes an image file to RGB pixels: a decoder for a column that holds such files.

    JPEG goes through simplejpeg where it is installed (the extra `image-fast`), a third faster than
    Pillow and with the same pixels within the tolerance of the codec; everything else through
    Pillow (the extra `image`)::

        StreamingDataset(..., decoders={"image": ImageToArray(at_least=(224, 224))})

    Attributes:
        at_least: (height, width) that is enough, in pixels. A JPEG of twice, four or eight times
            that, in both directions, is decoded at the fraction, in a fraction of the time. The
            caller scales the rest of the way. None: the size it has.

    Raises:
        ConfigError: `at_least` is not two positive numbers.
    """

    at_least: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        size = self.at_least
        if size is not None and not (len(size) == 2 and all(side > 0 for side in size)):
            raise ConfigError(f"`at_least` is (height, width) in pixels, but not {size!r}.")

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Decode a file.

        Args:
            data: The file.

        Returns:
            Pixels, shape (height, width, 3), the caller's own.

        Raises:
            MissingExtraError: Pillow is needed, and not installed.
            OSError: It is no image file, or a broken one. (A dataset names the sample.)
        """
        fast = _simplejpeg()
        if fast is not None and data[:2] == b"\xff\xd8":
            try:
                return self._decode_fast(fast, data)
            except ValueError:
                pass  # It is CMYK, huge or broken: Pillow knows what to do, or what to say.
        image = lazy("PIL.Image", "image").open(BytesIO(data))
        if self.at_least is not None:
            height, width = self.at_least
            image.draft("RGB", (width, height))
        return np.array(image.convert("RGB"))

    def _decode_fast(self, fast: Any, data: bytes) -> NDArray[np.uint8]:
        height, width, *_ = fast.decode_jpeg_header(data)
        if height * width > _MOST_PIXELS:
            raise ValueError
        factor = self._factor(height, width)
        pixels: NDArray[np.uint8] = fast.decode_jpeg(
            data, "RGB", min_height=-(-height // factor), min_width=-(-width // factor)
        )
        return pixels

    def _factor(self, height: int, width: int) -> int:
        """By how much an image may be scaled down; Pillow's `draft` has the same rule."""
        if self.at_least is None:
            return 1
        least = min(height // self.at_least[0], width // self.at_least[1])
        return next((factor for factor in _FACTORS if factor <= least), 1)


@cache
def _simplejpeg() -> Any:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None
