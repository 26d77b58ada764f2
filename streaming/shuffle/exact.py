"""What a shuffle is asked and what it answers, and the shuffles that are tables."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Hold, IdMap, Ids, IdTable, Recipe, in_memory

__all__ = ["ArithmeticShuffle", "ExactShuffle", "Making", "Shuffle", "ShuffleSpec", "borders"]


@dataclass(frozen=True)
class ShuffleSpec:
    """What is to be shuffled. Equal specs give equal orders.

    Attributes:
        sizes: Draws of each shard piece, in order; a piece stays together where a shuffle works
            with spans. Shape (pieces,).
        canonical_nodes: Parts of the epoch that are shuffled each by itself.
        seed: Seed of the run.
        epoch: Number of the epoch.
        block_size: Draws over which a shuffle that works with blocks spreads a sample.
        wanted: The canonical nodes that will be asked for, ascending: tables need not hold others.
            None: all of them.
        groups: The stream of each piece, for shuffles that spread streams evenly; None: all one.
            Shape (pieces,).
        source: Tells apart specs that are equal otherwise, for shuffles that are not to shuffle
            two streams alike.
    """

    sizes: NDArray[np.int64]
    canonical_nodes: int
    seed: int
    epoch: int
    block_size: int = 1 << 18
    wanted: tuple[int, ...] | None = None
    groups: NDArray[np.int64] | None = None
    source: int = 0

    def __post_init__(self) -> None:
        for name, least in (("canonical_nodes", 1), ("seed", 0), ("epoch", 0), ("block_size", 0)):
            value = getattr(self, name)
            if not least <= value < 2**63:
                raise ConfigError(
                    f"`{name}` must be at least {least} and below 2^63, but is {value}."
                )
        if len(self.sizes) and int(np.min(self.sizes)) < 0:
            raise ConfigError(f"A shard can't have {int(np.min(self.sizes))} samples.")

    @cached_property
    def num_samples(self) -> int:
        """Draws of the epoch."""
        return int(np.sum(self.sizes))

    def digest(self, algo: str) -> str:
        """A name for the order that `algo` makes of this: 32 hexadecimal digits."""
        # numpy may change what its generators give from release to release.
        words = (algo, np.__version__, self.canonical_nodes, self.seed, self.epoch, self.block_size)
        digest = hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=16)
        digest.update(self.sizes.astype("<i8").tobytes())
        return digest.hexdigest()


class Shuffle(Protocol):
    """A way to put draws in another order."""

    is_arithmetic: bool
    """Whether the order of all positions is computed, and sampling and batching with it: then none
    of the three needs a table or memory that grows with the samples."""

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        """What a user should know of this order, as sentences.

        Raises:
            ConfigError: This shuffle can't make it.
        """
        ...

    def open(self, spec: ShuffleSpec, hold: Hold) -> IdMap:
        """Map positions of the epoch to draws.

        Args:
            spec: What is to be shuffled.
            hold: Keeps the table, if there has to be one.

        Raises:
            ConfigError: This shuffle can't do it.
        """
        ...


class ArithmeticShuffle(Shuffle, Protocol):
    """A way to put draws in another order that computes it at any place."""

    def open_all(self, specs: Sequence[ShuffleSpec], hold: Hold) -> IdMap:
        """Map positions to draws for several sources that stand side by side."""
        ...


class Making(Protocol):
    """The making of one order, part by part."""

    is_by_node: bool
    """Whether the parts are the canonical nodes; else there is one part, which is everything."""

    def chunks(self, part: int) -> Iterator[Ids]:
        """The draws of a part, from its beginning, in chunks."""
        ...


class ExactShuffle(ABC):
    """A shuffle of the predecessor, bit for bit.

    It uses one random generator from the first draw of the epoch to the last, so its order can't
    be had at a point: it comes in chunks. Those of a canonical node need only the draws, not the
    ids, of the nodes before.

    Attributes:
        name: The name users know it by.
    """

    name: str
    is_arithmetic = False

    @abstractmethod
    def make(self, spec: ShuffleSpec) -> Making:
        """Get ready to make an order. Costs nothing yet."""

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        return ()

    def open(self, spec: ShuffleSpec, hold: Hold) -> IdMap:
        self.check(spec)
        making = self.make(spec)
        bounds = borders(spec.num_samples, spec.canonical_nodes)
        if not making.is_by_node:
            return _Table(hold(self._recipe(spec, making, bounds[[0, -1]], None)), bounds, None)
        table = hold(self._recipe(spec, making, bounds, spec.wanted))
        parts = None if spec.wanted is None else np.array(spec.wanted, np.int64)
        return _Table(table, bounds, parts)

    def _recipe(
        self, spec: ShuffleSpec, making: Making, bounds: Ids, wanted: tuple[int, ...] | None
    ) -> Recipe:
        """How to make the wanted parts of an order; `bounds` are those of all parts."""
        parts = range(len(bounds) - 1) if wanted is None else wanted
        words = [spec.digest(self.name), *map(str, () if wanted is None else wanted)]
        return Recipe(
            digest=hashlib.blake2b(" ".join(words).encode(), digest_size=16).hexdigest(),
            sizes=[int(bounds[part + 1] - bounds[part]) for part in parts],
            stop=spec.num_samples,
            open=lambda number: making.chunks(parts[number]),
            work=spec.num_samples,
        )

    def whole(
        self,
        shard_sizes: NDArray[np.int64],
        num_canonical_nodes: int,
        seed: int,
        epoch: int,
        block_size: int = 1 << 18,
    ) -> Ids:
        """The order as an array; the parameters are those of `streaming.shuffle.get_shuffle`."""
        sizes = np.asarray(shard_sizes, np.int64)
        spec = ShuffleSpec(sizes, num_canonical_nodes, seed, epoch, block_size)
        self.check(spec)
        making = self.make(spec)
        bounds = borders(spec.num_samples, spec.canonical_nodes)
        return in_memory(
            self._recipe(spec, making, bounds if making.is_by_node else bounds[[0, -1]], None)
        )


class _Table:
    """An order that is a table of some of its parts.

    Args:
        table: The draws at the positions of these parts.
        bounds: First position of each part there is, and the end.
        parts: Which are in the table; None: all.
    """

    def __init__(self, table: IdTable, bounds: Ids, parts: Ids | None) -> None:
        self._table = table
        self._size = int(bounds[-1])
        self._starts = self._shifts = None
        if parts is not None:
            sizes = bounds[parts + 1] - bounds[parts]
            self._starts = bounds[parts]
            self._shifts = np.cumsum(sizes) - sizes - bounds[parts]

    @property
    def size(self) -> int:
        return self._size

    def __call__(self, ids: Ids, /) -> Ids:
        if not len(self._table):
            return np.full(ids.shape, -1, np.int64)
        places = np.maximum(ids, 0) if (has_padding := bool((ids < 0).any())) else ids
        if self._shifts is not None and self._starts is not None:
            if len(self._shifts) == 1:
                places = places + self._shifts[0]
            else:
                places = (
                    places
                    + self._shifts[
                        np.maximum(np.searchsorted(self._starts, places, "right") - 1, 0)
                    ]
                )
            if has_padding:
                places = np.maximum(places, 0)
        out = self._table[places]
        return np.where(ids < 0, -1, out) if has_padding else out


def borders(num_samples: int, nodes: int) -> Ids:
    """Where canonical nodes begin, and the end: shape (nodes + 1,)."""
    return np.array([node * num_samples // nodes for node in range(nodes + 1)], np.int64)
