"""Orders in files, as datasets make and find them."""

import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.batching import batchings
from streaming.errors import ConfigError, StateError
from streaming.runtime import PerProcess
from streaming.schedule import Schedule
from streaming.shared.ids import Materialised
from streaming.stream import Stream
from streaming.world import World
from tests.common.shards import write_dataset
from tests.conftest import ROOT

pytest.importorskip("torch")
from streaming.dataloader import StreamingDataLoader
from streaming.dataset import StreamingDataset

LIMIT = 30.0


def use_files(dataset: StreamingDataset) -> StreamingDataset:
    """Let even small orders be in files: else an epoch must have a million samples."""
    directories = dataset._orders.get()._directories
    dataset._orders = PerProcess(partial(Materialised, directories, least=1))
    return dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of 12 shards with 50 samples each."""
    return write_dataset(tmp_path / "data", 12, 50)


def values(samples: Any) -> list[bytes]:
    return [each["x"] for each in samples]


def open_dataset(root: Path, **arguments: Any) -> StreamingDataset:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_block_size": 200}
    return StreamingDataset(local=str(root), **{**settings, **arguments})


@pytest.mark.parametrize("algo", ["py1e", "py1s", "py1br", "naive"])
def test_epochs_from_files_are_those_from_memory(root: Path, algo: str) -> None:
    plain = open_dataset(root, shuffle_algo=algo)
    filed = use_files(open_dataset(root, shuffle_algo=algo))
    for _ in range(3):
        assert values(filed) == values(plain)
    assert {path.suffix for path in (root / ".streaming" / "orders").iterdir()} >= {".ids"}
    filed._orders.get().close(LIMIT)
    # This epoch's and the next, prepared; perhaps one that looking ahead has not let go of yet.
    assert len(list((root / ".streaming" / "orders").glob("*.ids"))) <= 3


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_share_the_files_of_their_node(root: Path, how: str) -> None:
    def batches(dataset: StreamingDataset, **arguments: Any) -> list[list[list[bytes]]]:
        loader = StreamingDataLoader(dataset, batch_size=4, **arguments)
        return [[batch["x"] for batch in loader] for _ in range(2)]

    plain = batches(open_dataset(root, shuffle_algo="py1s"))
    filed = use_files(open_dataset(root, shuffle_algo="py1s"))
    workers = {"num_workers": 2, "multiprocessing_context": how, "persistent_workers": True}
    assert batches(filed, **workers) == plain
    assert 1 <= len(list((root / ".streaming" / "orders").glob("*.ids"))) <= 3


def test_the_next_epoch_is_ready_before_it_begins(root: Path) -> None:
    dataset = use_files(open_dataset(root))
    begun = iter(dataset)
    first = [next(begun)["x"] for _ in range(5)]
    dataset._orders.get()._maker.join(LIMIT)
    first += values(begun)
    made: list[int] = []
    again = use_files(open_dataset(root))
    again.next_epoch = 1
    holder = again._orders.get()
    open_one = holder._open

    def look(recipe: Any) -> Any:
        table = open_one(recipe)
        assert not isinstance(table, str)
        made.append(int(not table.file.is_complete))
        return table

    holder._open = look  # type: ignore[method-assign]
    assert values(again) == values(dataset) != first
    assert made[0] == 0


def test_a_read_only_dataset_has_its_orders_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / ".streaming").write_text("")  # Nobody can make a directory there, not even root.
    dataset = open_dataset(root)
    paths = dataset._orders.get()._directories
    assert paths[0] == root / ".streaming" / "orders"
    use_files(dataset)
    assert len(values(dataset)) == 600
    assert list(paths[1].glob("*.ids"))


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a whole array is made")


@pytest.mark.parametrize("method", sorted(batchings))
@pytest.mark.parametrize("algo", ["py1e", "py1s", "naive", "block1"])
def test_iterating_calls_no_function_that_makes_whole_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, algo: str
) -> None:
    for name in ("a", "b"):
        write_dataset(tmp_path / name, 4, 30)
    # The old functions, wherever their name is bound, and what they rest on.
    old = {"get_partitions", "get_shuffle", "generate_work", "get_sampling", "generate", "whole"}
    found = set()
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("streaming"):
            continue
        for name, value in list(vars(module).items()):
            is_old = name in old or name.startswith(
                ("get_partitions_", "get_shuffle_", "generate_work_")
            )
            if is_old and callable(value):
                monkeypatch.setattr(module, name, refuse)
                found.add(name)
            elif isinstance(value, type) and "whole" in vars(value):
                monkeypatch.setattr(value, "whole", refuse)
    assert found >= {"get_partitions", "get_shuffle", "generate_work", "get_sampling"}
    streams = [
        Stream(local=str(tmp_path / name), proportion=share)
        for name, share in (("a", 0.4), ("b", 0.6))
    ]
    dataset = StreamingDataset(
        streams=streams,
        batch_size=5,
        shuffle=True,
        shuffle_algo=algo,
        shuffle_block_size=100,
        batching_method=method,
    )
    loader = StreamingDataLoader(dataset, batch_size=5)
    batches = [batch["x"] for batch in loader]
    assert sum(map(len, batches)) >= 200
    loader.load_state_dict(loader.state_dict() or {})
    assert next(iter(loader))
    with pytest.raises(AssertionError, match="whole array"):
        import streaming.shuffle

        streaming.shuffle.get_shuffle("naive", np.array([3]), 1, 1, 1)


def make_changing(tmp_path: Path, **arguments: Any) -> StreamingDataset:
    for name in ("a", "b"):
        if not (tmp_path / name).exists():
            write_dataset(tmp_path / name, 8, 50)
    streams = [
        Stream(local=str(tmp_path / "a"), proportion=Schedule.linear({0: 1, 800: 0})),
        Stream(local=str(tmp_path / "b"), proportion=1, batch_size=arguments.pop("own", None)),
    ]
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_algo": "block1"}
    return StreamingDataset(streams=streams, **{**settings, **arguments})


@pytest.mark.parametrize("method", sorted(batchings))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_schedules_goes_on_exactly(
    tmp_path: Path, method: str, workers: int
) -> None:
    def batches(loader: StreamingDataLoader) -> list[list[bytes]]:
        return [batch["x"] for batch in loader]

    dataset = make_changing(tmp_path, batching_method=method)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    first, second = batches(loader), batches(loader)
    assert len(first) >= 190
    again = StreamingDataLoader(
        make_changing(tmp_path, batching_method=method), batch_size=4, num_workers=workers
    )
    begun = iter(again)
    for _ in range(70):
        next(begun)
    state = again.state_dict()
    del begun
    assert state is not None
    other = StreamingDataLoader(
        make_changing(tmp_path, batching_method=method), batch_size=4, num_workers=1
    )
    other.load_state_dict(state)
    rest = batches(other)
    assert rest == first[70:]
    assert batches(other)[:50] == second[:50]


def test_a_changed_schedule_is_refused_on_resume_with_both(tmp_path: Path) -> None:
    dataset = make_changing(tmp_path)
    begun = iter(dataset)
    next(begun)
    state = dataset.state_dict(4, from_beginning=True)
    streams = [
        Stream(local=str(tmp_path / "a"), proportion=Schedule.linear({0: 1, 900: 0})),
        Stream(local=str(tmp_path / "b"), proportion=1),
    ]
    other = StreamingDataset(streams=streams, batch_size=4, shuffle=True, shuffle_algo="block1")
    with pytest.raises(StateError, match=r"weights was .*800.*; here it is .*900"):
        other.load_state_dict(state)
    begun.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_case_B9_a_loader_gives_batches_of_each_stream_s_own_size(
    tmp_path: Path, method: str, workers: int
) -> None:
    def make() -> StreamingDataLoader:
        dataset = make_changing(tmp_path, batching_method=method, own=7)
        return StreamingDataLoader(dataset, batch_size=4, num_workers=workers)

    loader = make()
    whole = [batch["x"] for batch in loader]
    sizes = {len(batch) for batch in whole}
    assert {4, 7} <= sizes
    begun = iter(again := make())
    for _ in range(40):
        next(begun)
    state = again.state_dict()
    del begun
    other = make()
    other.load_state_dict(state or {})
    assert [batch["x"] for batch in other] == whole[40:]


def test_a_loader_of_another_batch_size_is_refused(tmp_path: Path) -> None:
    dataset = make_changing(tmp_path, batching_method="per_stream", own=7)
    with pytest.raises(ConfigError, match="must be the dataset's .4. or left out, but is 8"):
        StreamingDataLoader(dataset, batch_size=8)
    assert len(next(iter(StreamingDataLoader(dataset)))["x"]) in (4, 7)


def test_batched_columns_have_each_stream_s_own_size(tmp_path: Path) -> None:
    dataset = make_changing(tmp_path, batching_method="per_stream", own=7, batched=True)
    sizes = {len(batch["x"]) for batch in dataset}
    assert {4, 7} <= sizes


@pytest.mark.parametrize("drop_last", [False, True])
def test_case_B8_a_batch_larger_than_the_dataset_is_short_or_dropped_with_a_warning(
    tmp_path: Path, drop_last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(write_dataset(tmp_path / "tiny", 1, 5), batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8, drop_last=drop_last)
    assert [len(batch["x"]) for batch in loader] == [5] * (not drop_last)
    assert ("drop_last leaves no batch" in caplog.text) == drop_last


def test_case_U6_a_dataset_takes_a_layout_of_ranks(root: Path) -> None:
    seen = []
    for rank in range(4):
        world = World(1, 4, 1, rank).with_data_ranks([0, 1, 0, 1])
        dataset = open_dataset(root, world=world)
        assert len(dataset) == 300
        seen.append(values(dataset))
    assert seen[0] == seen[2]
    assert seen[1] == seen[3]
    assert len(set(seen[0]) | set(seen[1])) == 600


def test_case_R13_the_state_of_rank_0_is_good_for_all_ranks(root: Path) -> None:
    def dataset(rank: int, nodes: int = 2) -> StreamingDataset:
        return open_dataset(root, world=World(nodes, 1, 1, rank), num_canonical_nodes=2)

    begun = [StreamingDataLoader(dataset(rank), batch_size=4) for rank in range(2)]
    iterators = [iter(loader) for loader in begun]
    before = [x for iterator in iterators for _ in range(20) for x in next(iterator)["x"]]
    state = begun[0].state_dict()
    assert state == begun[1].state_dict()
    del iterators
    after = []
    for rank in range(2):
        loader = StreamingDataLoader(dataset(rank), batch_size=4)
        loader.load_state_dict(state or {})
        after += [x for batch in loader for x in batch["x"]]
    assert len(before) == 160
    assert len(set(before) | set(after)) == len(before) + len(after) == 600


KILLED = """
import sys, threading, time
import numpy as np
from streaming import StreamingDataset
from streaming.shared.idfile import IdFile

write = IdFile._write
def slowly(self, fd, place, chunk):
    write(self, fd, place, chunk)
    print("some", flush=True)
    threading.Event().wait()

IdFile._write = slowly
dataset = StreamingDataset(
    local=sys.argv[1], batch_size=4, shuffle=True, shuffle_block_size=200,
    num_canonical_nodes=4,
)
dataset._orders.get()._least = 1
next(iter(dataset))
"""


def test_an_order_whose_maker_was_killed_is_completed_by_the_next_run(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "some\n"
        process.send_signal(signal.SIGKILL)
    assert list((root / ".streaming" / "orders").glob("*.ids"))
    plain = open_dataset(root, num_canonical_nodes=4)
    filed = use_files(open_dataset(root, num_canonical_nodes=4))
    assert values(filed) == values(plain)


def test_nothing_is_made_any_more_when_a_dataset_is_gone(root: Path) -> None:
    dataset = use_files(open_dataset(root))
    begun = iter(dataset)
    next(begun)
    del begun, dataset
    for thread in threading.enumerate():
        if thread.name == "streaming-ids":
            thread.join(LIMIT)
            assert not thread.is_alive()
