"""Batches of lists, and torch's default."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from streaming.dataflow import DefaultBatchCollator, VFMListCollator  # noqa: E402
from streaming.errors import ConfigError  # noqa: E402
from tests.dataflow.recorded import Case, failures  # noqa: E402

# What is recorded as a defect of upstream's, and what is right instead.
RIGHT: dict[str, dict[str, Any]] = {
    "vfmcollate-optional-key-none-dropped": {"extra": [[3], None]},
    "vfmcollate-optional-key-absent": {"extra": [[3], None]},
    "vfmcollate-action-none-shortens": {"action": [[[[1.0, 2.0]]], [None]]},
    "vfmcollate-list-of-ints-truncated": {
        "bbox": [[[1], [2], [3], [4]], [[5], [6], [7], [8]]],
    },
    "vfmcollate-timing": {
        "_worker_batch_time": 3.0,
        "_worker_aug_time": 0.75,
        "_worker_io_time": 2.25,
        "_worker_aug_step_times": {"decode": pytest.approx(0.6), "crop": pytest.approx(0.15)},
    },
    "vfmcollate-timing-partial": {"_worker_batch_time": 2.0, "_worker_aug_time": 0.25},
    "vfmcollate-dict-valued-key": {"meta": [{"a": [1]}]},
}


def value(recorded: Any) -> Any:
    """A recorded value as it was."""
    if isinstance(recorded, dict):
        if "tensor" in recorded:
            return torch.tensor(recorded["tensor"], dtype=getattr(torch, recorded["dtype"]))
        return {key: value(inner) for key, inner in recorded.items()}
    return [value(inner) for inner in recorded] if isinstance(recorded, list) else recorded


def plain(batch: Any) -> Any:
    """A value with its tensors as tuples of content, type and shape."""
    if isinstance(batch, torch.Tensor):
        return (batch.tolist(), str(batch.dtype), tuple(batch.shape))
    if isinstance(batch, dict):
        return {key: plain(inner) for key, inner in batch.items()}
    return [plain(inner) for inner in batch] if isinstance(batch, list) else batch


def content(batch: Any) -> Any:
    """A value with its tensors as lists."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: content(inner) for key, inner in batch.items()}
    return [content(inner) for inner in batch] if isinstance(batch, list) else batch


def check_vfm(case: Case) -> None:
    samples = value(case["input"]["samples"])
    before = copy.deepcopy(samples)
    batch = VFMListCollator().collate(samples)
    assert plain(samples) == plain(before)
    right = RIGHT.get(case["id"], {})
    for key, expected in right.items():
        assert content(batch.pop(key)) == expected
    if "raises" not in case["output"]:
        recorded = {
            key: inner for key, inner in case["output"]["batch"].items() if key not in right
        }
        assert plain(batch) == plain(value(recorded))


def test_lists_are_the_recorded_ones_but_for_the_defects() -> None:
    assert failures("vfm_collate", check_vfm) == {}


def test_keys_come_in_the_order_of_the_samples() -> None:
    batch = VFMListCollator().collate([{"b": 1, "a": 2}, {"c": 3, "a": 4}])
    assert list(batch) == ["b", "a", "c", "_worker_id"]


def test_a_key_that_some_lack_may_be_dropped() -> None:
    samples = [{"a": 1, "sound": None, "x": 1}, {"a": 2, "sound": "s", "x": None}]
    batch = VFMListCollator("drop").collate(samples)
    assert content(batch) == {"a": [[1], [2]], "sound": [[None], ["s"]], "_worker_id": 0}
    with pytest.raises(ConfigError, match="missing"):
        VFMListCollator("keep")  # type: ignore[arg-type]


def test_the_same_samples_give_the_same_batch_twice() -> None:
    samples = [{"image_size": [1, 2]}, {"image_size": [3]}]
    collator = VFMListCollator()
    assert collator.collate(samples) == collator.collate(samples)


def check_default(case: Case) -> None:
    samples = value(case["input"]["samples"])
    if "raises" in case["output"]:
        with pytest.raises((KeyError, RuntimeError)) as caught:
            DefaultBatchCollator().collate(samples)
        assert type(caught.value).__name__ == case["output"]["raises"]
        return
    batch = DefaultBatchCollator().collate(samples)
    assert plain(batch) == plain(value(case["output"]["batch"]))


def test_the_default_is_the_recorded_one() -> None:
    assert failures("default_collate", check_default) == {}


@pytest.mark.parametrize(
    "samples",
    [
        [{"a": 1, "b": "x", "c": 1.5}, {"a": 2, "b": "y", "c": 2.5}],
        [{"a": True}, {"a": False}],
        [{"a": 1}, {"a": 2.5}],
        [{"a": 1.0}, {"a": 2}],
        [{"a": (1, "x")}, {"a": (2, "y")}],
        [{"a": {"b": 1}}, {"a": {"b": 2}}],
        [{"a": [1, 2]}, {"a": [3, 4]}],
        [{"a": b"x"}, {"a": b"y"}],
        [{"a": -(2**63)}, {"a": 2**63 - 1}],
        [1, 2],
        ["a", "b"],
        [{}, {}],
    ],
    ids=str,
)
def test_the_short_way_gives_what_torch_gives(samples: list[Any]) -> None:
    expected = torch.utils.data.default_collate(samples)
    assert plain(DefaultBatchCollator().collate(samples)) == plain(expected)


def test_numbers_that_torch_refuses_are_refused() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        DefaultBatchCollator().collate([{"a": 2**70}, {"a": 1}])
