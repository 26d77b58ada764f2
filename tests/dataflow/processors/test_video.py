"""Clips as arrays: by a stand-in for the choice of frames, by real decoders that are installed."""

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.dataflow import Chain, ExpandProcessor, VideoProcessor
from streaming.dataflow.base import wants_rng
from streaming.dataflow.processors.video import video_decoders, video_windows
from streaming.errors import ConfigError, DataError, UnknownNameError


class Counting:
    """A clip of frames that show their number, 10 a second."""

    fps = 10.0

    def __init__(self, num_frames: int = 100) -> None:
        self.num_frames = num_frames
        self.is_closed = False

    def take(self, frames: Sequence[int]) -> Any:
        return np.stack([np.full((2, 4, 3), number, np.uint8) for number in frames])

    def close(self) -> None:
        self.is_closed = True


def frames(item: dict[str, Any], **options: Any) -> list[int]:
    processor = VideoProcessor(decoder=lambda source: Counting(), layout="THWC", **options)
    sample = processor.process({"video": b"", **item})
    assert sample is not None
    return [int(number) for number in sample["video"][:, 0, 0, 0]]


def test_frames_are_taken_by_the_second() -> None:
    assert frames({}) == list(range(0, 100, 5))
    assert frames({}, fps=None, max_frames=None) == list(range(100))
    assert frames({}, fps=50, max_frames=None) == list(range(100))


def test_too_many_frames_are_thinned_evenly() -> None:
    assert frames({}, max_frames=3) == [0, 50, 95]
    assert frames({}, max_frames=1) == [0]


def test_an_item_may_say_which_frames() -> None:
    window = {"start_frame": 20, "end_frame": 50, "temporal_interval": 10}
    assert frames(window) == [20, 30, 40]
    assert frames({"start_frame": 95}, fps=None) == [95, 96, 97, 98, 99]
    with pytest.raises(DataError, match=r"\[90, 120\) are not in a clip of 100"):
        frames({"start_frame": 90, "end_frame": 120})


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("CTHW", (3, 20, 2, 4)), ("TCHW", (20, 3, 2, 4)), ("THWC", (20, 2, 4, 3))],
)
def test_axes_come_as_asked(layout: Any, shape: tuple[int, ...]) -> None:
    processor = VideoProcessor(decoder=lambda source: Counting(), layout=layout)
    sample = processor.process({"video": b"", "caption": "c"})
    assert sample is not None
    assert sample["video"].shape == shape
    assert (sample["fps"], sample["caption"]) == (2.0, "c")


def test_the_clip_is_closed_also_after_a_fault() -> None:
    clip = Counting()
    with pytest.raises(DataError):
        VideoProcessor(decoder=lambda source: clip).process({"video": b"", "end_frame": 101})
    assert clip.is_closed


def test_a_transform_may_draw_random_numbers() -> None:
    def flip(video: Any, rng: np.random.Generator) -> Any:
        return video[..., ::-1] if rng.random() < 0.5 else video

    processor = VideoProcessor(decoder=lambda source: Counting(), transform=flip)
    assert wants_rng(processor)
    assert processor.process({"video": b""}, rng=np.random.default_rng(0)) is not None


def test_windows_of_an_annotation_become_items() -> None:
    annotation = {
        "uuid": "u",
        "vision_path": "clip.mp4",
        "t2w_windows": [
            {"start_frame": 0, "end_frame": 10, "temporal_interval": 2, "caption": "plain"},
            {"start_frame": 10, "end_frame": 20, "temporal_interval": 1, "caption_json": {"a": 1}},
        ],
    }
    chain = Chain(
        ExpandProcessor(video_windows),
        VideoProcessor(decoder=lambda source: Counting(), layout="THWC"),
    )
    assert chain.expand is not None
    first, second = chain.expand(annotation)
    assert (first["caption"], second["caption"]) == ("plain", {"a": 1})
    assert first["video"][:, 0, 0, 0].tolist() == [0, 2, 4, 6, 8]
    assert len(second["video"]) == 10
    assert first["uuid"] == "u"


@pytest.mark.parametrize("options", [{"fps": 0}, {"max_frames": 0}, {"layout": "WHTC"}], ids=str)
def test_what_cannot_be_meant_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError):
        VideoProcessor(**options)
    with pytest.raises(UnknownNameError, match="av, torchcodec"):
        VideoProcessor(decoder="eyes")


def encode(codec: str = "libx264", count: int = 60) -> bytes:
    av = pytest.importorskip("av", reason="needs PyAV (the extra video-av)")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=20)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        stream.options = {"g": "12", "bf": "2"}
        for number in range(count):
            pixels = np.full((64, 64, 3), 4 * number, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()


def brightness(video: Any) -> list[int]:
    return [round(float(frame.mean()) / 4) for frame in video]


@pytest.fixture(params=["av", "torchcodec", "auto"])
def decoder(request: pytest.FixtureRequest) -> str:
    if request.param == "torchcodec":
        try:
            importlib.import_module("torchcodec.decoders")
        except (ImportError, RuntimeError, OSError) as error:
            pytest.skip(f"needs torchcodec and FFmpeg: {str(error).splitlines()[0]}")
    return str(request.param)


def test_a_decoder_gives_the_frames_that_were_chosen(decoder: str) -> None:
    processor = VideoProcessor(decoder=decoder, fps=4, layout="THWC")
    sample = processor.process({"video": {"bytes": encode()}})
    assert sample is not None
    assert sample["video"].shape == (12, 64, 64, 3)
    assert brightness(sample["video"]) == list(range(0, 60, 5))
    assert sample["fps"] == 4


def test_a_decoder_opens_a_path(decoder: str, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(encode())
    sample = VideoProcessor(decoder=decoder, fps=4, layout="CTHW").process({"video": str(clip)})
    assert sample is not None
    assert sample["video"].shape == (3, 12, 64, 64)


def test_a_decoder_finds_frames_in_the_middle(decoder: str) -> None:
    reader = video_decoders.get(decoder)(encode())
    assert (reader.num_frames, reader.fps) == (60, 20.0)
    assert brightness(reader.take([37, 41, 59])) == [37, 41, 59]
    assert brightness(reader.take([0])) == [0]
    reader.close()


def test_a_clip_with_a_title_that_is_no_utf8_is_read(decoder: str) -> None:
    clip = encode()
    assert b"Lavf" in clip
    sample = VideoProcessor(decoder=decoder, fps=4).process(
        {"video": clip.replace(b"Lavf", b"\xff\xfevf")}
    )
    assert sample is not None


def test_a_decoder_refuses_what_is_no_clip(decoder: str) -> None:
    if decoder != "torchcodec":
        pytest.importorskip("av", reason="needs PyAV (the extra video-av)")
    clip = encode()
    cut = int(0.8 * len(clip))  # Before the list of frames, which then have to be counted.
    for data in (b"no clip", b"", clip[:300], clip[: cut - 400] + b"\xff" * 400 + clip[cut:]):
        with pytest.raises(DataError, match="can't be opened"):
            video_decoders.get(decoder)(data)
