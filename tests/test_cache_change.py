"""What becomes of a cache whose source changes, or that is removed or moved under a run."""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import StreamingDataset
from streaming.cache import CachePart
from streaming.errors import CacheConflictError, CacheError, StoreError
from streaming.shared import origin as origin_module
from streaming.source import StreamSource
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import listing, open_part, write_dataset
from tests.test_cache_users import ANNA, as_user

__all__ = ["open_cache"]  # A fixture.

SHARDS = 6


@pytest.fixture(autouse=True)
def always_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "_CHECK_SECONDS", 0.0)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "remote", SHARDS, hashes=["md5"])


def open_(tmp_path: Path) -> CachePart:
    return open_part(tmp_path / "local", StreamSource(str(tmp_path / "remote"), 1))  # type: ignore[arg-type]


def rewrite(remote: Path) -> None:
    """Other samples of the same sizes, as a second run of a script would write."""
    shutil.rmtree(remote)
    write_dataset(remote, SHARDS, hashes=["md5"])
    index = (remote / "index.json").read_bytes()
    for shard in range(SHARDS):
        path = remote / f"shard.{shard:05}.mds"
        path.write_bytes(path.read_bytes().replace(b"sample", b"SAMPLE"))
    (remote / "index.json").write_bytes(index.replace(b'"md5":', b'"md5" :'))


