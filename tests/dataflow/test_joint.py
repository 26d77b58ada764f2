"""Several loaders as one."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from streaming.dataflow import JointCosmosDataLoader, JointDataflowLoader
from streaming.errors import ConfigError, EmptyDatasetError, StateError
from tests.dataflow.recorded import Case, failures


class Numbering:
    """A loader of numbered batches, that tells which pass they are of."""

    def __init__(self, length: int | None = None) -> None:
        self.length = length
        self.passes = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.passes += 1
        number, this_pass = 0, self.passes
        while self.length is None or number < self.length:
            yield {"number": number, "pass": this_pass}
            number += 1


def make(given: dict[str, Any]) -> JointCosmosDataLoader:
    loaders: dict[str, dict[str, Any]] = {}
    for name, ratio in given["ratios"]:
        length = given.get("finite_lengths", {}).get(name)
        loaders[name] = {"dataloader": Numbering(length)}
        if ratio is not None:
            loaders[name]["ratio"] = ratio
    return JointCosmosDataLoader(loaders, seed=given["seed"])


def check_selection(case: Case) -> None:
    given, output = case["input"], case["output"]
    if "raises" in output:
        with pytest.raises((ValueError, RuntimeError)):
            next(iter(make(given)))
        return
    loader, output = make(given), output["value"]
    if given["start_iteration"] is not None:
        loader.set_start_iteration(given["start_iteration"])
    found = [
        [batch["dataset_name"], batch["number"], batch["pass"]]
        for batch in islice(loader, given["take"])
    ]
    assert found == output["batches_[name,inner_index,inner_pass]"]
    assert (loader._names, loader._probs) == (output["names"], output["probabilities"])
    assert loader._global_id == output["global_id_after"]


def test_joint_loader_makes_the_recorded_choices() -> None:
    assert failures("joint_selection", check_selection) == {}


def pair(**options: Any) -> JointDataflowLoader:
    entries = {name: {"dataloader": Numbering(), "ratio": 1} for name in "ab"}
    return JointDataflowLoader(entries, **options)


def names(loader: JointDataflowLoader, count: int) -> list[str]:
    return [batch["dataset_name"] for batch in islice(loader, count)]


def test_neighbouring_seeds_do_not_make_the_same_choices_shifted() -> None:
    first, second = names(pair(seed=42), 200), names(pair(seed=43), 200)
    assert first[1:] != second[:-1]
    assert 70 < first.count("a") < 130


def test_iterating_again_goes_on() -> None:
    loader = pair()
    whole = names(pair(), 20)
    assert names(loader, 7) + names(loader, 13) == whole


class Saving(Numbering):
    """A loader with a place."""

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self.place += 1
            yield {"number": self.place - 1}

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def saving() -> JointDataflowLoader:
    return JointDataflowLoader({name: {"dataloader": Saving(), "ratio": 2} for name in "ab"})


def test_it_goes_on_from_its_state_in_all_loaders() -> None:
    whole = list(islice(saving(), 20))
    begun = saving()
    assert list(islice(begun, 8)) == whole[:8]
    again = saving()
    again.load_state_dict(begun.state_dict())
    assert list(islice(again, 12)) == whole[8:]


def test_a_state_of_other_loaders_is_refused() -> None:
    with pytest.raises(StateError, match="of loaders a, b; here there are none"):
        pair().load_state_dict(saving().state_dict())


def test_an_empty_loader_is_an_error() -> None:
    loader = JointDataflowLoader({"a": {"dataloader": Numbering(0), "ratio": 1}})
    with pytest.raises(EmptyDatasetError, match="'a' ended twice"):
        next(iter(loader))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="rng"):
        pair(rng="dice")
    with pytest.raises(ConfigError, match="reserved|can be named"):
        JointDataflowLoader({"global_id": {"dataloader": Numbering(), "ratio": 1}})
