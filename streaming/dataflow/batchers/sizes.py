"""What samples cost for models that have a formula of their own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["VisionTokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionTokens:
    """Tokens of a sample of text, images or video, actions and sound, as cosmos-framework counts.

    Call it with a sample: a dict with `text_token_ids`, one of `images` and `video`, and perhaps
    `action` and `sound`. Values may be anything with a shape. Raises KeyError for a sample without
    text or without media.

    Attributes:
        spatial: Pixels of a latent pixel, per side.
        temporal: Frames of a latent frame; the first frame stands alone.
        patch: Latent pixels of a token, per side.
        sound_latent_fps: Tokens of a second of sound; 0: sound costs nothing.
        audio_sample_rate: Samples of a second of sound.
    """

    spatial: int = 16
    temporal: int = 4
    patch: int = 2
    sound_latent_fps: float = 0
    audio_sample_rate: int = 48000

    def __call__(self, sample: dict[str, Any]) -> int:
        """Count the tokens of a sample."""
        # One token ends the text; two enclose each image or clip.
        text = _num_text_tokens(sample["text_token_ids"]) + 1
        media = sum(self._num_latents(shape) + 2 for shape in _shapes(sample, "images", "video"))
        actions = sum(len(action) for action in _listed(sample.get("action")) if action is not None)
        return text + media + actions + self._num_sound_tokens(sample.get("sound"))

    def _num_latents(self, shape: tuple[int, int, int]) -> int:
        frames, height, width = shape
        side = self.spatial * self.patch
        return (height // side) * (width // side) * (1 + (frames - 1) // self.temporal)

    def _num_sound_tokens(self, sound: Any) -> int:
        while isinstance(sound, list):
            sound = sound[0] if sound else None
        if sound is None or not self.sound_latent_fps > 0:
            return 0
        return int(sound.shape[-1] / self.audio_sample_rate * self.sound_latent_fps)


def _num_text_tokens(ids: Any) -> int:
    if isinstance(ids, list) and (not ids or not hasattr(ids[0], "shape")):
        return len(ids)
    shape = ids[0].shape[:1] if isinstance(ids, list) else ids.shape
    return int(shape[0] if len(shape) == 1 else shape[1])


def _shapes(sample: dict[str, Any], images: str, video: str) -> Iterable[tuple[int, int, int]]:
    """Frames, height and width of each of a sample's media."""
    if images in sample:
        return [(1, *medium.shape[-2:]) for medium in _listed(sample[images])]
    return [tuple(medium.shape[-3:]) for medium in _listed(sample[video])]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
