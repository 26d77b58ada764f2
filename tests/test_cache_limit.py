import logging
import random
from pathlib import Path

import numpy as np
import pytest

from streaming.cache import CachePart, ShardCache
from streaming.errors import CacheLimitError
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import FolderSource, fetches, listing, open_part, write_dataset

__all__ = ["open_cache"]  # A fixture.


@pytest.fixture
def part(tmp_path: Path) -> CachePart:
    """Eight shards of one size, not compressed."""
    source = FolderSource(write_dataset(tmp_path / "remote", shards=8), tmp_path / "log")
    return open_part(tmp_path / "local", source)


def one(part: CachePart) -> int:
    """Bytes of one shard."""
    return part.index.shard(0).raw_bytes


def present(cache: ShardCache) -> list[int]:
    return [shard for shard in range(len(cache)) if cache.is_present(shard)]


def test_the_longest_unused_shard_is_evicted(part: CachePart, open_cache: OpenCache) -> None:
    cache = open_cache(part, limit=3 * one(part))
    for shard in (0, 1, 2):
        cache.prepare(shard)
    cache.touch(0)
    cache.prepare(3)
    assert present(cache) == [0, 2, 3]
    cache.prepare(4)
    assert present(cache) == [0, 3, 4]
    assert cache.usage() == 3 * one(part)


def test_opening_a_shard_keeps_it_fresh_from_the_beginning(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=3 * one(part))
    for shard in (0, 1, 2):
        cache.prepare(shard)
    cache.close()
    cache = open_cache(part, limit=3 * one(part))
    values(cache, 0)
    cache.prepare(3)
    assert present(cache) == [0, 2, 3]


def test_an_open_reader_outlives_the_eviction_of_its_shard(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=one(part))
    reader = cache.open(0)
    cache.prepare(1)
    assert present(cache) == [1]
    assert [row["x"] for row in reader.take(np.arange(5))] == expected(0)
    reader.close()


@pytest.mark.parametrize("compression, room", [(None, 0), ("zstd", 0), ("gz", 100)])
@pytest.mark.parametrize("seed", range(3))
def test_case_S11_a_limit_of_one_shard_is_slow_but_complete(
    tmp_path: Path, open_cache: OpenCache, compression: str | None, room: int, seed: int
) -> None:
    remote = write_dataset(tmp_path / "remote", shards=6, compression=compression, padding=300)
    part = open_part(tmp_path / "local", FolderSource(remote))
    limit = max(info.raw_bytes + info.zip_bytes for info in part.index) + room
    cache = open_cache(part, limit=limit)
    for shard in random.Random(seed).choices(range(6), k=20):
        assert values(cache, shard) == expected(shard, padding=300)
        assert cache.usage() <= limit
    files = listing(tmp_path / "local")
    assert sum(len(data) for name, data in files.items() if name != "index.json") <= limit


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_case_S11_a_limit_below_a_shard_is_an_error_with_the_least(
    tmp_path: Path, compression: str | None
) -> None:
    remote = write_dataset(tmp_path / "remote", compression=compression)
    part = open_part(tmp_path / "local", FolderSource(remote))
    least = max(info.raw_bytes + info.zip_bytes for info in part.index)
    for limit in (0, 1, least - 1):
        with pytest.raises(CacheLimitError, match=f"Give at least {least}") as caught:
            ShardCache([part], limit)
        assert isinstance(caught.value, ValueError)
    ShardCache([part], least).close()


def test_case_S10_local_files_are_untouched_by_a_limit(
    tmp_path: Path, open_cache: OpenCache, part: CachePart
) -> None:
    raw = write_dataset(tmp_path / "raw", shards=3)
    zip = write_dataset(tmp_path / "zip", shards=3, compression="zstd")
    before = {**listing(raw), **listing(zip)}
    limit = 2 * one(part)
    cache = open_cache(open_part(raw, None), open_part(zip, None), part, limit=limit)
    for _ in range(2):
        for shard in range(len(cache)):
            values(cache, shard)
            assert cache.usage() <= limit
    after = {**listing(raw), **listing(zip)}
    assert {name: after[name] for name in before} == before
    assert not (raw / ".streaming").exists()


