"""The recorded groups."""

from typing import Any

import pytest

from streaming.dataflow import (
    PoolPackingBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
)
from streaming.dataflow.batchers.pooled import PoolBatcher
from streaming.errors import ConfigError
from tests.dataflow.batchers import reference
from tests.dataflow.recorded import Case, failures, numbers, sized
from tests.suites.batcher import follow

FAMILIES: dict[str, Any] = {
    "pool_packing": PoolPackingBatcher,
    "sequential_packing": SequentialPackingBatcher,
}


def make(family: str, params: dict[str, Any]) -> PoolBatcher:
    if family == "sequential_packing":
        params = {**params, "size": reference.length}
    batcher: PoolBatcher = FAMILIES[family](**params)
    return batcher


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_makes_the_recorded_groups(family: str) -> None:
    assert failures(family, check_groups) == {}


def check_groups(case: Case) -> None:
    family, params, output = case["family"], case["input"]["params"], case["output"]
    if "raises" in output:
        with pytest.raises(ConfigError):
            make(family, params)
        return
    samples = sized(case["input"]["sizes"], case["input"].get("modalities"))
    batcher = make(family, params)
    found = follow(batcher.open(), samples)
    assert [numbers(group) for group, _ in found] == output["groups"]
    assert [place[0] for _, place in found] == output["pending_after_group"]
    bounds = output["source_items_read_when_group_was_yielded"]
    assert all(place[-1] <= bound for (_, place), bound in zip(found, bounds, strict=True))
    assert [numbers(group) for group in batcher.batches(iter(samples))] == output["groups"]


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_begun_again_at_any_group_makes_the_recorded_rest(family: str) -> None:
    assert failures(family, check_begun_again) == {}


def check_begun_again(case: Case) -> None:
    output = case["output"]
    if "raises" in output:
        return
    samples = sized(case["input"]["sizes"], case["input"].get("modalities"))
    places = zip(
        output["pending_after_group"],
        output["source_items_read_when_group_was_yielded"],
        strict=True,
    )
    for number, (pending, read) in enumerate(places):
        rest = [samples[i] for i in pending] + samples[read:]
        groups = make(case["family"], case["input"]["params"]).batches(iter(rest))
        assert [numbers(group) for group in groups] == output["groups"][number + 1 :]


def test_simple_batcher_makes_the_recorded_groups() -> None:
    assert failures("simple_batcher", check_simple) == {}


def check_simple(case: Case) -> None:
    size, drop_last = case["input"]["batch_size"], case["input"]["drop_last"]
    if "raises" in case["output"]:
        with pytest.raises(ValueError, match=str(size)):
            SimpleBatcher(size, drop_last)
        return
    groups = SimpleBatcher(size, drop_last).batches(iter(range(case["input"]["n"])))
    assert list(groups) == case["output"]["groups"]


class Shaped:
    """Stands for a tensor of which only the shape matters."""

    def __init__(self, shape: list[int]) -> None:
        self.shape = tuple(shape)

    def __len__(self) -> int:
        return self.shape[0]


def as_value(recorded: Any) -> Any:
    if isinstance(recorded, dict):
        if "shape" in recorded:
            return Shaped(recorded["shape"])
        return [as_value(value) for value in recorded["list"]]
    return [as_value(value) for value in recorded] if isinstance(recorded, list) else recorded


def test_vision_tokens_are_the_recorded_ones() -> None:
    assert failures("vfm_sample_size", check_size) == {}


def check_size(case: Case) -> None:
    sample = {key: as_value(value) for key, value in case["input"]["sample"].items()}
    batcher = SequentialPackingBatcher(max_sequence_length=100, **case["input"]["params"])
    if "raises" in case["output"]:
        with pytest.raises(KeyError):
            batcher.sample_size(sample)
        return
    assert batcher.sample_size(sample) == case["output"]["tokens"]
