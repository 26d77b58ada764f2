import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from streaming.cache import CachePart
from streaming.errors import (
    CacheError,
    ConfigError,
    MissingFileError,
    ShardCorruptError,
    UnsafeTypeError,
)
from streaming.format.index import FileInfo
from tests.common.caches import OpenCache, expected, open_cache, values
from tests.common.shards import FolderSource, fetches, listing, open_part, write_dataset

__all__ = ["open_cache"]  # A fixture.


def remote_part(
    tmp_path: Path, *, compression: str | None = "zstd", **options: object
) -> CachePart:
    remote = write_dataset(tmp_path / "remote", compression=compression, hashes=["md5", "xxh64"])
    return open_part(tmp_path / "local", FolderSource(remote, tmp_path / "log"), **options)


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br", "bz2", "snappy"])
def test_shards_are_fetched_once_and_read(
    tmp_path: Path, open_cache: OpenCache, compression: str | None
) -> None:
    cache = open_cache(remote_part(tmp_path, compression=compression))
    for _ in range(2):
        assert [values(cache, shard) for shard in range(4)] == [expected(i) for i in range(4)]
    ending = f".{compression}" if compression else ""
    names = [f"shard.{i:05}.mds{ending}" for i in range(4)]
    assert fetches(tmp_path / "log") == {"index.json": 1, **dict.fromkeys(names, 1)}
    assert sorted(listing(tmp_path / "local")) == [
        "index.json", *(f"shard.{i:05}.mds" for i in range(4))
    ]  # fmt: skip


