"""Reading without a cache: which bytes are asked for, and that nothing is left."""

import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streaming import StreamingDataset
from streaming.direct import GAP, DirectDataset
from streaming.errors import ConfigError, ObjectNotFoundError, ShardCorruptError
from streaming.format.mds.writer import MDSWriter
from tests.servers.faulty import FaultyServer

SAMPLES = 200
SHARDS = 4


def write(directory: Path, compression: str | None = None) -> dict[str, bytes]:
    with MDSWriter(
        out=str(directory),
        columns={"number": "int", "data": "bytes"},
        sample_limit=SAMPLES // SHARDS,
        size_limit=None,
        compression=compression,
    ) as writer:
        for number in range(SAMPLES):
            data = bytes([number]) * 100_000
            writer.write({"number": number, "data": data})
    return {f"bkt/{path.name}": path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return write(tmp_path_factory.mktemp("data") / "mds")


@pytest.fixture
def remote(objects: dict[str, bytes]) -> Iterator[FaultyServer]:
    with FaultyServer(objects) as server:
        yield server


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with MDSWriter(out="~/data", columns={"number": "int"}) as writer:
        writer.write({"number": 7})
    assert DirectDataset("~/data")[0] == {"number": 7}


def test_any_sample_is_read_and_negative_places_too(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    assert len(dataset) == SAMPLES
    for i in (0, 57, 199, -1):
        assert dataset[i]["number"] == i % SAMPLES
        assert dataset[i]["data"] == bytes([i % SAMPLES]) * 100_000
    with pytest.raises(IndexError):
        dataset[SAMPLES]
    dataset.close()


def test_a_sample_costs_its_own_bytes_and_a_table(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    before = len(remote.requests)
    assert dataset[57]["number"] == 57
    asked = [span for _, _, span in remote.requests[before:]]
    assert len(asked) == 2
    assert asked[0] == f"bytes=0-{4 + 4 * (SAMPLES // SHARDS + 1) - 1}"
    start, stop = map(int, str(asked[1])[6:].split("-"))
    assert stop - start < 101_000
    assert dataset[57]["number"] == 57
    assert len(remote.requests) == before + 2
    dataset.close()


def test_neighbours_come_by_one_request_and_far_ones_by_several(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    dataset[0]
    before = len(remote.requests)
    near = [3, 5, 4, 8]
    assert [sample["number"] for sample in dataset.__getitems__(near)] == near
    assert len(remote.requests) == before + 1
    far = [20, 21, 20 + GAP // 100_000 + 5]
    assert [sample["number"] for sample in dataset.__getitems__(far)] == far
    assert len(remote.requests) == before + 3
    dataset.close()


def test_samples_of_many_shards_come_in_the_order_asked(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    order = np.random.default_rng(0).permutation(SAMPLES)[:50].tolist()
    assert [sample["number"] for sample in dataset.__getitems__(order)] == order
    assert list(dataset.take_columns(order)["number"]) == order
    dataset.close()


def test_a_preview_shows_the_first_samples_and_reads_no_shard_whole(
    remote: FaultyServer, objects: dict[str, bytes]
) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    assert [sample["number"] for sample in dataset.preview(3)] == [0, 1, 2]
    assert len(remote.requests) == 3
    dataset.close()


def test_nothing_is_left(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    dataset[0]
    assert any(name.startswith("streaming-run-") for name in os.listdir(tempfile.gettempdir()))
    dataset.close()
    assert os.listdir(tempfile.gettempdir()) == []
    assert dataset[1]["number"] == 1
    del dataset
    assert os.listdir(tempfile.gettempdir()) == []


def test_little_stays_at_hand(remote: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.direct.LIMIT", 1_000_000)
    dataset = DirectDataset(f"{remote.url}/bkt")
    for i in range(0, SAMPLES, 7):
        assert dataset[i]["number"] == i
    runtime = dataset._runtime.get()
    assert sum(shard.num_bytes for shard in runtime._shards.values()) <= 1_000_000
    dataset.close()


def test_compressed_shards_are_read_whole(tmp_path: Path) -> None:
    with FaultyServer(write(tmp_path / "zstd", "zstd")) as server:
        dataset = DirectDataset(f"{server.url}/bkt")
        assert dataset[150]["number"] == 150
        dataset.close()


def test_a_short_object_is_corrupt(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    name = dataset.index.shard(1).files[0][0].basename
    remote.objects[f"bkt/{name}"] = remote.objects[f"bkt/{name}"][:300_000]
    with pytest.raises(ShardCorruptError, match=name):
        dataset[99]
    assert dataset[0]["number"] == 0
    dataset.close()


def test_without_an_index_there_is_nothing_to_read() -> None:
    with FaultyServer() as server, pytest.raises(ObjectNotFoundError, match=r"index\.json"):
        DirectDataset(f"{server.url}/bkt")


def test_it_pickles(remote: FaultyServer) -> None:
    dataset = DirectDataset(f"{remote.url}/bkt")
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert again[9]["number"] == 9
    again.close()
    dataset.close()


def test_a_streaming_dataset_without_cache_keeps_only_its_index(
    remote: FaultyServer, tmp_path: Path
) -> None:
    dataset = StreamingDataset(
        remote=f"{remote.url}/bkt", local=str(tmp_path), cache="none", batch_size=10, shuffle=True
    )
    assert dataset[123]["number"] == 123
    loader = DataLoader(dataset, batch_size=10, num_workers=2, timeout=40)
    numbers = [number for batch in loader for number in batch["number"].tolist()]
    assert sorted(numbers) == list(range(SAMPLES))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".streaming", "index.json"]


def test_what_needs_whole_shards_is_refused_without_cache(
    remote: FaultyServer, tmp_path: Path
) -> None:
    url = f"{remote.url}/bkt"
    with pytest.raises(ConfigError, match="'none'"):
        StreamingDataset(remote=url, local=str(tmp_path), cache="nope")
    with pytest.raises(ConfigError, match="validate_hash"):
        StreamingDataset(remote=url, local=str(tmp_path), cache="none", validate_hash="md5")
    with pytest.raises(ConfigError, match="no `remote`"):
        StreamingDataset(local=str(tmp_path), cache="none")
