"""Each distributor through the suite."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.dataflow import (
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
    StreamingDistributor,
)
from streaming.dataflow.base import Cursor, DataDistributor, StreamPlan, open_cursor
from tests.dataflow.distributors.sources import Plain, Sharded, write_numbers
from tests.suites.distributor import SEVERAL, DistributorSuite


class TestMap(DistributorSuite):
    def make(self) -> DataDistributor:
        return MapDistributor(list(range(self.size)), seed=3, epochs=1)


class TestMapInBlocksWithoutTable(DistributorSuite):
    def make(self) -> DataDistributor:
        return MapDistributor(
            list(range(self.size)), shuffle="scatter", partition="block", epochs=1
        )


class TestIterable(DistributorSuite):
    def make(self) -> DataDistributor:
        return IterableDistributor(Plain(self.size), epochs=1)


class TestShardedIterable(DistributorSuite):
    def make(self) -> DataDistributor:
        shards = [range(start, self.size, 15) for start in range(15)]
        return IterableDistributor(Sharded(shards), epochs=1)


class TestIterableOfFewShards(DistributorSuite):
    def make(self) -> DataDistributor:
        shards = [range(start, self.size, 4) for start in range(4)]
        return IterableDistributor(Sharded(shards), epochs=1)


class TestStreaming(DistributorSuite):
    @pytest.fixture(autouse=True)
    def dataset(self, tmp_path: Path) -> None:
        self.path = write_numbers(tmp_path / "data", self.size, 1 << 7)

    def make(self) -> DataDistributor:
        torch_dataset = pytest.importorskip("streaming.dataset")
        dataset = torch_dataset.StreamingDataset(local=str(self.path), shuffle=True)
        return StreamingDistributor(dataset, epochs=1)


class Ending(Cursor):
    """Ends another cursor after so many items."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        self.cursor = cursor
        self.count = count
        self.given = 0
        self.can_fetch = cursor.can_fetch

    def __next__(self) -> Any:
        if self.given and self.given % self.count == 0:
            self.given = 0
            raise StopIteration
        self.given += 1
        return next(self.cursor)

    def state_dict(self) -> Any:
        return [self.given, self.cursor.state_dict()]

    def load_state_dict(self, state: Any) -> None:
        self.given = state[0]
        self.cursor.load_state_dict(state[1])

    def fetch(self, token: Any) -> Any:
        return self.cursor.fetch(token)


class Ended(DataDistributor):
    """Gives the first items of a distributor that has no end."""

    def __init__(self, distributor: DataDistributor, count: int) -> None:
        self.distributor = distributor
        self.count = count

    def stream(self, *at: int) -> Iterator[Any]:
        raise NotImplementedError

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        return Ending(open_cursor(self.distributor, stream, plan), self.count)

    def fingerprint(self) -> dict[str, Any]:
        return self.distributor.fingerprint()


class TestMixture(DistributorSuite):
    is_whole = False

    def make(self) -> DataDistributor:
        return Ended(
            MixtureDistributor(
                {
                    "map": (MapDistributor(list(range(20)), seed=1), 2),
                    "rest": (MapDistributor(list(range(100, 130)), seed=2), 1),
                }
            ),
            40,
        )


class TestMixtureOfWhatCannotFetch(DistributorSuite):
    is_whole = False

    def make(self) -> DataDistributor:
        sources = {
            "map": (MapDistributor(list(range(20)), seed=1), 2),
            "iterable": (IterableDistributor(Plain(30)), 1),
        }
        return Ended(MixtureDistributor(sources, draws="hash"), 40)


class TestRankPartitioned(DistributorSuite):
    plans = SEVERAL  # Two datasets need two ranks.

    def make(self) -> DataDistributor:
        datasets = {
            "low": {"dataset": MapDistributor(list(range(20)), epochs=1), "ratio": 1},
            "high": {"dataset": MapDistributor(list(range(20, 50)), epochs=1), "ratio": 1},
        }
        return RankPartitionedDistributor(datasets)


class Foreign:
    """A distributor with nothing but `stream`, and not even the base class."""

    def __init__(self, size: int) -> None:
        self.size = size

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[int]:
        unit = dp_rank * num_workers + worker_id
        return iter(range(unit, self.size, dp_world_size * num_workers))

    def fingerprint(self) -> dict[str, Any]:
        return {"size": self.size}


class TestForeign(DistributorSuite):
    def make(self) -> DataDistributor:
        return Foreign(self.size)  # type: ignore[return-value]  # That it is none is the point.
