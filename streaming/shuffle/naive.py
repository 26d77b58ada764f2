"""All samples of the epoch, in any order: the best shuffle, and each sample needs its own shard."""

from collections.abc import Iterator

import numpy as np

from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec

__all__ = ["get_shuffle_naive", "naive"]

_CHUNK = 1 << 20  # ids given out at a time


class _Making:
    is_by_node = False

    def __init__(self, spec: ShuffleSpec) -> None:
        self._spec = spec

    def chunks(self, part: int) -> Iterator[Ids]:
        spec = self._spec
        size = spec.num_samples
        # What `permutation` gives, in half the memory where that is possible.
        order = np.arange(size, dtype=np.uint32 if size <= 1 << 32 else np.int64)
        np.random.default_rng(spec.seed + spec.epoch).shuffle(order)
        for start in range(0, size, _CHUNK):
            yield order[start : start + _CHUNK].astype(np.int64)


class _Naive(ExactShuffle):
    name = "naive"

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


naive = _Naive()
get_shuffle_naive = naive.whole
