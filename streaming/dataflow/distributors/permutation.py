"""The order of a map-style dataset's items in one epoch."""

import sys

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.hashing import get_hash

__all__ = ["Scatter", "torch_permutation"]

# From about here torch draws 64 bits at a time; we know its order below it.
_TORCH_LIMIT = 2**31 // 10
_CHUNK = 1 << 20


def torch_permutation(size: int, seed: int) -> NDArray[np.int64]:
    """The order that `torch.randperm(size)` gives on a CPU generator with this seed.

    Where torch is loaded it is asked. Where it is not, the same swaps are made here: torch draws
    the raw numbers of a 32-bit Mersenne Twister that is seeded with the low 32 bits.

    Raises:
        ConfigError: There are too many items to do this without torch.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        generator = torch.Generator().manual_seed(seed)
        order: NDArray[np.int64] = torch.randperm(size, generator=generator).numpy()
        return order
    if size >= _TORCH_LIMIT:
        raise ConfigError(
            f"The order of {size} items can't be had without torch (up to {_TORCH_LIMIT} can). "
            f'Import torch first, or use `shuffle="scatter"`, which needs no table.'
        )
    twister = np.random.RandomState(seed & 0xFFFFFFFF)
    order_list = list(range(size))
    for start in range(0, size - 1, _CHUNK):
        stop = min(start + _CHUNK, size - 1)
        draws = twister.randint(0, 2**32, size=stop - start, dtype=np.uint32).astype(np.int64)
        places = np.arange(start, stop)
        partners = places + draws % (size - places)
        for i, j in zip(places.tolist(), partners.tolist(), strict=True):
            order_list[i], order_list[j] = order_list[j], order_list[i]
    return np.array(order_list, np.int64)


class Scatter:
    """A keyed permutation of [0, size) that is computed place by place: no table, no start-up time.

    Rounds of add, multiply and xor-shift on the smallest power of two that holds `size`, each of
    which has an inverse; a result outside [0, size) goes through again until it is inside, which
    keeps the whole a permutation and takes two turns on average at most.
    """

    _ROUNDS = 6

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self._bits = max((size - 1).bit_length(), 2)
        self._mask = np.uint64((1 << self._bits) - 1)
        self._shift = np.uint64((self._bits + 1) // 2)
        key = bytes.fromhex(get_hash("sha512", f"scatter {seed} {epoch}".encode()) * 2)
        words = np.frombuffer(key, "<u8")[: 2 * self._ROUNDS]
        self._add = words[: self._ROUNDS]
        self._multiply = words[self._ROUNDS :] | np.uint64(1)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items at places in [0, size), any shape."""
        out = self._mix(places.astype(np.uint64))
        outside = out >= self.size
        while outside.any():
            out[outside] = self._mix(out[outside])
            outside = out >= self.size
        return out.astype(np.int64)

    def _mix(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        for add, multiply in zip(self._add, self._multiply, strict=True):
            words = ((words + add) * multiply) & self._mask
            words ^= words >> self._shift
        return words