def test_threads_that_want_the_same_shards_fetch_each_once(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    cache = open_cache(remote_part(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(cache.prepare, [0, 1, 2, 3] * 8))
        assert list(pool.map(lambda shard: values(cache, shard), range(4))) == [
            expected(shard) for shard in range(4)
        ]
    assert set(fetches(tmp_path / "log").values()) == {1}


def test_a_shard_that_is_not_there_is_an_index_error(tmp_path: Path, open_cache: OpenCache) -> None:
    cache = open_cache(remote_part(tmp_path))
    for shard in (-1, 4):
        with pytest.raises(IndexError, match=f"Shard {shard} is not in a dataset of 4 shards"):
            cache.prepare(shard)


def test_a_second_cache_finds_what_the_first_one_fetched(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    open_cache(part).prepare(2)
    log = fetches(tmp_path / "log")
    assert open_cache(part).is_present(2)
    assert values(open_cache(part), 2) == expected(2)
    assert fetches(tmp_path / "log") == log


def test_keep_zip_keeps_what_was_fetched(tmp_path: Path, open_cache: OpenCache) -> None:
    cache = open_cache(remote_part(tmp_path, keep_zip=True))
    cache.prepare(1)
    assert sorted(listing(tmp_path / "local")) == [
        "index.json", "shard.00001.mds", "shard.00001.mds.zstd"
    ]  # fmt: skip


def test_a_compressed_file_that_was_not_fetched_stays(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    name = "shard.00001.mds.zstd"
    (tmp_path / "local" / name).write_bytes((tmp_path / "remote" / name).read_bytes())
    cache = open_cache(part)
    assert values(cache, 1) == expected(1)
    assert name in listing(tmp_path / "local")
    assert fetches(tmp_path / "log") == {"index.json": 1}
    assert cache.evict(1) == part.index.shard(1).raw_bytes
    assert sorted(listing(tmp_path / "local")) == ["index.json", name]


def test_shards_are_numbered_stream_after_stream(tmp_path: Path, open_cache: OpenCache) -> None:
    parts = [
        open_part(write_dataset(tmp_path / name, shards=shards), None)
        for name, shards in [("a", 2), ("b", 0), ("c", 3)]
    ]
    cache = open_cache(*parts)
    assert len(cache) == 5
    found = [values(cache, shard) for shard in range(5)]
    assert found == [expected(0), expected(1), expected(0), expected(1), expected(2)]


@pytest.mark.parametrize("keep_zip", [False, True])
def test_case_F1_only_compressed_shards_are_decompressed_and_kept(
    tmp_path: Path, open_cache: OpenCache, keep_zip: bool
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd")
    before = listing(local)
    cache = open_cache(open_part(local, None, keep_zip=keep_zip))
    assert [values(cache, shard) for shard in range(4)] == [expected(i) for i in range(4)]
    after = listing(local)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 4


def test_case_F1_only_raw_shards_of_a_compressed_dataset_are_read_as_they_are(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd")
    cache = open_cache(open_part(local, None))
    for shard in range(4):
        cache.prepare(shard)
        (local / f"shard.{shard:05}.mds.zstd").unlink()
    cache.close()
    cache = open_cache(open_part(local, None))
    assert [values(cache, shard) for shard in range(4)] == [expected(i) for i in range(4)]


def test_a_finished_local_dataset_is_only_read(tmp_path: Path, open_cache: OpenCache) -> None:
    local = write_dataset(tmp_path / "local")
    before = sorted(local.rglob("*"))
    cache = open_cache(open_part(local, None), limit=1)
    for shard in range(4):
        assert cache.is_present(shard)
        assert cache.prepare(shard)
        cache.touch(shard)
        assert values(cache, shard) == expected(shard)
        assert cache.evict(shard) == 0
    cache.pin([0, 1])
    assert cache.usage() == 0
    assert cache.is_inert()
    assert sorted(local.rglob("*")) == before


def test_case_H4_a_local_dataset_may_be_opened_twice(tmp_path: Path, open_cache: OpenCache) -> None:
    local = write_dataset(tmp_path / "local")
    first, second = open_cache(open_part(local, None)), open_cache(open_part(local, None))
    assert values(first, 0) == values(second, 0) == expected(0)
    first.close()
    assert values(second, 1) == expected(1)


def test_a_whole_cache_is_read_where_no_state_can_be_kept(
    tmp_path: Path, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = remote_part(tmp_path)
    cache = open_cache(part)
    for shard in range(3):
        cache.prepare(shard)
    cache.close()
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMING_STATE_DIR", str(tmp_path / "file"))
    cache = open_cache(part)
    assert values(cache, 2) == expected(2)
    with pytest.raises(CacheError, match="STREAMING_STATE_DIR"):
        cache.open(3)


# Damage


@pytest.mark.parametrize("size", [0, 1, 60])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_case_F4_a_truncated_cached_shard_is_fetched_again(
    tmp_path: Path, open_cache: OpenCache, size: int, compression: str | None
) -> None:
    part = remote_part(tmp_path, compression=compression)
    open_cache(part).prepare(1)
    os.truncate(tmp_path / "local" / "shard.00001.mds", size)
    cache = open_cache(part)
    assert not cache.is_present(1)
    assert values(cache, 1) == expected(1)
    assert max(fetches(tmp_path / "log").values()) == 2


@pytest.mark.parametrize("size", [0, 1, 60])
def test_case_F4_a_truncated_local_shard_is_an_error_with_both_sizes(
    tmp_path: Path, open_cache: OpenCache, size: int
) -> None:
    local = write_dataset(tmp_path / "local")
    os.truncate(local / "shard.00002.mds", size)
    cache = open_cache(open_part(local, None))
    whole = (local / "shard.00001.mds").stat().st_size
    message = rf"local/shard.00002.mds has {size} bytes, but the index says {whole}"
    for call in (cache.open, cache.prepare):
        with pytest.raises(ShardCorruptError, match=message):
            call(2)
    assert not (local / ".streaming").exists()


def test_a_truncated_raw_file_is_made_anew_from_a_local_compressed_one(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd")
    (local / "shard.00000.mds").write_bytes(b"half")
    assert values(open_cache(open_part(local, None)), 0) == expected(0)


def test_a_missing_local_shard_is_an_error_with_its_name(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd")
    (local / "shard.00003.mds.zstd").unlink()
    with pytest.raises(MissingFileError, match=r"local/shard.00003.mds is missing.*mds.zstd"):
        open_cache(open_part(local, None)).open(3)


def test_a_truncated_compressed_file_is_fetched_again(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    (tmp_path / "local" / "shard.00000.mds.zstd").write_bytes(b"half")
    assert values(open_cache(part), 0) == expected(0)


def test_a_damaged_compressed_file_is_fetched_again(tmp_path: Path, open_cache: OpenCache) -> None:
    part = remote_part(tmp_path)
    whole = (tmp_path / "remote" / "shard.00000.mds.zstd").read_bytes()
    (tmp_path / "local" / "shard.00000.mds.zstd").write_bytes(bytes(len(whole)))
    assert values(open_cache(part), 0) == expected(0)
    assert fetches(tmp_path / "log")["shard.00000.mds.zstd"] == 1


def test_a_damaged_local_compressed_file_is_an_error_and_stays(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd")
    path = local / "shard.00000.mds.zstd"
    path.write_bytes(bytes(path.stat().st_size))
    before = listing(local)
    with pytest.raises(ShardCorruptError, match=r"shard.00000.mds.zstd"):
        open_cache(open_part(local, None)).open(0)
    assert listing(local) == before


def test_case_S14_a_short_download_never_gets_its_name(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path, compression=None)
    whole = part.index.shard(0).raw_bytes
    os.truncate(tmp_path / "remote" / "shard.00000.mds", whole - 1)
    with pytest.raises(ShardCorruptError, match=rf"gave {whole - 1} bytes.*says {whole}"):
        open_cache(part).prepare(0)
    assert sorted(listing(tmp_path / "local")) == ["index.json"]


def test_a_source_that_gives_nothing_is_an_error(tmp_path: Path, open_cache: OpenCache) -> None:
    class Lazy(FolderSource):
        def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
            return super().fetch(file, path) if file.basename == "index.json" else 0

    part = open_part(tmp_path / "local", Lazy(write_dataset(tmp_path / "remote")))
    with pytest.raises(ShardCorruptError, match="gave no bytes"):
        open_cache(part).prepare(0)


def write_at(path: Path, place: int, number: int) -> None:
    """Overwrite a uint32 of a file, whose size stays."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(np.uint32(number).tobytes())


LAST_OFFSET = 4 + 4 * 5  # where the last sample of a shard of five ends
FIRST_LENGTH = 4 + 4 * 6 + 2  # length of the first sample's only value


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_case_F3_a_cached_shard_that_is_damaged_is_fetched_again_when_opened(
    tmp_path: Path, open_cache: OpenCache, compression: str | None
) -> None:
    part = remote_part(tmp_path, compression=compression)
    open_cache(part).prepare(1)
    write_at(tmp_path / "local" / "shard.00001.mds", LAST_OFFSET, 1 << 30)
    cache = open_cache(part)
    assert values(cache, 1) == expected(1)
    assert max(fetches(tmp_path / "log").values()) == 2


def test_case_S8_a_cached_shard_that_is_damaged_is_fetched_again_when_read(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    cache = open_cache(part)
    cache.prepare(1)
    write_at(tmp_path / "local" / "shard.00001.mds", FIRST_LENGTH, 1 << 30)
    with pytest.raises(ShardCorruptError, match=r"shard.00001.mds"):
        values(cache, 1)
    assert cache.refresh(1)
    assert values(cache, 1) == expected(1)
    assert fetches(tmp_path / "log")["shard.00001.mds.zstd"] == 2


@pytest.mark.parametrize("place", [LAST_OFFSET, FIRST_LENGTH])
def test_case_F3_S8_damage_at_the_source_is_an_error_after_one_more_download(
    tmp_path: Path, open_cache: OpenCache, place: int
) -> None:
    part = remote_part(tmp_path, compression=None)
    write_at(tmp_path / "remote" / "shard.00001.mds", place, 1 << 30)
    cache = open_cache(part)
    attempts = 0
    while True:
        attempts += 1
        with pytest.raises(ShardCorruptError, match=r"shard.00001.mds"):
            values(cache, 1)
        if not cache.refresh(1):
            break
    assert attempts <= 2
    assert fetches(tmp_path / "log")["shard.00001.mds"] == 2


def test_a_shard_that_another_process_replaced_is_not_fetched_again(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    first, second = open_cache(part), open_cache(part)
    first.open(1).close()
    second.open(1).close()
    assert first.refresh(1)
    assert second.refresh(1)
    assert fetches(tmp_path / "log")["shard.00001.mds.zstd"] == 2


def test_a_local_shard_cannot_be_refreshed(tmp_path: Path, open_cache: OpenCache) -> None:
    local = write_dataset(tmp_path / "local")
    before = listing(local)
    assert not open_cache(open_part(local, None)).refresh(0)
    assert listing(local) == before


# Hashes


class _CheckingSource(FolderSource):
    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        assert file.basename == "index.json" or digest == ("md5", file.hashes["md5"])
        return super().fetch(file, path, digest)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_source_is_told_the_hash_to_check(
    tmp_path: Path, open_cache: OpenCache, compression: str | None
) -> None:
    remote = write_dataset(tmp_path / "remote", compression=compression, hashes=["md5"])
    part = open_part(tmp_path / "local", _CheckingSource(remote), validate_hash="md5")
    assert values(open_cache(part), 0) == expected(0)


def test_a_hash_that_the_index_lacks_is_an_error_with_those_it_has(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path, validate_hash="sha1")
    with pytest.raises(ConfigError, match=r"'sha1', but the index has of .* only md5, xxh64"):
        open_cache(part).prepare(0)
    assert fetches(tmp_path / "log") == {"index.json": 1}


def test_case_S8_what_was_decompressed_is_checked_too(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    local = write_dataset(tmp_path / "local", compression="zstd", hashes=["md5"])
    index = json.loads((local / "index.json").read_bytes())
    index["shards"][1]["raw_data"]["hashes"]["md5"] = "0" * 32
    (local / "index.json").write_text(json.dumps(index))
    cache = open_cache(open_part(local, None, validate_hash="md5"))
    assert values(cache, 0) == expected(0)
    with pytest.raises(ShardCorruptError, match=rf"has md5 \w+, but the index says {'0' * 32}"):
        cache.prepare(1)


# Errors leave nothing behind


class _FailingSource(FolderSource):
    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        super().fetch(file, path, digest)
        if file.basename != "index.json" and not (self.root / "ready").exists():
            raise RuntimeError("The store is away.")
        return path.stat().st_size


def test_a_failed_shard_leaves_nothing_and_can_be_asked_for_again(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    remote = write_dataset(tmp_path / "remote")
    cache = open_cache(open_part(tmp_path / "local", _FailingSource(remote)), limit=10**6)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="away"):
            cache.prepare(0)
    assert sorted(listing(tmp_path / "local")) == ["index.json"]
    assert cache.usage() == 0
    (remote / "ready").touch()
    assert values(cache, 0) == expected(0)


def test_a_column_that_would_run_code_is_refused(tmp_path: Path, open_cache: OpenCache) -> None:
    local = write_dataset(tmp_path / "local")
    index = (local / "index.json").read_bytes().replace(b'["bytes"]', b'["pkl"]')
    (local / "index.json").write_bytes(index)
    with pytest.raises(UnsafeTypeError):
        open_cache(open_part(local, None)).open(0)
    open_cache(open_part(local, None), allow_unsafe_types=True).open(0).close()


def test_a_part_pickles_and_a_cache_does_not(tmp_path: Path, open_cache: OpenCache) -> None:
    part = remote_part(tmp_path)
    assert values(open_cache(pickle.loads(pickle.dumps(part))), 0) == expected(0)
    with pytest.raises(TypeError, match="Pickle its parts"):
        pickle.dumps(open_cache(part))


def test_a_cache_that_came_by_a_fork_says_so(tmp_path: Path, open_cache: OpenCache) -> None:
    cache = open_cache(remote_part(tmp_path))
    cache.prepare(0)
    child = os.fork()
    if child == 0:
        try:
            cache.prepare(1)
        except CacheError as error:
            os._exit(0 if "by a fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(cache, 1) == expected(1)


def test_absent_gives_the_missing_ones_in_order(tmp_path: Path, open_cache: OpenCache) -> None:
    local = write_dataset(tmp_path / "own", shards=2)
    cache = open_cache(open_part(local, None), remote_part(tmp_path))
    cache.prepare(3)
    assert cache.absent([5, 0, 3, 2, 1]) == [5, 2]
    assert cache.absent([]) == []
    cache.evict(3)
    assert cache.absent(np.arange(6)) == [2, 3, 4, 5]


def test_a_shard_that_another_process_evicted_is_absent(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    first, second = open_cache(part), open_cache(part)
    first.prepare(0)
    second.prepare(0)
    second.prepare(1)
    assert first.evict(0) > 0
    assert second.absent([0, 1]) == [0]
    assert values(second, 0) == expected(0)


def test_a_cache_that_is_whole_has_nothing_to_prepare(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    part = remote_part(tmp_path)
    cache = open_cache(part)
    for shard in range(4):
        assert not cache.is_inert()
        cache.prepare(shard)
    cache.close()
    cache = open_cache(part)
    assert not cache.is_inert()
    assert cache.absent(range(4)) == []
    assert cache.is_inert()


def raw_names(count: int) -> list[str]:
    return [f"shard.{shard:05}.mds" for shard in range(count)]


class Vanishing(FolderSource):
    """Each time that a shard comes, something removes what is in the cache, or all of it."""

    times: int = 1
    removed: str = "."

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        size = super().fetch(file, path, digest)
        if self.times and file.basename != "index.json":
            object.__setattr__(self, "times", self.times - 1)
            gone = path.parent / self.removed
            shutil.rmtree(gone)
        return size


def vanishing(tmp_path: Path, removed: str, times: int, compression: str | None) -> Vanishing:
    remote = write_dataset(tmp_path / "remote", compression=compression)
    source = Vanishing(remote, tmp_path / "log")
    object.__setattr__(source, "removed", removed)
    object.__setattr__(source, "times", times)
    return source


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("removed", [".", ".streaming"])
def test_a_shard_on_its_way_into_a_directory_that_goes_is_made_again(
    tmp_path: Path, open_cache: OpenCache, removed: str, compression: str | None
) -> None:
    source = vanishing(tmp_path, removed, 2, compression)
    cache = open_cache(open_part(tmp_path / "local", source))
    assert [values(cache, shard) for shard in range(4)] == [expected(i) for i in range(4)]
    assert source.times == 0
    assert {*raw_names(4)} <= {*listing(tmp_path / "local")}
    assert not list((tmp_path / "local").rglob("*.part"))


def test_a_directory_that_is_emptied_all_the_time_is_one_cache_error(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    source = vanishing(tmp_path, ".", 1000, "zstd")
    cache = open_cache(open_part(tmp_path / "local", source))
    with pytest.raises(CacheError, match=r"removed while they were made, 5 times in a row"):
        cache.open(1)


def test_a_shard_that_is_not_at_the_source_is_looked_for_once(
    tmp_path: Path, open_cache: OpenCache
) -> None:
    source = FolderSource(write_dataset(tmp_path / "remote"), tmp_path / "log")
    cache = open_cache(open_part(tmp_path / "local", source))
    (tmp_path / "remote" / "shard.00001.mds").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds"):
        cache.open(1)
    assert fetches(tmp_path / "log")["shard.00001.mds"] == 1
