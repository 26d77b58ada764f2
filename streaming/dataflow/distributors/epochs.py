"""What sources have in common that know every item by its epoch and its place in it."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

from streaming.dataflow.base import Cursor, Json, RawItem, Token
from streaming.dataflow.state import Count, parse_part
from streaming.errors import ConfigError, StateError

__all__ = ["EpochCursor", "Places", "check_epochs", "cut"]


class Places(Sequence[Token]):
    """The tokens (epoch, start), (epoch, start + 1), ..., none of which exists until asked for."""

    __slots__ = ("_epoch", "_range")

    def __init__(self, epoch: int, places: range) -> None:
        self._epoch = epoch
        self._range = places

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[Token]:
        epoch = self._epoch
        return ((epoch, place) for place in self._range)

    @overload
    def __getitem__(self, at: int) -> Token: ...
    @overload
    def __getitem__(self, at: slice) -> "Places": ...
    def __getitem__(self, at: int | slice) -> "Token | Places":
        if isinstance(at, slice):
            return Places(self._epoch, self._range[at])
        return self._epoch, self._range[at]


class EpochCursor(Cursor):
    """Goes through a part of fixed length, epoch after epoch; its place is arithmetic.

    Args:
        size: Items of the part in each epoch. 0: there is nothing, and the end comes at once.
        epochs: Epochs after which the end comes, each time; None for no end.
    """

    can_fetch = True

    def __init__(self, size: int, epochs: int | None) -> None:
        self._size = size
        self._epochs = epochs
        self._epoch = 0
        self._place = 0

    def __len__(self) -> int:
        return self._size

    def __next__(self) -> tuple[Token, RawItem]:
        tokens, items = self.take(1)
        if not items:
            raise StopIteration
        return tokens[0], items[0]

    def take(self, limit: int) -> tuple[Sequence[Token], list[RawItem]]:
        if not self._size:
            return (), []
        if self._place == self._size:
            self._epoch, self._place = self._epoch + 1, 0
            if self._epochs is not None and self._epoch % self._epochs == 0:
                return (), []
        start = self._place
        try:
            items = self.read(self._epoch, start, min(start + limit, self._size))
        except Exception:
            self._place += 1  # The fault is this item's; those behind it can still be had.
            raise
        self._place += len(items)
        return Places(self._epoch, range(start, self._place)), items

    @abstractmethod
    def read(self, epoch: int, start: int, stop: int) -> list[RawItem]:
        """The items at places [start, stop) of an epoch, where start < stop.

        If one can't be read, those before it; if that is none, its exception.
        """

    def state_dict(self) -> Json:
        return [self._epoch, self._place]

    def load_state_dict(self, state: Json) -> None:
        self._epoch, self._place = self._parse(state, self._size)

    def fetch(self, token: Token) -> RawItem:
        epoch, place = self._parse(token, self._size - 1)
        return self.read(epoch, place, place + 1)[0]

    def _parse(self, value: Json, last: int) -> tuple[int, int]:
        """An epoch, and a place that is not behind the last one."""
        epoch, place = parse_part(value, tuple[Count, Count], "The epoch and place of an item")
        if place > last:
            raise StateError(
                f"Place {place} of epoch {epoch} is not in a part of {self._size} items. The state "
                f"is of other data, or of another number of ranks and workers."
            )
        return epoch, place


def cut(size: int, unit: int, num_units: int) -> range:
    """The places of one of `num_units` runs of neighbours, whose lengths differ by one at most."""
    return range(unit * size // num_units, (unit + 1) * size // num_units)


def check_epochs(epochs: int | None) -> int | None:
    """Refuse a number of epochs that can't be meant."""
    if epochs is not None and epochs < 1:
        raise ConfigError(f"`epochs` must be at least 1, or None for no end, but is {epochs}.")
    return epochs
