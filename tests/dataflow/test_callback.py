"""States of the predecessor's kind."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from streaming.dataflow import (
    CosmosDataLoaderStateCallback,
    JointCosmosDataLoader,
    JointCosmosDataLoaderStateCallback,
    MapDistributor,
)
from streaming.errors import StateError
from tests.dataflow.recorded import Case, failures

STAMPS = ("sample_worker_id", "sample_epoch", "sample_index")


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    yield
    for name in variables():
        del os.environ[name]


def variables() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name.startswith("COSMOS_DL_STATE")}


class Stamped:
    """A loader of which only the stamps matter."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        index = 0
        while True:
            yield dict(zip(STAMPS, ([0], [0], [index]), strict=True))
            index += 1


def check_callback(case: Case) -> None:
    for name in variables():
        del os.environ[name]
    given, output = case["input"], case["output"]
    if "ratios" in given:
        check_joint(given, output)
        return
    callback = CosmosDataLoaderStateCallback(given["name"])
    callback.update({"no": "stamps"})
    for stamps in given["stamps_[workers,epochs,indices]"]:
        callback.update(dict(zip(STAMPS, stamps, strict=True)))
    assert callback.state_dict() == output["state"]
    CosmosDataLoaderStateCallback(given["name"]).load_state_dict(callback.state_dict())
    assert variables() == output["env_after_load"]


def check_joint(given: dict[str, Any], output: dict[str, Any]) -> None:
    def make() -> JointCosmosDataLoader:
        entries = {
            name: {"dataloader": Stamped(), "ratio": ratio} for name, ratio in given["ratios"]
        }
        return JointCosmosDataLoader(entries, seed=given["seed"])

    loader = make()
    callback = JointCosmosDataLoaderStateCallback(loader)
    selected = []
    for batch in islice(loader, given["steps"]):
        selected.append(batch["dataset_name"])
        callback.update(batch)
    assert selected == output["selected"]
    assert callback.state_dict() == output["state"]
    again = make()
    JointCosmosDataLoaderStateCallback(again).load_state_dict(callback.state_dict())
    assert variables() == output["env_after_load"]
    assert again._global_id == output["global_id_after_load"]
    following = islice(again, len(output["next_selected"]))
    assert [batch["dataset_name"] for batch in following] == output["next_selected"]


def test_callbacks_save_and_restore_as_recorded() -> None:
    assert failures("state_callback", check_callback) == {}


def test_a_map_distributor_begins_where_the_callback_says() -> None:
    CosmosDataLoaderStateCallback("train").load_state_dict({"0": {"epoch": 1, "index": 3}})
    distributor = MapDistributor(list(range(10)), shuffle=False, name="train")
    assert list(islice(distributor.stream(0, 1, 0, 1), 3)) == [4, 5, 6]
    assert variables() == {}


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(StateError, match="epoch and an index"):
        CosmosDataLoaderStateCallback().load_state_dict({"0": {"epoch": 1}})
    callback = JointCosmosDataLoaderStateCallback(
        JointCosmosDataLoader({"a": {"dataloader": Stamped(), "ratio": 1}})
    )
    with pytest.raises(StateError, match="lacks a, global_id"):
        callback.load_state_dict({})
