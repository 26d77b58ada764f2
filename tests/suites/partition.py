"""What every partition algorithm must do. Inherit, and say its name."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.strategies import SearchStrategy, builds, composite, integers, sampled_from

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.partition import Layout, PartitionSpec, partitions
from streaming.world import World

__all__ = ["PartitionSuite", "specs"]

worlds: SearchStrategy[World] = builds(World, integers(1, 4), integers(1, 3), integers(1, 3))


@composite
def specs(draw) -> PartitionSpec:  # type: ignore[no-untyped-def]  # hypothesis's own type is private
    """Shapes of a run, most of them possible."""
    world = draw(worlds)
    samples = draw(integers(1, 120))
    return PartitionSpec(
        num_samples=samples,
        canonical_nodes=draw(sampled_from([world.num_nodes, 4 * world.num_nodes, 1, 4, 6])),
        world=world,
        batch_size=draw(integers(1, 5)),
        seen=draw(integers(0, samples)),
        initial_nodes=draw(sampled_from([None, 1, 2, 4])),
    )


def of_all_workers(layout: Layout) -> Ids:
    """What the workers see, put together: shape (nodes, ranks, workers, batches, batch size)."""
    world = layout.world
    slots = np.arange(layout.num_slots)
    workers = [
        World(world.num_nodes, world.ranks_per_node, world.workers_per_rank, worker)
        for worker in range(world.num_workers)
    ]
    found = np.stack([layout.of_worker(worker, slots) for worker in workers])
    shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank)
    return found.reshape(*shape, layout.rows_per_worker, layout.batch_size)


anywhere = settings(suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])


class PartitionSuite:
    """Tests of one partition algorithm.

    Attributes:
        algo: Its registered name.
    """

    algo: ClassVar[str]

    def open(self, spec: PartitionSpec) -> Layout:
        """The layout; an impossible shape is another example's matter."""
        try:
            return partitions.get(self.algo)(spec)
        except ConfigError:
            assume(False)
            raise

    @anywhere
    @given(specs())
    def test_positions_are_in_the_epoch(self, spec: PartitionSpec) -> None:
        positions = self.open(spec).whole()
        assert positions.dtype == np.int64
        assert positions.min(initial=-1) >= -1
        assert positions.max(initial=-1) < spec.num_samples

    @anywhere
    @given(specs())
    def test_a_whole_epoch_has_every_position(self, spec: PartitionSpec) -> None:
        positions = self.open(replace(spec, seen=0)).whole()
        assert set(positions.ravel().tolist()) - {-1} == set(range(spec.num_samples))

    @anywhere
    @given(specs())
    def test_workers_put_together_are_the_whole(self, spec: PartitionSpec) -> None:
        layout = self.open(spec)
        assert np.array_equal(of_all_workers(layout), layout.whole())

    @anywhere
    @given(specs(), integers(0, 2**31))
    def test_slots_may_be_asked_for_in_any_order(self, spec: PartitionSpec, seed: int) -> None:
        layout = self.open(spec)
        world = spec.world
        slots = np.random.default_rng(seed).integers(0, max(layout.num_slots, 1), (2, 3))
        assume(layout.num_slots)
        whole = layout.of_worker(world, np.arange(layout.num_slots))
        assert np.array_equal(layout.of_worker(world, slots), whole[slots])

    @anywhere
    @given(specs())
    def test_counted_samples_are_those_there_are(self, spec: PartitionSpec) -> None:
        layout = self.open(spec)
        world = spec.world
        real = (layout.whole() >= 0).sum(axis=(3, 4)).ravel().tolist()
        shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank)
        counted = [layout.num_samples(World(*shape, worker)) for worker in range(len(real))]
        assert counted == real

    @anywhere
    @given(specs(), integers(1, 4))
    def test_the_number_of_workers_changes_nothing(self, spec: PartitionSpec, workers: int) -> None:
        one = World(spec.world.num_nodes, spec.world.ranks_per_node, 1)
        some = World(spec.world.num_nodes, spec.world.ranks_per_node, workers)
        rows = []
        for world in (one, some):
            layout = self.open(replace(spec, world=world))
            places = np.arange(layout.rows * layout.global_batch)
            rows.append(layout.traverse(places).reshape(layout.rows, layout.global_batch))
        assert np.array_equal(rows[0], rows[1][: len(rows[0])])
        assert (rows[1][len(rows[0]) :] == -1).all()

    @anywhere
    @given(specs())
    def test_only_the_last_batch_of_a_rank_is_short(self, spec: PartitionSpec) -> None:
        layout = self.open(spec)
        world = spec.world
        for node in range(world.num_nodes):
            for rank in range(world.ranks_per_node):
                counts = layout.count(np.arange(layout.rows), node, rank)
                assert (counts[: layout.full] == spec.batch_size).all()
                assert (counts[layout.full + 1 :] == 0).all()
