"""The loader: recorded batches, exact places, and its checks."""

import json
import logging
import multiprocessing
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streaming.dataflow import (
    BatchCollator,
    BestFitBatcher,
    ConcatBatcher,
    CosmosDataLoader,
    DataDistributor,
    DataflowLoader,
    IterableDistributor,
    MapDistributor,
    MapProcessor,
    MixtureDistributor,
    PlannedBatcher,
    PoolPackingBatcher,
    RawItemProcessor,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
    VFMListCollator,
    WindowBatcher,
    merge_states,
)
from streaming.errors import ConfigError, SampleError, StateError, WorkerError
from tests.conftest import RunPython
from tests.dataflow.distributors.sources import Plain, Sharded
from tests.dataflow.recorded import Case, cyclic_size, failures

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

STAMPS = ("sample_worker_id", "sample_epoch", "sample_index")


class AsList(BatchCollator):
    """Gives the samples' numbers, and passes on what is no dict."""

    def collate(self, samples: list[Any]) -> Any:
        return [sample["i"] if isinstance(sample, dict) else sample for sample in samples]


class Ahead(SampleBatcher):
    """Knows five samples when it gives out the oldest."""

    def batches(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
        known = list(islice(samples, 4))
        for sample in samples:
            known.append(sample)
            yield [known.pop(0)]
        yield from ([sample] for sample in known)


class Coordinates:
    def __init__(self, rank: int, size: int) -> None:
        self.dp_coord = (rank, size)


def items(count: int) -> list[dict[str, int]]:
    return [{"i": i} for i in range(count)]


def loader_of(count: int = 20, batch_size: int = 3, **options: Any) -> DataflowLoader:
    distributor = MapDistributor(items(count), seed=3)
    return DataflowLoader(distributor, collator=AsList(), batch_size=batch_size, **options)


# --- What is recorded -------------------------------------------------------------------------


def recorded_batcher(batching: Any) -> SampleBatcher:
    if isinstance(batching, int):
        return SimpleBatcher(batching)
    options = {name: value for name, value in batching.items() if name != "type"}
    if batching["type"] == "pool":
        return PoolPackingBatcher(**options, size_fn=cyclic_size)
    return SequentialPackingBatcher(**options, size=cyclic_size)


def recorded_loader(given: dict[str, Any]) -> DataflowLoader:
    distributor = MapDistributor(items(given["n"]), given["map_seed"], given["shuffle"])
    batcher = recorded_batcher(given["batching"])
    return DataflowLoader(
        distributor, batcher=batcher, num_workers=given["num_workers"], stamp=True
    )


def check_loader(case: Case) -> None:
    given, output = case["input"], case["output"]["value"]
    after = given["resume_after"]
    loader = recorded_loader(given)
    assert loader.persistent_workers == output["persistent_workers"]
    batches, state = [], None
    for batch in islice(loader, given["steps"]):
        batches.append(batch)
        if len(batches) == after:
            state = json.loads(json.dumps(loader.state_dict()))
    for batch, expected in zip(batches, output["batches"], strict=False):
        assert batch["i"].tolist() == expected["i"]
        # Theirs are the same for the whole group: where it ends. Ours are those of each sample.
        for stamp in STAMPS:
            assert {int(batch[stamp].max())} == set(expected[stamp])
    # Upstream raises where a batch straddles epochs, or was reordered; ours goes on.
    assert len(batches) == given["steps"]
    if state is None:
        return
    # And it goes on exactly, also where upstream's workers change places.
    loader = recorded_loader(given)
    loader.load_state_dict(state)
    rest = list(islice(loader, given["steps"] - after))
    assert [batch["i"].tolist() for batch in rest] == [b["i"].tolist() for b in batches[after:]]


def test_batches_are_the_recorded_ones_and_go_on_exactly() -> None:
    assert failures("loader_stamping_and_resume", check_loader) == {}


ARGUMENTS: dict[str, Any] = {
    "no batcher, no batch_size": {},
    "batcher and batch_size": {"batcher": SimpleBatcher(2), "batch_size": 2},
    "batch_size=4": {"batch_size": 4},
    "batch_size=4, collator=VFMListCollator": {"batch_size": 4, "collator": VFMListCollator()},
    "batcher=SimpleBatcher(2)": {"batcher": SimpleBatcher(2)},
    "batch_size=4, persistent_workers=True, num_workers=0": {
        "batch_size": 4,
        "persistent_workers": True,
    },
    "batch_size=4, prefetch_factor=7, num_workers=0": {"batch_size": 4, "prefetch_factor": 7},
    "batch_size=4, prefetch_factor=7, num_workers=2": {
        "batch_size": 4,
        "prefetch_factor": 7,
        "num_workers": 2,
    },
    "MapDistributor, batch_size=4, num_workers=2": {
        "distributor": MapDistributor(items(20)),
        "batch_size": 4,
        "num_workers": 2,
    },
    "MixtureDistributor of a MapDistributor, batch_size=4, num_workers=2": {
        "distributor": MixtureDistributor({"a": (MapDistributor(items(20)), 1)}),
        "batch_size": 4,
        "num_workers": 2,
    },
    "batch_size=1, parallel_dims.dp_coord=(3,8)": {
        "batch_size": 1,
        "parallel_dims": Coordinates(3, 8),
    },
    "batch_size=0": {"batch_size": 0},
}


def check_constructor(case: Case) -> None:
    options = {
        "distributor": IterableDistributor(Plain(20)),
        **ARGUMENTS[case["input"]["arguments"]],
    }
    if "raises" in case["output"]:
        with pytest.raises(ValueError, match="batch"):
            CosmosDataLoader(processor=None, **options)
        return
    loader = CosmosDataLoader(processor=None, **options)
    found = {
        "torch_batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": loader.pin_memory,
        "batcher": type(loader.batcher).__name__,
        "collator": type(loader.collator).__name__,
        "dp": [loader.dp_rank, loader.dp_world_size],
    }
    assert found == case["output"]["value"]


def test_arguments_mean_what_is_recorded() -> None:
    assert failures("loader_constructor", check_constructor) == {}


def test_it_has_no_length() -> None:
    with pytest.raises(TypeError):
        len(loader_of())


# --- Places -----------------------------------------------------------------------------------


class Jitter(RawItemProcessor):
    """Random, drops some items, and makes sizes."""

    def process(self, item: dict[str, int], rng: Any = None) -> dict[str, Any] | None:
        if item["i"] % 7 == 3:
            return None
        return {"i": item["i"], "input_ids": rng.integers(0, 9, 1 + int(rng.integers(30)))}


class Several(RawItemProcessor):
    """Makes zero to two samples of an item."""

    def process(self, item: dict[str, int]) -> None:
        raise AssertionError("`expand` is called")

    def expand(self, item: dict[str, int], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for part in range(item["i"] % 3):
            yield {"i": 10 * item["i"] + part, "input_ids": [0] * (1 + int(rng.integers(30)))}


class Whole(BatchCollator):
    """Gives all of the samples as values that can be compared."""

    def collate(self, samples: list[Any]) -> Any:
        return [(sample["i"], [int(x) for x in sample["input_ids"]]) for sample in samples]


class Backwards(SampleBatcher):
    """A user's batcher: turns each five samples round."""

    def batches(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
        waiting: list[Any] = []
        for sample in samples:
            waiting.insert(0, sample)
            if len(waiting) == 5:
                yield waiting[:3]
                waiting = waiting[3:]
        if waiting:
            yield waiting


def halves(sample: dict[str, Any]) -> list[dict[str, Any]]:
    ids = sample["input_ids"]
    return [{**sample, "input_ids": ids[:20]}, {**sample, "input_ids": ids[20:]}]


SOURCES: dict[str, Any] = {
    "map": lambda: MapDistributor(items(40), seed=3),
    "plain": lambda: IterableDistributor(list(items(40))),
    "sharded": lambda: IterableDistributor(Sharded([range(s, s + 8) for s in range(0, 48, 8)])),
    "mixture": lambda: MixtureDistributor(
        {
            "map": (MapDistributor(items(9), seed=3), 1),
            "plain": (IterableDistributor(list(items(40))), 2),
        }
    ),
}
BATCHERS: dict[str, Any] = {
    "simple": lambda: SimpleBatcher(3),
    "pool": lambda: PoolPackingBatcher(64, 8, 0),
    "sequential": lambda: SequentialPackingBatcher(60, size=lambda s: len(s["input_ids"])),
    "best fit": lambda: BestFitBatcher(20, 8, oversize="split", split=halves),
    "window": lambda: WindowBatcher(80, 8),
    "planned": lambda: PlannedBatcher(40, 12),
    "user's": Backwards,
}
PROCESSORS = {"jitter": Jitter, "several": Several}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", SOURCES)
def test_from_any_batch_the_rest_is_the_same_bit_for_bit(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for batcher in BATCHERS:
        for processor in PROCESSORS:
            check_rest(source, batcher, processor)


def check_rest(source: str, batcher: str, processor: str, steps: int = 24, **options: Any) -> None:
    def make() -> DataflowLoader:
        return DataflowLoader(
            SOURCES[source](),
            PROCESSORS[processor](),
            BATCHERS[batcher](),
            Whole(),
            num_streams=4,
            seed=5,
            **options,
        )

    loader, states, whole = make(), [], []
    for batch in islice(loader, steps):
        whole.append(batch)
        states.append(json.dumps(loader.state_dict()))
    for place, state in list(enumerate(states, 1))[::5]:
        again = make()
        again.load_state_dict(json.loads(state))
        batches = iter(again)
        # And from the state of one that went on itself.
        between = list(islice(batches, min(3, steps - place)))
        third = make()
        third.load_state_dict(json.loads(json.dumps(again.state_dict())))
        rest = between + list(islice(third, steps - place - len(between)))
        assert rest == whole[place:], (source, batcher, processor, place)


class UpToFive(Several):
    """Makes zero to five samples of an item."""

    def expand(self, item: dict[str, int], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for part in range(item["i"] % 6):
            yield {"i": 10 * item["i"] + part, "input_ids": [int(rng.integers(99))]}


@pytest.mark.parametrize("workers", [0, 2])
def test_case_U10_a_run_goes_on_inside_what_one_item_expands_to(workers: int) -> None:
    def make() -> DataflowLoader:
        return DataflowLoader(
            MapDistributor(items(12), seed=3, epochs=1),
            UpToFive(),
            SimpleBatcher(2),
            Whole(),
            num_streams=2,
            num_workers=workers,
        )

    loader, whole, states = make(), [], []
    for batch in loader:
        whole.append(batch)
        states.append(json.dumps(loader.state_dict()))
    made = sorted(i for batch in whole for i, _ in batch)
    assert made == [10 * i + part for i in range(12) for part in range(i % 6)]
    for place in range(1, len(whole), 1 if workers == 0 else 5):
        again = make()
        again.load_state_dict(json.loads(states[place - 1]))
        assert list(again) == whole[place:]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    check_rest("map", "pool", "jitter", 14, num_workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_no_way_to_start_workers_changes_anything(method: str, run_python: RunPython) -> None:
    code = f"""
from tests.dataflow.test_loader import check_rest
if __name__ == "__main__":
    check_rest("map", "window", "several", 6, num_workers=2, multiprocessing_context="{method}")
    print("the same")
"""
    assert run_python(code, timeout=110).stdout == "the same\n"


def micro_batches(rank: int, ranks: int, workers: int, state: Any, count: int) -> tuple[Any, Any]:
    loader = DataflowLoader(
        MapDistributor(items(50), seed=1),
        Jitter(),
        PoolPackingBatcher(64, 6, 0),
        Whole(),
        parallel_dims=Coordinates(rank, ranks),
        num_streams=12,
        num_workers=workers,
    )
    if state is not None:
        loader.load_state_dict(state)
    batches = list(islice(loader, count))
    return batches, loader.state_dict()


def test_the_job_goes_on_the_same_on_any_number_of_ranks() -> None:
    whole, _ = micro_batches(0, 1, 0, None, 120)
    draw = random.Random(4)
    for _ in range(4):
        state = None
        made: list[Any] = []
        while len(made) < 80:
            ranks, count = draw.choice([1, 2, 3, 4, 6, 12]), draw.randint(1, 4)
            found = [micro_batches(rank, ranks, 0, state, count) for rank in range(ranks)]
            made += [found[rank][0][step] for step in range(count) for rank in range(ranks)]
            state = json.loads(json.dumps(merge_states([saved for _, saved in found])))
        assert made == whole[: len(made)]


def test_the_job_goes_on_the_same_with_other_workers() -> None:
    whole, _ = micro_batches(0, 1, 0, None, 24)
    first = [micro_batches(rank, 2, 3, None, 5) for rank in range(2)]
    state = [saved for _, saved in first]
    second = [micro_batches(rank, 3, 2, state, 4) for rank in range(3)]
    made = [first[rank][0][step] for step in range(5) for rank in range(2)]
    made += [second[rank][0][step] for step in range(4) for rank in range(3)]
    assert made == whole[:22]


def test_a_first_start_gives_each_rank_and_worker_its_own_slice() -> None:
    for rank in range(2):
        loader = loader_of(24, 1, parallel_dims=Coordinates(rank, 2), num_workers=2)
        found = [number for batch in islice(loader, 8) for number in batch]
        distributor = MapDistributor(items(24), seed=3)
        streams = [distributor.stream(rank, 2, worker, 2) for worker in range(2)]
        expected = [next(streams[step % 2])["i"] for step in range(8)]
        assert found == expected


def test_iterating_again_goes_on_and_restart_begins_anew() -> None:
    whole = list(islice(loader_of(), 8))
    for workers in (0, 1):
        loader = loader_of(num_workers=workers, num_streams=1)
        found = list(islice(loader, 2)) + list(islice(loader, 3)) + list(islice(loader, 3))
        assert found == whole
        assert list(islice(loader.batches(restart=True), 8)) == whole


def test_workers_that_end_with_their_iteration_lose_nothing() -> None:
    def make() -> DataflowLoader:
        source = IterableDistributor(list(items(30)))
        return DataflowLoader(source, collator=AsList(), batch_size=2, num_workers=2)

    whole = list(islice(make(), 12))
    loader = make()
    assert not loader.persistent_workers
    assert list(islice(loader, 5)) + list(islice(loader, 7)) == whole


def test_a_new_iterator_takes_over() -> None:
    loader = loader_of()
    old = iter(loader)
    first = next(old)
    new = iter(loader)
    assert [first, next(new)] == list(islice(loader_of(), 2))
    with pytest.raises(WorkerError, match="One iterator of a loader lives at a time"):
        next(old)


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_epochs_the_next_ones_begin(workers: int) -> None:
    distributor = MapDistributor(items(10), seed=3, epochs=1)
    loader = DataflowLoader(
        distributor, collator=AsList(), batch_size=3, num_workers=workers, num_streams=2
    )
    epochs = [[number for batch in loader for number in batch] for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def check_resumes(make: Callable[[], DataflowLoader], places: slice) -> None:
    """From some of the places of an epoch, its rest and the next one are those of a whole run."""
    loader = make()
    whole, states = [], [json.dumps(loader.state_dict())]
    for batch in loader:
        whole.append(batch)
        states.append(json.dumps(loader.state_dict()))
    next_epoch = list(loader)
    for place, state in list(enumerate(states))[places]:
        again = make()
        again.load_state_dict(json.loads(state))
        assert list(again) == whole[place:]
        assert list(again) == next_epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_place_near_the_end_is_exact_though_streams_end_apart(workers: int) -> None:
    def make() -> DataflowLoader:
        distributor = MapDistributor(items(11), seed=3, epochs=1)
        return DataflowLoader(
            distributor, collator=AsList(), batch_size=1, num_workers=workers, num_streams=4
        )

    check_resumes(make, slice(2, None, 3))


def test_where_a_rank_has_ended_streams_each_goes_on_from_its_own_state() -> None:
    rows = [{"i": i, "input_ids": [0] * (10 if i % 4 else 1)} for i in range(20)]

    def make(rank: int) -> DataflowLoader:
        return DataflowLoader(
            MapDistributor(rows, shuffle=False, epochs=1),
            batcher=BestFitBatcher(10, 8),
            collator=AsList(),
            num_streams=4,
            parallel_dims=Coordinates(rank, 2),
        )

    loaders = [make(rank) for rank in range(2)]
    wholes = [list(make(rank)) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for rank, iterator in enumerate(iterators):
        assert list(islice(iterator, 3)) == wholes[rank][:3]
    states = [loader.state_dict() for loader in loaders]
    with pytest.raises(StateError, match="load in each rank the state that it saved"):
        merge_states(states)
    for rank, state in enumerate(states):
        again = make(rank)
        again.load_state_dict(state)
        assert list(again) == wholes[rank][3:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True], ids=["built in", "of a user"])
def test_what_waits_at_the_end_of_the_epochs_goes_out_before_the_next_ones(
    workers: int, own: bool
) -> None:
    rows = [{"i": i, "input_ids": [0] * (i % 7 + 1)} for i in range(40)]

    def make() -> DataflowLoader:
        return DataflowLoader(
            MapDistributor(rows, seed=3, epochs=1),
            batcher=Ahead() if own else BestFitBatcher(12, 8),
            collator=AsList(),
            num_workers=workers,
            num_streams=2,
        )

    check_resumes(make, slice(-6, None))


@pytest.mark.parametrize("batcher", [ConcatBatcher(5), BestFitBatcher(12, 8), Ahead()])
def test_a_stream_that_has_not_begun_begins_after_a_resume(batcher: SampleBatcher) -> None:
    rows = [{"i": i, "input_ids": [0] * (i % 7 + 1)} for i in range(40)]

    def make() -> DataflowLoader:
        return DataflowLoader(
            MapDistributor(rows), batcher=batcher, collator=AsList(), num_streams=4
        )

    loader = make()
    next(iter(loader))
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert list(islice(again, 8)) == list(islice(make(), 9))[1:]


def test_a_state_is_small_and_soon_there() -> None:
    loader = DataflowLoader(
        MapDistributor(items(1000)),
        MapProcessor(lambda item: {**item, "input_ids": [0] * 10}),
        BestFitBatcher(30, 7),
        AsList(),
        num_streams=240,
    )
    list(islice(loader, 480))
    state = json.dumps(loader.state_dict())
    assert len(state) / 240 < 160


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {**s, "format": 9}, "format is 9"),
        (lambda s: {**s, "streams": {}}, "lacks logical stream 0"),
        (lambda s: [s, s], "Logical stream 0 is in two"),
        (lambda s: [], "empty list"),
        (lambda s: {**s, "delivered": "x"}, "damaged"),
        (lambda s: [s, {**s, "streams": {}, "delivered": 4}], "`delivered` is 2 in one and 4"),
        (lambda s: {k: v for k, v in s.items() if k != "num_streams"}, "damaged"),
        (lambda s: json.loads(json.dumps(s).replace('"items": 20', '"items": 21')), "items was 21"),
        (lambda s: json.loads(json.dumps(s).replace('"seed": 3', '"seed": 4')), "seed was 4"),
    ],
    ids=["format", "missing", "twice", "none", "damaged", "steps", "cut", "length", "seed"],
)
def test_a_state_that_does_not_fit_is_refused(change: Any, message: str) -> None:
    loader = loader_of()
    list(islice(loader, 2))
    with pytest.raises(StateError, match=message):
        loader_of().load_state_dict(change(loader.state_dict()))


def test_a_batcher_may_be_set_otherwise_if_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    loader = loader_of(batch_size=3)
    list(islice(loader, 2))
    state = loader.state_dict()
    with pytest.raises(StateError, match=r"batch_size was 3 and is 4"):
        loader_of(batch_size=4).load_state_dict(state)
    other = loader_of(batch_size=4)
    other.load_state_dict(state, strict=False)
    assert "batcher.batch_size was 3 and is 4" in caplog.text
    assert len(next(iter(other))) == 4


def test_ranks_that_do_not_divide_the_streams_are_refused() -> None:
    state = loader_of(num_streams=6).state_dict()
    with pytest.raises(StateError, match="by 4 ranks. They can by 1, 2, 3, 6"):
        loader_of(parallel_dims=Coordinates(0, 4)).load_state_dict(state)
    with pytest.raises(ConfigError, match="num_streams"):
        loader_of(parallel_dims=Coordinates(0, 4), num_streams=6)


def test_workers_that_do_not_divide_the_streams_are_fewer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert loader_of(num_streams=6, num_workers=4).num_workers == 3
    assert "4 workers can't share the 6 logical streams" in caplog.text


class Merging(Backwards):
    """Gives what it was not given."""

    resumable = False

    def batches(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
        for group in super().batches(samples):
            yield [dict(group[0])]


def test_a_batcher_that_is_not_resumable_works_but_saves_nothing() -> None:
    loader = DataflowLoader(MapDistributor(items(20)), batcher=Merging(), collator=AsList())
    assert len(list(islice(loader, 4))) == 4
    with pytest.raises(ConfigError, match="Merging is not resumable"):
        loader.state_dict()


def test_a_batcher_that_copies_without_saying_so_is_an_error() -> None:
    class Silent(Merging):
        resumable = True

    loader = DataflowLoader(MapDistributor(items(20)), batcher=Silent(), collator=AsList())
    with pytest.raises(ValueError, match="a sample that it was not given"):
        next(iter(loader))


# --- Cases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(4))
def test_case_P9_streams_without_items_are_an_error_on_every_rank(rank: int) -> None:
    with pytest.raises(ConfigError, match="3 of the 8 logical streams have no items"):
        loader_of(5, parallel_dims=Coordinates(rank, 4), num_workers=2)


def test_case_P9_allowed_they_take_no_turns_and_ranks_make_equal_steps() -> None:
    options = {"num_streams": 8, "allow_empty": True, "batch_size": 1}
    made = []
    for rank in range(4):
        loader = loader_of(5, parallel_dims=Coordinates(rank, 4), **options)
        made.append(list(islice(loader, 20)))
    assert [len(batches) for batches in made] == [20] * 4
    assert {number for batches in made for batch in batches for number in batch} == set(range(5))


def test_case_P9_a_rank_without_items_is_an_error_all_the_same() -> None:
    with pytest.raises(ConfigError, match="Rank 2 would have nothing to do"):
        loader_of(2, parallel_dims=Coordinates(0, 4), allow_empty=True)


@pytest.mark.parametrize("kind", [tuple, list, str, int, torch.tensor])
def test_case_P10_items_that_are_no_dicts_go_on_the_same(kind: Any) -> None:
    source = [kind([i, i]) if kind in (tuple, list, torch.tensor) else kind(i) for i in range(20)]

    def make() -> DataflowLoader:
        batcher = BestFitBatcher(10, 5, size=lambda item: 1 + int(str(item)[-1:].isdigit()))
        return DataflowLoader(MapDistributor(source, seed=1), batcher=batcher, collator=AsList())

    whole = list(islice(make(), 12))
    for place in range(12):
        loader = make()
        list(islice(loader, place))
        again = make()
        again.load_state_dict(loader.state_dict())
        assert str(list(islice(again, 12 - place))) == str(whole[place:])


@pytest.mark.parametrize("workers", [0, 1])
def test_case_P12_keys_that_look_like_ours_are_kept(workers: int) -> None:
    source = [{"_dp_epoch": f"mine {i}", "_dp_mine": i, "i": i} for i in range(6)]
    before = [dict(item) for item in source]
    distributor = MapDistributor(source, shuffle=False)
    loader = DataflowLoader(distributor, batch_size=2, num_workers=workers, stamp=True)
    batch = next(iter(loader))
    assert batch["_dp_epoch"] == ["mine 0", "mine 1"]
    assert batch["_dp_mine"].tolist() == [0, 1]
    assert source == before


# --- Faults and the rest ----------------------------------------------------------------------


def fail_at_seven(item: dict[str, int]) -> dict[str, int]:
    if item["i"] == 7:
        raise KeyError("seven")
    return item


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_is_raised_once_and_costs_no_other_sample(workers: int) -> None:
    distributor = MapDistributor(items(20), shuffle=False, epochs=1)
    loader = DataflowLoader(
        distributor,
        MapProcessor(fail_at_seven),
        collator=AsList(),
        batch_size=4,
        num_workers=workers,
        num_streams=2,
    )
    batches, found = iter(loader), []
    with pytest.raises(
        SampleError, match=r"MapProcessor failed .* with token \(0, 3\) of logical "
    ):
        for batch in batches:
            found += batch
    found += [number for batch in batches for number in batch]
    loader.close()
    assert sorted(found) == [i for i in range(20) if i != 7]


def test_a_collator_that_fails_costs_its_group() -> None:
    class Picky(AsList):
        def collate(self, samples: list[Any]) -> Any:
            if samples[0]["i"] == 4:
                raise RuntimeError("no")
            return super().collate(samples)

    distributor = MapDistributor(items(8), shuffle=False)
    batches = iter(DataflowLoader(distributor, collator=Picky(), batch_size=4))
    assert next(batches) == [0, 1, 2, 3]
    with pytest.raises(SampleError, match="Picky failed for a group of 4 samples that begins with"):
        next(batches)
    assert next(batches) == [0, 1, 2, 3]


class Dying(RawItemProcessor):
    def process(self, item: dict[str, int]) -> dict[str, int]:
        if item["i"] == 5:
            import os

            os._exit(1)
        return item


def test_a_worker_that_dies_is_an_error_and_nothing_delivered_is_repeated() -> None:
    distributor = MapDistributor(items(20), shuffle=False)
    loader = DataflowLoader(
        distributor, Dying(), collator=AsList(), batch_size=2, num_workers=1, prefetch_factor=1
    )
    found = []
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for batch in loader:
            found.append(batch)
    assert found == [[0, 1], [2, 3]][: len(found)]
    assert loader.state_dict()["delivered"] == len(found)


def test_counters_tell_what_was_dropped() -> None:
    loader = DataflowLoader(
        MapDistributor([{"i": i} for i in range(20)], shuffle=False, epochs=1),
        MapProcessor(lambda item: None if item["i"] % 5 == 0 else item),
        SequentialPackingBatcher(30, size=lambda sample: 2 * sample["i"]),
        AsList(),
    )
    found = [number for batch in loader for number in batch]
    assert loader.stats() == {"batches": loader.stats()["batches"], "skipped": 4, "dropped": 4}
    assert sorted(found) == [i for i in range(15) if i % 5]


class Sized(RawItemProcessor):
    """Tells the size before the work, and counts the work."""

    def __init__(self) -> None:
        self.work: list[int] = []

    def size(self, item: dict[str, int]) -> int:
        return 1 + item["i"] % 9

    def process(self, item: dict[str, int]) -> dict[str, int] | None:
        self.work.append(item["i"])
        return None if item["i"] % 11 == 10 else item


def test_only_what_goes_out_is_processed_where_sizes_are_known_before() -> None:
    processor = Sized()
    loader = DataflowLoader(
        MapDistributor(items(60), seed=2), processor, BestFitBatcher(12, 30), AsList()
    )
    batches = iter(loader)
    first = next(batches)
    assert processor.work == first
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    rest = list(islice(batches, 20))
    again = DataflowLoader(
        MapDistributor(items(60), seed=2), Sized(), BestFitBatcher(12, 30), AsList()
    )
    again.load_state_dict(state)
    assert list(islice(again, 20)) == rest
    assert all(sum(1 + i % 9 for i in batch) <= 12 for batch in rest)


class Fragile(Sized):
    """Fails in its size, or in its work, for some items."""

    def size(self, item: dict[str, int]) -> int:
        if item["i"] == 7:
            raise ValueError("no size")
        return super().size(item)

    def process(self, item: dict[str, int]) -> dict[str, int] | None:
        if item["i"] == 21:
            raise ValueError("no work")
        return super().process(item)


class Sizes(AsList):
    """Gives numbers and sizes."""

    def collate(self, samples: list[Any]) -> Any:
        return list(zip(super().collate(samples), samples.sizes, strict=True))  # type: ignore[attr-defined]


def test_a_fault_before_or_in_the_work_of_a_group_costs_that_sample_only() -> None:
    distributor = MapDistributor(items(30), shuffle=False, epochs=1)
    batches = iter(DataflowLoader(distributor, Fragile(), BestFitBatcher(12, 10), Sizes()))
    found, faults = [], []
    while True:
        try:
            found += next(batches)
        except StopIteration:
            break
        except SampleError as error:
            faults.append(str(error))
    assert [fault.rpartition(": ")[-1] for fault in faults] == ["no size", "no work"]
    assert sorted(map(tuple, found)) == [(i, 1 + i % 9) for i in range(30) if i not in (7, 10, 21)]


def test_groups_that_are_planned_ahead_go_on_exactly_before_the_work() -> None:
    def make() -> DataflowLoader:
        source = IterableDistributor(list(items(40)))
        return DataflowLoader(source, Sized(), PlannedBatcher(12, 15), Sizes())

    loader = make()
    whole, states = [], []
    for batch in islice(loader, 20):
        whole.append(batch)
        states.append(json.dumps(loader.state_dict()))
    for place, state in enumerate(states, 1):
        again = make()
        again.load_state_dict(json.loads(state))
        assert list(islice(again, 20 - place)) == whole[place:]


def test_a_processor_that_drops_all_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    calls = iter(range(30_000))

    def drop(item: Any) -> Any:
        return None if next(calls) < 25_000 else item

    loader = DataflowLoader(
        MapDistributor(items(9)), MapProcessor(drop), collator=AsList(), batch_size=1
    )
    next(iter(loader))
    assert [record.args[1] for record in caplog.records] == [10_000, 20_000]  # type: ignore[index]


def test_a_with_block_ends_the_workers() -> None:
    with loader_of(num_workers=1) as loader:
        next(iter(loader))
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()


def test_seeds_of_global_generators_make_the_same_samples() -> None:
    class Global(RawItemProcessor):
        def process(self, item: dict[str, int]) -> dict[str, float]:
            return {"i": random.random() + float(np.random.rand()) + float(torch.rand(()))}

    def make() -> DataflowLoader:
        return DataflowLoader(
            MapDistributor(items(20)), Global(), collator=AsList(), batch_size=2, seed_globals=True
        )

    whole = list(islice(make(), 6))
    loader = make()
    loader.load_state_dict(state_after(make(), 2))
    assert list(islice(loader, 4)) == whole[2:]
    assert len({number for batch in whole for number in batch}) == 12


def state_after(loader: DataflowLoader, count: int) -> Any:
    list(islice(loader, count))
    return loader.state_dict()


class Arrays(BatchCollator):
    def collate(self, samples: list[Any]) -> Any:
        return {"a": np.arange(3), "b": [np.float32(1), "x"], "c": ["x"], "d": {"e": np.ones(1)}}


def test_arrays_in_a_batch_become_tensors() -> None:
    loader = DataflowLoader(MapDistributor(items(4)), collator=Arrays(), batch_size=2)
    batch = next(iter(loader))
    assert torch.equal(batch["a"], torch.arange(3))
    assert isinstance(batch["b"][0], torch.Tensor)
    assert batch["c"] == ["x"]
    assert isinstance(batch["d"]["e"], torch.Tensor)


def test_stamps_need_a_source_with_places() -> None:
    distributor = MixtureDistributor({"a": (MapDistributor(items(5)), 1)})
    with pytest.raises(ConfigError, match="stamp"):
        next(iter(DataflowLoader(distributor, batch_size=1, stamp=True)))


def test_roles_that_do_not_pickle_are_named_before_workers_start() -> None:
    with pytest.raises(ConfigError, match=r"The processor \(MapProcessor\) can't be pickled"):
        DataflowLoader(
            MapDistributor(items(5)),
            MapProcessor(lambda item: item),
            batch_size=1,
            num_workers=1,
            multiprocessing_context="spawn",
        )


class Closing(DataDistributor):
    """Has a cursor that must be closed."""

    closed = 0

    def stream(self, *at: int) -> Iterator[int]:
        return iter(range(100))

    def open(self, stream: int, plan: Any) -> Any:
        cursor = super().open(stream, plan)
        cursor.close = self.close  # type: ignore[method-assign]
        return cursor

    def close(self) -> None:
        self.closed += 1


def test_closing_ends_the_sources_and_iterating_goes_on() -> None:
    distributor = Closing()
    loader = DataflowLoader(distributor, collator=AsList(), batch_size=2)
    assert list(islice(loader, 2)) == [[0, 1], [2, 3]]
    loader.close()
    assert distributor.closed == 1
    assert next(iter(loader)) == [4, 5]


def test_batches_go_to_pinned_memory_where_torch_can(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    loader = DataflowLoader(MapDistributor(items(4)), batch_size=2, pin_memory=True)
    assert next(iter(loader))["i"].is_pinned()
