"""Orders that are made canonical node by canonical node, from one generator."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from streaming.idmap import Ids
from streaming.shuffle.exact import ShuffleSpec
from streaming.shuffle.spans import Spans, shuffled_spans

__all__ = ["NodeMaking", "generator_at", "skip_doubles", "skip_shuffles"]


class NodeMaking:
    """Makes an order one canonical node at a time, in any order of nodes.

    The generator's state at a node comes from making the node before, or from skipping it: only
    the draws are made, not the ids. States that were found are kept, so each node is skipped at
    most once.
    """

    is_by_node = True

    def __init__(self, spec: ShuffleSpec) -> None:
        self.spec = spec
        self._states: list[Any] = []

    def chunks(self, part: int) -> Iterator[Ids]:
        rng = self._begin(part)
        yield from self.make(rng, self.spans(part), part)
        self._found(part + 1, rng)

    def spans(self, node: int) -> Spans:
        """The spans of a canonical node, in the order of this epoch."""
        return self._drawn[1][node]

    def prepare(self, rng: np.random.Generator) -> None:
        """Use the generator for what comes before the first canonical node."""

    @abstractmethod
    def make(self, rng: np.random.Generator, spans: Spans, node: int) -> Iterator[Ids]:
        """Give the draws of a canonical node, and leave the generator where the next one begins."""

    @abstractmethod
    def skip(self, rng: np.random.Generator, spans: Spans, node: int) -> None:
        """Leave the generator where the next canonical node begins."""

    @cached_property
    def _drawn(self) -> tuple[Any, list[Spans]]:
        """The generator's state at the first canonical node, and the spans of all."""
        rng, nodes = shuffled_spans(self.spec)
        self.prepare(rng)
        return rng.bit_generator.state, nodes

    def _begin(self, node: int) -> np.random.Generator:
        if not self._states:
            self._states.append(self._drawn[0])
        while len(self._states) <= node:
            before = len(self._states) - 1
            rng = generator_at(self._states[before])
            self.skip(rng, self.spans(before), before)
            self._found(before + 1, rng)
        return generator_at(self._states[node])

    def _found(self, node: int, rng: np.random.Generator) -> None:
        if len(self._states) == node:
            self._states.append(rng.bit_generator.state)


def generator_at(state: Any) -> np.random.Generator:
    """A generator that goes on from the state of the bit generator of another one."""
    bits = np.random.PCG64(0)
    bits.state = state
    return np.random.Generator(bits)


def skip_shuffles(rng: np.random.Generator, lengths: Ids) -> None:
    """Move `rng` as if it had shuffled arrays of these lengths, one after the other.

    Words that are rejected can't be told without drawing them, so this shuffles an array that
    stays in the processor's cache.
    """
    scratch = np.zeros(int(lengths.max(initial=0)), np.int64)
    for length in lengths.tolist():
        rng.shuffle(scratch[:length])


def skip_doubles(rng: np.random.Generator, count: int) -> None:
    """Move `rng` as if it had drawn `count` floats."""
    bits = rng.bit_generator
    assert isinstance(bits, np.random.PCG64)
    before = bits.state
    bits.advance(count)
    if before["has_uint32"]:  # `advance` drops the half of a word that is still to be used.
        state = bits.state
        state["has_uint32"], state["uinteger"] = before["has_uint32"], before["uinteger"]
        bits.state = state
