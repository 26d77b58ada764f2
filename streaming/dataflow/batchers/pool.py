"""Groups from a small pool under a padded budget, chosen as NVIDIA's cosmos-framework does."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from streaming.dataflow.base import Sample
from streaming.dataflow.batchers.packing import (
    Budget,
    BudgetRule,
    Entry,
    Lane,
    OversizePolicy,
    PackingBatcher,
    SizedPool,
    SizeFunction,
    default_modality,
)
from streaming.dataflow.batchers.pooled import Pool, Size
from streaming.errors import ConfigError

__all__ = ["PoolPackingBatcher"]

# From this length on the predecessor gives a group half the budget.
_LONG = 1000


class PoolPackingBatcher(PackingBatcher):
    """Begins with the oldest sample and adds the one that makes the padded group cost least.

    A group costs its longest sample times its count. What joins must leave it within the budget
    that belongs to its longest sample before. The choices are the predecessor's, one by one; they
    are found in sorted lists instead of by trying each sample, and sizes are measured once.

    WindowBatcher does the same job with far less padding.

    Args:
        max_tokens: The budget.
        pool_size: Samples to choose from. 0 ends at once, 1 never groups.
        max_batch_size: The most samples of a group; None or 0 for any number. With the default each
            sample is a group, in order.
        long_threshold: A sample of at least this size is a group by itself if it is the oldest.
        batching_strategy: Of samples that cost the same, "prefer_first" takes the oldest,
            "prefer_closest" the one nearest in size to the longest in the group.
        apply_long_sample_halving: Whether a group whose longest has 1,000 tokens or more gets half
            the budget.
        size_fn: What a sample costs; None: the length of its `input_ids`.
        budgets: As for PackingBatcher, and so the rest; `budget_rule` takes the place of halving.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        max_tokens: Size,
        pool_size: int = 16,
        max_batch_size: int | None = 1,
        long_threshold: Size = 6400,
        batching_strategy: Literal["prefer_first", "prefer_closest"] = "prefer_closest",
        apply_long_sample_halving: bool = True,
        size_fn: SizeFunction | None = None,
        *,
        budgets: Sequence[Budget] = (),
        modality: Callable[[Sample], Any] | None = default_modality,
        round_to: int = 1,
        oversize: OversizePolicy = "alone",
        split: Callable[[Sample], Iterable[Sample]] | None = None,
        budget_rule: BudgetRule | None = None,
    ) -> None:
        super().__init__(
            max_tokens,
            size=size_fn,
            budgets=budgets,
            max_batch_size=max_batch_size,
            modality=modality,
            round_to=round_to,
            oversize=oversize,
            split=split,
            budget_rule=budget_rule,
        )
        if batching_strategy not in ("prefer_first", "prefer_closest"):
            raise ConfigError(
                f'`batching_strategy` must be "prefer_first" or "prefer_closest", but is '
                f"{batching_strategy!r}."
            )
        if pool_size < 0:
            raise ConfigError(f"`pool_size` must not be negative, but is {pool_size}.")
        self.pool_size = pool_size
        self.long_threshold = long_threshold
        self.batching_strategy = batching_strategy
        self.apply_long_sample_halving = apply_long_sample_halving

    def open(self) -> Pool:
        return _PoolPackingPool(self, self.pool_size)

    def budget(self, longest: Size) -> Size:
        if self.budget_rule is not None:
            return self.budget_rule(longest)
        if self.apply_long_sample_halving and longest >= _LONG:
            return self.max_tokens // 2
        return self.max_tokens

    @property
    def alone(self) -> Size:
        """From this size on the oldest is a group by itself: two would cost too much."""
        if self.budget_rule is not None:
            return self.long_threshold
        halved = max(_LONG, self.budget(_LONG) // 2 + 1)
        return min(self.long_threshold, self.max_tokens // 2 + 1, halved)

    def is_over(self, size: Size) -> bool:
        return self.row(size) > self.max_tokens  # The half budget makes a group alone, not over.


class _PoolPackingPool(SizedPool):
    batcher: PoolPackingBatcher

    def __init__(self, batcher: PoolPackingBatcher, pool_size: int) -> None:
        super().__init__(batcher, pool_size)
        self._cap = batcher.max_batch_size or pool_size
        self._alone = batcher.alone
        self._find_next = self._search if batcher.budgets else self._find

    def gather(self, seed: Entry, lane: Lane) -> list[Entry]:
        sizes, entries = lane.sizes, lane.entries
        longest, group = seed.size, [seed]
        place = bisect_left(sizes, longest)
        while entries[place] is not seed:
            place += 1
        del sizes[place], entries[place], self.arrived[seed]
        if longest >= self._alone:
            return group
        batcher = self.batcher
        budget = batcher.budget(longest)
        if longest >= budget or (batcher.round_to > 1 and batcher.row(longest) >= budget):
            return group
        while sizes and len(group) < self._cap:
            if (longest if longest >= sizes[0] else sizes[0]) * (len(group) + 1) > budget:
                break  # Even the shortest costs too much.
            place = self._find_next(lane, longest, budget, group)
            if place < 0:
                break
            entry = entries[place]
            del sizes[place], entries[place], self.arrived[entry]
            group.append(entry)
            if entry.size > longest:
                longest = entry.size
                budget = batcher.budget(longest)
        return group

    def _find(self, lane: Lane, longest: Size, budget: Size, group: list[Entry]) -> int:
        """Place of the one that should join; -1 if none can.

        All that don't make the rows longer make the group cost the same, and less than any other.
        Only if there is none of those do longer ones matter, and of those the shortest.
        """
        sizes = lane.sizes
        bound = longest if longest >= sizes[0] else sizes[0]
        if self.batcher.round_to > 1:
            bound = self.batcher.row(bound)
            if bound * (len(group) + 1) > budget:
                return -1
        if self.batcher.batching_strategy == "prefer_first":
            return lane.place(next(e for e in self.candidates(lane) if e.size <= bound))
        above = bisect_right(sizes, longest)
        below = bisect_left(sizes, sizes[above - 1], 0, above) if above else -1
        if above == len(sizes) or sizes[above] > bound:
            return below
        if below < 0:
            return above
        # Padding makes a longer one cost the same: the nearer one, of equally near ones the older.
        nearness = longest - sizes[below], sizes[above] - longest
        if nearness[0] != nearness[1]:
            return below if nearness[0] < nearness[1] else above
        either = (lane.entries[below], lane.entries[above])
        return below if next(e for e in self.arrived if e in either) is either[0] else above

    def _search(self, lane: Lane, longest: Size, budget: Size, group: list[Entry]) -> int:
        """The same where there are more budgets: each candidate is tried."""
        batcher = self.batcher
        totals = [sum(amounts) for amounts in zip(*(e.extras for e in group), strict=True)]
        is_closest = batcher.batching_strategy == "prefer_closest"
        best: tuple[Size, Size] | None = None
        choice: Entry | None = None
        for entry in self.candidates(lane):
            cost = batcher.row(max(longest, entry.size)) * (len(group) + 1)
            key = (cost, abs(entry.size - longest) if is_closest else 0)
            if cost <= budget and (best is None or key < best) and batcher.fits(totals, entry):
                best, choice = key, entry
        return -1 if choice is None else lane.place(choice)