def test_a_remote_that_was_replaced_by_one_of_equal_size_is_noticed_and_not_mixed(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    cache = open_cache(open_(tmp_path))
    assert values(cache, 0) == expected(0)
    rewrite(remote)
    for attempt in (cache, open_cache(open_(tmp_path))):
        before = listing(tmp_path / "local")
        assert values(attempt, 0) == expected(0)
        with pytest.raises(CacheConflictError, match=r"was replaced.*[Rr]emove that directory"):
            values(attempt, 1)
        assert listing(tmp_path / "local") == before
    shutil.rmtree(tmp_path / "local")
    assert values(open_cache(open_(tmp_path)), 1)[0].startswith(b"shard 001 SAMPLE")


def test_a_change_is_noticed_by_a_dataset_that_iterates(tmp_path: Path, remote: Path) -> None:
    options: dict[str, Any] = {"remote": str(remote), "local": str(tmp_path / "local")}
    StreamingDataset(**options, batch_size=2)[0]
    rewrite(remote)
    with pytest.raises(CacheConflictError, match="was replaced"):
        list(StreamingDataset(**options, batch_size=2))


def test_an_index_that_is_only_written_anew_is_no_change(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    assert values(open_cache(open_(tmp_path)), 0) == expected(0)
    index = (remote / "index.json").read_bytes()
    (remote / "index.json").unlink()
    (remote / "index.json").write_bytes(index)
    cache = open_cache(open_(tmp_path))
    for shard in range(SHARDS):
        assert values(cache, shard) == expected(shard)


def test_a_whole_cache_does_not_need_its_source(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    cache = open_cache(open_(tmp_path))
    for shard in range(SHARDS):
        cache.prepare(shard)
    shutil.rmtree(remote)
    assert values(open_cache(open_(tmp_path)), 3) == expected(3)


def test_a_lost_index_is_not_replaced_by_that_of_another_version(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    values(open_cache(open_(tmp_path)), 0)
    (tmp_path / "local" / "index.json").unlink()
    assert values(open_cache(open_(tmp_path)), 1) == expected(1)  # The same: fetched again.
    (tmp_path / "local" / "index.json").unlink()
    rewrite(remote)
    with pytest.raises(CacheConflictError, match="was replaced"):
        open_(tmp_path)


def test_an_index_put_there_by_hand_may_differ_and_a_warning_says_so(
    tmp_path: Path, remote: Path, open_cache: OpenCache, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "local").mkdir()
    index = (remote / "index.json").read_bytes()
    (tmp_path / "local" / "index.json").write_bytes(index + b" ")
    with caplog.at_level(logging.WARNING, "streaming"):
        cache = open_cache(open_(tmp_path))
        for shard in range(SHARDS):
            assert values(cache, shard) == expected(shard)
    assert ["by hand" in record.getMessage() for record in caplog.records] == [True]


def test_a_source_is_asked_once_in_a_while(
    tmp_path: Path, remote: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    version = StreamSource.version

    def watched(self: StreamSource, basename: str) -> str | None:
        asked.append(basename)
        return version(self, basename)

    monkeypatch.setattr(StreamSource, "version", watched)
    monkeypatch.setattr(origin_module, "_CHECK_SECONDS", 60.0)
    for _ in range(3):
        cache = open_cache(open_(tmp_path))
        for shard in range(SHARDS):
            values(cache, shard)
            cache.evict(shard)
    assert len(asked) == 2  # With the index, and before the first shard.
    hour_ahead = os.stat(tmp_path).st_mtime + 3600
    os.utime(tmp_path / "local" / ".streaming" / "checked", (hour_ahead, hour_ahead))
    values(cache, 0)
    assert len(asked) == 3  # The clock was set back: what it says is not believed.


# --- The directory ----------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path, remote: Path) -> Iterator[StreamingDataset]:
    yield StreamingDataset(
        remote=str(remote), local=str(tmp_path / "local"), batch_size=1, predownload=2
    )


def names(samples: Iterator[dict[str, bytes]], count: int) -> list[bytes]:
    return [next(samples)["x"] for _ in range(count)]


ALL = [value for shard in range(SHARDS) for value in expected(shard)]


@pytest.mark.parametrize("how", ["removed", "moved", "state removed"])
def test_a_cache_that_is_gone_under_a_run_is_made_anew(
    tmp_path: Path, running: StreamingDataset, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    local = tmp_path / "local"
    samples = iter(running)
    read = names(samples, 7)
    match how:
        case "removed":
            shutil.rmtree(local)
        case "moved":
            local.rename(tmp_path / "elsewhere")
        case "state removed":
            shutil.rmtree(local / ".streaming")
    with caplog.at_level(logging.WARNING, "streaming"):
        read += names(samples, len(ALL) - 7)
    assert read == ALL
    assert sum("was removed or moved" in record.getMessage() for record in caplog.records) == 1
    assert (local / ".streaming" / "source.json").exists()
    again = StreamingDataset(remote=str(tmp_path / "remote"), local=str(local), batch_size=1)
    assert [sample["x"] for sample in again] == ALL


@pytest.mark.parametrize("whose", ["another source's", "a later version's"])
def test_a_cache_that_became_of_other_data_under_a_run_is_not_mixed_with_them(
    tmp_path: Path, remote: Path, running: StreamingDataset, whose: str
) -> None:
    other = tmp_path / "other" if whose == "another source's" else remote
    samples = iter(running)
    read = names(samples, 4)
    shutil.rmtree(tmp_path / "local")
    if other != remote:
        shutil.copytree(remote, other)
    for shard in other.glob("*.mds"):
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    if other == remote:
        (other / "index.json").write_text((other / "index.json").read_text() + "\n")
    late = StreamingDataset(remote=str(other), local=str(tmp_path / "local"), batch_size=1)
    theirs = [sample["x"] for sample in late]
    assert sum(value.endswith(b"!") for value in theirs) == SHARDS
    with pytest.raises(CacheConflictError, match="Nothing is mixed"):
        read += names(samples, len(ALL))
    assert read == ALL[: len(read)]
    assert [sample["x"] for sample in late] == theirs


@pytest.mark.parametrize("limit", [None, 10**6])
def test_a_process_that_comes_later_sees_that_a_cache_became_of_other_data(
    tmp_path: Path, remote: Path, open_cache: OpenCache, limit: int | None
) -> None:
    part = open_(tmp_path)
    values(open_cache(part, limit=limit), 0)
    shutil.rmtree(tmp_path / "local")
    shutil.copytree(remote, tmp_path / "other")
    for shard in (tmp_path / "other").glob("*.mds"):
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    late = StreamingDataset(
        remote=str(tmp_path / "other"), local=str(tmp_path / "local"), batch_size=1
    )
    theirs = [sample["x"] for sample in late]
    with pytest.raises(CacheConflictError, match="Nothing is mixed"):
        values(open_cache(part, limit=limit), 1)
    assert [sample["x"] for sample in late] == theirs


def test_two_runs_meet_again_in_a_cache_that_was_removed(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    part = open_(tmp_path)
    size = part.index.shard(0).raw_bytes
    one, other = open_cache(part, limit=2 * size), open_cache(part, limit=2 * size)
    for cache in (one, other):
        values(cache, 0)
    shutil.rmtree(tmp_path / "local")
    for shard in range(1, SHARDS):
        for cache in (one, other):
            assert values(cache, shard) == expected(shard)
            assert len(list((tmp_path / "local").glob("*.mds"))) <= 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_cache_made_read_only_under_a_run_is_a_clear_error(tmp_path: Path) -> None:
    place = Path("/tmp") / f"readonly-{os.getpid()}"
    place.mkdir(mode=0o777)
    os.chown(place, ANNA, ANNA)
    write_dataset(place / "remote", SHARDS)

    def run() -> None:
        tempfile.tempdir = str(place)
        local = place / "local"
        dataset = StreamingDataset(
            remote=str(place / "remote"), local=str(local), batch_size=1, predownload=0
        )
        samples = iter(dataset)
        assert names(samples, 3) == ALL[:3]
        local.chmod(0o555)
        try:
            with pytest.raises((CacheError, StoreError), match=f"{local}.*ermission denied"):
                names(samples, len(ALL) - 3)
        finally:
            local.chmod(0o755)
        assert [sample["x"] for sample in dataset] == ALL

    try:
        as_user(ANNA, run)
    finally:
        shutil.rmtree(place)


def test_threads_of_a_run_make_one_cache_anew(
    tmp_path: Path, remote: Path, open_cache: OpenCache
) -> None:
    cache = open_cache(open_(tmp_path))
    values(cache, 0)
    shutil.rmtree(tmp_path / "local")
    threads = [threading.Thread(target=cache.prepare, args=(shard,)) for shard in range(SHARDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for shard in range(SHARDS):
        assert values(cache, shard) == expected(shard)
    assert cache.usage() == sum(len(data) for data in listing(tmp_path / "local").values())
    assert np.all([cache.is_present(shard) for shard in range(SHARDS)])
