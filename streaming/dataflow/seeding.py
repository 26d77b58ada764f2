"""Randomness that follows from names: equal names give equal numbers in every process.

No state is kept and none is saved. The key of an item is (seed, logical stream, token).
"""

import json
import random
import sys
from typing import Any

import numpy as np

from streaming.hashing import get_hash

__all__ = ["generator", "hashed_fraction", "seed_everything"]


def generator(*key: Any) -> np.random.Generator:
    """A generator for a key: any values that JSON has."""
    return np.random.Generator(np.random.Philox(key=_digest(key)))


def hashed_fraction(*key: Any) -> float:
    """A number in [0, 1) for a key."""
    return (_digest(key) >> 75) / 2**53  # As many bits as a float holds.


def seed_everything(*key: Any) -> None:
    """Seed the global generators of Python, numpy and, where it is loaded, torch, from a key."""
    digest = _digest(key)
    random.seed(digest)
    np.random.seed([digest >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(digest & 0x7FFFFFFFFFFFFFFF)


def _digest(key: tuple[Any, ...]) -> int:
    """128 bits for a key."""
    return int(get_hash("xxh3_128", json.dumps(key).encode()), 16)
