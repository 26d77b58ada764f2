"""Functions on ids: what an epoch's order is made of, and how the tables among them are kept."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Chain",
    "Hold",
    "IdMap",
    "IdTable",
    "Ids",
    "Joined",
    "Pool",
    "Recipe",
    "grouped",
    "in_memory",
]

Ids = NDArray[np.int64]
"""Sample ids, draws, positions or slots."""


class IdMap(Protocol):
    """A function on ids, vectorised. Equal input gives equal output in every process.

    -1 is padding and gives -1. Arrays of any shape, int64.
    """

    @property
    def size(self) -> int:
        """It maps [0, size)."""
        ...

    def __call__(self, ids: Ids, /) -> Ids: ...


class IdTable(Protocol):
    """Ids by place. Arrays of shape (size,) are such tables; others may make them meanwhile."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Ids, /) -> Ids:
        """The ids at some places, once they are there; the shape of `places`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make a table of ids, and what it is known by.

    Attributes:
        digest: Hexadecimal name of all that the ids follow from.
        sizes: Ids of each part, one part after the other.
        stop: No id is as large.
        open: Gives the ids of a part in chunks, from its first id on. Any part may be opened at
            any time and left where it is.
        work: Ids that are handled to make the table, if it is more than it holds.
    """

    digest: str
    sizes: Sequence[int]
    stop: int
    open: Callable[[int], Iterator[Ids]]
    work: int = 0

    @property
    def size(self) -> int:
        """Ids of the table."""
        return sum(self.sizes)


class Hold(Protocol):
    """Keeps tables of ids. The chunks cost time: a table that is there already isn't made again."""

    def __call__(self, recipe: Recipe, /) -> IdTable:
        """Keep a table under its digest; it is never written to by others."""
        ...


def in_memory(recipe: Recipe) -> Ids:
    """Hold a table in the memory of this process."""
    table = np.empty(recipe.size, np.int64)
    stop = 0
    for part in range(len(recipe.sizes)):
        for chunk in recipe.open(part):
            start, stop = stop, stop + len(chunk)
            table[start:stop] = chunk
    assert stop == len(table), f"{stop} of {len(table)} ids came for {recipe.digest}"
    return table


class Pool:
    """Holds several tables as one, which is made when the first of them is read.

    Args:
        hold: Keeps that one.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._recipes: list[Recipe] = []

    def __call__(self, recipe: Recipe, /) -> IdTable:
        assert "table" not in self.__dict__, "the tables have been made"
        start = sum(earlier.size for earlier in self._recipes)
        self._recipes.append(recipe)
        return _Slice(self, start, recipe.size)

    @property
    def recipe(self) -> Recipe | None:
        """How to make all of them; None if there are none."""
        recipes = tuple(self._recipes)
        if len(recipes) < 2:
            return recipes[0] if recipes else None
        parts = [(recipe, part) for recipe in recipes for part in range(len(recipe.sizes))]

        def open_part(number: int) -> Iterator[Ids]:
            recipe, part = parts[number]
            return recipe.open(part)

        names = " ".join(recipe.digest for recipe in recipes)
        return Recipe(
            digest=hashlib.blake2b(names.encode(), digest_size=16).hexdigest(),
            sizes=[recipe.sizes[part] for recipe, part in parts],
            stop=max(recipe.stop for recipe in recipes),
            open=open_part,
            work=sum(max(recipe.work, recipe.size) for recipe in recipes),
        )

    @cached_property
    def table(self) -> IdTable:
        """All of them, one after the other."""
        recipe = self.recipe
        return np.empty(0, np.int64) if recipe is None else self._hold(recipe)


class _Slice:
    """One of the tables of a pool."""

    def __init__(self, pool: Pool, start: int, size: int) -> None:
        self._pool = pool
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, places: Ids, /) -> Ids:
        return self._pool.table[places + self._start if self._start else places]


class Chain:
    """One map after the other."""

    def __init__(self, first: IdMap, then: IdMap) -> None:
        self._first = first
        self._then = then

    @property
    def size(self) -> int:
        return self._first.size

    def __call__(self, ids: Ids, /) -> Ids:
        return self._then(self._first(ids))


class Joined:
    """Maps side by side: the first takes the ids from 0, the next goes on where it ends."""

    def __init__(self, parts: Sequence[IdMap]) -> None:
        self._parts = parts
        self._bounds = np.cumsum([0] + [part.size for part in parts])

    @property
    def size(self) -> int:
        return int(self._bounds[-1])

    def __call__(self, ids: Ids, /) -> Ids:
        if len(self._parts) == 1:
            return self._parts[0](ids)
        out = np.full(ids.shape, -1, np.int64)
        flat = ids.ravel()
        for part, mine in grouped(np.searchsorted(self._bounds, flat, "right") - 1):
            if part >= 0:
                out.flat[mine] = self._parts[part](flat[mine] - self._bounds[part])
        return out


def grouped(keys: Ids) -> Iterator[tuple[int, Ids]]:
    """Each distinct key and the places where it stands, ascending; keys of shape (n,)."""
    if len(keys):
        order = np.argsort(keys, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            yield int(keys[places[0]]), places
