"""What a dataset says of its cache."""

import json
import logging
from pathlib import Path

import pytest

from streaming import LocalDataset, StreamingDataLoader, StreamingDataset
from streaming import source as source_module
from streaming.storage.stores.fault import Fail, FaultStore
from streaming.storage.stores.local import LocalStore
from streaming.util.retrying import Retry
from tests.common.shards import write_dataset

SHARDS, SAMPLES = 12, 5


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "remote", SHARDS, SAMPLES)


def size_of(remote: Path) -> int:
    return sum(path.stat().st_size for path in remote.glob("*.mds"))


def open_dataset(remote: Path, tmp_path: Path, **options: object) -> StreamingDataset:
    arguments: dict[str, object] = {
        "remote": str(remote),
        "local": str(tmp_path / "local"),
        "batch_size": 4,
        **options,
    }
    return StreamingDataset(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_cold_epoch_misses_and_a_warm_one_hits(
    remote: Path, tmp_path: Path, num_workers: int
) -> None:
    dataset = open_dataset(remote, tmp_path)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=num_workers)
    for _ in loader:
        pass
    cold = dataset.stats()
    assert cold.misses == SHARDS
    assert cold.fetched_bytes == size_of(remote)
    assert cold.num_waits > 0
    assert cold.wait_seconds > 0
    assert (cold.evictions, cold.repairs, cold.retries, cold.holders) == (0, 0, 0, ())
    other = open_dataset(remote, tmp_path)
    for _ in StreamingDataLoader(other, batch_size=4, num_workers=num_workers):
        pass
    warm = other.stats()
    assert (warm.misses, warm.fetched_bytes, warm.num_waits) == (0, 0, 0)
    assert warm.hits >= SHARDS
    assert dataset.stats().hits == cold.hits  # Each counts its own.


def test_evictions_are_counted(remote: Path, tmp_path: Path) -> None:
    limit = size_of(remote) // 2
    dataset = open_dataset(remote, tmp_path, cache_limit=limit, predownload=8)
    list(dataset)
    found = dataset.stats()
    assert found.misses - found.evictions <= SHARDS // 2
    assert found.evicted_bytes >= size_of(remote) - limit
    assert json.loads(json.dumps(found.to_json()))["evictions"] == found.evictions


def test_a_repair_is_counted(remote: Path, tmp_path: Path) -> None:
    list(open_dataset(remote, tmp_path))
    path = tmp_path / "local" / "shard.00003.mds"
    path.write_bytes(b"\xff" * path.stat().st_size)
    dataset = open_dataset(remote, tmp_path)
    assert len(list(dataset)) == SHARDS * SAMPLES
    assert dataset.stats().repairs == 1


def test_retries_are_counted(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(remote, tmp_path, download_retry=3)
    faults = [Fail(op="get_file", key="*00003.mds", times=2)]
    flaky = FaultStore(LocalStore(remote), faults)
    monkeypatch.setattr(source_module, "open_store", lambda root, options: (flaky, ""))
    monkeypatch.setattr(source_module, "Retry", lambda attempts: Retry(attempts, base=0.0))
    assert len(list(dataset)) == SHARDS * SAMPLES
    assert (dataset.stats().retries, dataset.stats().misses) == (2, SHARDS)


def test_an_epoch_is_one_line_a_rank(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(remote, tmp_path)
    with caplog.at_level(logging.INFO, "streaming.dataset"):
        for _ in range(2):
            list(dataset)
    first, second = [record.getMessage() for record in caplog.records]
    assert f"0 shards were here and {SHARDS} were not" in first
    assert "0 were not" in second


def test_a_copy_of_a_dataset_counts_for_itself(remote: Path, tmp_path: Path) -> None:
    import pickle

    dataset = open_dataset(remote, tmp_path)
    list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.stats().misses == 0
    list(copy)
    assert copy.stats().hits > 0
    assert dataset.stats().hits == 0


def test_local_data_miss_nothing(remote: Path) -> None:
    dataset = StreamingDataset(local=str(remote), batch_size=4)
    list(dataset)
    assert (dataset.stats().hits, dataset.stats().misses) == (SHARDS, 0)
    assert not (remote / ".streaming").exists()
    assert LocalDataset(str(remote))[0]


def test_prometheus_is_told(remote: Path, tmp_path: Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    from streaming.metrics import StatsCollector

    dataset = open_dataset(remote, tmp_path)
    registry = prometheus.CollectorRegistry()
    registry.register(StatsCollector({"train": dataset}))
    list(dataset)

    def value(name: str, **labels: str) -> float:
        found = registry.get_sample_value(f"streaming_cache_{name}", {"dataset": "train", **labels})
        assert found is not None
        return float(found)

    assert value("misses_total") == SHARDS
    assert value("fetched_bytes_total") == size_of(remote)
    assert value("wait_seconds_count") == dataset.stats().num_waits
    assert value("wait_seconds_bucket", le="+Inf") == dataset.stats().num_waits
    assert value("lock_holders") == 0


def test_statistics_are_shown_in_short(remote: Path, tmp_path: Path) -> None:
    dataset = open_dataset(remote, tmp_path)
    list(dataset)
    shown = repr(dataset.stats())
    assert f"misses={SHARDS}, " in shown
    assert "wait_p99=" in shown
    assert len(shown) < 300
