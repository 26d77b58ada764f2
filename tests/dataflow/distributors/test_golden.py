"""The recorded streams."""

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streaming.dataflow import (
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    PoolPackingBatcher,
    RankPartitionedDistributor,
    SequentialPackingBatcher,
    SimpleBatcher,
)
from streaming.dataflow.base import DataDistributor
from streaming.dataflow.callback import worker_variable
from streaming.dataflow.distributors.permutation import torch_permutation
from streaming.dataflow.distributors.ranked import allot
from streaming.errors import ConfigError, StateError
from tests.conftest import RunPython
from tests.dataflow.recorded import Case, cyclic_size, failures

# Where upstream goes on without a word, ours raises.
RAISES = {"map-resume-past-slice"}


def check_permutation(case: Case) -> None:
    n, seed, output = case["input"]["n"], case["input"]["seed"], case["output"]
    order = torch_permutation(n, seed + case["input"]["epoch"]).tolist()
    if "perm" in output:
        assert order == output["perm"]
        return
    assert order[:32] == output["head"]
    assert order[-32:] == output["tail"]
    text = ",".join(map(str, order))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == output["sha256_of_decimal_comma_joined"]


def test_the_orders_of_epochs_are_the_recorded_ones() -> None:
    assert failures("epoch_permutation", check_permutation) == {}


def test_they_are_without_torch(run_python: RunPython) -> None:
    code = """
import sys
sys.modules["torch"] = None
from tests.dataflow.distributors.test_golden import check_permutation
from tests.dataflow.recorded import failures
print(failures("epoch_permutation", check_permutation))
"""
    assert run_python(code).stdout == "{}\n"


class Items:
    """A map-style dataset of numbers, or of dicts of them."""

    def __init__(self, n: int, kind: str) -> None:
        self.n = n
        self.kind = kind

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return {"i": index} if self.kind == "dict" else index


