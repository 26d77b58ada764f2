"""Groups planned over a whole window of samples at once, by best fit decreasing."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from streaming.dataflow.base import Group, Token
from streaming.dataflow.batchers.packing import (
    Entry,
    PackingBatcher,
    check_pool_size,
    collect,
    tokens_of,
)
from streaming.dataflow.batchers.pooled import Pool, Size

__all__ = ["PlannedBatcher"]


class PlannedBatcher(PackingBatcher):
    """Lays samples end to end: the longest of a window first, each where it leaves least room.

    Some 99.9 % full on log-normal lengths with a window of 10,000. Best where a processor tells
    `size` before the work, from a column of lengths: then the window holds raw items. Groups come
    in the order of the oldest sample in each, samples in a group in order of arrival.

    Args:
        max_tokens: The budget of a group, by the sum of sizes; exactly the budget is within it.
        window: Samples that are planned at once.
        options: Those of PackingBatcher.
    """

    def __init__(self, max_tokens: Size, window: int = 10_000, **options: Any) -> None:
        super().__init__(max_tokens, **options)
        self.window = check_pool_size(window)

    def open(self) -> Pool:
        return _PlannedPool(self)


class _PlannedPool(Pool):
    """Entries that are not planned yet, and groups that are."""

    def __init__(self, batcher: PlannedBatcher) -> None:
        self._batcher = batcher
        self._entries: list[Entry] = []
        self._groups: deque[Group] = deque()

    def want(self) -> int:
        return 0 if self._groups else self._batcher.window - len(self._entries)

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Any],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        self._entries.extend(self._batcher.enter(self, tokens, samples, sizes))

    def choose(self, ended: bool) -> Group | None:
        if not self._groups and (ended or len(self._entries) == self._batcher.window):
            self._groups.extend(map(collect, _plan(self._batcher, self._entries)))
            self._entries = []
        return self._groups.popleft() if self._groups else None

    def pending(self) -> list[Token]:
        return tokens_of(self._entries)

    def held(self) -> list[list[Token]]:
        return [list(group.tokens or ()) for group in self._groups]


class _Bin:
    """A group in the making."""

    __slots__ = ("extras", "places")

    def __init__(self, extras: tuple[float, ...]) -> None:
        self.places: list[int] = []
        self.extras = extras


class _Shelf:
    """The bins of one modality that are open, by the room that is left in them."""

    __slots__ = ("bins", "rooms")

    def __init__(self) -> None:
        self.rooms: list[Size] = []
        self.bins: list[_Bin] = []

    def put(self, bin_: _Bin, room: Size) -> None:
        place = bisect_left(self.rooms, room)
        self.rooms.insert(place, room)
        self.bins.insert(place, bin_)


def _plan(batcher: PlannedBatcher, entries: Sequence[Entry]) -> list[list[Entry]]:
    """Group entries by best fit decreasing."""
    shelves: dict[Any, _Shelf] = {}
    bins: list[_Bin] = []
    cap = batcher.max_batch_size or len(entries)
    for place in sorted(range(len(entries)), key=lambda place: -entries[place].size):
        entry = entries[place]
        shelf = shelves.setdefault(entry.modality, _Shelf())
        found = bisect_left(shelf.rooms, entry.size)
        if batcher.budgets:
            found = next(
                (
                    i
                    for i in range(found, len(shelf.bins))
                    if batcher.fits(shelf.bins[i].extras, entry)
                ),
                len(shelf.bins),
            )
        if found < len(shelf.bins):
            bin_, room = shelf.bins.pop(found), shelf.rooms.pop(found)
        else:
            bin_ = _Bin((0.0,) * len(batcher.budgets))
            bins.append(bin_)
            budget = batcher.budget(entry.size)
            room = budget // batcher.round_to * batcher.round_to
        bin_.places.append(place)
        if batcher.budgets:
            bin_.extras = tuple(a + b for a, b in zip(bin_.extras, entry.extras, strict=True))
        if len(bin_.places) < cap:
            shelf.put(bin_, room - entry.size)
    groups = sorted(sorted(bin_.places) for bin_ in bins)
    return [[entries[place] for place in places] for places in groups]
