"""The partitions in closed form, against recordings and against a plain reference with arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from numpy.typing import NDArray

from streaming.errors import ConfigError, StateError, UnknownNameError
from streaming.idmap import Ids
from streaming.partition import PartitionSpec, get_partitions, partitions
from streaming.partition.orig import OrigLayout, get_partitions_orig
from streaming.partition.relaxed import get_partitions_relaxed
from streaming.world import World
from tests.suites.orders import differing, read_cases
from tests.suites.partition import PartitionSuite


def test_partitions_are_the_recorded_ones(golden: Path) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        return {"out": get_partitions(**params)}

    assert differing(read_cases(golden, "partitions"), call) == []


def test_the_old_functions_of_each_algorithm_are_the_same() -> None:
    args = (100, 4, 2, 2, 3, 5, 8)
    assert np.array_equal(get_partitions_orig(*args), get_partitions("orig", *args))
    args = (331, 4, 6, 1, 3, 4, 48)
    assert np.array_equal(get_partitions_relaxed(*args, 2), get_partitions("relaxed", *args, 2))


class TestOrig(PartitionSuite):
    algo = "orig"


class TestRelaxed(PartitionSuite):
    algo = "relaxed"


def plain_orig(spec: PartitionSpec) -> Ids:
    """The steps of the predecessor's partition, with arrays."""
    samples, canonical, size = spec.num_samples, spec.canonical_nodes, spec.batch_size
    nodes, ranks = spec.world.num_nodes, spec.world.ranks_per_node
    workers = spec.world.workers_per_rank
    if max(canonical, nodes) % min(canonical, nodes):
        raise ValueError
    longest = -(-samples // canonical)
    ratio = nodes // canonical if canonical < nodes else 0
    pad = -longest % ratio if ratio else 0
    width = longest + pad
    if samples > canonical or (samples == canonical and canonical >= nodes):
        grid = np.zeros((canonical, width), np.int64)
        for row in range(canonical):
            start, stop = row * samples // canonical, (row + 1) * samples // canonical
            grid[row, :longest] = np.arange(start, start + longest)
            grid[row, longest - 1] -= stop - start < longest
        if pad:
            grid[:, -pad:] = grid[:, -2 * pad - ratio + 1 : -pad - ratio + 1]
    else:
        grid = np.resize(np.arange(samples), (canonical, width))
    seen = spec.seen // nodes * nodes
    per_node = grid.T.ravel()[seen:].reshape(-1, nodes).T
    length = per_node.shape[1]
    if length % ranks:
        missing = ranks - length % ranks
        if ranks + missing - 1 <= length:
            extra = per_node[:, -ranks - missing + 1 : -ranks + 1]
        else:
            extra = np.concatenate([per_node] * (missing // length + 1), axis=1)[:, :missing]
        per_node = np.concatenate([per_node, extra], axis=1)
    per_rank = per_node.reshape(nodes, -1, ranks)
    padding = np.full((nodes, -per_rank.shape[1] % (workers * size), ranks), -1)
    per_rank = np.concatenate([per_rank, padding], axis=1)
    # (nodes, batches, workers, places, ranks)
    dealt = per_rank.reshape(nodes, -1 if per_rank.size else 0, workers, size, ranks)
    return dealt.transpose(0, 4, 2, 1, 3)


def plain_relaxed(spec: PartitionSpec) -> Ids:
    """The same with global batches re-cut from the first nodes to those there are."""
    nodes, ranks = spec.world.num_nodes, spec.world.ranks_per_node
    workers, canonical = spec.world.workers_per_rank, spec.canonical_nodes
    initial = spec.initial_nodes
    if initial is None or max(nodes, canonical) % min(nodes, canonical) == 0:
        return plain_orig(spec)
    size = nodes * ranks * spec.batch_size
    if size % (initial * ranks):
        raise ValueError
    before = plain_orig(
        PartitionSpec(
            spec.num_samples,
            canonical,
            World(initial, ranks, workers),
            size // (initial * ranks),
            spec.seen,
        )
    )
    flat = before.transpose(3, 2, 0, 1, 4).ravel()
    return flat.reshape(-1, workers, nodes, ranks, spec.batch_size).transpose(2, 3, 1, 0, 4)


@given(
    sampled_from([*range(1, 40), 97, 256]),
    integers(1, 9),
    integers(1, 6),
    integers(1, 4),
    integers(1, 3),
    integers(1, 5),
    integers(0, 60),
    sampled_from([None, 1, 2, 3, 4]),
)
def test_closed_forms_are_what_arrays_give(
    samples: int,
    canonical: int,
    nodes: int,
    ranks: int,
    workers: int,
    size: int,
    seen: int,
    initial: int | None,
) -> None:
    world = World(nodes, ranks, workers)
    spec = PartitionSpec(samples, canonical, world, size, min(seen, samples), initial)
    for algo, plain in (("orig", plain_orig), ("relaxed", plain_relaxed)):
        try:
            expected = plain(spec)
        except ValueError:
            with pytest.raises(ConfigError):
                partitions.get(algo)(spec)
        else:
            assert np.array_equal(partitions.get(algo)(spec).whole(), expected)


def test_an_epoch_of_1e12_samples_is_laid_out_at_once() -> None:
    world = World(64, 8, 8, 777)
    spec = PartitionSpec(10**12, 64 * 128, world, 32)
    layout = partitions.get("orig")(spec)
    positions = layout.of_worker(world, np.arange(layout.num_slots - 4096, layout.num_slots))
    assert layout.num_slots * world.num_workers >= 10**12
    assert 0 <= positions.max() < 10**12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": -1}, "`num_samples` must be at least 0"),
        ({"num_samples": 2**63}, "below 2\\^63"),
        ({"num_samples": 2**62}, "over 2\\^63. Lower `num_canonical_nodes`"),
        ({"num_canonical_nodes": 0}, "`canonical_nodes` must be at least 1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"batch_size": 2**62}, "Lower `batch_size`"),
        ({"drop_first": -1}, "`seen` must be at least 0"),
        ({"initial_physical_nodes": 0}, "`initial_nodes` must be at least 1"),
        ({"num_physical_nodes": 0}, "`num_nodes` must be at least 1"),
        ({"ranks_per_node": 0}, "`ranks_per_node` must be at least 1"),
        ({"workers_per_rank": -1}, "`workers_per_rank` must be at least 1"),
        ({"num_physical_nodes": 3}, "4 canonical nodes can't be dealt to 3 nodes"),
    ],
)
def test_impossible_numbers_are_refused_by_name(changes: dict[str, int], message: str) -> None:
    possible: dict[str, Any] = {
        "num_samples": 100,
        "num_canonical_nodes": 4,
        "num_physical_nodes": 2,
        "ranks_per_node": 2,
        "workers_per_rank": 2,
        "batch_size": 5,
    }
    with pytest.raises(ConfigError, match=message):
        get_partitions("orig", **(possible | changes))


def test_a_global_batch_that_the_first_nodes_had_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="Change `batch_size`"):
        get_partitions("relaxed", 100, 4, 3, 2, 1, 5, 0, 2)


def test_too_few_samples_for_the_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few for 4 nodes"):
        get_partitions("orig", 3, 1, 4, 1, 1, 1)


def test_a_place_behind_the_epoch_is_refused() -> None:
    get_partitions("orig", 100, 2, 1, 4, 2, 4, 104)  # K3: one more turn of all ranks is legal
    with pytest.raises(StateError, match="105 samples of the epoch"):
        get_partitions("orig", 100, 2, 1, 4, 2, 4, 105)


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"'bogus'. Known: orig, relaxed"):
        get_partitions("bogus", 1, 1, 1, 1, 1, 1)


def test_no_samples_are_an_empty_epoch() -> None:
    assert get_partitions("relaxed", 0, 4, 2, 3, 2, 5).shape == (2, 3, 2, 0, 5)


def test_repeats_of_a_short_epoch_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    get_partitions("orig", 2, 64, 1, 1, 1, 4)
    assert "An epoch of 2 samples is too short for 64 canonical nodes" in caplog.text


@given(integers(1, 60), integers(1, 3), integers(1, 5), integers(0, 60))
def test_the_slots_of_a_single_rank_are_what_its_rows_and_places_give(
    samples: int, workers: int, size: int, seen: int
) -> None:
    world = World(1, 1, workers)
    layout = OrigLayout(PartitionSpec(samples, 1, world, size, min(seen, samples)))
    slots = np.arange(layout.num_slots)
    rows = slots // size * workers + world.worker_of_rank
    none = np.zeros_like(slots)
    plain = layout.positions(rows, none, none, slots % size)
    assert np.array_equal(layout.of_worker(world, slots), plain)
