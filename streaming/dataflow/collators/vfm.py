"""Batches of lists, one entry a sample, as video models of NVIDIA's cosmos-framework take them."""

from collections.abc import Iterable
from typing import Any, Literal

from torch.utils.data import default_collate

from streaming.dataflow.base import Batch, BatchCollator, Sample
from streaming.errors import ConfigError
from streaming.world import detect_worker

__all__ = ["VFMListCollator"]

# One entry a sample, which is a list of its media; None is a place that is empty.
_MEDIA = ("text_token_ids", "images", "video", "action", "sound")
# One bare value a sample.
_BARE = ("domain_id", "sequence_plan", "raw_action_dim")
# How long what took, in seconds, and what the batch calls it.
_TIMES = {"_sample_time": "_worker_batch_time", "_aug_time": "_worker_aug_time"}
_TIMING = (*_TIMES, "_pre_aug_time", "_aug_step_times")


class VFMListCollator(BatchCollator):
    """Gives, for each key, a list with one entry for each sample; nothing is stacked.

    - Media (`text_token_ids`, `images`, `video`, `action`, `sound`): the entry is a list of them.
    - `domain_id`, `sequence_plan`, `raw_action_dim`: the bare value.
    - `image_size`: all in one flat list, of however many media.
    - Any other key: what torch's `default_collate` makes of a batch of this one sample.
    - Timing is added up over the group: `_worker_batch_time`, `_worker_aug_time`,
      `_worker_io_time` (the difference, where both are known) and `_worker_aug_step_times`.
      `_worker_id` is the worker.

    Keys come in the order in which they are first seen. Samples are not changed.

    Args:
        missing: What becomes of a key that some samples of a group lack, or have as None: "none"
            puts None in their places, "drop" leaves it out of the batch. `sound` is never dropped,
            and a key that all lack never put in.

    Raises:
        ConfigError: `missing` is neither.
    """

    def __init__(self, missing: Literal["none", "drop"] = "none") -> None:
        if missing not in ("none", "drop"):
            raise ConfigError(f'`missing` must be "none" or "drop", but is {missing!r}.')
        self.missing = missing

    def collate(self, samples: list[Sample]) -> Batch:
        keys = dict.fromkeys(key for sample in samples for key in sample if key not in _TIMING)
        batch: dict[str, Any] = {}
        for key in keys:
            values = [sample.get(key) for sample in samples]
            lacking = sum(value is None for value in values)
            if key != "sound" and (lacking == len(values) or (lacking and self.missing == "drop")):
                continue
            if key == "image_size":
                batch[key] = [size for value in values for size in _listed(value)]
            else:
                batch[key] = [_entry(key, value) for value in values]
        return {**batch, **_timing(samples), "_worker_id": detect_worker()[1]}


def _entry(key: str, value: Any) -> Any:
    """What stands for one sample under a key."""
    if key in _MEDIA:
        return _listed(value)
    if key in _BARE or isinstance(value, str | bytes | None):
        return value
    return default_collate([value])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _timing(samples: Iterable[Sample]) -> dict[str, Any]:
    """How long the group took, as far as its samples tell."""
    times: dict[str, Any] = {}
    steps: dict[str, float] = {}
    for sample in samples:
        for key, name in _TIMES.items():
            if sample.get(key) is not None:
                times[name] = times.get(name, 0) + sample[key]
        if sample.get("_sample_time") is not None and sample.get("_aug_time") is not None:
            io = sample["_sample_time"] - sample["_aug_time"]
            times["_worker_io_time"] = times.get("_worker_io_time", 0) + io
        for step, seconds in (sample.get("_aug_step_times") or {}).items():
            steps[step] = steps.get(step, 0) + seconds
    return {**times, "_worker_aug_step_times": steps} if steps else times
