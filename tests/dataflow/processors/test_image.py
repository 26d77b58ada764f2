"""Images as arrays."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.dataflow import ImageProcessor
from streaming.dataflow.base import wants_rng
from streaming.dataflow.processors.image import decode_image, measure_image
from streaming.errors import DataError

pillow = pytest.importorskip("PIL.Image")


def picture(height: int, width: int) -> Any:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[0, 0] = (1, 2, 3)
    return pillow.fromarray(pixels)


def encoded(height: int = 4, width: int = 6) -> bytes:
    file = io.BytesIO()
    picture(height, width).save(file, "PNG")
    return file.getvalue()


def test_bytes_paths_dicts_and_pictures_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    for source in (
        encoded(),
        memoryview(encoded()),
        str(path),
        path,
        {"bytes": encoded(), "path": None},
        {"bytes": None, "path": str(path)},
        picture(4, 6),
        decode_image(encoded()),
    ):
        pixels = decode_image(source)
        assert pixels.shape == (4, 6, 3)
        assert pixels.dtype == np.uint8
        assert pixels[0, 0].tolist() == [1, 2, 3]
        assert measure_image(source) == (4, 6)


def test_a_gray_picture_gets_three_channels() -> None:
    assert decode_image(picture(4, 6).convert("L")).shape == (4, 6, 3)


@pytest.mark.parametrize(
    "source", [b"no image", encoded()[:50], 5, {}], ids=["x", "cut", "5", "{}"]
)
def test_what_is_no_image_is_an_error(source: Any) -> None:
    with pytest.raises(DataError):
        decode_image(source)


def test_images_of_an_item_are_decoded_beside_the_rest() -> None:
    item = {"image": encoded(), "images": [encoded(), encoded(2, 2)], "text": "t"}
    sample = ImageProcessor(["image", "images", "absent"]).process(item)
    assert sample is not None
    assert sample["image"].shape == (4, 6, 3)
    assert [image.shape for image in sample["images"]] == [(4, 6, 3), (2, 2, 3)]
    assert sample["text"] == "t"
    assert isinstance(item["image"], bytes)


def crop(pixels: Any, rng: np.random.Generator) -> Any:
    return pixels[int(rng.integers(2)) :]


def test_a_transform_may_draw_random_numbers() -> None:
    assert wants_rng(ImageProcessor(transform=crop))
    assert not wants_rng(ImageProcessor(transform=lambda pixels: pixels))
    rng = np.random.default_rng(1)
    sample = ImageProcessor(transform=crop).process({"image": encoded()}, rng=rng)
    assert sample is not None
    assert sample["image"].shape[0] in (3, 4)
    plain = ImageProcessor(transform=lambda pixels: pixels.shape).process({"image": encoded()})
    assert plain is not None
    assert plain["image"] == (4, 6, 3)


def test_the_cost_is_told_by_the_header() -> None:
    processor = ImageProcessor(["images"], patch=4)
    assert processor.size is not None
    assert processor.size({"images": [encoded(4, 6), encoded(9, 4)]}) == 2 + 3
    assert processor.size({"text": "t"}) == 0
    assert ImageProcessor().size is None
    with pytest.raises(DataError, match="no header"):
        processor.size({"images": b"no image"})
