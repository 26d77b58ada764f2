"""Images as arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import RawItem, RawItemProcessor, Sample, takes_rng
from streaming.dataflow.processors.sources import open_bytes
from streaming.errors import DataError
from streaming.util.importing import lazy

__all__ = ["ImageProcessor", "decode_image", "measure_image"]

Pixels = NDArray[np.uint8]


class ImageProcessor(RawItemProcessor):
    """Decodes the images of an item; the other keys stay.

    An image is given as bytes, a path, a dict of one of them, an image of Pillow or an array; a key
    may hold a list of them. The sample has arrays (height, width, 3), uint8, or what `transform`
    makes of them.

    Args:
        keys: Keys of images; those an item lacks are left out.
        decode: Makes an array of an image.
        transform: Called with each array. If it has a parameter `rng`, with a generator as well.
        patch: Side of a square of pixels that costs one token. If it is given, the cost of a sample
            is told before the work, from the headers of its images.

    Raises:
        MissingExtraError: When an image is decoded: Pillow is not installed.
    """

    def __init__(
        self,
        keys: Sequence[str] = ("image",),
        *,
        decode: Callable[[Any], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        patch: int | None = None,
    ) -> None:
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.decode = decode or decode_image
        self.transform = transform
        self.patch = patch

    @property
    def wants_rng(self) -> bool:
        return self.transform is not None and takes_rng(self.transform)

    @property
    def size(self) -> Callable[[RawItem], float] | None:
        """Tell what a sample will cost; None if no patch was given."""
        return self._size if self.patch else None

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        sample = dict(item)
        for key in self.keys:
            if item.get(key) is not None:
                images = [self._make(image, rng) for image in _listed(item[key])]
                sample[key] = images if isinstance(item[key], list) else images[0]
        return sample

    def _make(self, image: Any, rng: np.random.Generator | None) -> Any:
        pixels = self.decode(image)
        if self.transform is None:
            return pixels
        return self.transform(pixels, rng=rng) if self.wants_rng else self.transform(pixels)

    def _size(self, item: RawItem) -> int:
        assert self.patch is not None
        tokens = 0
        for key in self.keys:
            for image in _listed(item.get(key)) if item.get(key) is not None else ():
                height, width = measure_image(image)
                tokens += -(-height // self.patch) * -(-width // self.patch)
        return tokens


def decode_image(source: Any) -> Pixels:
    """An image as an array (height, width, 3), RGB.

    Args:
        source: Bytes or the path of a file of any format that Pillow reads, a dict of one of them,
            an image of Pillow, or an array, which is given back.

    Raises:
        DataError: It can't be decoded.
        MissingExtraError: Pillow is not installed.
    """
    if isinstance(source, np.ndarray):
        return source
    try:
        with _opened(source) as image:
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError) as error:  # Pillow raises either.
        raise DataError(f"An image can't be decoded: {error}") from error


def measure_image(source: Any) -> tuple[int, int]:
    """Height and width of an image, from its header.

    Raises:
        DataError: It has none that can be read.
        MissingExtraError: Pillow is not installed.
    """
    if isinstance(source, np.ndarray):
        return source.shape[0], source.shape[1]
    try:
        with _opened(source) as image:
            width, height = image.size
    except (OSError, SyntaxError) as error:
        raise DataError(f"An image has no header that can be read: {error}") from error
    return height, width


@contextmanager
def _opened(source: Any) -> Iterator[Any]:
    """An image of Pillow: one that is given, or one that is opened and closed again."""
    if hasattr(source, "convert"):
        yield source
        return
    with lazy("PIL.Image", "image").open(open_bytes(source)) as image:
        yield image


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
