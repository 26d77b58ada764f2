import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from streaming.errors import (
    ObjectNotFoundError,
    ShardCorruptError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
    UnknownNameError,
)
from streaming.hashing import get_hash
from streaming.storage.download import fetch
from streaming.storage.stores.fault import (
    Corrupt,
    Delay,
    Fail,
    Fault,
    FaultStore,
    ShortRead,
    Stall,
)
from streaming.storage.stores.memory import MemoryStore
from streaming.util.retrying import Retry

SHARD = bytes(range(100))
DIGEST = ("xxh64", get_hash("xxh64", SHARD))
THRICE = Retry(3, sleep=lambda _: None)


def over(*plan: Fault) -> FaultStore:
    return FaultStore(MemoryStore({"a/x.mds": SHARD}), plan)


def gets(store: FaultStore) -> int:
    return [op for op, _ in store.calls].count("get_file")


def test_an_object_becomes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directory" / "x.mds"
    assert fetch(over(), "a/x.mds", path, size=100, digest=DIGEST, retry=THRICE) == 100
    assert path.read_bytes() == SHARD
    assert os.listdir(path.parent) == ["x.mds"]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.mds"
    path.write_bytes(b"old")
    fetch(over(), "a/x.mds", path, retry=THRICE)
    assert path.read_bytes() == SHARD


def test_it_comes_under_another_name_beside_the_file(tmp_path: Path) -> None:
    names: list[list[str]] = []

    class Watched(MemoryStore):
        def get_file(self, key: str, path: Path) -> None:
            super().get_file(key, path)
            names.append(os.listdir(tmp_path))

    fetch(Watched({"x": b"1"}), "x", tmp_path / "x.mds", size=1, retry=THRICE)
    ((part,),) = names
    assert part.startswith("x.mds.")
    assert part.endswith(".part")


def test_a_short_read_never_becomes_a_shard(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore({"a.mds": b"x" * 100}), [ShortRead(at=60)])
    with pytest.raises(ShardCorruptError, match=r"60 of 100 bytes of a.mds in FaultStore"):
        fetch(store, "a.mds", tmp_path / "a.mds", size=100, digest=None, retry=Retry(attempts=1))
    assert list(tmp_path.iterdir()) == []


def test_case_S14_a_truncated_download_is_tried_again_with_backoff(tmp_path: Path) -> None:
    pauses: list[float] = []
    store = over(ShortRead(at=50, times=2))
    retry = Retry(3, base=1, jitter=0, sleep=pauses.append)
    assert fetch(store, "a/x.mds", tmp_path / "x", size=100, retry=retry) == 100
    assert pauses == [1, 2]
    assert (tmp_path / "x").read_bytes() == SHARD
    assert os.listdir(tmp_path) == ["x"]


def test_case_S14_truncation_is_seen_where_no_size_is_known(tmp_path: Path) -> None:
    with pytest.raises(ShardCorruptError, match="50 of 100 bytes"):
        fetch(over(ShortRead(at=50)), "a/x.mds", tmp_path / "x", retry=THRICE)
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardCorruptError, match="100 of 99 bytes"):
        fetch(over(), "a/x.mds", tmp_path / "x", size=99, retry=THRICE)
    assert list(tmp_path.iterdir()) == []


def test_case_S8_one_corrupt_download_is_repeated(tmp_path: Path) -> None:
    store = over(Corrupt(at=7, times=1))
    fetch(store, "a/x.mds", tmp_path / "x", size=100, digest=DIGEST, retry=THRICE)
    assert (tmp_path / "x").read_bytes() == SHARD
    assert gets(store) == 2


def test_case_S8_a_corrupt_remote_is_an_error_with_shard_and_both_digests(tmp_path: Path) -> None:
    store = over(Corrupt(at=7))
    actual = get_hash("xxh64", SHARD[:7] + bytes([7 ^ 0xFF]) + SHARD[8:])
    with pytest.raises(ShardCorruptError, match=f"a/x.mds.*{DIGEST[1]}.*{actual}"):
        fetch(store, "a/x.mds", tmp_path / "x", size=100, digest=DIGEST, retry=Retry(9, base=0))
    assert list(tmp_path.iterdir()) == []
    assert gets(store) == 2


