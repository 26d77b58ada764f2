"""Whole ranks for each of several datasets."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from streaming.dataflow.base import (
    Cursor,
    DataDistributor,
    Json,
    RawItem,
    StreamPlan,
    Token,
    open_cursor,
)
from streaming.dataflow.distributors.iterable import IterableDistributor
from streaming.dataflow.state import parse_part
from streaming.errors import ConfigError

__all__ = ["RankPartitionedDistributor", "allot"]


class RankPartitionedDistributor(DataDistributor):
    """Gives each rank to one dataset, in proportion, and all of the rank's workers with it.

    The ranks are those of the job's first start: later the logical streams that belonged to them
    stay with their dataset, on however many ranks they run. Tokens are (name, token there).

    Args:
        datasets: Name to ``{"dataset": ..., "ratio": number}``. The dataset is a distributor; an
            iterable that shards itself, by the attributes `shard_rank`, `shard_world_size` and
            `shard_id`, which a copy of it is given, and by the worker that torch tells of; or a
            callable without arguments that makes one of these, called in the process that reads.
            Entries with a ratio of 0 or less are left out.

    Raises:
        ConfigError: No entry is left, or one is not of this form.
    """

    def __init__(self, datasets: Mapping[str, Mapping[str, Any]]) -> None:
        for name, entry in datasets.items():
            if not {"dataset", "ratio"} <= entry.keys():
                raise ConfigError(f'Dataset {name!r} must have a "dataset" and a "ratio".')
        self.datasets = {
            name: entry["dataset"] for name, entry in datasets.items() if entry["ratio"] > 0
        }
        self.ratios = [entry["ratio"] for entry in datasets.values() if entry["ratio"] > 0]
        if not self.datasets:
            raise ConfigError(
                f"At least one dataset needs a ratio above 0; of the {len(datasets)} given none "
                f"has."
            )
        for name, dataset in self.datasets.items():
            if not _is_source(dataset) and not callable(dataset):
                raise ConfigError(
                    f"Dataset {name!r} is a {type(dataset).__name__}, which can't shard itself. "
                    f"Wrap it: MapDistributor(...) for what has a length and indexing."
                )
        self._made: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give the part of one worker of one rank, from the dataset that the rank belongs to."""
        plan = StreamPlan.of(dp_world_size, num_workers)
        cursor = self.open(plan.stream(dp_rank * num_workers + worker_id), plan)
        for _, item in cursor:
            yield item

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        which, inner, inner_plan = self._assign(stream, plan)
        name = list(self.datasets)[which]
        source = self._source(name)
        if not hasattr(source, "stream"):
            # A copy: in one process there may be streams of several ranks.
            source = copy.copy(source)
            rank, world, _, _ = inner_plan.coordinates(inner)
            source.shard_rank, source.shard_world_size, source.shard_id = rank, world, which
            source = IterableDistributor(source, sharding="none")
        return _NamedCursor(name, open_cursor(source, inner, inner_plan))

    def fingerprint(self) -> dict[str, Json]:
        inner = {
            name: dataset.fingerprint()
            for name, dataset in self.datasets.items()
            if hasattr(dataset, "fingerprint")
        }
        return {"datasets": list(self.datasets), "ratios": self.ratios, "inner": inner}

    def _assign(self, stream: int, plan: StreamPlan) -> tuple[int, int, StreamPlan]:
        """Which dataset a logical stream belongs to, and which logical stream of its own it is."""
        rank, ranks, worker, workers = plan.coordinates(stream)
        counts = allot(self.ratios, ranks)
        stops = list(accumulate(counts))
        which = next(i for i, stop in enumerate(stops) if rank < stop)
        inner = StreamPlan.of(counts[which], workers)
        first = stops[which] - counts[which]
        return which, inner.stream((rank - first) * workers + worker), inner

    def _source(self, name: str) -> Any:
        """The dataset of a name, made if need be; once a process."""
        if name not in self._made:
            dataset = self.datasets[name]
            made = dataset if _is_source(dataset) else dataset()
            if not _is_source(made):
                raise ConfigError(
                    f"The callable for dataset {name!r} made a {type(made).__name__}, which is "
                    f"neither a distributor nor an iterable that shards itself."
                )
            self._made[name] = made
        return self._made[name]


def allot(ratios: Sequence[float], ranks: int) -> list[int]:
    """Give each of several datasets whole ranks, at least one, as near to its ratio as can be.

    Args:
        ratios: Positive numbers.
        ranks: How many ranks there are.

    Raises:
        ConfigError: There are fewer ranks than datasets.
    """
    if ranks < len(ratios):
        raise ConfigError(
            f"{len(ratios)} datasets can't share {ranks} ranks: each needs at least one. Start on "
            f"more ranks, or mix them in each with MixtureDistributor."
        )
    total = sum(ratios)
    # In this order of operations, so that floats round as the predecessor's do.
    ideal = [ratio / total * ranks for ratio in ratios]
    counts = [max(1, int(share)) for share in ideal]
    behind = sorted(range(len(ratios)), key=lambda i: counts[i] - ideal[i])
    for i in behind[: max(ranks - sum(counts), 0)]:
        counts[i] += 1
    while sum(counts) > ranks:
        over = [i for i, count in enumerate(counts) if count > 1]
        counts[max(over, key=lambda i: (counts[i] - ideal[i], counts[i]))] -= 1
    return counts


class _NamedCursor(Cursor):
    """The cursor of another source, whose name goes into the tokens."""

    def __init__(self, name: str, cursor: Cursor) -> None:
        self._name = name
        self._cursor = cursor
        self.can_fetch = cursor.can_fetch

    def __next__(self) -> tuple[Token, RawItem]:
        token, item = next(self._cursor)
        return (self._name, token), item

    def take(self, limit: int) -> tuple[list[Token], list[RawItem]]:
        tokens, items = self._cursor.take(limit)
        return [(self._name, token) for token in tokens], items

    def state_dict(self) -> Json:
        return self._cursor.state_dict()

    def load_state_dict(self, state: Json) -> None:
        self._cursor.load_state_dict(state)

    def fetch(self, token: Token) -> RawItem:
        _, inner = parse_part(token, tuple[str, Any], "The token of an item of a dataset")
        return self._cursor.fetch(inner)

    def close(self) -> None:
        self._cursor.close()


def _is_source(dataset: Any) -> bool:
    """Whether it is a distributor, or an iterable that is not map-style."""
    return hasattr(dataset, "stream") or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )
