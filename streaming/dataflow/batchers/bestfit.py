"""Groups that fill a budget by the sum of sizes."""

from typing import Any

from streaming.dataflow.batchers.packing import (
    Entry,
    Lane,
    PackingBatcher,
    SizedPool,
    check_pool_size,
)
from streaming.dataflow.batchers.pooled import Pool, Size

__all__ = ["BestFitBatcher"]


class BestFitBatcher(PackingBatcher):
    """Lays samples end to end: the oldest begins, then, again and again, the longest that fits.

    For rows with several documents in each. Over 99 % full on log-normal lengths with a pool of
    256. Of equal lengths, the one that came first is taken.

    Args:
        max_tokens: The budget of a group, by the sum of sizes; exactly the budget is within it.
        pool_size: Samples to choose from. More fill better and travel farther.
        options: Those of PackingBatcher.
    """

    def __init__(self, max_tokens: Size, pool_size: int = 256, **options: Any) -> None:
        super().__init__(max_tokens, **options)
        self.pool_size = check_pool_size(pool_size)

    def open(self) -> Pool:
        return _BestFitPool(self, self.pool_size)


class _BestFitPool(SizedPool):
    batcher: BestFitBatcher

    def gather(self, seed: Entry, lane: Lane) -> list[Entry]:
        batcher = self.batcher
        group = [self.take(lane, lane.place(seed))]
        cap = batcher.max_batch_size or self.pool_size
        if batcher.budgets or batcher.budget_rule is not None:
            return self._gather_within_all(group, lane, cap)
        # What padding the row to a multiple leaves of the budget.
        room = batcher.max_tokens // batcher.round_to * batcher.round_to - seed.size
        sizes = lane.sizes
        while sizes and sizes[0] <= room and len(group) < cap:
            entry = self.take(lane, lane.up_to(room))
            room -= entry.size
            group.append(entry)
        return group

    def _gather_within_all(self, group: list[Entry], lane: Lane, cap: int) -> list[Entry]:
        """The same where whether an entry fits is not only a matter of its size."""
        batcher = self.batcher
        longest = total = group[0].size
        extras = group[0].extras
        while len(group) < cap:
            fitting = [
                entry
                for entry in self.candidates(lane)
                if batcher.row(total + entry.size) <= batcher.budget(max(longest, entry.size))
                and batcher.fits(extras, entry)
            ]
            if not fitting:
                break
            best = max(fitting, key=lambda entry: entry.size)
            group.append(self.take(lane, lane.place(best)))
            longest, total = max(longest, best.size), total + best.size
            extras = tuple(have + more for have, more in zip(extras, best.extras, strict=True))
        return group
