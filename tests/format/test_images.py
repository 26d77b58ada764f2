"""Image files to arrays, by whichever library there is."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import ImageToArray, LocalDataset, MDSWriter
from streaming.errors import ConfigError, SampleError
from streaming.format import images

Image = pytest.importorskip("PIL.Image")

# Two decoders may round each of some steps differently; both are within this of the standard's.
TOLERANCE = 2


def picture(height: int = 96, width: int = 128, mode: str = "RGB") -> Any:
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def encode(image: Any, format: str = "JPEG", **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, format=format, **options)
    return out.getvalue()


@pytest.fixture
def without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_simplejpeg", lambda: None)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("at_least", [None, (96, 128), (50, 60), (48, 64), (20, 20), (5, 5)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_both_libraries_give_the_same_pixels(
    mode: str, at_least: tuple[int, int] | None, subsampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    data = encode(picture(mode=mode), quality=90, subsampling=subsampling)
    decode = ImageToArray(at_least=at_least)
    fast = decode(data)
    monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    slow = decode(data)
    assert fast.shape == slow.shape
    assert fast.dtype == slow.dtype == np.uint8
    assert np.abs(fast.astype(int) - slow).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("at_least", "shape"),
    [
        (None, (100, 130, 3)),
        ((100, 130), (100, 130, 3)),
        ((51, 10), (100, 130, 3)),
        ((50, 65), (50, 65, 3)),
        ((26, 30), (50, 65, 3)),
        ((25, 30), (25, 33, 3)),
        ((1, 1), (13, 17, 3)),
        ((500, 1), (100, 130, 3)),
    ],
)
@pytest.mark.parametrize("library", ["simplejpeg", "Pillow"])
def test_a_smaller_picture_is_never_below_what_was_asked(
    library: str, at_least: Any, shape: Any, request: pytest.FixtureRequest
) -> None:
    if library == "Pillow":
        request.getfixturevalue("without_simplejpeg")
    else:
        pytest.importorskip("simplejpeg")
    assert ImageToArray(at_least=at_least)(encode(picture(100, 130))).shape == shape


@pytest.mark.parametrize(
    "data",
    [
        encode(picture(), "PNG"),
        encode(picture(mode="CMYK")),
        encode(picture(), progressive=True),
        encode(picture(mode="P"), "PNG"),
    ],
    ids=["png", "cmyk", "progressive", "palette"],
)
def test_other_files_are_read_too(data: bytes) -> None:
    expected = np.array(Image.open(BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(ImageToArray()(data) - expected).max() <= TOLERANCE


def test_pixels_are_the_callers_own() -> None:
    for format in ("JPEG", "PNG"):
        pixels = ImageToArray()(encode(picture(), format))
        pixels[:] = 0


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8" + bytes(100), encode(picture())[:300]]
)
def test_a_broken_file_is_an_error_that_names_the_sample(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        ImageToArray()(data)
    with MDSWriter(columns={"image": "jpeg"}, out=tmp_path) as writer:
        writer.write({"image": data})
    dataset = LocalDataset(tmp_path, decoders={"image": ImageToArray()})
    with pytest.raises(SampleError, match="'image' of sample 0"):
        dataset[0]


def test_a_dataset_decodes_by_it_one_by_one_and_in_batches(tmp_path: Path) -> None:
    with MDSWriter(columns={"image": "jpeg", "n": "int"}, out=tmp_path) as writer:
        for n in range(5):
            writer.write({"image": encode(picture(16, 16 + n)), "n": n})
    dataset = pickle.loads(pickle.dumps(LocalDataset(tmp_path, decoders={"image": ImageToArray()})))
    shapes = [(16, 16 + n, 3) for n in range(5)]
    assert [dataset[n]["image"].shape for n in range(5)] == shapes
    assert [sample["image"].shape for sample in dataset.__getitems__(range(5))] == shapes


@pytest.mark.parametrize("size", [(0, 1), (1,), (2, 3, 4), (-1, 5)])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="at_least"):
        ImageToArray(at_least=size)
