"""Shards in random order, then the samples of each block of a fixed size."""

from collections.abc import Iterator, Sequence

import numpy as np

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec
from streaming.shuffle.nodes import NodeMaking, skip_shuffles
from streaming.shuffle.spans import Laid, Spans

__all__ = ["get_shuffle_py1b", "py1b"]


class _Making(NodeMaking):
    def make(self, rng: np.random.Generator, spans: Spans, node: int) -> Iterator[Ids]:
        laid, size = Laid(spans), self.spec.block_size
        for start in range(0, len(laid), size):
            block = laid.take(start, min(start + size, len(laid)))
            rng.shuffle(block)
            yield block

    def skip(self, rng: np.random.Generator, spans: Spans, node: int) -> None:
        whole, rest = divmod(len(Laid(spans)), self.spec.block_size)
        skip_shuffles(rng, np.array([self.spec.block_size] * whole + [rest], np.int64))


class _Py1b(ExactShuffle):
    name = "py1b"

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        if spec.block_size < 1:
            raise ConfigError("The shuffle `py1b` needs a `shuffle_block_size` of at least 1.")
        return ()

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


py1b = _Py1b()
get_shuffle_py1b = py1b.whole