def test_a_wrong_digest_is_not_tried_again_without_attempts(tmp_path: Path) -> None:
    store = over(Corrupt())
    with pytest.raises(ShardCorruptError):
        fetch(store, "a/x.mds", tmp_path / "x", digest=DIGEST, retry=Retry(1))
    assert gets(store) == 1


def test_case_S15_one_503_in_ten_requests_is_survived_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = TransientStoreError("429: slow down.")
    error.retry_after = 9  # type: ignore[attr-defined]  # As a store's adapter sets it.
    objects = {f"{i}.mds": b"%d" % i for i in range(40)}
    store = FaultStore(MemoryStore(objects), [Fail(error, op="get_file", every=10)])
    pauses: list[float] = []
    for key, value in objects.items():
        retry = Retry(2, sleep=pauses.append)
        fetch(store, key, tmp_path / key, size=len(value), retry=retry)
        assert (tmp_path / key).read_bytes() == value
    assert pauses == [9] * 5
    assert gets(store) == 45
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 5
    assert "Attempt 1 of 2" in warnings[0].getMessage()


def test_case_S21_a_stalled_read_times_out_and_is_tried_again(tmp_path: Path) -> None:
    store = over(Stall(at=30, times=1))
    assert fetch(store, "a/x.mds", tmp_path / "x", size=100, retry=THRICE) == 100
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (TransientStoreError("503"), 3),
        (StoreTimeoutError("late"), 3),
        (StoreError("refused"), 1),
        (ObjectNotFoundError("gone"), 1),
    ],
)
def test_only_what_may_pass_is_tried_again(
    tmp_path: Path, error: StoreError, attempts: int
) -> None:
    store = over(Fail(error))
    with pytest.raises(type(error), match=str(error)):
        fetch(store, "a/x.mds", tmp_path / "x", size=100, retry=THRICE)
    assert gets(store) == attempts
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"b\.mds"):
        fetch(over(), "b.mds", tmp_path / "x", retry=THRICE)


def test_a_full_disk_is_told_and_not_tried_again(tmp_path: Path) -> None:
    class Full(MemoryStore):
        def get_file(self, key: str, path: Path) -> None:
            path.write_bytes(b"some")
            os.truncate(path, 2)
            super().get_file(key, Path("/dev/full"))

    with pytest.raises(StoreError, match=r"100 bytes.*no space left on device") as caught:
        fetch(Full({"x": SHARD}), "x", tmp_path / "x", size=100, retry=THRICE)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_way_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(StoreError, match="x"):
        fetch(over(), "a/x.mds", tmp_path / "x", size=100, retry=THRICE)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="directory"):
        fetch(over(), "a/x.mds", tmp_path / "file" / "x", size=100, retry=THRICE)
    assert sorted(os.listdir(tmp_path)) == ["file", "x"]


def test_an_unknown_hash_is_news_before_the_download(tmp_path: Path) -> None:
    store = over()
    with pytest.raises(UnknownNameError, match="crc99"):
        fetch(store, "a/x.mds", tmp_path / "x", digest=("crc99", "00"), retry=THRICE)
    assert store.calls == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(MemoryStore):
        def get_file(self, key: str, path: Path) -> None:
            path.write_bytes(b"some")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(Interrupted(), "x", tmp_path / "x", retry=THRICE)
    assert list(tmp_path.iterdir()) == []


def test_two_that_fetch_the_same_do_not_meet(tmp_path: Path) -> None:
    delay = Delay(until=threading.Event(), op="get_file", times=1)
    store = over(delay)
    done: list[int] = []

    def run() -> None:
        done.append(fetch(store, "a/x.mds", tmp_path / "x", size=100, retry=THRICE))

    thread = threading.Thread(target=run)
    thread.start()
    assert delay.reached.wait(10)
    run()
    delay.until.set()
    thread.join(10)
    assert done == [100, 100]
    assert os.listdir(tmp_path) == ["x"]
