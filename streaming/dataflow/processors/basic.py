"""Processors that are put together from others, and from functions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from streaming.dataflow.base import RawItem, RawItemProcessor, Sample, SkipItem, wants_rng

__all__ = ["Chain", "ExpandProcessor", "FilterProcessor", "IdentityProcessor", "MapProcessor"]


class IdentityProcessor(RawItemProcessor):
    """Gives the item itself."""

    def process(self, item: RawItem) -> Sample:
        return item


class MapProcessor(RawItemProcessor):
    """Makes a sample by a function.

    Args:
        function: From an item to a sample, or to None to drop it.
        size: From an item to what its sample will cost, if that can be told before.
    """

    def __init__(
        self,
        function: Callable[[RawItem], Sample | None],
        size: Callable[[RawItem], float] | None = None,
    ) -> None:
        self.function = function
        self.size = size

    def process(self, item: RawItem) -> Sample | None:
        return self.function(item)


class FilterProcessor(RawItemProcessor):
    """Drops items.

    Args:
        predicate: Tells whether an item stays.
    """

    def __init__(self, predicate: Callable[[RawItem], bool]) -> None:
        self.predicate = predicate

    def process(self, item: RawItem) -> Sample | None:
        return item if self.predicate(item) else None


class ExpandProcessor(RawItemProcessor):
    """Makes any number of samples of an item.

    Args:
        function: From an item to its samples. The same item must give the same ones, in order.
    """

    def __init__(self, function: Callable[[RawItem], Iterable[Sample]]) -> None:
        self.function = function

    def process(self, item: RawItem) -> Sample | None:
        """Give the first sample; loaders call `expand`."""
        return next(iter(self.expand(item)), None)

    def expand(self, item: RawItem) -> Iterable[Sample]:
        """Give all samples."""
        return self.function(item)


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
