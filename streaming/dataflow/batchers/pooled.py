"""What the built-in batchers have in common: a pool of pending entries, and one choice at a time.

A choice follows from the pending entries in their order of arrival, and from nothing else. So the
tokens of the pending entries are all the state there is: a new pool that is given them again, and
then the rest of the source, goes on with exactly the same groups.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from math import isfinite
from typing import TypeAlias

from streaming.dataflow.base import Group, Json, Sample, SampleBatcher, Token

__all__ = ["Pool", "PoolBatcher", "Size"]

Size: TypeAlias = float
"""What a sample costs: a whole number of tokens most of the time, but any number will do."""


class Pool(ABC):
    """The pending entries of one logical stream, and the choice among them.

    Attributes:
        dropped: Entries that were dropped, being over the budget or left over at the end.
    """

    dropped: int = 0

    @abstractmethod
    def want(self) -> int:
        """How many more entries to add before the next choice is tried. 0: none as it is."""

    @abstractmethod
    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        """Take in entries in their order of arrival, at most as many as wanted.

        Args:
            tokens: Their tokens; there may be more of them.
            samples: Their samples.
            sizes: Their sizes, if they are known; they are measured otherwise.

        Raises:
            SampleError: Some can't be taken in; the others have been.
        """

    @abstractmethod
    def choose(self, ended: bool) -> Group | None:
        """Take out the next group.

        Args:
            ended: Whether no more entries will come, so that the pool has to be drained.

        Returns:
            The group. None: more entries must come first, or, if nothing is wanted or it is the
            end, that is all.
        """

    @abstractmethod
    def pending(self) -> list[Token]:
        """Tokens of the entries that wait undecided, in their order of arrival."""

    def held(self) -> list[list[Token]]:
        """Tokens of groups that are decided and not given out yet."""
        return []

    def state_dict(self) -> Json:
        """What must be known beside the entries; None: nothing."""
        return None

    def load_state_dict(self, state: Json) -> None:
        """Take over what `state_dict` gave. Called on an empty pool."""
        return


class PoolBatcher(SampleBatcher):
    """Base of the batchers that choose from a pool.

    Attributes:
        wants_sizes: Whether its pools have a use for sizes that something else knows.
        splits: Whether a sample is cut into pieces, which `pieces` gives, before it is taken in.
    """

    wants_sizes: bool = False
    splits: bool = False

    @abstractmethod
    def open(self) -> Pool:
        """Begin with an empty pool."""

    def pieces(self, sample: Sample) -> Sequence[Sample]:
        """What is taken in in place of a sample."""
        return (sample,)

    def batches(self, samples: Iterator[Sample]) -> Iterator[list[Sample]]:
        """Give groups until the samples end and none is left."""
        source = iter(samples)
        if self.splits:
            source = (piece for sample in source for piece in self.pieces(sample))
        pool, nameless = self.open(), repeat(None)
        ended = False
        while True:
            wanted = pool.want()
            if wanted and not ended:
                came = list(islice(source, wanted))
                ended = len(came) < wanted
                pool.add(nameless, came)
            group = pool.choose(ended)
            if group is not None:
                yield group
            elif ended or not pool.want():
                return

    def fingerprint(self) -> dict[str, Json]:
        """The settings that decide which samples go together, as far as JSON has them."""
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if not name.startswith("_")
        }
        return {name: value for name, value in settings.items() if _is_json(value)}


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, int | str | None) or (isinstance(value, float) and isfinite(value))
