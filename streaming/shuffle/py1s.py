"""Shards in random order, and the samples of each shard piece."""

from collections.abc import Iterator

import numpy as np

from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec
from streaming.shuffle.nodes import NodeMaking, skip_shuffles
from streaming.shuffle.spans import Spans, batches, shuffle_each

__all__ = ["get_shuffle_py1s", "py1s"]

_CHUNK = 1 << 17  # ids made together, at least: shards may be tiny


class _Making(NodeMaking):
    def make(self, rng: np.random.Generator, spans: Spans, node: int) -> Iterator[Ids]:
        for start, stop in batches(spans[:, 1] - spans[:, 0], _CHUNK):
            yield shuffle_each(rng, spans[start:stop])

    def skip(self, rng: np.random.Generator, spans: Spans, node: int) -> None:
        skip_shuffles(rng, spans[:, 1] - spans[:, 0])


class _Py1s(ExactShuffle):
    name = "py1s"

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


py1s = _Py1s()
get_shuffle_py1s = py1s.whole
