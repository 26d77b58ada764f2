"""Integers that look random, and permutations of [0, n) without a table, by arithmetic alone.

All of it is integer arithmetic modulo 2^64 and 2^32: the same in every process, on every machine
and with every numpy. What `block1` promises rests on it, so nothing here may change; golden vectors
watch. The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014; its constants are those of Stafford's variant 13).
"""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids

__all__ = ["MAX_SIZE", "ROUNDS", "Use", "derive", "mix", "mix_array", "permute", "permute_each"]

MAX_SIZE = 1 << 32
"""The largest n of which there is a permutation here."""

# Four rounds and fewer fail chi-square tests of places and neighbours (benchmarks/shuffling).
ROUNDS = 6

Words = NDArray[np.uint64]


class Use(IntEnum):
    """What keys are for: no two uses have a key in common. Numbers never change."""

    SHARDS = 1  # order of the shards of a source
    PIECES = 2  # order of the shard pieces of canonical nodes
    BLOCKS = 3  # order within blocks
    SAMPLED_SHARDS = 4  # how often shards are drawn
    CHOICES = 5  # which samples of a shard that is drawn in part
    TURNS = 6  # whose turn it is
    PHASES = 7  # where streams begin with their turns
    WINDOWS = 8  # order of turns in windows


_MASK = (1 << 64) - 1
_ADD, _TIMES_1, _TIMES_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LOW = np.uint64(0xFFFFFFFF)


def mix(word: int) -> int:
    """Turn a number into a random-looking one below 2^64; distinct ones modulo 2^64 stay so."""
    word = (word + _ADD) & _MASK
    word = ((word ^ (word >> 30)) * _TIMES_1) & _MASK
    word = ((word ^ (word >> 27)) * _TIMES_2) & _MASK
    return word ^ (word >> 31)


def mix_array(words: Words) -> Words:
    """`mix` of each; `words` is left as it is."""
    words = words + np.uint64(_ADD)
    words ^= words >> np.uint64(30)
    words *= np.uint64(_TIMES_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_TIMES_2)
    words ^= words >> np.uint64(31)
    return words


def derive(seed: int, words: Iterable[int]) -> int:
    """A key for one use out of many: `words`, each below 2^64, say which."""
    key = mix(seed)
    for word in words:
        key = mix(key ^ word)
    return key


def permute(values: NDArray[np.uint32], size: int, key: int) -> NDArray[np.uint32]:
    """Put each value in its new place, in a permutation of [0, size) that `key` chooses.

    Args:
        values: Below `size`, shape (n,). They are overwritten with the new places.
        size: In [1, MAX_SIZE].
        key: Below 2^64.

    Returns:
        `values`.
    """
    if size > 1:
        bits = (size - 1).bit_length()
        _scramble(values, bits, key)
        if size != 1 << bits:  # Walk on, from what lies outside, until it is inside.
            outside = np.flatnonzero(values >= size)
            while len(outside):
                again = _scramble(values[outside], bits, key)
                values[outside] = again
                outside = outside[again >= size]
    return values


def permute_each(values: Ids, sizes: Ids, keys: Words) -> Ids:
    """`permute` where each value has a size and a key of its own; the three have shape (n,)."""
    bits = np.frexp(sizes - 1.0)[1].astype(np.uint32)  # exact: sizes have at most 33 bits
    out = _scramble_each(values.astype(np.uint32), bits, keys).astype(np.int64)
    outside = np.flatnonzero(out >= sizes)
    while len(outside):
        again = out[outside].astype(np.uint32)
        again_64 = _scramble_each(again, bits[outside], keys[outside]).astype(np.int64)
        out[outside] = again_64
        outside = outside[again_64 >= sizes[outside]]
    return out


def _scramble(values: NDArray[np.uint32], bits: int, key: int) -> NDArray[np.uint32]:
    """Permute [0, 2^bits), in place; bits in [1, 32]."""
    mask, shift = np.uint32((1 << bits) - 1), np.uint32((bits + 1) // 2)
    high = np.empty_like(values)
    for number in range(ROUNDS):
        word = mix((key + number) & _MASK)
        values *= np.uint32(word & 0xFFFFFFFF | 1)
        values += np.uint32(word >> 32)
        values &= mask
        np.right_shift(values, shift, out=high)
        values ^= high
    return values


def _scramble_each(
    values: NDArray[np.uint32], bits: NDArray[np.uint32], keys: Words
) -> NDArray[np.uint32]:
    """`_scramble` where each value has bits, 0 allowed, and a key of its own; in place."""
    mask = (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)
    mask_32, shift = mask.astype(np.uint32), (bits + np.uint32(1)) >> np.uint32(1)
    for number in range(ROUNDS):
        words = mix_array(keys + np.uint64(number))
        values *= (words & _LOW).astype(np.uint32) | np.uint32(1)
        values += (words >> np.uint64(32)).astype(np.uint32)
        values &= mask_32
        values ^= values >> shift
    return values
