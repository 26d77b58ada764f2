"""Runs that are interrupted at random, against the same runs that are not."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from streaming.dataloader import StreamingDataLoader
from streaming.dataset import StreamingDataset
from streaming.errors import ConfigError, StateError
from streaming.format.mds.writer import MDSWriter
from streaming.schedule import Schedule
from streaming.stream import Stream
from streaming.world import World

SIZES = (1, 2, 3, 5, 9, 16, 30, 47, 64)
Step = list[list[int]]  # what each rank was given


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets of these sizes, whose samples all have ids of their own."""
    root = tmp_path_factory.mktemp("streams")
    for number, size in enumerate(SIZES):
        with MDSWriter(out=str(root / str(number)), columns={"id": "int"}, size_limit=140) as out:
            for i in range(size):
                out.write({"id": number * 1000 + i})
    return [root / str(number) for number in range(len(SIZES))]


@dataclass(frozen=True)
class Place:
    """On what a part of a run is read; the global batch is the same for all."""

    nodes: int
    ranks_per_node: int
    workers: int
    batch_size: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Run:
    """A run, but for what it is read on."""

    roots: Sequence[Path]
    streams: Sequence[dict[str, Any]]
    arguments: dict[str, Any]
    drop_last: bool
    form: str

    @property
    def gives_batches(self) -> bool:
        return self.form == "batched" or any("batch_size" in said for said in self.streams)

    def loaders(self, place: Place) -> list[StreamingDataLoader]:
        return [
            StreamingDataLoader(
                StreamingDataset(
                    streams=[
                        Stream(local=str(root), **said)
                        for root, said in zip(self.roots, self.streams, strict=True)
                    ],
                    batch_size=place.batch_size,
                    batched=self.form == "batched",
                    world=World(place.nodes, place.ranks_per_node, 1, rank),
                    **self.arguments,
                ),
                batch_size=None if self.gives_batches else place.batch_size,
                num_workers=place.workers,
                drop_last=self.drop_last,
                collate_fn=to_ids if self.form == "collated" else None,
            )
            for rank in range(place.ranks)
        ]


def to_ids(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": [sample["id"] for sample in samples]}


def read(
    loaders: Sequence[StreamingDataLoader], steps: int
) -> tuple[list[tuple[int, Step]], dict[str, Any] | None]:
    """Read some steps on all ranks: each with its epoch, and the state after them."""
    given: list[tuple[int, Step]] = []
    states: list[Any] = []
    while len(given) < steps:
        iterators = [iter(loader) for loader in loaders]
        before = len(given)
        try:
            while len(given) < steps:
                batches = [next(iterator, None) for iterator in iterators]
                if None in batches:
                    assert batches == [None] * len(batches), "ranks end at different steps"
                    break
                ids = [list(map(int, batch["id"])) for batch in batches if batch is not None]
                states = [loader.state_dict() for loader in loaders]
                given.append((states[0]["epoch"], ids))
        finally:
            for iterator in iterators:
                iterator.close()  # type: ignore[attr-defined]
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states), "ranks have different states"
        if len(given) == before:
            break  # The epoch has nothing, and so have others.
    return given, states[0]


def draw_run(draw: random.Random, roots: Sequence[Path]) -> tuple[Run, int]:
    """A run, and the size of its global batches."""
    chosen = draw.sample(range(len(SIZES)), draw.randint(1, 4))
    method = draw.choice(["random", "stratified", "per_stream", "device_per_stream"])
    arguments: dict[str, Any] = {
        "batching_method": method,
        "shuffle": draw.random() < 0.7,
        "shuffle_algo": draw.choice(["py1e", "py1s", "py1br", "naive", "block1"]),
        "shuffle_block_size": draw.choice([8, 30, 200]),
        "num_canonical_nodes": draw.choice([2, 4]),
        "sampling_method": draw.choice(["balanced", "fixed"]),
    }
    streams: list[dict[str, Any]] = [{} for _ in chosen]
    kind = draw.choice(["whole", "whole", "parts", "schedules", "sizes"])
    if kind == "parts":
        streams = [{"proportion": draw.choice([1.0, 2.0, 0.5])} for _ in chosen]
    elif kind == "schedules":
        course = {0: 1.0, draw.randint(1, 99): 0.1, 1000: 1.0}
        streams = [{"proportion": 1.0} for _ in chosen]
        streams[0] = {"proportion": Schedule.linear(course)}
    elif kind == "sizes" and method.endswith("per_stream"):
        streams = [{"batch_size": draw.choice([1, 2, 3])} for _ in chosen]
    form = draw.choice(["stacked", "collated", "batched"])
    run = Run([roots[i] for i in chosen], streams, arguments, False, form)
    run = replace(run, drop_last=draw.random() < 0.3 and not run.gives_batches)
    return run, draw.choice([4, 8, 12])


