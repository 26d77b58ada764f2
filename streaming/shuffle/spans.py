"""What the shuffles share: spans of samples, cut at the borders of canonical nodes."""

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids
from streaming.shuffle.exact import ShuffleSpec

__all__ = ["Laid", "Spans", "as_spans", "batches", "cut", "lay", "shuffle_each", "shuffled_spans"]

Spans = NDArray[np.int64]
"""Runs of draws: begin and end (half-open) of each, shape (spans, 2)."""


def as_spans(sizes: NDArray[np.int64]) -> Spans:
    """Spans of these sizes, one after the other."""
    ends = np.cumsum(sizes)
    return np.stack([ends - sizes, ends], axis=1)


def lay(spans: Spans) -> Ids:
    """All draws of the spans, in order."""
    sizes = spans[:, 1] - spans[:, 0]
    return np.repeat(spans[:, 0] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


class Laid:
    """All draws of some spans, in order, to be had a run at a time."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._bounds = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(spans[:, 1] - spans[:, 0], out=self._bounds[1:])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def take(self, start: int, stop: int) -> Ids:
        """The draws at places [start, stop)."""
        if start >= stop:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self._bounds, start, "right")) - 1
        last = int(np.searchsorted(self._bounds, stop, "left")) - 1
        spans = self._spans[first : last + 1].copy()
        spans[-1, 1] = self._spans[last, 0] + stop - self._bounds[last]
        spans[0, 0] += start - self._bounds[first]
        return lay(spans)


def batches(lengths: NDArray[np.int64], least: int) -> list[tuple[int, int]]:
    """Cut spans of these lengths into runs of at least `least` draws; only the last may have less.

    Returns:
        Numbers of the first span of each run and of the first behind it.
    """
    ends = np.cumsum(lengths)
    runs = []
    start = done = 0
    while start < len(lengths):
        stop = min(int(np.searchsorted(ends, done + least, "left")) + 1, len(lengths))
        runs.append((start, stop))
        start, done = stop, int(ends[stop - 1])
    return runs


def cut(spans: Spans, nodes: int) -> list[Spans]:
    """Divide spans into `nodes` parts, each within one sample of the same length.

    A span that goes over a border is cut there. One that ends at a border, and an empty one right
    behind it, belongs to the part before.
    """
    done = np.cumsum(spans[:, 1] - spans[:, 0])
    total = int(done[-1]) if len(done) else 0
    parts = []
    first = used = 0  # The next span, and how much of it the parts before have taken.
    for node in range(nodes):
        border = (node + 1) * total // nodes
        last = int(np.searchsorted(done, border, "right"))  # Spans before this one end here.
        part = spans[first : last + 1].copy()
        if len(part):
            part[0, 0] += used
        used = 0 if last > first else used
        if last < len(spans):
            before = int(done[last - 1]) if last else 0
            part[-1, 1] = spans[last, 0] + border - before
            if part[-1, 0] == part[-1, 1]:
                part = part[:-1]
            used = border - before
        first = last
        parts.append(part)
    return parts


def shuffled_spans(spec: ShuffleSpec) -> tuple[np.random.Generator, list[Spans]]:
    """Put the shards in an order fixed for the run, cut them, and re-order the parts of each node.

    Returns:
        The epoch's generator, to be used on, and the spans of each canonical node.
    """
    order = np.random.default_rng(spec.seed).permutation(len(spec.sizes))
    parts = cut(as_spans(spec.sizes)[order], spec.canonical_nodes)
    rng = np.random.default_rng(spec.seed + spec.epoch)
    return rng, [part[rng.permutation(len(part))] for part in parts]


def shuffle_each(rng: np.random.Generator, spans: Spans) -> Ids:
    """The draws of the spans, those of each span shuffled."""
    ids = lay(spans)
    start = 0
    for length in (spans[:, 1] - spans[:, 0]).tolist():
        rng.shuffle(ids[start : start + length])
        start += length
    return ids
