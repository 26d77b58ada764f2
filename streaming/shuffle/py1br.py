"""Shards in random order, then the samples of blocks of random size and offset."""

from collections.abc import Iterator, Sequence

import numpy as np

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec
from streaming.shuffle.nodes import NodeMaking, skip_shuffles
from streaming.shuffle.spans import Laid, Spans

__all__ = ["get_shuffle_py1br", "py1br"]

_CHUNK = 1 << 20  # ids given out at a time where nothing is shuffled any more


class _Making(NodeMaking):
    def __init__(self, spec: ShuffleSpec) -> None:
        super().__init__(spec)
        self._low, self._high = int(0.75 * spec.block_size), int(1.25 * spec.block_size)
        self._staggers: list[int] = []

    def prepare(self, rng: np.random.Generator) -> None:
        self._staggers = rng.integers(0, self._low, self.spec.canonical_nodes).tolist()

    def make(self, rng: np.random.Generator, spans: Spans, node: int) -> Iterator[Ids]:
        laid = Laid(spans)
        given = 0
        held = np.empty(0, np.int64)  # the draws at [given, given + len(held))
        for begin, end in self._blocks(rng, len(laid), node):
            # The blocks' ends rise, so what lies before one is settled; the first two overlap.
            yield held[: begin - given]
            held = np.concatenate([held[begin - given :], laid.take(given + len(held), end)])
            given = begin
            rng.shuffle(held[: end - begin])
        yield held
        for start in range(given + len(held), len(laid), _CHUNK):
            yield laid.take(start, min(start + _CHUNK, len(laid)))

    def skip(self, rng: np.random.Generator, spans: Spans, node: int) -> None:
        blocks = self._blocks(rng, len(Laid(spans)), node)
        skip_shuffles(rng, np.array([end - begin for begin, end in blocks], np.int64))

    def _blocks(self, rng: np.random.Generator, total: int, node: int) -> list[tuple[int, int]]:
        """Draw the blocks of a canonical node; the second overlaps the first by the stagger."""
        stagger = self._staggers[node]
        blocks = []
        position = 0
        while position < total:
            size = int(rng.integers(self._low, self._high))
            begin = max(position - stagger, 0)
            end = min(position + size - stagger, total)
            blocks.append((begin, end))
            position += end - begin
        return blocks


class _Py1br(ExactShuffle):
    name = "py1br"

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        if spec.block_size < 2:
            raise ConfigError(
                f"The shuffle `py1br` needs a `shuffle_block_size` of at least 2, not "
                f"{spec.block_size}: it draws how far its blocks are shifted from below 3/4 of it."
            )
        return ()

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


py1br = _Py1br()
get_shuffle_py1br = py1br.whole
