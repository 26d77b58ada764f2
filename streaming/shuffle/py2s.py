"""Like py1s, but the samples of a shard are shuffled before it is cut, and again after."""

from collections.abc import Iterator

import numpy as np

from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec
from streaming.shuffle.spans import Laid, as_spans, cut

__all__ = ["get_shuffle_py2s", "py2s"]

_CHUNK = 1 << 20  # ids laid out at a time


class _Making:
    is_by_node = False

    def __init__(self, spec: ShuffleSpec) -> None:
        self._spec = spec

    def chunks(self, part: int) -> Iterator[Ids]:
        spec = self._spec
        fixed = np.random.default_rng(spec.seed)
        order = fixed.permutation(len(spec.sizes))
        laid = Laid(as_spans(spec.sizes)[order])
        ids = np.empty(len(laid), np.uint32 if len(laid) <= 1 << 32 else np.int64)
        for start in range(0, len(ids), _CHUNK):
            ids[start : start + _CHUNK] = laid.take(start, min(start + _CHUNK, len(ids)))
        places = as_spans(spec.sizes[order])
        for begin, end in places.tolist():
            fixed.shuffle(ids[begin:end])
        rng = np.random.default_rng(spec.seed + spec.epoch)
        for node in cut(places, spec.canonical_nodes):
            for begin, end in node[rng.permutation(len(node))].tolist():
                rng.shuffle(ids[begin:end])
                yield ids[begin:end].astype(np.int64)


class _Py2s(ExactShuffle):
    name = "py2s"

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


py2s = _Py2s()
get_shuffle_py2s = py2s.whole
