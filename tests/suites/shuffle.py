"""What every shuffle must do. Inherit, and say its name."""

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import builds, integers, lists

from streaming.errors import ConfigError
from streaming.idmap import IdMap, Ids, Recipe, in_memory
from streaming.shuffle import ShuffleSpec, shuffles
from tests.conftest import RunPython

__all__ = ["ShuffleSuite", "specs"]


def make_spec(
    sizes: list[int], nodes: int, seed: int, epoch: int, block_size: int = 16
) -> ShuffleSpec:
    nodes = max(1, min(nodes, sum(sizes)))  # py1e wants a sample in each
    return ShuffleSpec(np.array(sizes, np.int64), nodes, seed, epoch, block_size)


specs = builds(
    make_spec,
    lists(integers(0, 30), min_size=1, max_size=20).filter(lambda sizes: sum(sizes) > 0),
    integers(1, 9),
    integers(0, 3),
    integers(0, 3),
    integers(2, 80),
)

anywhere = settings(suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])

ELSEWHERE = """
import sys
import numpy as np
from streaming.shuffle import get_shuffle
print(get_shuffle(sys.argv[1], np.arange(1, 40), 3, 9176, 1, 64).tolist())
"""


class ShuffleSuite:
    """Tests of one shuffle.

    Attributes:
        algo: Its registered name.
    """

    algo: ClassVar[str]

    def open(self, spec: ShuffleSpec) -> IdMap:
        return shuffles.get(self.algo).open(spec, in_memory)

    @anywhere
    @given(specs)
    def test_every_draw_comes_once(self, spec: ShuffleSpec) -> None:
        order = self.open(spec)
        assert order.size == spec.num_samples
        draws = order(np.arange(order.size))
        assert draws.dtype == np.int64
        assert np.array_equal(np.sort(draws), np.arange(order.size))

    @anywhere
    @given(specs, integers(0, 2**31))
    def test_random_access_is_the_whole(self, spec: ShuffleSpec, seed: int) -> None:
        order = self.open(spec)
        whole = order(np.arange(order.size))
        positions = np.random.default_rng(seed).integers(0, order.size, (3, 4))
        assert np.array_equal(order(positions), whole[positions])

    @anywhere
    @given(specs)
    def test_padding_stays_padding(self, spec: ShuffleSpec) -> None:
        order = self.open(spec)
        assert order(np.array([[-1, 0, -1]]))[0].tolist() == [-1, int(order(np.array(0))), -1]

    def test_epochs_and_seeds_have_different_orders(self) -> None:
        orders = {
            tuple(self.open(make_spec([50, 50], 1, seed, epoch, 64))(np.arange(100)).tolist())
            for seed, epoch in ((1, 0), (1, 1), (7, 0))
        }
        assert len(orders) == 3

    def test_another_process_has_the_same_order(self, run_python: RunPython) -> None:
        spec = ShuffleSpec(np.arange(1, 40), 3, 9176, 1, 64)
        here = self.open(spec)(np.arange(spec.num_samples)).tolist()
        assert run_python(ELSEWHERE, self.algo).stdout.strip() == str(here)

    def test_no_samples_are_an_empty_order(self) -> None:
        order = self.open(ShuffleSpec(np.array([3]), 1, 0, 0))
        assert order(np.array([], np.int64)).shape == (0,)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("canonical_nodes", 0),
            ("seed", -1),
            ("epoch", -1),
            ("block_size", -1),
            ("seed", 2**63),
        ],
    )
    def test_impossible_numbers_are_refused_by_name(self, field: str, value: int) -> None:
        settings = {"canonical_nodes": 1, "seed": 0, "epoch": 0, "block_size": 16}
        numbers: dict[str, Any] = {**settings, field: value}
        with pytest.raises(ConfigError, match=f"`{field}` must be at least"):
            ShuffleSpec(np.array([3]), **numbers)


class TableShuffleSuite(ShuffleSuite):
    """Tests of a shuffle that is a table."""

    def test_the_table_is_held_under_the_name_of_its_inputs(self) -> None:
        held: list[str] = []

        def hold(recipe: Recipe) -> Ids:
            assert recipe.size == 30
            held.append(recipe.digest)
            return in_memory(recipe)

        for spec in (
            make_spec([10, 20], 1, 1, 0),
            make_spec([10, 20], 1, 1, 0),
            make_spec([20, 10], 1, 1, 0),
            make_spec([10, 20], 2, 1, 0),
            make_spec([10, 20], 1, 2, 0),
            make_spec([10, 20], 1, 1, 1),
            make_spec([10, 20], 1, 1, 0, 32),
        ):
            shuffles.get(self.algo).open(spec, hold)
        assert held[0] == held[1]
        assert len(set(held)) == 6

    def test_a_table_that_is_held_already_is_not_made_again(self) -> None:
        table = np.arange(30)[::-1]

        def hold(recipe: Recipe) -> Ids:
            return table

        order = shuffles.get(self.algo).open(make_spec([10, 20], 1, 1, 0), hold)
        assert order(np.arange(3)).tolist() == [29, 28, 27]
