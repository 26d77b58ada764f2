"""The choices of the batchers, slow and plain: what the fast ones are held against."""

from collections.abc import Iterator, Sequence
from typing import Any

Sample = dict[str, Any]


def length(sample: Sample) -> int:
    return len(sample["input_ids"])


def modality(sample: Sample) -> str:
    if "pixel_values" in sample:
        return "image"
    return "video" if "pixel_values_videos" in sample else "text"


def pool_packing(
    samples: Iterator[Sample],
    max_tokens: int,
    pool_size: int = 16,
    max_batch_size: int | None = 1,
    long_threshold: int = 6400,
    batching_strategy: str = "prefer_closest",
    apply_long_sample_halving: bool = True,
) -> Iterator[list[Sample]]:
    """Try every pending sample at every step, and measure it each time."""
    pool: list[Sample] = []
    is_over = False

    def budget(longest: int) -> int:
        if apply_long_sample_halving and longest >= 1000:
            return max_tokens // 2
        return max_tokens

    while True:
        while len(pool) < pool_size and not is_over:
            try:
                pool.append(next(samples))
            except StopIteration:
                is_over = True
        if not pool:
            return
        group = [pool.pop(0)]
        if length(group[0]) < long_threshold and length(group[0]) < budget(length(group[0])):
            while not max_batch_size or len(group) < max_batch_size:
                longest = max(map(length, group))
                best = None
                for place, sample in enumerate(pool):
                    if modality(sample) != modality(group[0]):
                        continue
                    size = length(sample)
                    cost = max(longest, size) * (len(group) + 1)
                    if cost > budget(longest):
                        continue
                    closeness = abs(size - longest)
                    key = (cost, closeness if batching_strategy == "prefer_closest" else 0, place)
                    if best is None or key < best:
                        best = key
                if best is None:
                    break
                group.append(pool.pop(best[-1]))
        yield group


def sequential(
    samples: Iterator[Sample],
    max_sequence_length: int | None = None,
    max_samples_per_batch: int | None = None,
    lookahead_limit: int = 10,
) -> Iterator[list[Sample]]:
    carried: list[Sample] = []
    is_over = False
    while not is_over or carried:
        group: list[Sample] = []
        skipped: list[Sample] = []
        total = 0
        while len(group) != max_samples_per_batch and not (
            group and len(skipped) >= lookahead_limit
        ):
            if carried:
                sample = carried.pop(0)
            else:
                try:
                    sample = next(samples)
                except StopIteration:
                    is_over = True
                    break
            if max_sequence_length is None or total + length(sample) < max_sequence_length:
                group.append(sample)
                total += length(sample)
            elif group:
                skipped.append(sample)
        carried = skipped + carried
        if group:
            yield group


def best_fit(sizes: Sequence[int], budget: int, pool_size: int, cap: int = 0) -> list[list[int]]:
    """Groups of places: the oldest, then again and again the longest that fits."""
    groups = []
    coming = list(range(len(sizes)))
    pool: list[int] = []
    while coming or pool:
        while coming and len(pool) < pool_size:
            pool.append(coming.pop(0))
        group = [pool.pop(0)]
        while not cap or len(group) < cap:
            room = budget - sum(sizes[i] for i in group)
            fitting = [i for i in pool if sizes[i] <= room]
            if not fitting:
                break
            group.append(max(fitting, key=lambda i: (sizes[i], -i)))
            pool.remove(group[-1])
        groups.append(group)
    return groups


def window(sizes: Sequence[int], budget: int, pool_size: int, cap: int = 0) -> list[list[int]]:
    """Groups of places: of all runs of the sorted pool that hold the oldest, the fullest."""
    groups = []
    coming = list(range(len(sizes)))
    pool: list[int] = []
    while coming or pool:
        while coming and len(pool) < pool_size:
            pool.append(coming.pop(0))
        lane = sorted(pool, key=lambda i: (sizes[i], i))
        oldest = lane.index(pool[0])
        best = [pool[0]]
        for stop in range(oldest + 1, len(lane) + 1):
            for start in range(oldest + 1):
                run = lane[start:stop]
                fits = sizes[run[-1]] * len(run) <= budget and (not cap or len(run) <= cap)
                if fits and sum(sizes[i] for i in run) > sum(sizes[i] for i in best):
                    best = run
        pool = [i for i in pool if i not in best]
        groups.append(best)
    return groups
