import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.errors import ConfigError, StoreError, TransientStoreError
from streaming.storage import open_store
from streaming.storage.stores.fault import Delay, Fail, Fault, FaultStore, ShortRead
from streaming.storage.stores.memory import MemoryStore
from streaming.storage.upload import UploadPool, publish
from streaming.util.retrying import Retry
from tests.conftest import RunPython
from tests.servers.faulty import FaultyServer, Status
from tests.servers.places import Opened

TWICE = Retry(2, base=0)
ONCE = Retry(1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.mds" for i in range(9)]
    for i, path in enumerate(paths):
        path.write_bytes(b"%d" % i * 10)
    return paths


def over(*plan: Fault) -> FaultStore:
    return FaultStore(MemoryStore(), plan)


def keys(store: FaultStore) -> list[str]:
    return [info.key for info in store._inner.list()]


def test_a_file_becomes_an_object(files: list[Path]) -> None:
    store = over()
    publish(store, files[3], "train/3.mds", retry=ONCE)
    assert store.read("train/3.mds") == files[3].read_bytes()


def test_a_failure_that_may_pass_is_tried_again(files: list[Path]) -> None:
    store = over(Fail(op="put_file", times=1), Fail(op="stat", times=1))
    publish(store, files[0], "a", retry=Retry(3, base=0))
    assert store.read("a") == files[0].read_bytes()


def test_an_object_that_arrived_short_is_sent_again(files: list[Path]) -> None:
    store = over(ShortRead(at=6, op="put_file", times=1))
    publish(store, files[0], "a", retry=TWICE)
    assert store.read("a") == files[0].read_bytes()


def test_an_object_that_always_arrives_short_is_an_error(files: list[Path]) -> None:
    with pytest.raises(StoreError, match="6 of 10 bytes of a") as caught:
        publish(over(ShortRead(at=6, op="put_file")), files[0], "a", retry=TWICE)
    assert not isinstance(caught.value, TransientStoreError)


def test_a_file_that_is_not_there_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing"):
        publish(over(), tmp_path / "nothing", "a", retry=TWICE)


def test_a_pool_uploads_everything_under_its_prefix(files: list[Path]) -> None:
    store = over()
    with UploadPool(store, "train", workers=3, retry=ONCE, max_pending=2) as pool:
        for path in files:
            pool.submit(path, path.name, then=path.unlink)
    assert keys(store) == [f"train/{i}.mds" for i in range(9)]
    assert store.read("train/7.mds") == b"7" * 10
    assert not any(path.exists() for path in files)


def test_wait_returns_when_all_is_there(files: list[Path]) -> None:
    store = over()
    with UploadPool(store, retry=ONCE) as pool:
        pool.wait()
        for path in files:
            pool.submit(path, path.name)
        pool.wait()
        assert len(keys(store)) == 9
        pool.submit(files[0], "more")
        pool.wait()
        assert len(keys(store)) == 10


def test_submit_waits_while_too_many_are_pending(files: list[Path]) -> None:
    delay = Delay(until=threading.Event(), op="put_file")
    store = over(delay)
    submitted: list[Path] = []
    third = threading.Event()

    def write(pool: UploadPool) -> None:
        for path in files:
            pool.submit(path, path.name)
            submitted.append(path)
            if len(submitted) == 3:
                third.set()

    with UploadPool(store, workers=1, retry=ONCE, max_pending=3) as pool:
        writer = threading.Thread(target=write, args=(pool,))
        writer.start()
        assert third.wait(10)
        assert delay.reached.wait(10)
        writer.join(0.05)
        assert submitted == files[:3]
        delay.until.set()
        writer.join(10)
        assert submitted == files
    assert len(keys(store)) == 9


def test_case_S6_the_first_failure_is_raised_and_calls_off_the_rest(files: list[Path]) -> None:
    error = StoreError("quota")
    store = over(Fail(error, op="put_file", key="3.mds"))
    deleted = []
    with (
        pytest.raises(StoreError, match="quota") as caught,
        UploadPool(store, workers=1, retry=TWICE, max_pending=2) as pool,
    ):
        for path in files:
            pool.submit(path, path.name, then=lambda path=path: deleted.append(path))  # type: ignore[misc]
        pool.wait()
    assert type(caught.value) is StoreError
    assert keys(store) == [path.name for path in deleted] == ["0.mds", "1.mds", "2.mds"]
    assert len(os.listdir(files[0].parent)) == 9


@pytest.mark.parametrize("method", ["check", "wait", "submit"])
def test_every_later_call_raises_the_failure(files: list[Path], method: str) -> None:
    pool = UploadPool(over(Fail(StoreError("quota"))), retry=ONCE)
    pool.submit(files[0], "a")
    arguments = (files[1], "b") if method == "submit" else ()
    try:
        with pytest.raises(StoreError, match="quota"):
            pool.wait()
        for _ in range(2):
            with pytest.raises(StoreError, match="quota"):
                getattr(pool, method)(*arguments)
    finally:
        pool.close()


def test_a_failure_wakes_a_submit_that_waits(files: list[Path]) -> None:
    delay = Delay(until=threading.Event(), op="put_file")
    pool = UploadPool(over(delay, Fail(StoreError("quota"))), retry=ONCE, max_pending=1)
    pool.submit(files[0], "a")
    assert delay.reached.wait(10)
    threading.Timer(0.02, delay.until.set).start()
    with pytest.raises(StoreError, match="quota"):
        pool.submit(files[1], "b")
    pool.close()


def test_a_failure_of_what_comes_after_is_a_failure(files: list[Path]) -> None:
    def fail() -> None:
        raise OSError("can't delete")

    with pytest.raises(OSError, match="can't delete"), UploadPool(over(), retry=ONCE) as pool:
        pool.submit(files[0], "a", then=fail)


def test_an_interrupt_in_the_block_leaves_no_thread(files: list[Path]) -> None:
    delay = Delay(until=threading.Event(), op="put_file")
    store = over(delay)
    with pytest.raises(KeyboardInterrupt), UploadPool(store, workers=1, retry=ONCE) as pool:
        for path in files[:4]:
            pool.submit(path, path.name)
        assert delay.reached.wait(10)
        threading.Timer(0.02, delay.until.set).start()
        raise KeyboardInterrupt
    assert keys(store) == ["0.mds"]  # It was under way; the others had not begun.
    assert not [t for t in threading.enumerate() if t.name.startswith("streaming-upload")]


def test_close_does_not_wait_for_the_pause_of_a_retry(files: list[Path]) -> None:
    store = over(Fail(op="put_file"))
    pool = UploadPool(store, retry=Retry(5, base=3600, cap=3600))
    pool.submit(files[0], "a")
    for _ in range(1000):
        if store.calls:
            break
        threading.Event().wait(0.01)
    pool.close()
    assert store.calls == [("put_file", "a")]


def test_what_close_called_off_is_not_taken_for_uploaded(files: list[Path]) -> None:
    delay = Delay(until=threading.Event(), op="put_file")
    pool = UploadPool(over(delay), workers=1, retry=ONCE)
    pool.submit(files[0], "a")
    pool.submit(files[1], "b")
    assert delay.reached.wait(10)
    threading.Timer(0.02, delay.until.set).start()
    pool.close()
    with pytest.raises(StoreError, match="b was not uploaded"):
        pool.wait()


def test_a_closed_pool_takes_nothing(files: list[Path]) -> None:
    pool = UploadPool(over(), retry=ONCE)
    pool.close()
    pool.close()
    with pytest.raises(ConfigError, match="closed"):
        pool.submit(files[0], "a")


@pytest.mark.parametrize("name", ["workers", "max_pending"])
def test_a_pool_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least 1, but is 0"):
        UploadPool(over(), **{name: 0})  # type: ignore[arg-type]


def test_a_large_file_goes_up_in_parts_and_is_verified(
    new_bucket: Callable[[], Opened], tmp_path: Path
) -> None:
    place = new_bucket()
    store, prefix = open_store(place.url, place.options)
    content = bytes(range(256)) * (80_000)  # 20 MB: three parts
    (tmp_path / "x").write_bytes(content)
    publish(store, tmp_path / "x", f"{prefix}/x", retry=ONCE)
    assert store.stat(f"{prefix}/x").size == len(content)
    assert store.read(f"{prefix}/x", 9_000_000, 9_000_100) == content[9_000_000:9_000_100]


def test_case_S6_an_upload_that_always_fails_leaves_no_index_and_a_failing_program(
    run_python: RunPython,
) -> None:
    script = """
import sys
from streaming import MDSWriter
with MDSWriter(out="s3://b/data", columns={"n": "int"}, size_limit=300, retry=2) as writer:
    for n in range(1000):
        writer.write({"n": n})
"""
    faults = [Status(500, method="PUT", key="b/data/shard.00003.mds")]
    with FaultyServer(faults=faults) as server:
        env = {
            "S3_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
        }
        done = run_python(script, env=env, check=False)
        assert done.returncode == 1
        assert "Can't write s3://b/data/shard.00003.mds" in done.stderr
        assert "b/data/index.json" not in server.objects
