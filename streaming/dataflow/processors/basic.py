"""Processors that are put together from others, and from functions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from streaming.dataflow.base import (
    RawItem,
    RawItemProcessor,
    Sample,
    SkipItem,
    takes_rng,
    wants_rng,
)

__all__ = ["Chain", "ExpandProcessor", "FilterProcessor", "IdentityProcessor", "MapProcessor"]


class IdentityProcessor(RawItemProcessor):
    """Gives the item itself."""

    def process(self, item: RawItem) -> Sample:
        return item


class _FunctionProcessor(RawItemProcessor):
    """Does its work by a function, which gets random numbers if it has a parameter for them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._takes_rng = takes_rng(function)

    @property
    def wants_rng(self) -> bool:
        return self._takes_rng


class MapProcessor(_FunctionProcessor):
    """Makes a sample by a function.

    Args:
        function: From an item to a sample, or to None to drop it. If it has a parameter `rng`, it
            is called with a generator as well.
        size: From an item to what its sample will cost, if that can be told before.
    """

    def __init__(
        self,
        function: Callable[..., Sample | None],
        size: Callable[[RawItem], float] | None = None,
    ) -> None:
        super().__init__(function)
        self.function = function
        self.size = size

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        return self.function(item, rng=rng) if self._takes_rng else self.function(item)


class FilterProcessor(_FunctionProcessor):
    """Drops items.

    Args:
        predicate: Tells whether an item stays. If it has a parameter `rng`, it is called with a
            generator as well.
    """

    def __init__(self, predicate: Callable[..., bool]) -> None:
        super().__init__(predicate)
        self.predicate = predicate

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        keep = self.predicate(item, rng=rng) if self._takes_rng else self.predicate(item)
        return item if keep else None


class ExpandProcessor(_FunctionProcessor):
    """Makes any number of samples of an item.

    Args:
        function: From an item to its samples. The same item must give the same ones, in order. If
            it has a parameter `rng`, it is called with a generator as well, which is the same for
            the same item.
    """

    def __init__(self, function: Callable[..., Iterable[Sample]]) -> None:
        super().__init__(function)
        self.function = function

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        """Give the first sample; loaders call `expand`."""
        return next(iter(self.expand(item, rng)), None)

    def expand(self, item: RawItem, rng: np.random.Generator | None = None) -> Iterable[Sample]:
        """Give all samples."""
        return self.function(item, rng=rng) if self._takes_rng else self.function(item)


class Chain(RawItemProcessor):
    """Processors one after another.

    An item that one of them drops goes no farther. If one makes several samples of an item, the
    rest see each. The cost of a sample is told before the work if the first can tell it.
    """

    def __init__(self, *processors: RawItemProcessor) -> None:
        self.processors: Sequence[RawItemProcessor] = processors
        self._wants = [wants_rng(processor) for processor in processors]

    @property
    def wants_rng(self) -> bool:
        return any(self._wants)

    @property
    def expand(self) -> Callable[..., Iterable[Sample]] | None:
        """Make all samples of an item; None if there is at most one."""
        return self._expand if any(map(_expands, self.processors)) else None

    @property
    def size(self) -> Callable[[RawItem], float] | None:
        """Tell what a sample will cost; None if that can't be told."""
        return getattr(self.processors[0], "size", None) if self.processors else None

    def process(self, item: RawItem, rng: np.random.Generator | None = None) -> Sample | None:
        return next(iter(self._expand(item, rng)), None)

    def _expand(self, item: RawItem, rng: np.random.Generator | None = None) -> Iterable[Sample]:
        samples = [item]
        for processor, wants in zip(self.processors, self._wants, strict=True):
            options: dict[str, Any] = {"rng": rng} if wants else {}
            samples = [made for sample in samples for made in _apply(processor, sample, options)]
        return samples


def _expands(processor: RawItemProcessor) -> bool:
    return getattr(processor, "expand", None) is not None


def _apply(processor: Any, item: RawItem, options: dict[str, Any]) -> Iterable[Sample]:
    """The samples that one processor makes of an item."""
    try:
        if _expands(processor):
            return list(processor.expand(item, **options))
        sample = processor.process(item, **options)
    except SkipItem:
        return ()
    return () if sample is None else (sample,)
