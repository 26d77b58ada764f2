"""The loader: the same batches whoever works, and states that go on exactly."""

import json
import time
import traceback
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from streaming.dataloader import StreamingDataLoader
from streaming.dataset import StreamingDataset
from streaming.format.mds.writer import MDSWriter
from streaming.local import LocalDataset
from streaming.stream import Stream
from streaming.world import World
from tests.common.shards import sample, write_dataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ALL = [sample(shard, place) for shard in range(10) for place in range(7)]
BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 10 shards with 7 samples each."""
    return write_dataset(tmp_path_factory.mktemp("loader") / "data", shards=10, samples=7)


def make(root: Path, **arguments: Any) -> StreamingDataset:
    arguments = {"batch_size": BATCH, "shuffle": True, "shuffle_block_size": 30, **arguments}
    return StreamingDataset(local=str(root), **arguments)


def load(dataset: Any, workers: int = 0, **arguments: Any) -> StreamingDataLoader:
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, **arguments)


def batches(loader: Any, limit: int | None = None) -> list[list[bytes]]:
    iterator = iter(loader)
    try:
        return [batch["x"] for batch in islice(iterator, limit)]
    finally:
        if hasattr(iterator, "close"):
            iterator.close()


@pytest.fixture(scope="module")
def epochs(root: Path) -> list[list[list[bytes]]]:
    """Three epochs, batch by batch, of a run that nothing interrupts."""
    loader = load(make(root))
    return [batches(loader) for _ in range(3)]


# --- The same batches -----------------------------------------------------------------------------


def test_an_epoch_is_the_dataset_in_full_batches(epochs: list[list[list[bytes]]]) -> None:
    for epoch in epochs:
        assert sorted(value for batch in epoch for value in batch) == ALL
        assert [len(batch) for batch in epoch] == [BATCH] * 17 + [2]
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_case_H18_any_start_method_gives_the_same_batches(
    context: str, root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), 2, multiprocessing_context=context)
    assert [batches(loader) for _ in range(2)] == epochs[:2]


def test_case_H18_importing_leaves_the_start_method_alone(run_python: Any) -> None:
    run = run_python(
        "import multiprocessing\n"
        "import streaming\n"
        "from streaming import StreamingDataLoader, StreamingDataset\n"
        "print(multiprocessing.get_start_method(allow_none=True))\n"
    )
    assert run.stdout.strip() == "None"


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", [StreamingDataLoader, DataLoader])
def test_any_number_of_workers_gives_the_same_batches(
    kind: type[Any],
    workers: int,
    persistent: bool,
    root: Path,
    epochs: list[list[list[bytes]]],
) -> None:
    """Also under torch's own loader, which never tells the dataset that an epoch begins."""
    loader = kind(make(root), batch_size=BATCH, num_workers=workers, persistent_workers=persistent)
    got = [batches(loader) for _ in range(3)]
    assert [epoch[:16] for epoch in got] == [epoch[:16] for epoch in epochs]
    for epoch in got:
        assert sorted(value for batch in epoch for value in batch) == ALL


def test_an_epoch_that_is_left_early_is_over(root: Path, epochs: list[list[list[bytes]]]) -> None:
    for kind in (StreamingDataLoader, DataLoader):
        for workers, persistent in ((0, False), (2, False), (2, True)):
            loader = kind(
                make(root), batch_size=BATCH, num_workers=workers, persistent_workers=persistent
            )
            assert batches(loader, 3) == epochs[0][:3]
            assert batches(loader, 16) == epochs[1][:16]


def test_two_iterators_of_one_loader_do_not_mix(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), 2)
    first, second = iter(loader), iter(loader)
    pairs = list(islice(zip(first, second, strict=False), 5))
    assert [one["x"] for one, _ in pairs] == epochs[0][:5]
    assert [two["x"] for _, two in pairs] == epochs[1][:5]