def row(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return [item["i"], item["_dp_epoch"], item["_dp_stream_pos"]]


def check_map(case: Case) -> None:
    given = case["input"]
    workers = given["num_workers"]
    distributor = MapDistributor(
        Items(given["n"], given["item_kind"]), given["seed"], given["shuffle"], given["name"]
    )
    assert len(distributor) == given["n"]
    for stream in case["output"]["streams"]:
        rank, worker = stream["dp_rank"], stream["worker_id"]
        epoch, index = given["resume_env"].get(f"{rank}/{worker}", (None, None))
        prefix = worker_variable(given["name"], worker)
        for name, value in (("EPOCH", epoch), ("INDEX", index)):
            if value is not None:
                os.environ[f"{prefix}_{name}"] = str(value)
        items = distributor.stream(rank, given["dp_world_size"], worker, workers)
        if case["id"] in RAISES:
            with pytest.raises(StateError, match="not in a part of 10 items"):
                next(items)
            continue
        assert list(map(row, islice(items, given["take"]))) == stream["items"]
        left = [name for name in os.environ if name.startswith("COSMOS_DL_STATE")]
        assert left == stream["env_left_over"]


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    for name in list(os.environ):
        if name.startswith("COSMOS_DL_STATE"):
            del os.environ[name]


@pytest.mark.usefixtures("clean_environment")
def test_map_distributor_gives_the_recorded_streams() -> None:
    assert failures("map_distributor", check_map) == {}


class Counting:
    """An iterable that counts what is read of it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for i in range(self.n):
            self.read += 1
            yield i


def check_iterable(case: Case) -> None:
    given = case["input"]
    for stream in case["output"]["streams"]:
        source = Counting(given["n"])
        items = IterableDistributor(source, epochs=1).stream(
            stream["dp_rank"], given["dp_world_size"], stream["worker_id"], given["num_workers"]
        )
        assert list(items) == stream["items"]
        assert source.read <= stream["source_items_read"]


def test_iterable_distributor_gives_the_recorded_streams() -> None:
    assert failures("iterable_distributor", check_iterable) == {}


class Numbered(DataDistributor):
    """Gives (name, 0), (name, 1), ...; ends if it has a length."""

    def __init__(self, name: str, length: int | None) -> None:
        self.name = name
        self.length = length

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[Any]:
        number = 0
        while self.length is None or number < self.length:
            yield [self.name, number]
            number += 1


def make_mixture(given: dict[str, Any]) -> MixtureDistributor:
    sources: dict[str, tuple[DataDistributor, float]] = {}
    for name, *rest in given["sources"]:
        if isinstance(rest[0], dict):
            dataset = Items(rest[0]["map_n"], "dict")
            sources[name] = (MapDistributor(dataset, rest[0]["seed"]), rest[1])
        else:
            length = given["finite_lengths"].get(name)
            sources[name] = (Numbered(name, length), rest[0])
    return MixtureDistributor(sources, given["seed"])


def check_mixture(case: Case) -> None:
    given, output = case["input"], case["output"]
    at = (
        given["dp_rank"],
        given.get("dp_world_size", given["dp_rank"] + 1),
        given["worker_id"],
        given.get("num_workers", given["worker_id"] + 1),
    )
    if "raises" in output:
        with pytest.raises((ValueError, RuntimeError)):
            next(make_mixture(given).stream(*at))
        return
    items = list(islice(make_mixture(given).stream(*at), given["take"]))
    if isinstance(items[0], dict):
        items = [row(item) for item in items]
    assert items == output["value"]


def test_mixture_distributor_gives_the_recorded_draws() -> None:
    assert failures("mixture_distributor", check_mixture) == {}


class SelfSharding:
    """An iterable that tells by which attributes it is to shard itself."""

    shard_rank: int
    shard_world_size: int
    shard_id: int

    def __iter__(self) -> Iterator[Any]:
        yield [self.shard_id, self.shard_rank, self.shard_world_size]


def check_ranked(case: Case) -> None:
    ratios, world = dict(case["input"]["ratios"]), case["input"]["world_size"]
    datasets = {name: {"dataset": SelfSharding(), "ratio": ratio} for name, ratio in ratios.items()}
    if "raises" in case["output"]:
        with pytest.raises(ConfigError):
            next(RankPartitionedDistributor(datasets).stream(0, world, 0, 1))
        return
    output = case["output"]["value"]
    distributor = RankPartitionedDistributor(datasets)
    assert allot(distributor.ratios, world) == output["allocation"]
    per_rank = output["per_rank_[dataset,shard_rank,shard_world_size]"]
    if per_rank is not None:
        assert [next(distributor.stream(rank, world, 0, 2)) for rank in range(world)] == per_rank


def test_rank_partitioned_distributor_gives_the_recorded_ranks() -> None:
    assert failures("rank_partitioned", check_ranked) == {}


BATCHERS: dict[str, Any] = {
    "simple": SimpleBatcher,
    "pool": lambda **options: PoolPackingBatcher(**options, size_fn=cyclic_size),
    "seq": lambda **options: SequentialPackingBatcher(**options, size=cyclic_size),
}


def check_chain(case: Case) -> None:
    given = case["input"]
    batching = dict(given["batching"])
    kind = batching.pop("type")
    for stream in case["output"]["streams"]:
        distributor = MapDistributor(Items(given["n"], "dict"), given["seed"])
        items = distributor.stream(
            stream["dp_rank"], given["dp_world_size"], stream["worker_id"], given["num_workers"]
        )
        groups = BATCHERS[kind](**batching).batches(items)
        found = [list(map(row, group)) for group in islice(groups, given["groups"])]
        assert found == stream["groups_of_[item,epoch,pos]"]


def test_chains_of_roles_give_the_recorded_groups() -> None:
    assert failures("role_chains", check_chain) == {}


def test_the_recorded_files_are_those_of_the_manifest(golden: Any) -> None:
    folder = golden / "dataflow"
    manifest = json.loads((folder / "manifest.json").read_text())["files"]
    assert {path.name for path in folder.glob("*.json")} == {"manifest.json", *manifest}
    for name, entry in manifest.items():
        data = (folder / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert [case["id"] for case in json.loads(data)["cases"]] == entry["ids"]


def test_torch_is_not_needed_for_what_is_recorded(run_python: RunPython) -> None:
    code = """
import sys
sys.modules["torch"] = None
from tests.dataflow.batchers import test_golden as batchers
from tests.dataflow.distributors import test_golden as distributors
from tests.dataflow.recorded import failures
from tests.dataflow.test_joint import check_selection
checks = {
    "rank_partitioned": distributors.check_ranked,
    "mixture_distributor": distributors.check_mixture,
    "iterable_distributor": distributors.check_iterable,
    "map_distributor": distributors.check_map,
    "role_chains": distributors.check_chain,
    "pool_packing": batchers.check_groups,
    "sequential_packing": batchers.check_groups,
    "simple_batcher": batchers.check_simple,
    "vfm_sample_size": batchers.check_size,
    "joint_selection": check_selection,
}
print({family: found for family, check in checks.items() if (found := failures(family, check))})
"""
    assert run_python(code).stdout == "{}\n"


def test_orders_above_what_torch_draws_with_32_bits_are_refused_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    with pytest.raises(ConfigError, match="scatter"):
        torch_permutation(2**31 // 10, 0)


def test_a_short_order_is_that_of_torch_for_any_seed(run_python: RunPython) -> None:
    torch = pytest.importorskip("torch")
    code = """
import sys
sys.modules["torch"] = None
from streaming.dataflow.distributors.permutation import torch_permutation
for seed in (0, 1, 2**31, 2**32 + 5, 2**40):
    print(*torch_permutation(300, seed).tolist())
"""
    for seed, line in zip(
        (0, 1, 2**31, 2**32 + 5, 2**40), run_python(code).stdout.splitlines(), strict=True
    ):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        assert np.array(line.split(), np.int64).tolist() == order.tolist()
