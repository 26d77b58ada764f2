"""The exact shuffles, against recordings and against plain references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists
from numpy.typing import NDArray

from streaming.errors import ConfigError, UnknownNameError
from streaming.idmap import in_memory
from streaming.shuffle import ShuffleSpec, get_shuffle, shuffles
from streaming.shuffle.naive import get_shuffle_naive
from streaming.shuffle.py1b import get_shuffle_py1b
from streaming.shuffle.py1br import get_shuffle_py1br
from streaming.shuffle.py1e import get_shuffle_py1e
from streaming.shuffle.py1s import get_shuffle_py1s
from streaming.shuffle.py2s import get_shuffle_py2s
from streaming.shuffle.spans import as_spans, cut, lay
from tests.suites.orders import differing, read_cases
from tests.suites.shuffle import TableShuffleSuite, specs


@pytest.mark.parametrize("family", ["shuffles", "py1b"])
def test_case_U9_shuffles_are_the_recorded_ones(golden: Path, family: str) -> None:
    def call(params: dict[str, Any]) -> dict[str, NDArray[Any]]:
        sizes = np.array(params.pop("shard_sizes"))
        return {"out": get_shuffle(params.pop("algo"), sizes, **params)}

    assert differing(read_cases(golden, family), call) == []


def test_the_old_functions_of_each_algorithm_are_the_same() -> None:
    sizes = np.arange(1, 30)
    for algo, function in {
        "naive": get_shuffle_naive,
        "py1b": get_shuffle_py1b,
        "py1br": get_shuffle_py1br,
        "py1e": get_shuffle_py1e,
        "py1s": get_shuffle_py1s,
        "py2s": get_shuffle_py2s,
    }.items():
        expected = get_shuffle(algo, sizes, 3, 1, 2, 40)
        assert np.array_equal(function(sizes, 3, 1, 2, 40), expected)


class TestNaive(TableShuffleSuite):
    algo = "naive"


class TestPy1b(TableShuffleSuite):
    algo = "py1b"


class TestPy1br(TableShuffleSuite):
    algo = "py1br"


class TestPy1e(TableShuffleSuite):
    algo = "py1e"


class TestPy1s(TableShuffleSuite):
    algo = "py1s"


class TestPy2s(TableShuffleSuite):
    algo = "py2s"


@given(lists(integers(0, 9), max_size=12), integers(1, 15))
def test_spans_are_cut_as_if_walked(sizes: list[int], nodes: int) -> None:
    waiting = [(begin, end) for begin, end in as_spans(np.array(sizes, np.int64)).tolist()]
    done = 0
    plain = []
    for node in range(nodes):
        border = (node + 1) * sum(sizes) // nodes
        part = []
        while waiting:
            begin, end = waiting[0]
            if done + end - begin <= border:
                part.append((begin, end))
                done += end - begin
                waiting.pop(0)
                continue
            if border > done:
                part.append((begin, begin + border - done))
                waiting[0] = (begin + border - done, end)
                done = border
            break
        plain.append(part)
    parts = cut(as_spans(np.array(sizes, np.int64)), nodes)
    assert [list(map(tuple, part.tolist())) for part in parts] == plain
    assert np.array_equal(np.concatenate([lay(part) for part in parts]), np.arange(sum(sizes)))


def plain_spans(spec: ShuffleSpec) -> tuple[np.random.Generator, list[list[tuple[int, int]]]]:
    order = np.random.default_rng(spec.seed).permutation(len(spec.sizes))
    parts = cut(as_spans(spec.sizes)[order], spec.canonical_nodes)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    nodes = []
    for part in parts:
        spans = list(map(tuple, part.tolist()))
        rng.shuffle(spans)
        nodes.append(spans)
    return rng, nodes


@given(specs)
def test_py1e_in_pieces_is_py1e_sorted_at_the_end(spec: ShuffleSpec) -> None:
    rng, nodes = plain_spans(spec)
    out: list[int] = []
    for spans in nodes:
        ids: list[int] = []
        for begin, end in spans:
            piece = np.arange(begin, end)
            rng.shuffle(piece)
            ids += piece.tolist()
        total, offset = len(ids), 0
        places = np.arange(total, dtype=np.float64)
        for begin, end in spans:
            length = end - begin
            size = rng.integers(int(0.75 * spec.block_size), int(1.25 * spec.block_size))
            reach = max((size - length) / 2, 0)
            low, high = max(-reach, -offset), min(reach, total - offset - length)
            places[offset : offset + length] += rng.uniform(low, high, length)
            offset += length
        out += np.array(ids)[np.argsort(places, kind="stable")].tolist()
    order = shuffles.get("py1e").open(spec, in_memory)
    assert order(np.arange(order.size)).tolist() == out


@given(specs)
def test_py1br_in_pieces_is_py1br_in_place(spec: ShuffleSpec) -> None:
    low, high = int(0.75 * spec.block_size), int(1.25 * spec.block_size)
    rng, nodes = plain_spans(spec)
    staggers = rng.integers(0, low, spec.canonical_nodes)
    out: list[int] = []
    for spans, stagger in zip(nodes, staggers, strict=True):
        ids = lay(np.array(spans, np.int64).reshape(-1, 2))
        blocks, at = [], 0
        while at < len(ids):
            size = int(rng.integers(low, high))
            begin, end = max(at - stagger, 0), min(at + size - stagger, len(ids))
            blocks.append((begin, end))
            at += end - begin
        for begin, end in blocks:
            rng.shuffle(ids[begin:end])
        out += ids.tolist()
    order = shuffles.get("py1br").open(spec, in_memory)
    assert order(np.arange(order.size)).tolist() == out


@given(specs)
def test_samples_stay_in_their_canonical_node(spec: ShuffleSpec) -> None:
    order = np.random.default_rng(spec.seed).permutation(len(spec.sizes))
    parts = cut(as_spans(spec.sizes)[order], spec.canonical_nodes)
    borders = np.cumsum([len(lay(part)) for part in parts])[:-1]
    for algo in ("py1b", "py1br", "py1e", "py1s"):
        draws = shuffles.get(algo).open(spec, in_memory)(np.arange(spec.num_samples))
        for part, found in zip(parts, np.split(draws, borders), strict=True):
            assert np.array_equal(np.sort(lay(part)), np.sort(found))


def test_samples_of_py1e_move_by_less_than_five_eighths_of_a_block() -> None:
    spec = ShuffleSpec(np.full(64, 10), 1, 3, 1, 80)
    _, (spans,) = plain_spans(spec)
    offset_of = {begin // 10: 10 * i for i, (begin, _) in enumerate(spans)}
    draws = get_shuffle("py1e", spec.sizes, 1, 3, 1, 80).tolist()
    # Before it moves, a sample may be anywhere among the ten of its shard.
    moved = [at - offset_of[draw // 10] for at, draw in enumerate(draws)]
    assert -0.625 * 80 < min(moved) < -20
    assert 20 < max(moved) < 0.625 * 80 + 10


def test_blocks_too_small_to_draw_from_are_refused() -> None:
    for algo, block in (("py1b", 0), ("py1br", 1), ("py1e", 0)):
        with pytest.raises(ConfigError, match=f"`{algo}` needs a `shuffle_block_size`"):
            get_shuffle(algo, np.array([9, 4]), 1, 1, 0, block)


def test_py1e_refuses_a_canonical_node_without_samples() -> None:
    with pytest.raises(ConfigError, match="0 of 8 has none of the 5"):
        get_shuffle("py1e", np.array([1, 1, 1, 2]), 8, 1, 0)


def test_py1e_says_when_shards_are_longer_than_blocks(caplog: pytest.LogCaptureFixture) -> None:
    get_shuffle("py1e", np.array([90, 40]), 1, 1, 0, 200)
    assert not caplog.records
    get_shuffle("py1e", np.array([90, 40]), 1, 1, 0, 60)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Raise it to 180" in caplog.text


def test_a_shard_of_less_than_no_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="-2 samples"):
        get_shuffle("naive", np.array([3, -2]), 1, 0, 0)


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"'bogus'. Known: block1, naive, .*py2s"):
        get_shuffle("bogus", np.array([3]), 1, 0, 0)