def test_case_S10_files_that_were_there_before_are_not_removed(
    tmp_path: Path, open_cache: OpenCache, part: CachePart, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in range(4):
        name = f"shard.{shard:05}.mds"
        (tmp_path / "local" / name).write_bytes((tmp_path / "remote" / name).read_bytes())
    before = listing(tmp_path / "local")
    cache = open_cache(part, limit=2 * one(part))
    with caplog.at_level(logging.WARNING, "streaming"):
        for shard in range(8):
            assert values(cache, shard) == expected(shard)
            cache.evict(shard)
    assert listing(tmp_path / "local") == before
    assert len(caplog.records) == 1
    assert "not its to remove" in caplog.records[0].getMessage()


def test_a_shard_that_is_needed_next_is_not_evicted_to_look_ahead(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=3 * one(part))
    cache.pin([0, 1, 2, 3])
    assert all(cache.prepare(shard, ahead=True) for shard in (0, 1, 2))
    assert not cache.prepare(3, ahead=True)
    assert present(cache) == [0, 1, 2]
    assert cache.usage() == 3 * one(part)
    cache.pin([1, 2, 3])
    assert cache.prepare(3, ahead=True)
    assert present(cache) == [1, 2, 3]


def test_what_is_needed_now_takes_the_place_of_what_is_needed_last(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=3 * one(part))
    cache.pin([0, 1, 2, 3])
    for shard in (1, 2, 3):
        cache.prepare(shard, ahead=True)
    assert cache.prepare(0)
    assert present(cache) == [0, 1, 2]


def test_looking_ahead_evicts_nothing_if_that_would_not_do(
    tmp_path: Path, part: CachePart, open_cache: OpenCache
) -> None:
    for shard in range(2):
        name = f"shard.{shard:05}.mds"
        (tmp_path / "local" / name).write_bytes((tmp_path / "remote" / name).read_bytes())
    open_cache(part).prepare(2)
    cache = open_cache(part, limit=2 * one(part))
    assert not cache.prepare(3, ahead=True)
    assert present(cache) == [0, 1, 2]


def test_a_shard_that_somebody_works_on_is_not_evicted(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=2 * one(part))
    cache.prepare(0)
    cache.prepare(1)
    state = cache._shelf.state(part)
    with state.lock(0).exclusive():
        cache.prepare(2)
        assert present(cache) == [0, 2]
    with state.lock(0).exclusive(), state.lock(2).exclusive():
        cache.prepare(3)  # Nothing can go: rather than to wait, the limit is exceeded.
    assert present(cache) == [0, 2, 3]
    cache.prepare(4)
    assert cache.usage() == 2 * one(part)


def test_shards_of_all_streams_share_the_limit(
    tmp_path: Path, part: CachePart, open_cache: OpenCache
) -> None:
    other = open_part(tmp_path / "b", FolderSource(write_dataset(tmp_path / "other", shards=8)))
    cache = open_cache(part, other, limit=3 * one(part))
    for shard in (0, 8, 1, 9, 2):
        assert values(cache, shard) == expected(shard % 8)
    assert present(cache) == [1, 2, 9]


def test_what_is_needed_next_may_be_of_any_stream(
    tmp_path: Path, part: CachePart, open_cache: OpenCache
) -> None:
    local = open_part(write_dataset(tmp_path / "own", shards=8), None)
    cache = open_cache(local, part, limit=2 * one(part))
    cache.pin([0, 8, 1, 9, 2, 10])
    assert cache.prepare(8, ahead=True)
    assert cache.prepare(9, ahead=True)
    assert not cache.prepare(10, ahead=True)
    assert cache.prepare(10)
    assert present(cache) == [*range(8), 8, 10]


def test_under_a_limit_of_half_the_data_some_shards_are_still_there(
    tmp_path: Path, part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=4 * one(part))
    rng = random.Random(7)
    for _ in range(3):
        for shard in rng.sample(range(8), 8):
            assert values(cache, shard) == expected(shard)
    assert sum(fetches(tmp_path / "log").values()) < 1 + 3 * 8


def test_evicting_by_hand_gives_the_bytes_back(part: CachePart, open_cache: OpenCache) -> None:
    cache = open_cache(part)
    cache.prepare(5)
    assert cache.usage() == one(part)
    assert cache.evict(5) == one(part)
    assert cache.evict(5) == 0
    assert cache.usage() == 0
    assert not cache.is_present(5)
    assert values(cache, 5) == expected(5)


def test_what_was_read_in_this_epoch_goes_before_what_is_still_to_come(
    part: CachePart, open_cache: OpenCache
) -> None:
    cache = open_cache(part, limit=4 * one(part))
    for shard in (0, 1, 2, 3):
        cache.prepare(shard)
    cache.begin_epoch()
    for shard, evicted in ((3, None), (2, None), (4, 3), (5, 2), (6, 4)):
        before = present(cache)
        values(cache, shard)
        assert set(before) - set(present(cache)) == ({evicted} if evicted is not None else set())
    assert present(cache) == [0, 1, 5, 6]


def test_what_another_process_needs_next_goes_last(part: CachePart, open_cache: OpenCache) -> None:
    cache, other = (open_cache(part, limit=3 * one(part)) for _ in range(2))
    for shard in (0, 1, 2):
        cache.prepare(shard)
    other.prepare(0)
    other.pin([0, 1])
    for shard in (3, 4):
        cache.touch(shard - 1)
        cache.prepare(shard)
        assert present(cache) == [0, 1, shard]
    other.pin([0, 1, 4])
    cache._shelf.state(part).needs._read_at = 0.0  # What others need is asked for anew.
    assert not cache.prepare(5, ahead=True)
    other.close()
    cache._shelf.state(part).needs._read_at = 0.0
    assert cache.prepare(5, ahead=True)
