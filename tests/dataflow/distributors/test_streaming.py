"""StreamingDistributor over datasets on disk."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import MDSWriter, Stream, StreamingDataset
from streaming.dataflow import BestFitBatcher, DataflowLoader, StreamingDistributor, StreamPlan
from streaming.errors import ConfigError, StreamingError
from streaming.plan import open_order
from streaming.shared.ids import LEAST
from tests.dataflow.distributors.sources import write_numbers

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIZE = 400


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "data", SIZE)


def numbers(distributor: StreamingDistributor, stream: int, plan: StreamPlan) -> list[int]:
    cursor = distributor.open(stream, plan)
    try:
        return [item["i"] for _, item in cursor]
    finally:
        cursor.close()


def test_a_shard_is_read_by_one_stream_or_two(data: Path) -> None:
    dataset = StreamingDataset(local=str(data), shuffle=True)
    distributor, plan = StreamingDistributor(dataset, epochs=1), StreamPlan.of(2, 2)
    readers: dict[int, set[int]] = {}
    for stream in range(4):
        shards, _ = dataset.spanner(np.array(numbers(distributor, stream, plan)))
        for shard in shards.tolist():
            readers.setdefault(shard, set()).add(stream)
    assert len(readers) == dataset.num_shards > 8
    assert max(map(len, readers.values())) <= 2
    assert sum(map(len, readers.values())) <= dataset.num_shards + 3


def test_epochs_differ_and_the_seed_decides(data: Path) -> None:
    plan = StreamPlan.of(1, 1)

    def order(seed: int) -> list[int]:
        dataset = StreamingDataset(local=str(data), shuffle=True, shuffle_seed=seed)
        cursor = StreamingDistributor(dataset).open(0, plan)
        return [item["i"] for _, item in islice(cursor, 2 * SIZE)]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)[:SIZE]) == sorted(order(1)[SIZE:]) == list(range(SIZE))
    assert order(1)[:SIZE] != order(1)[SIZE:]


def test_the_table_of_a_large_epoch_is_kept_once_a_node(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={"n": "int32"}) as writer:
        writer.write_batch({"n": np.arange(LEAST, dtype=np.int32)})

    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, shuffle=True)
    order = StreamingDistributor(dataset).order(epoch=0, num_streams=2)
    ids = order(np.arange(LEAST))

    assert sorted(ids.tolist()) == list(range(LEAST))
    assert len(list((tmp_path / ".streaming" / "orders").glob("*.ids"))) == 1


def test_without_shuffling_each_stream_reads_its_run(data: Path) -> None:
    distributor = StreamingDistributor(StreamingDataset(local=str(data)), epochs=1)
    plan = StreamPlan.of(1, 4)
    assert numbers(distributor, 1, plan) == list(range(100, 200))


def test_streams_of_the_dataset_are_mixed_by_weight(data: Path, tmp_path: Path) -> None:
    other = write_numbers(tmp_path / "other", 40)
    streams = [Stream(local=str(data), choose=100), Stream(local=str(other), repeat=2)]
    dataset = StreamingDataset(streams=streams, shuffle=True)
    distributor, plan = StreamingDistributor(dataset, epochs=1), StreamPlan.of(1, 3)
    assert sum(len(numbers(distributor, stream, plan)) for stream in range(3)) == 180
    assert distributor.counts(plan) == [60, 60, 60]


def test_shards_come_from_the_remote_ahead_of_time(data: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    dataset = StreamingDataset(
        remote=str(data), local=str(local), shuffle=True, predownload=64, cache_limit="1kb"
    )
    distributor, plan = StreamingDistributor(dataset, epochs=1), StreamPlan.of(1, 2)
    assert sorted(n for s in range(2) for n in numbers(distributor, s, plan)) == list(range(SIZE))
    assert sum(path.stat().st_size for path in local.glob("*.mds")) <= 1 << 10


def test_a_remote_is_looked_ahead_to_as_by_the_datasets_own_loader(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streaming.prefetch import Prefetcher

    made: list[tuple[int, int | None]] = []

    class Noted(Prefetcher):
        def __init__(self, cache: Any, plan: Any, *, predownload: int, threads: int | None) -> None:
            made.append((predownload, threads))
            super().__init__(cache, plan, predownload=predownload, threads=threads)

    monkeypatch.setattr("streaming.dataset.Prefetcher", Noted)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    remote = StreamingDataset(remote=str(data), local=str(tmp_path / "a"), batch_size=8)
    assert len(list(remote)) == SIZE
    again = StreamingDataset(remote=str(data), local=str(tmp_path / "b"), batch_size=8)
    distributor = StreamingDistributor(again, epochs=1)
    assert len(numbers(distributor, 0, StreamPlan.of(1, 1))) == SIZE
    (own_ahead, own_threads), (ahead, threads) = made
    assert own_threads == threads == 4
    assert own_ahead > ahead == SIZE  # The dataset's plan ends there by itself.


@pytest.mark.parametrize("cache_limit", [None, "4kb"])
@pytest.mark.parametrize(("epochs", "num_streams"), [(1, 1), (1, 3), (2, 1), (None, 1), (None, 3)])
def test_looking_ahead_makes_each_order_once_and_none_that_is_not_read(
    epochs: int | None,
    num_streams: int,
    cache_limit: str | None,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def noted(spec: Any, table: Any, shares: Any, epoch: int, *rest: Any) -> Any:
        made.append(epoch)
        return open_order(spec, table, shares, epoch, *rest)

    monkeypatch.setattr("streaming.dataflow.distributors.streaming.open_order", noted)
    dataset = StreamingDataset(
        remote=str(data), local=str(tmp_path / "local"), shuffle=True, cache_limit=cache_limit
    )
    distributor, plan = StreamingDistributor(dataset, epochs=epochs), StreamPlan.of(1, num_streams)
    cursors = [distributor.open(stream, plan) for stream in range(num_streams)]
    for cursor in cursors:
        next(cursor)
    assert made == [0]
    for iteration in range(1, 4):
        if epochs is None:  # Up to the last item of an epoch.
            for _ in range(SIZE // num_streams - (iteration == 1)):
                for cursor in cursors:
                    next(cursor)
            assert made in (list(range(iteration)), list(range(iteration + 1)))
        else:
            open_cursors = cursors
            while open_cursors:
                open_cursors = [cursor for cursor in open_cursors if next(cursor, None)]
            assert made == list(range(iteration * epochs))
    for cursor in cursors:
        cursor.close()


class Doubling(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return {"i": 2 * super().get_item(sample_id)["i"]}


def test_a_get_item_that_is_overridden_is_called(data: Path) -> None:
    distributor = StreamingDistributor(Doubling(local=str(data)), epochs=1)
    assert numbers(distributor, 0, StreamPlan.of(1, 1)) == list(range(0, 2 * SIZE, 2))


def test_a_damaged_shard_costs_no_other(data: Path) -> None:
    shard = sorted(data.glob("*.mds"))[1]
    dataset = StreamingDataset(local=str(data))
    bad = range(int(dataset.samples_per_shard[0]), int(dataset.samples_per_shard[:2].sum()))
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    cursor = StreamingDistributor(dataset, epochs=1).open(0, StreamPlan.of(1, 1))
    found, faults = [], 0
    while True:
        try:
            _, items = cursor.take(50)
        except StreamingError:
            faults += 1
            continue
        if not items:
            break
        found += [item["i"] for item in items]
    assert faults == len(bad)
    assert found == [i for i in range(SIZE) if i not in bad]


def test_a_packer_on_top_goes_on_exactly(data: Path) -> None:
    def make() -> DataflowLoader:
        dataset = StreamingDataset(local=str(data), shuffle=True)
        batcher = BestFitBatcher(30, 16, size=lambda sample: 1 + sample["i"] % 9)
        return DataflowLoader(StreamingDistributor(dataset), batcher=batcher)

    whole = [batch["i"].tolist() for batch in islice(make(), 300)]
    for place in (1, 57, 160):
        begun = make()
        list(islice(begun, place))
        again = make()
        again.load_state_dict(begun.state_dict())
        rest = [batch["i"].tolist() for batch in islice(again, 300 - place)]
        assert rest == whole[place:]


def test_workers_share_an_epoch(data: Path) -> None:
    dataset = StreamingDataset(local=str(data), shuffle=True)
    loader = DataflowLoader(StreamingDistributor(dataset, epochs=1), batch_size=7, num_workers=2)
    found = [i for batch in loader for i in batch["i"].tolist()]
    assert sorted(found) == list(range(SIZE))


def test_a_dataset_that_batches_by_stream_is_refused(data: Path) -> None:
    dataset = StreamingDataset(local=str(data), batching_method="per_stream", batch_size=4)
    with pytest.raises(ConfigError, match="MixtureDistributor"):
        StreamingDistributor(dataset)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: StreamingDataset(local=path, shuffle=True, shuffle_seed=1),
        lambda path: StreamingDataset(local=path, shuffle=True, num_canonical_nodes=3),
        lambda path: StreamingDataset(local=path, shuffle=True, epoch_size=300),
    ],
    ids=["seed", "nodes", "size"],
)
def test_what_changes_the_order_is_in_the_fingerprint(
    data: Path, change: Callable[[str], StreamingDataset]
) -> None:
    one = StreamingDistributor(StreamingDataset(local=str(data), shuffle=True))
    assert StreamingDistributor(change(str(data))).fingerprint() != one.fingerprint()
