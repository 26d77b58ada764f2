"""How often streams and shards are drawn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.sampling import Share, Weight, get_sampling, weigh
from tests.suites.orders import differing, read_cases


def test_weights_give_the_recorded_shares(golden: Path) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        weights = [Weight(**spec) for spec in params["streams"]]
        shares, size = weigh(
            weights, params["samples_per_stream"], params["epoch_size"], params["seed"]
        )
        return {
            "epoch": np.array(size),
            "choose": np.array([share.choose for share in shares]),
            "repeat": np.array([share.repeat for share in shares]),
            "proportion": np.array([share.proportion for share in shares]),
        }

    assert differing(read_cases(golden, "weights"), call) == []


def test_shards_are_drawn_as_recorded(golden: Path) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        sizes = np.array(params.pop("samples_per_shard"))
        return {"out": get_sampling(sizes, **params)}

    assert differing(read_cases(golden, "sampling"), call) == []


@given(
    lists(floats(0, 1e6), min_size=1, max_size=9).filter(lambda ws: sum(ws) > 1e-3),
    integers(1, 10**12),
    integers(0, 3),
)
def test_case_U3_an_epoch_has_exactly_its_size(
    proportions: list[float], size: int, seed: int
) -> None:
    weights = [Weight(proportion=proportion) for proportion in proportions]
    shares, total = weigh(weights, [100] * len(weights), size, seed)
    assert sum(share.choose for share in shares) == total == size
    for share, proportion in zip(shares, proportions, strict=True):
        assert abs(share.choose - size * proportion / sum(proportions)) <= 1 + 1e-9 * size


def test_case_B6_a_stream_of_no_weight_gives_nothing() -> None:
    shares, size = weigh([Weight(proportion=1), Weight(proportion=0)], [10, 10], 20, 0)
    # Rounding may give it one sample more than nothing; here nothing is left over.
    assert [share.choose for share in shares] == [20, 0]
    assert size == 20


def test_case_B10_two_kinds_of_weight_are_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError, match=r"one of `proportion`.*proportion and repeat are given"):
        Weight(proportion=1, repeat=1)
    with pytest.raises(ConfigError, match="number 1 is the first"):
        weigh([Weight(proportion=1), Weight(repeat=1)], [3, 4], None, 0)
    with pytest.raises(ConfigError, match="`epoch_size` is 9"):
        weigh([Weight(repeat=1), Weight()], [3, 4], 9, 0)


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["proportion", "repeat", "choose"])
def test_a_weight_that_is_no_amount_is_refused(kind: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"`{kind}` must be"):
        Weight(**{kind: value})  # type: ignore[arg-type]  # a wrong type is the point


def test_an_epoch_over_int64_is_refused() -> None:
    with pytest.raises(ConfigError, match="2\\^63"):
        weigh([Weight(choose=2**63)], [3], None, 0)
    with pytest.raises(ConfigError, match="2\\^63"):
        weigh([Weight(repeat=1e300)], [3], None, 0)
    with pytest.raises(ConfigError, match="`epoch_size`"):
        weigh([Weight()], [3], 2**63, 0)
    with pytest.raises(ConfigError, match="too large to be divided"):
        weigh([Weight(proportion=x) for x in (1, 2, 4)], [3] * 3, 2**63 - 1, 0)


def test_drawing_from_an_empty_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="Stream 1 has no samples"):
        weigh([Weight(), Weight(choose=1)], [3, 0], None, 0)
    with pytest.raises(ConfigError, match="none"):
        get_sampling(np.array([0, 0]), 1, 1, 0, 0, False)


def test_a_dataset_without_samples_has_an_empty_epoch() -> None:
    shares, size = weigh([Weight()], [0], None, 0)
    assert (shares, size) == ([Share(0, 0.0, 0.0)], 0)
    assert get_sampling(np.array([0, 0]), 0, 1, 0, 0, False).tolist() == [0, 0]


@given(
    lists(integers(0, 9), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0),
    integers(0, 60),
    integers(1, 12),
    integers(0, 5),
)
def test_shards_of_a_stream_are_drawn_evenly(
    sizes: list[int], choose: int, granularity: int, seed: int
) -> None:
    chosen = get_sampling(np.array(sizes), choose, granularity, seed, 0, True)
    repeats = choose // sum(sizes)
    assert chosen.sum() == choose
    assert all(
        size * repeats <= count <= size * (repeats + 1)
        for size, count in zip(sizes, chosen.tolist(), strict=True)
    )
