"""What a loader of numbered samples gives, and goes on with."""

import json
from collections.abc import Callable, Iterable
from itertools import islice

from streaming import StreamingDataLoader

__all__ = ["check_resume", "ids"]


def ids(loader: StreamingDataLoader, limit: int | None = None) -> list[int]:
    """The numbers of samples, of some batches or of all."""
    batches = iter(loader)
    try:
        return [int(number) for batch in islice(batches, limit) for number in batch["id"]]
    finally:
        if hasattr(batches, "close"):
            batches.close()


def check_resume(
    load: Callable[[int], StreamingDataLoader], numbers: Iterable[int], workers: Iterable[int]
) -> None:
    """A shuffled epoch has each sample once, also if it is stopped and goes on elsewhere.

    Args:
        load: Makes a loader of batches of four with so many workers.
        numbers: Those of the samples, ascending.
        workers: With how many workers each time it goes on; with two, as it began, in that order.
    """
    every = list(numbers)
    whole = ids(load(2))
    assert sorted(whole) == every
    assert whole != every
    loader = load(2)
    seen = ids(loader, 7)
    state = json.loads(json.dumps(loader.state_dict()))
    assert seen == whole[:28]
    for count in workers:
        again = load(count)
        again.load_state_dict(state)
        found = seen + ids(again)
        assert sorted(found) == every
        if count == 2:
            assert found == whole
