"""From a sample id to its shard."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, lists

from streaming.errors import ConfigError
from streaming.spanner import Spanner


def test_single_lookups_are_the_recorded_ones(golden: Path) -> None:
    recorded = json.loads((golden / "misc.json").read_text())["spanner"]
    spanner = Spanner(np.array(recorded["shard_sizes"]), 1 << 10)
    for index, result in recorded["cases"].items():
        if "error" in result:
            with pytest.raises(IndexError):
                spanner[int(index)]
        else:
            assert spanner[int(index)] == tuple(result["out"])


@given(lists(integers(0, 5), min_size=1, max_size=20))
def test_many_lookups_at_once_are_the_single_ones(sizes: list[int]) -> None:
    spanner = Spanner(sizes)
    plain = [(shard, offset) for shard, size in enumerate(sizes) for offset in range(size)]
    assert [spanner[i] for i in range(spanner.size)] == plain
    shards, offsets = spanner(np.arange(spanner.size))
    assert list(zip(shards.tolist(), offsets.tolist(), strict=True)) == plain


def test_padding_has_no_shard_and_the_shape_is_kept() -> None:
    shards, offsets = Spanner([2, 2])(np.array([[-1, 3], [0, -1]]))
    assert shards.tolist() == [[-1, 1], [0, -1]]
    assert offsets.tolist() == [[-1, 1], [0, -1]]


def test_an_id_behind_the_end_is_refused_by_number() -> None:
    with pytest.raises(IndexError, match=r"Sample 4 .* 4 samples"):
        Spanner([2, 2])(np.array([0, 4]))


def test_samples_over_int64_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"over 2\^63"):
        Spanner([2**62, 2**62])


def test_no_ids_of_no_shards_are_no_shards() -> None:
    shards, offsets = Spanner([])(np.array([], np.int64))
    assert not shards.size
    assert not offsets.size
    with pytest.raises(IndexError):
        Spanner([])[0]


def test_single_lookups_in_very_many_shards_are_the_same() -> None:
    sizes = np.arange(70_000) % 3  # Every third is empty.
    spanner = Spanner(sizes)
    ids = np.linspace(0, spanner.size - 1, 500).astype(np.int64)
    shards, offsets = spanner(ids)
    expected = list(zip(shards.tolist(), offsets.tolist(), strict=True))
    assert [spanner[i] for i in ids.tolist()] == expected
    assert all(type(x) is int for found in map(spanner.__getitem__, ids) for x in found)


@given(lists(integers(0, 5), min_size=1, max_size=12), data())
def test_runs_say_which_of_ascending_samples_are_in_which_shard(
    sizes: list[int], drawn: DataObject
) -> None:
    spanner = Spanner(sizes)
    places = lists(integers(0, max(spanner.size - 1, 0)), max_size=20 if spanner.size else 0)
    ids = np.array(sorted(drawn.draw(places)), np.int64)
    runs = spanner.runs(ids)
    shards, offsets = spanner(ids)
    assert [shard for shard, a, b in runs for _ in range(a, b)] == shards.tolist()
    assert [shard for shard, *_ in runs] == sorted(set(shards.tolist()))
    assert spanner.shards(ids[::-1]) == [shard for shard, *_ in runs]
    split = [(shard, place) for shard, places in spanner.split(ids) for place in places.tolist()]
    assert split == list(zip(shards.tolist(), offsets.tolist(), strict=True))
    with pytest.raises(IndexError, match="is not in a dataset"):
        spanner.runs(np.append(ids, spanner.size))


@given(lists(integers(0, 4), min_size=1), data())
def test_shards_come_in_order_of_first_use(sizes: list[int], data: DataObject) -> None:
    spanner = Spanner(np.array(sizes, np.int64))
    ids = np.array(data.draw(lists(integers(-1, spanner.size - 1))), np.int64)
    shards = [spanner[i][0] for i in ids.tolist() if i >= 0]
    assert spanner.in_turn(ids) == list(dict.fromkeys(shards))
    assert spanner.in_turn(np.sort(ids)) == sorted(set(shards))