def draw_place(draw: random.Random, global_batch: int, workers: Sequence[int]) -> Place:
    nodes, ranks = draw.choice(
        [
            (nodes, ranks)
            for nodes in (1, 2)
            for ranks in (1, 2, 3, 4)
            if global_batch % (nodes * ranks) == 0
        ]
    )
    return Place(nodes, ranks, draw.choice(workers), global_batch // (nodes * ranks))


def check(run: Run, first: Place, parts: Sequence[tuple[Place, int]]) -> None:
    """Read a run whole, and in parts, each on a place of its own and after a state."""
    whole, _ = read(run.loaders(replace(first, workers=0)), sum(steps for _, steps in parts))
    state: dict[str, Any] | None = None
    at = 0
    is_moved = False
    for place, steps in parts:
        loaders = run.loaders(place)
        for loader in loaders if state is not None else ():
            assert state is not None
            loader.load_state_dict(state)
        got, state = read(loaders, steps)
        is_moved |= replace(place, workers=0) != replace(first, workers=0)
        wanted = whole[at : at + steps]
        assert [epoch for epoch, _ in got] == [epoch for epoch, _ in wanted]
        for (epoch, mine), (_, theirs) in zip(got, wanted, strict=True):
            if not is_moved:
                assert mine == theirs
                continue
            given, other = sorted(chain(*mine)), sorted(chain(*theirs))
            if given != other:
                # Where a batch is not full, ranks are given samples again: here these, there those.
                before = whole[: at + len(got)]
                earlier = [ids for number, ids in before if number == epoch and ids != theirs]
                assert {*chain(*chain(*earlier))} >= set(given) ^ set(other)
        at += steps


def draw_and_check(seed: int, roots: Sequence[Path], workers: Sequence[int]) -> None:
    draw = random.Random(seed)
    run, global_batch = draw_run(draw, roots)
    first = draw_place(draw, global_batch, workers)
    # Streams with batch sizes of their own are bound to their ranks; and what makes random batches
    # come out even on some ranks may make one more of them, which then is dropped or not.
    is_bound = any("batch_size" in said for said in run.streams) or (
        run.drop_last and run.arguments["batching_method"] == "random"
    )
    moves = draw.random() < 0.7 and not is_bound
    parts = [(first, draw.randint(1, 12))]
    for _ in range(draw.randint(1, 3)):
        place = draw_place(draw, global_batch, workers) if moves else first
        parts.append((place, draw.randint(1, 12)))
    note = f"seed {seed}: {run}, {parts}"
    try:
        check(run, first, parts)
    except ConfigError as error:
        assert "sample of every stream in each global batch" in str(error), note
    except BaseException as error:
        error.add_note(note)
        raise


@pytest.mark.parametrize("seed", range(20))
def test_an_interrupted_run_is_the_whole_run(seed: int, roots: list[Path]) -> None:
    draw_and_check(seed, roots, [0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_many_interrupted_runs_with_workers_are_whole_runs(seed: int, roots: list[Path]) -> None:
    draw_and_check(seed, roots, [0, 0, 1, 2, 3])


@pytest.mark.parametrize("form", ["stacked", "collated", "batched"])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_short_streams_are_two_batches_and_a_state_between_them_is_exact(
    workers: int, form: str, roots: list[Path]
) -> None:
    """7 samples of two streams fit into one batch of 8: they came as one, and some twice."""
    chosen = [roots[SIZES.index(size)] for size in (30, 5, 2)]
    run = Run(chosen, [{}] * 3, {"batching_method": "per_stream"}, False, form)
    place = Place(1, 1, workers, 8)
    [loader] = run.loaders(place)
    assert len(loader) == 5
    whole, _ = read([loader], 6)
    assert [len(ids) for _, [ids] in whole] == [8, 8, 8, 5, 2, 8]
    for stop in range(1, 6):
        _, state = read(run.loaders(place), stop)
        loaders = run.loaders(replace(place, workers=2 - workers))
        loaders[0].load_state_dict(state or {})
        assert read(loaders, 6 - stop)[0] == whole[stop:]


def test_streams_that_fill_a_batch_on_some_ranks_only_go_on_as_they_began(
    roots: list[Path],
) -> None:
    """16 ranks fill a batch of 16 with 15 samples of which one is repeated; one rank does not."""
    chosen = [roots[SIZES.index(size)] for size in (47, 30, 64)]
    run = Run(
        chosen, [{}] * 3, {"batching_method": "per_stream", "shuffle": True}, False, "stacked"
    )
    many, one = Place(1, 16, 0, 1), Place(1, 1, 0, 16)
    whole, _ = read(run.loaders(many), 9)
    _, state = read(run.loaders(many), 4)
    loaders = run.loaders(one)
    loaders[0].load_state_dict(state or {})
    rest, _ = read(loaders, 5)
    assert [sorted(chain(*ids)) for _, ids in rest] == [sorted(chain(*ids)) for _, ids in whole[4:]]


def test_other_ranks_are_refused_where_streams_have_batch_sizes(roots: list[Path]) -> None:
    arguments = {"batching_method": "per_stream"}
    run = Run([roots[8]], [{"batch_size": 2}], arguments, False, "stacked")
    _, state = read(run.loaders(Place(1, 1, 0, 4)), 3)
    [loader, _] = run.loaders(Place(1, 2, 0, 2))
    with pytest.raises(StateError, match="began on 1 ranks and has streams with batch sizes"):
        loader.load_state_dict(state or {})


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_is_as_long_as_its_epochs(drop_last: bool, method: str, roots: list[Path]) -> None:
    """Where canonical nodes come out even by repeats, an epoch is longer than its samples say."""
    arguments = {"batching_method": method, "num_canonical_nodes": 4, "shuffle": True}
    for chosen in ([4, 6, 7], [5, 8], [8]):
        run = Run([roots[i] for i in chosen], [{}] * len(chosen), arguments, drop_last, "stacked")
        for place in (Place(1, 3, 0, 2), Place(2, 2, 0, 1), Place(1, 1, 0, 7)):
            for loader in run.loaders(place):
                assert len(list(loader)) == len(loader)
