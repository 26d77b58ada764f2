"""Groups of like sizes that fill a budget when each sample is padded to the longest."""

from typing import Any

from streaming.dataflow.batchers.packing import (
    Entry,
    Lane,
    PackingBatcher,
    SizedPool,
    check_pool_size,
)
from streaming.dataflow.batchers.pooled import Pool, Size

__all__ = ["WindowBatcher"]


class WindowBatcher(PackingBatcher):
    """Takes neighbours from a pool sorted by size: with the oldest among them, and most tokens.

    For rectangles of padded rows. A group costs its longest sample times its count. Of windows with
    equally many tokens the shorter samples are taken.

    Args:
        max_tokens: The budget of a group, padding included; exactly the budget is within it.
        pool_size: Samples to choose from. More waste less and travel farther.
        options: Those of PackingBatcher.
    """

    def __init__(self, max_tokens: Size, pool_size: int = 256, **options: Any) -> None:
        super().__init__(max_tokens, **options)
        self.pool_size = check_pool_size(pool_size)

    def open(self) -> Pool:
        return _WindowPool(self, self.pool_size)


class _WindowPool(SizedPool):
    batcher: WindowBatcher

    def gather(self, seed: Entry, lane: Lane) -> list[Entry]:
        oldest = lane.place(seed)
        start, stop = self._window(lane, oldest)
        entries = lane.entries[start:stop]
        del lane.sizes[start:stop], lane.entries[start:stop]
        for entry in entries:
            del self.arrived[entry]
        return entries

    def _window(self, lane: Lane, oldest: int) -> tuple[int, int]:
        """The best [start, stop) that holds a place.

        For each possible longest sample the window reaches down as far as its budget does. As rows
        get longer it begins later and later, until the oldest is no longer in it.
        """
        sizes = lane.sizes
        stop = oldest + 1
        start = min(max(stop - self._count(sizes[oldest]), 0), oldest)
        start = min(self._within_budgets(lane, start, stop), oldest)
        total = sum(sizes[start:stop])
        best, best_start, best_stop = total, start, stop
        for longest in sizes[stop:]:
            stop += 1
            first = max(stop - self._count(longest), start)
            first = self._within_budgets(lane, first, stop)
            if first > oldest:
                break
            total += longest - sum(sizes[start:first])
            start = first
            if total > best:
                best, best_start, best_stop = total, start, stop
        return best_start, best_stop

    def _count(self, longest: Size) -> int:
        """How many rows of this length a group may have."""
        batcher = self.batcher
        most = batcher.max_batch_size or len(self.arrived)
        row = batcher.row(longest)
        return min(int(batcher.budget(longest) // row), most) if row > 0 else most

    def _within_budgets(self, lane: Lane, start: int, stop: int) -> int:
        """From where on a window that ends at `stop` is within the other budgets."""
        for i, budget in enumerate(self.batcher.budgets):
            total = sum(entry.extras[i] for entry in lane.entries[start:stop])
            while total > budget.limit and start < stop:
                total -= lane.entries[start].extras[i]
                start += 1
        return start