def test_workers_fill_a_cold_cache_and_read_the_same(
    root: Path, tmp_path: Path, epochs: list[list[list[bytes]]]
) -> None:
    dataset = StreamingDataset(
        remote=str(root),
        local=str(tmp_path / "cache"),
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=30,
    )
    assert batches(load(dataset, 3))[:16] == epochs[0][:16]
    assert len(list((tmp_path / "cache").glob("*.mds"))) == 10


def test_any_other_dataset_works_without_a_state() -> None:
    loader = load(TensorDataset(torch.arange(10)))
    assert [len(batch) for [batch] in loader] == [4, 4, 2]
    assert loader.num_samples_yielded == 10
    assert loader.state_dict() is None
    loader.load_state_dict({})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_local_dataset_is_read_in_any_order(workers: int, root: Path) -> None:
    loader = DataLoader(LocalDataset(str(root)), batch_size=9, shuffle=True, num_workers=workers)
    assert sorted(value for batch in batches(loader) for value in batch) == ALL


def collate_to_tensor(samples: list[Any]) -> Any:
    return torch.tensor([len(each["x"]) for each in samples])


def collate_to_tuple(samples: list[Any]) -> Any:
    return [each["x"] for each in samples], "note"


@pytest.mark.parametrize("collate", [collate_to_tensor, collate_to_tuple])
def test_samples_are_counted_whatever_a_batch_looks_like(
    collate: Callable[[list[Any]], Any], root: Path
) -> None:
    loader = load(make(root), collate_fn=collate)
    assert len(list(loader)) == 18
    assert loader.num_samples_yielded == 70


def collate_to_number(samples: list[Any]) -> Any:
    return {"loss": 0.5}


def first_letters(samples: list[Any]) -> Any:
    return {"x": samples[0]["x"]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [list, collate_to_number, first_letters])
def test_samples_are_counted_before_they_are_collated(
    collate: Callable[[list[Any]], Any], workers: int, root: Path
) -> None:
    loader = load(make(root), workers, collate_fn=collate)
    for count, _ in enumerate(loader, 1):
        assert loader.num_samples_yielded == min(count * BATCH, 70)
    assert loader.collate_fn is collate


def test_unbatched_samples_are_counted_one_by_one(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = StreamingDataLoader(make(root), batch_size=None)
    flat = [value for batch in epochs[0] for value in batch]
    assert [each["x"] for each in islice(loader, 5)] == flat[:5]
    state = loader.state_dict()
    assert state
    assert state["sample_in_epoch"] == 5
    loader = StreamingDataLoader(make(root), batch_size=None)
    loader.load_state_dict(state)
    assert [each["x"] for each in loader] == flat[5:]


# --- Resume ---------------------------------------------------------------------------------------


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("consumed", [0, 1, 7, 16, 17])
def test_case_R12_another_number_of_workers_goes_on_in_the_same_order(
    workers: int, consumed: int, root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), workers)
    batches(loader)
    assert batches(loader, consumed) == epochs[1][:consumed]
    state = through_json(loader.state_dict())
    rest = [value for batch in epochs[1][consumed:] for value in batch]
    for others in (0, 1, 3):
        resumed = load(make(root), others)
        resumed.load_state_dict(state)
        got = batches(resumed)
        assert sorted(value for batch in got for value in batch) == sorted(rest)
        whole = len(rest) // BATCH
        assert got[: whole - others] == epochs[1][consumed : 17 - others]
        assert batches(resumed)[:15] == epochs[2][:15]


def test_case_R12_a_run_may_change_its_workers_again_and_again(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    got: list[list[bytes]] = []
    state = None
    for workers in (0, 4, 1, 2):
        loader = load(make(root), workers)
        if state is not None:
            loader.load_state_dict(state)
        got += batches(loader, 4)
        state = through_json(loader.state_dict())
    assert got == epochs[0][:16]


def test_case_R1_a_second_loader_goes_on_from_the_loaded_state(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    dataset = make(root)
    state = state_after(root, 5)
    load(dataset).load_state_dict(state)
    assert batches(load(dataset, 2), 3) == epochs[0][5:8]
    # Having begun, the state is used up: the next iteration is the next epoch, as ever.
    assert batches(load(dataset), 3) == epochs[1][:3]


def state_after(root: Path, count: int) -> Any:
    loader = load(make(root))
    batches(loader, count)
    return loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_case_R4_a_state_of_the_exact_end_goes_on_with_the_next_epoch(
    drop_last: bool, workers: int, root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), workers, drop_last=drop_last)
    batches(loader)
    state = through_json(loader.state_dict())
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 68 if drop_last else 70)
    resumed = load(make(root), workers, drop_last=drop_last)
    resumed.load_state_dict(state)
    assert batches(resumed)[:16] == epochs[1][:16]
    assert batches(resumed)[:16] == epochs[2][:16]


@pytest.mark.parametrize("workers", [0, 2])
def test_case_R8_saving_right_after_loading_gives_the_same_state(workers: int, root: Path) -> None:
    state = state_after(root, 5)
    loader = load(make(root), workers)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    iterator = iter(loader)
    assert loader.state_dict() == state
    next(iterator)
    assert loader.state_dict() == {**state, "sample_in_epoch": 24}


def test_case_R8_a_state_of_the_last_batch_does_not_start_again(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), 2)
    states = [loader.state_dict() for _ in loader]
    resumed = load(make(root), 2)
    resumed.load_state_dict(states[-1] or {})
    assert batches(resumed, 1) == epochs[1][:1]


def test_case_R10_persistent_workers_give_whole_epochs_after_a_resume(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    loader = load(make(root), 2, persistent_workers=True)
    loader.load_state_dict(state_after(root, 5))
    got = [batches(loader) for _ in range(3)]
    assert [len(epoch) for epoch in got] == [13, 18, 18]
    assert got[0][:11] == epochs[0][5:16]
    assert got[1][:16] == epochs[1][:16]
    assert got[2][:16] == epochs[2][:16]


def test_a_state_may_be_loaded_between_epochs_of_living_workers(
    root: Path, epochs: list[list[list[bytes]]]
) -> None:
    """To go back after a spike of the loss, say."""
    state = state_after(root, 5)
    for kind in (StreamingDataLoader, DataLoader):
        dataset = make(root)
        loader = kind(dataset, batch_size=BATCH, num_workers=2, persistent_workers=True)
        for _ in range(2):
            batches(loader)
        dataset.load_state_dict(state)
        assert batches(loader, 3) == epochs[0][5:8]
        assert batches(loader, 3) == epochs[1][:3]


def test_case_R18_a_late_resume_replays_nothing(tmp_path: Path) -> None:
    """9,000,000 of 10,000,000 samples are seen; none of their shards is even here."""
    shards, samples = 1000, 10_000
    write_dataset(tmp_path / "one", 1, 1)
    entry = json.loads((tmp_path / "one" / "index.json").read_text())["shards"][0]
    names = [f"shard.{i:05}.mds" for i in range(shards)]
    entries = [
        {
            **entry,
            "samples": samples,
            "raw_data": {"basename": name, "bytes": 200_000, "hashes": {}},
        }
        for name in names
    ]
    (tmp_path / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    dataset = StreamingDataset(
        local=str(tmp_path), batch_size=100, shuffle=True, num_canonical_nodes=8
    )
    start = time.process_time()
    dataset.load_state_dict({"epoch": 1, "sample_in_epoch": 9_000_000})
    with pytest.raises(FileNotFoundError, match="missing"):
        next(iter(dataset))
    assert time.process_time() - start < 30  # Hours elsewhere; about 2 s here.


@pytest.mark.parametrize("size", [1, 2, 7, 50, 100])
@pytest.mark.parametrize("algo", ["py1s", "py1e"])
def test_a_state_loads_at_every_batch_of_a_padded_epoch(
    algo: str, size: int, tmp_path: Path
) -> None:
    """64 canonical nodes round the epoch up to a multiple of 64."""
    root = write_dataset(tmp_path / "data", 1, size)

    def make_loader() -> StreamingDataLoader:
        arguments = {"shuffle_algo": algo, "num_canonical_nodes": 64, "shuffle_block_size": 64}
        return load(make(root, **arguments))

    loader = make_loader()
    whole, states = [], []
    for batch in loader:
        whole.append(batch["x"])
        states.append(loader.state_dict())
    following = batches(loader)
    assert len(whole) == -(-size // 64) * 64 // BATCH
    for seen, state in enumerate(states, 1):
        resumed = make_loader()
        resumed.load_state_dict(state or {})
        assert batches(resumed) == (whole[seen:] or following)


@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_have_equally_many_batches_and_len_says_how_many(
    drop_last: bool, tmp_path: Path
) -> None:
    """78 batches are two too many for 19 of each of 4 ranks: two ranks each have one of them."""
    root = write_dataset(tmp_path / "data", 1, 233)

    def make_loader(rank: int) -> StreamingDataLoader:
        dataset = make(
            root,
            batch_size=3,
            batching_method="device_per_stream",
            num_canonical_nodes=1,
            world=World(1, 4, 1, worker=rank),
        )
        return StreamingDataLoader(dataset, batch_size=3, drop_last=drop_last)

    loaders = [make_loader(rank) for rank in range(4)]
    given = [batches(loader) for loader in loaders]
    steps = 19 if drop_last else 20
    assert [len(each) for each in given] == [len(loader) for loader in loaders] == [steps] * 4
    assert drop_last or given[0][19] == given[2][19] != given[1][19] == given[3][19]
    first = [x for each in given for x in chain(*each[:19])]
    assert len(first) == 4 * 19 * 3
    loader = make_loader(0)
    batches(loader, 19)
    state = loader.state_dict()
    for rank in range(4):
        resumed = make_loader(rank)
        resumed.load_state_dict(state or {})
        assert drop_last or batches(resumed) == given[rank][19:]
        assert resumed.state_dict()["epoch"] == 0  # type: ignore[index]


@pytest.mark.parametrize("own_size", [None, 4], ids=["samples", "lists"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_batches_of_streams_that_fill_none_come_once(
    method: str, workers: int, own_size: int | None, tmp_path: Path
) -> None:
    roots = [write_dataset(tmp_path / str(i), 1, size) for i, size in enumerate((20, 3, 1))]

    def make_loader() -> StreamingDataLoader:
        streams = [Stream(local=str(root), batch_size=own_size) for root in roots]
        dataset = StreamingDataset(
            streams=streams, batch_size=4, num_canonical_nodes=1, batching_method=method
        )
        return load(dataset, workers)

    loader = make_loader()
    whole, states = [], []
    for batch in loader:
        whole.append(list(batch["x"]))
        states.append(loader.state_dict())
    assert [len(batch) for batch in whole[5:]] == [3, 1]
    following = batches(loader)
    for seen, state in enumerate(states, 1):
        resumed = make_loader()
        resumed.load_state_dict(state or {})
        left = list(chain(*whole[seen:]))
        assert list(chain(*batches(resumed))) == (left or list(chain(*following)))


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_agree_on_a_state_and_another_world_goes_on(
    nodes: int, root: Path, epochs: list[list[list[bytes]]]
) -> None:
    def worlds(count: int) -> list[World]:
        return [World(nodes, count // nodes, 1, worker=rank) for rank in range(count)]

    arguments = {"num_canonical_nodes": 4, "batch_size": 3}
    loaders = [
        StreamingDataLoader(make(root, world=world, **arguments), batch_size=3)
        for world in worlds(2)
    ]
    seen = [batches(loader, 4) for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert states[0]
    assert states[0]["sample_in_epoch"] == 24
    rest = []
    for world in [World(1, 3, 1, worker=rank) for rank in range(3)]:
        loader = StreamingDataLoader(
            make(root, world=world, num_canonical_nodes=4, batch_size=2), batch_size=2
        )
        loader.load_state_dict(states[0])
        rest += [value for batch in batches(loader) for value in batch]
    begun = [value for part in seen for batch in part for value in batch]
    assert set(begun) | set(rest) == set(ALL)
    assert len(begun) + len(rest) - len(ALL) <= 8  # What evens out canonical nodes and ranks.


@pytest.mark.parametrize("num_workers", [0, 2])
def test_downloads_go_on_between_two_epochs(tmp_path: Path, num_workers: int) -> None:
    remote = write_dataset(tmp_path / "remote", shards=8)
    local = tmp_path / "local"
    size = (remote / "shard.00000.mds").stat().st_size
    dataset = StreamingDataset(
        remote=str(remote), local=str(local), batch_size=1, predownload=4, cache_limit=4 * size
    )
    loader = StreamingDataLoader(
        dataset, batch_size=1, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    assert len([*loader]) == 40
    first = local / "shard.00000.mds"
    deadline = time.monotonic() + 20
    while not first.exists() and time.monotonic() < deadline:  # No batch is asked for meanwhile.
        time.sleep(0.01)
    assert first.exists()
    assert len([*loader]) == 40


def collate_by_torch(samples: list[dict[str, Any]]) -> Any:
    return torch.utils.data.default_collate([{"a": each["a"]} for each in samples])


def collate_by_hand(samples: list[dict[str, Any]]) -> Any:
    raise ValueError("not these")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_torch_in_a_collate_fn_is_told_the_columns(
    tmp_path: Path, workers: int
) -> None:
    with MDSWriter(out=str(tmp_path), columns={"a": "ndarray:int32"}) as writer:
        for i in range(4):
            writer.write({"a": np.zeros(1 + i // 3, np.int32)})
    loader = load(make(tmp_path, shuffle=False), workers, collate_fn=collate_by_torch)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        next(iter(loader))
    text = "".join(traceback.format_exception(caught.value))
    assert (
        "`a` (int32 array of shape (1,) in 3, int32 array of shape (2,) in 1 of 4 samples" in text
    )
    assert "as your `collate_fn` got them" in text


def test_another_error_of_a_collate_fn_comes_as_it_is(root: Path) -> None:
    with pytest.raises(ValueError, match="^not these$") as caught:
        next(iter(load(make(root), collate_fn=collate_by_hand)))
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(
    ("workers", "size", "more", "is_told"),
    [
        (2, 4, {}, False),
        (2, None, {}, False),
        (1, 6, {}, False),
        (0, 6, {}, False),
        (2, 8, {}, True),
        (0, 6, {"batching_method": "per_stream"}, True),
        (0, 4, {"batching_method": "per_stream"}, False),
    ],
)
def test_a_batch_size_that_is_not_the_datasets_is_told_where_it_matters(
    root: Path,
    workers: int,
    size: int | None,
    more: dict[str, Any],
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    StreamingDataLoader(make(root, **more), batch_size=size, num_workers=workers)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == is_told
    assert all(f"batch_size is {size}, but the dataset's {BATCH}" in text for text in messages)


@pytest.mark.parametrize(("workers", "size"), [(0, 6), (1, 6), (1, 3)])
def test_with_one_worker_a_state_of_batches_of_another_size_is_exact(
    root: Path, workers: int, size: int
) -> None:
    def load() -> StreamingDataLoader:
        return StreamingDataLoader(make(root), batch_size=size, num_workers=workers)

    whole = batches(load())
    first = load()
    seen = batches(first, 3)
    second = load()
    second.load_state_dict(first.state_dict() or {})
    assert seen + batches(second) == whole
