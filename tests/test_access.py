"""Attributes that users read, and what they tell a dataset to do with shards."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from streaming import LocalDataset, Stream, StreamingDataset
from streaming.errors import ConfigError
from streaming.format.lazy import Reader
from tests.common.shards import sample, write_dataset

ALL = [sample(shard, place) for shard in range(4) for place in range(5)]


@pytest.fixture
def dataset(tmp_path: Path) -> StreamingDataset:
    """4 compressed shards with 5 samples each, in a remote."""
    remote = write_dataset(tmp_path / "remote", compression="zstd", hashes=["sha1"])
    return StreamingDataset(remote=str(remote), local=str(tmp_path / "local"), batch_size=5)


def files(dataset: StreamingDataset) -> list[str]:
    return sorted(name for name in os.listdir(dataset.streams[0].local) if "shard" in name)


def test_attributes_of_shards_and_samples(dataset: StreamingDataset, tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "other", 2, 3)
    mixed = StreamingDataset(
        streams=[dataset.streams[0], Stream(local=str(other))], batch_size=1, epoch_size=20
    )
    for name, value in {
        "num_streams": 2,
        "num_samples": 26,
        "size": 26,
        "num_shards": 6,
        "epoch_size": 20,
        "length": 20,
        "shards_per_stream": [4, 2],
        "shard_offset_per_stream": [0, 4],
        "samples_per_stream": [20, 6],
        "sample_offset_per_stream": [0, 20],
        "stream_per_shard": [0, 0, 0, 0, 1, 1],
        "samples_per_shard": [5, 5, 5, 5, 3, 3],
        "sample_offset_per_shard": [0, 5, 10, 15, 20, 23],
        "epoch_seed_change": False,
        "replication": None,
        "initial_physical_nodes": None,
        "next_epoch": 0,
    }.items():
        found = getattr(mixed, name)
        if isinstance(value, list):
            assert found.dtype == np.int64, name
            found = found.tolist()
        assert found == value, name
    assert len(mixed.shards) == 6
    assert [reader.samples for reader in mixed.shards] == [5, 5, 5, 5, 3, 3]
    assert mixed.shards[-1].get_item(2)["x"] == sample(1, 2)
    assert [reader.compression for reader in mixed.shards[3:5]] == ["zstd", None]


def test_a_shard_can_be_prepared_and_dropped(dataset: StreamingDataset) -> None:
    index = dataset.streams[0].get_index_size()
    assert dataset.cache_usage == index
    dataset.prepare_shard(2)
    assert files(dataset) == ["shard.00002.mds"]
    raw = dataset.shards[2].get_raw_size()
    assert dataset.cache_usage == index + raw
    dataset.evict_shard(2)
    assert files(dataset) == []
    assert dataset.cache_usage == index
    assert dataset[10]["x"] == ALL[10]


def test_the_coldest_shard_goes_first(dataset: StreamingDataset) -> None:
    for at in (0, 5, 10):
        dataset[at]
    dataset[0]
    dataset.evict_coldest_shard()
    assert files(dataset) == ["shard.00000.mds", "shard.00002.mds"]


def test_without_a_cached_shard_none_is_coldest(dataset: StreamingDataset) -> None:
    with pytest.raises(ValueError, match="No shard can be evicted"):
        dataset.evict_coldest_shard()


def test_cache_usage_cannot_be_set(dataset: StreamingDataset) -> None:
    with pytest.warns(UserWarning, match="is counted"):
        dataset.cache_usage = 5


def test_a_shard_reads_its_samples_once_it_is_here(dataset: StreamingDataset) -> None:
    shard = dataset.shards[1]
    assert isinstance(shard, Reader)
    with pytest.raises(FileNotFoundError):
        shard.get_item(0)
    dataset.prepare_shard(1)
    assert shard[-1]["x"] == ALL[9]
    assert [each["x"] for each in shard] == ALL[5:10]
    assert shard.decode_sample(shard.get_sample_data(2))["x"] == ALL[7]
    assert pickle.loads(pickle.dumps(shard))[0] == shard[0]
    assert shard.raw_data.basename == "shard.00001.mds"
    assert shard.column_names == ["x"]
    assert shard.get_zip_size() == (shard.zip_data and shard.zip_data.bytes)
    assert shard.get_max_size() > shard.get_persistent_size(False) == shard.get_raw_size()
    with pytest.raises(AttributeError, match="nothing"):
        _ = shard.nothing


def test_a_stream_brings_a_shard_of_its_own(dataset: StreamingDataset) -> None:
    (stream,) = dataset.streams
    assert stream.prepare_shard(dataset.shards[3]) == dataset.shards[3].get_raw_size()
    assert stream.prepare_shard(dataset.shards[3]) == 0
    usage = np.zeros(4, np.int64)
    stream.set_up_local(list(dataset.shards), usage)
    assert usage.tolist() == [0, 0, 0, dataset.shards[3].get_raw_size()]


def test_a_local_dataset_has_its_shards_too(tmp_path: Path) -> None:
    dataset = LocalDataset(str(write_dataset(tmp_path / "data")))
    assert [len(shard) for shard in dataset.shards] == [5] * 4
    assert dataset.shards[1:3][1][0]["x"] == dataset[10]["x"]
    with pytest.raises(IndexError):
        dataset.shards[4]


def test_what_an_epoch_draws(dataset: StreamingDataset) -> None:
    units, drawn = dataset.resample_streams(0)
    assert (units.tolist(), drawn.tolist()) == ([5] * 4, list(range(20)))
    assert units.dtype == drawn.dtype == np.int64


def test_settings_that_are_changed_hold_from_then_on(dataset: StreamingDataset) -> None:
    before = [each["x"] for each in dataset]
    dataset.shuffle, dataset.shuffle_seed, dataset.batch_size = True, 5, 4
    after = [each["x"] for each in dataset]
    remote, local = dataset.streams[0].remote, dataset.streams[0].local
    told = StreamingDataset(remote=remote, local=local, batch_size=4, shuffle=True, shuffle_seed=5)
    told.next_epoch = 1
    assert before != after == [each["x"] for each in told]
    assert (dataset.shuffle_seed, dataset.num_canonical_nodes) == (5, 1)
    with pytest.raises(ConfigError, match="shuffle_seed"):
        dataset.shuffle_seed = -1
    with pytest.raises(ConfigError, match="for good"):
        dataset.cache_limit = 10
    dataset.cache_limit = None  # As it is.


def test_a_seed_that_is_set_after_a_resume_counts(dataset: StreamingDataset) -> None:
    dataset.shuffle = True
    dataset.load_state_dict(
        {
            "epoch": 1,
            "sample_in_epoch": 0,
            "num_canonical_nodes": 2,
            "shuffle_seed": 3,
            "initial_physical_nodes": 1,
        }
    )
    assert (dataset.shuffle_seed, dataset.num_canonical_nodes) == (3, 2)
    dataset.shuffle_seed = 4
    assert (dataset.shuffle_seed, dataset.num_canonical_nodes) == (4, 2)


def test_weights_of_two_kinds_are_refused(tmp_path: Path) -> None:
    def stream(name: str, **weight: float) -> Stream:
        return Stream(local=str(write_dataset(tmp_path / name)), **weight)  # type: ignore[arg-type]

    relative, none, absolute = stream("a", proportion=1), stream("b"), stream("c", repeat=2)
    assert Stream.validate_weights([relative]) == (True, False)
    assert Stream.validate_weights([none, absolute]) == (False, False)
    assert Stream.validate_weights([none]) == (False, True)
    with pytest.raises(ValueError, match="proportion"):
        Stream.validate_weights([relative, none])
    with pytest.raises(ValueError, match="proportion"):
        StreamingDataset(streams=[relative, absolute])


def test_case_B10_two_kinds_of_weight_are_explained(tmp_path: Path) -> None:
    root = str(write_dataset(tmp_path / "a"))
    with pytest.raises(ConfigError, match="proportion.*repeat|repeat.*proportion"):
        Stream(local=root, proportion=1, repeat=2)
    dataset = StreamingDataset(streams=[Stream(local=root, repeat=1.5)], batch_size=1)
    (stream,) = dataset.streams
    assert (stream.choose, stream.repeat, stream.proportion) == (30, 1.5, 1.0)
