"""Clips as arrays, by whichever decoder is there."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import RawItem, RawItemProcessor, Sample, takes_rng
from streaming.dataflow.processors.sources import open_bytes
from streaming.errors import ConfigError, DataError, MissingExtraError
from streaming.util.importing import Registry, lazy

__all__ = ["VideoProcessor", "VideoReader", "video_decoders", "video_windows"]

Pixels = NDArray[np.uint8]
Layout = Literal["CTHW", "TCHW", "THWC"]

_AXES: dict[str, tuple[int, int, int, int]] = {
    "CTHW": (3, 0, 1, 2),
    "TCHW": (0, 3, 1, 2),
    "THWC": (0, 1, 2, 3),
}


class VideoReader(Protocol):
    """A clip that is open. What a decoder gives.

    Attributes:
        num_frames: Frames of the clip.
        fps: Frames a second, on average.
    """

    num_frames: int
    fps: float

    @abstractmethod
    def take(self, frames: Sequence[int]) -> Pixels:
        """Some frames, by rising numbers, as (frames, height, width, 3), RGB."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


VideoDecoder = Callable[[Any], VideoReader]
"""Opens a clip, given as bytes, a path, or a dict of one of them."""


class VideoProcessor(RawItemProcessor):
    """Decodes some frames of an item's clip; the other keys stay.

    Which frames: if the item has `start_frame`, `end_frame` (not included) or `temporal_interval`,
    what these say; else as many a second as `fps`. Of more than `max_frames` evenly spread ones are
    taken. The sample has them as uint8, and `fps`: how many a second they are.

    Args:
        key: Key of the clip: bytes, a path, or a dict of one of them.
        out: Key of the frames.
        decoder: "torchcodec", "av" (PyAV), another name in `video_decoders`, or a function from a
            clip to a VideoReader. "auto" takes the first of the two that can be imported.
        fps: Frames a second to take. None takes all.
        max_frames: The most frames to take; None for any number.
        layout: Order of the axes: time, channel, height, width.
        transform: Called with the frames. If it has a parameter `rng`, with a generator as well.
        size: From an item to what its sample will cost, if that can be told before.

    Raises:
        ConfigError: An argument can't be meant as it is.
        UnknownNameError: There is no such decoder.
        MissingExtraError: When a clip is decoded: the decoder is not installed.
    """

    def __init__(
        self,
        key: str = "video",
        out: str = "video",
        *,
        decoder: str | VideoDecoder = "auto",
        fps: float | None = 2.0,
        max_frames: int | None = 32,
        layout: Layout = "CTHW",
        transform: Callable[..., Any] | None = None,
        size: Callable[[RawItem], float] | None = None,
    ) -> None:
        if isinstance(decoder, str) and decoder not in video_decoders:
            video_decoders.get(decoder)
        if fps is not None and not fps > 0:
            raise ConfigError(f"`fps` must be above 0, or None for all frames, but is {fps}.")
        if max_frames is not None and max_frames < 1:
            raise ConfigError(f"`max_frames` must be at least 1, but is {max_frames}.")
        if layout not in _AXES:
            raise ConfigError(f"`layout` must be one of {', '.join(_AXES)}, but is {layout!r}.")
        self.key = key
        self.out = out
        self.decoder = decoder
        self.fps = fps
        self.max_frames = max_frames
        self.layout: Layout = layout
        self.transform = transform
        self.size = size

    @property
    def wants_rng(self) -> bool:
        return self.transform is not None and takes_rng(self.transform)

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        decode = self.decoder
        open_clip = video_decoders.get(decode) if isinstance(decode, str) else decode
        reader = open_clip(item[self.key])
        try:
            chosen = self._choose(item, reader.num_frames, reader.fps)
            frames = reader.take(chosen)
            step = (chosen[-1] - chosen[0]) / (len(chosen) - 1) if len(chosen) > 1 else 1
            fps = reader.fps / step
        finally:
            reader.close()
        video: Any = np.ascontiguousarray(frames.transpose(_AXES[self.layout]))
        if self.transform is not None:
            options = {"rng": rng} if self.wants_rng else {}
            video = self.transform(video, **options)
        return {**item, self.out: video, "fps": fps}

    def _choose(self, item: RawItem, num_frames: int, fps: float) -> list[int]:
        """Numbers of the frames to take."""
        start = item.get("start_frame") or 0
        stop = item.get("end_frame") or num_frames
        if not 0 <= start < stop <= num_frames:
            raise DataError(f"Frames [{start}, {stop}) are not in a clip of {num_frames} frames.")
        step: float = item.get("temporal_interval") or 0
        if not step:
            step = max(fps / self.fps, 1) if self.fps else 1
        count = max(int((stop - start - 1) // step) + 1, 1)
        chosen = [start + int(i * step) for i in range(count)]
        if self.max_frames is not None and count > self.max_frames:
            places = np.linspace(0, count - 1, self.max_frames).round().astype(int)
            chosen = [chosen[place] for place in places.tolist()]
        return chosen


def video_windows(item: RawItem, windows: str = "t2w_windows") -> Iterator[RawItem]:
    """Make an item of each window of an annotated clip, for ExpandProcessor.

    An annotation has `vision_path`, and a list of windows with `start_frame`, `end_frame`,
    `temporal_interval` and a caption: `caption_json`, or `caption` where there is none. Each item
    made has the path as `video`, the caption as `caption`, and the rest.
    """
    common = {key: value for key, value in item.items() if key != windows}
    for window in item[windows]:
        caption = window.get("caption_json") or window.get("caption")
        yield {**common, **window, "video": item["vision_path"], "caption": caption}


def open_with_av(source: Any) -> VideoReader:
    """Open a clip with PyAV."""
    return _AvReader(source)


def open_with_torchcodec(source: Any) -> VideoReader:
    """Open a clip with torchcodec."""
    return _TorchcodecReader(source)


def open_with_any(source: Any) -> VideoReader:
    """Open a clip with the first decoder that can be imported: torchcodec, then PyAV."""
    for name, module in (("torchcodec", "torchcodec.decoders"), ("av", "av")):
        try:
            lazy(module, "video")
        except (ImportError, RuntimeError, OSError):  # torchcodec may find no FFmpeg to load.
            continue
        return video_decoders.get(name)(source)
    raise MissingExtraError(
        "Decoding video needs torchcodec or PyAV, and neither can be imported. Install one with: "
        'pip install "goldenspike[video]" or pip install "goldenspike[video-av]"'
    )


video_decoders: Registry[VideoDecoder] = Registry(
    "video decoder",
    {"auto": open_with_any, "av": open_with_av, "torchcodec": open_with_torchcodec},
    group="streaming.video_decoders",
)


class _AvReader:
    """A clip opened by PyAV. Decodes from the key frame before what is asked for."""

    def __init__(self, source: Any) -> None:
        self._av = lazy("av", "video-av")
        try:
            # Titles are not always UTF-8, and nobody asks for them here.
            self._container = self._av.open(open_bytes(source), metadata_errors="replace")
            self._stream = self._container.streams.video[0]
            self._stream.thread_type = "AUTO"
            rate = self._stream.average_rate or self._stream.guessed_rate or Fraction(1)
            self.fps = float(rate)
            self.num_frames = self._stream.frames or self._count()
        except (self._av.error.FFmpegError, IndexError) as error:
            raise DataError(f"A clip can't be opened: {error}") from error

    def take(self, frames: Sequence[int]) -> Pixels:
        wanted = list(frames)
        found: list[Pixels] = []
        try:
            for number, frame in self._decode(wanted[0]):
                while len(found) < len(wanted) and wanted[len(found)] <= number:
                    found.append(frame.to_ndarray(format="rgb24"))
                if len(found) == len(wanted):
                    return np.stack(found)
        except self._av.error.FFmpegError as error:
            raise DataError(f"A clip can't be decoded: {error}") from error
        raise DataError(
            f"A clip has only {len(found)} of the {len(wanted)} frames that were chosen by what "
            f"its header says."
        )

    def close(self) -> None:
        self._container.close()

    def _decode(self, first: int) -> Iterator[tuple[int, Any]]:
        """Frames with their numbers, from the key frame before `first` on."""
        stream = self._stream
        begin = stream.start_time or 0
        frame_time = 1 / (Fraction(self.fps).limit_denominator(100000) * stream.time_base)
        self._container.seek(int(begin + first * frame_time), stream=stream, backward=True)
        for frame in self._container.decode(stream):
            yield round(float((frame.pts - begin) / frame_time)), frame

    def _count(self) -> int:
        """Frames of a clip whose header does not tell."""
        return sum(1 for _ in self._decode(0))


class _TorchcodecReader:
    """A clip opened by torchcodec."""

    def __init__(self, source: Any) -> None:
        decoders = lazy("torchcodec.decoders", "video")
        opened = open_bytes(source)
        data = opened if isinstance(opened, str) else opened.read()
        try:
            self._decoder = decoders.VideoDecoder(data, dimension_order="NHWC")
        except (ValueError, RuntimeError) as error:
            raise DataError(f"A clip can't be opened: {error}") from error
        metadata = self._decoder.metadata
        self.fps = float(metadata.average_fps)
        self.num_frames = int(metadata.num_frames)

    def take(self, frames: Sequence[int]) -> Pixels:
        try:
            pixels: Pixels = self._decoder.get_frames_at(list(frames)).data.numpy()
        except (IndexError, RuntimeError) as error:
            raise DataError(f"A clip can't be decoded: {error}") from error
        return pixels

    def close(self) -> None:
        return
