"""Keyed permutations and keys, against a plain reference with Python's numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, one_of, sampled_from

from streaming.shuffle.bijection import (
    MAX_SIZE,
    ROUNDS,
    Use,
    derive,
    mix,
    mix_array,
    permute,
    permute_each,
)

words = integers(0, 2**64 - 1)
sizes = one_of(integers(1, 300), sampled_from([1 << 18, 200_000, (1 << 31) + 5, MAX_SIZE]))


def plain_permute(value: int, size: int, key: int) -> int:
    """The steps of the permutation, one value at a time."""
    bits = (size - 1).bit_length()
    while size > 1:
        for number in range(ROUNDS):
            word = mix((key + number) % 2**64)
            value = (value * ((word % 2**32) | 1) + (word >> 32)) % 2**bits
            value ^= value >> ((bits + 1) // 2)
        if value < size:
            break
    return value


def test_mixing_is_that_of_splitmix64() -> None:
    # The first three outputs of the reference implementation for the seed 0.
    steps = [0x9E3779B97F4A7C15 * i % 2**64 for i in range(3)]
    assert [mix(step) for step in steps] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(lists(words, min_size=1, max_size=9))
def test_arrays_are_mixed_like_numbers(values: list[int]) -> None:
    array = np.array(values, np.uint64)
    assert mix_array(array).tolist() == [mix(value) for value in values]
    assert array.tolist() == values


def test_keys_differ_by_what_they_are_for() -> None:
    keys = [
        derive(seed, (use, *rest))
        for seed in (0, 1, 2**63 - 1)
        for use in Use
        for rest in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 64, 100, 1000, 4096, 5000])
def test_each_value_has_a_place_of_its_own(size: int) -> None:
    for key in (0, 1, 2**64 - 1, 0x123456789ABCDEF):
        places = permute(np.arange(size, dtype=np.uint32), size, key)
        assert np.array_equal(np.sort(places), np.arange(size))


@given(sizes, words, lists(integers(0, 2**32), min_size=1, max_size=9))
def test_places_are_those_of_the_plain_steps(size: int, key: int, numbers: list[int]) -> None:
    values = [number % size for number in numbers]
    expected = [plain_permute(value, size, key) for value in values]
    assert permute(np.array(values, np.uint32), size, key).tolist() == expected
    each = permute_each(
        np.array(values, np.int64),
        np.full(len(values), size, np.int64),
        np.full(len(values), key, np.uint64),
    )
    assert each.tolist() == expected


@given(lists(sizes, min_size=1, max_size=9), words)
def test_sizes_and_keys_may_differ(many: list[int], key: int) -> None:
    values = [(7 * i + key) % size for i, size in enumerate(many)]
    keys = [mix(key ^ i) for i in range(len(many))]
    found = permute_each(np.array(values), np.array(many), np.array(keys, np.uint64)).tolist()
    assert found == [plain_permute(*each) for each in zip(values, many, keys, strict=True)]


def deviation(counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """How far from chance, in standard deviations of chi-square."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("size", [1 << 14, 10_000])
def test_places_look_random(size: int) -> None:
    at = np.arange(size)
    for key in range(8):
        places = permute(at.astype(np.uint32), size, derive(1, (Use.BLOCKS, key))).astype(np.int64)
        steps = (places[1:] - places[:-1]) % size * 64 // size
        squares = at * 32 // size * 32 + places * 32 // size
        low = at % 32 * 32 + places % 32
        for counts in map(np.bincount, (steps, squares, low)):
            assert abs(deviation(counts)) < 5
