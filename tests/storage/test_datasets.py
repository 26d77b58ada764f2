"""The whole way over each kind of store: write, list, merge, stream through workers, delete."""

import pickle
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streaming import MDSWriter, StreamingDataset
from streaming.storage import join_key, open_store
from streaming.util.merging import merge_index
from tests.servers.places import Opened

NUM_SAMPLES = 60


@pytest.fixture
def url(place: Opened, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place that the environment says how to reach."""
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    return place.url


def write(url: str, start: int = 0, stop: int = NUM_SAMPLES) -> None:
    columns = {"number": "int", "text": "str"}
    with MDSWriter(
        out=url, columns=columns, size_limit=500, hashes=["xxh64"], compression="zstd"
    ) as writer:
        for number in range(start, stop):
            writer.write({"number": number, "text": f"sample {number}"})


def test_a_dataset_is_written_and_streamed_through_workers(url: str, tmp_path: Path) -> None:
    write(url)
    store, prefix = open_store(url)
    keys = [info.key for info in store.list(join_key(prefix, ""))]
    assert len(keys) > 3
    assert keys[0] == join_key(prefix, "index.json")
    dataset = StreamingDataset(
        remote=url,
        local=str(tmp_path / "local"),
        batch_size=4,
        shuffle=True,
        validate_hash="xxh64",
        download_timeout=20,
    )
    assert dataset[7]["number"] == 7
    loader = DataLoader(dataset, batch_size=4, num_workers=2, timeout=40)
    for _ in range(2):
        numbers = [number for batch in loader for number in batch["number"].tolist()]
        assert sorted(numbers) == list(range(NUM_SAMPLES))


def test_case_S9_a_dataset_that_was_read_from_pickles(url: str, tmp_path: Path) -> None:
    write(url, 0, 5)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / "one"), batch_size=2)
    assert dataset[0]["text"] == "sample 0"
    again = pickle.loads(pickle.dumps(dataset))
    assert again[4]["text"] == "sample 4"


def test_datasets_side_by_side_are_merged_and_deleted(url: str, tmp_path: Path) -> None:
    write(f"{url}/part 0", 0, 20)
    write(f"{url}/part 1", 20, 40)
    merge_index(url, keep_local=False)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / "local"), batch_size=4)
    assert [sample["number"] for sample in dataset] == list(range(40))
    store, prefix = open_store(url)
    for info in list(store.list(join_key(prefix, ""))):
        store.delete(info.key)
    assert list(store.list(join_key(prefix, ""))) == []
