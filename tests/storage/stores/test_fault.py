import threading
from pathlib import Path

import pytest

from streaming.errors import StoreTimeoutError, TransientStoreError
from streaming.storage.stores.fault import (
    Corrupt,
    Delay,
    Fail,
    Fault,
    FaultStore,
    ShortRead,
    Stall,
)
from streaming.storage.stores.local import LocalStore
from streaming.storage.stores.memory import MemoryStore
from tests.suites.store import StoreSuite


class TestFaultStoreWithoutFaults(StoreSuite):
    @pytest.fixture
    def store(self) -> FaultStore:
        return FaultStore(MemoryStore())


class TestFaultStoreWithFaultsElsewhere(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FaultStore:
        return FaultStore(
            LocalStore(tmp_path / "root"), [Fail(key="elsewhere"), Corrupt(at=1 << 40)]
        )


def over(plan: list[Fault], seed: int = 0) -> FaultStore:
    return FaultStore(MemoryStore({"a": b"0123456789", "b": b"abc"}), plan, seed=seed)


def outcomes(store: FaultStore, count: int) -> list[bool]:
    found = []
    for _ in range(count):
        try:
            store.read("a")
            found.append(True)
        except TransientStoreError:
            found.append(False)
    return found


def test_a_failure_happens_so_many_times() -> None:
    assert outcomes(over([Fail(times=2)]), 4) == [False, False, True, True]


def test_a_failure_happens_to_each_nth_call() -> None:
    assert outcomes(over([Fail(every=3, times=2)]), 7) == [False, True, True, False] + [True] * 3


def test_chance_follows_the_seed() -> None:
    found = outcomes(over([Fail(chance=0.5)], seed=1), 100)
    assert found == outcomes(over([Fail(chance=0.5)], seed=1), 100)
    assert found != outcomes(over([Fail(chance=0.5)], seed=2), 100)
    assert 20 < sum(found) < 80


def test_each_failure_is_an_error_of_its_own_with_all_it_carries() -> None:
    error = TransientStoreError("503")
    error.retry_after = 7  # type: ignore[attr-defined]  # As a store's adapter sets it.
    store = over([Fail(error)])
    raised = []
    for _ in range(2):
        with pytest.raises(TransientStoreError, match="503") as caught:
            store.read("a")
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert [getattr(one, "retry_after", None) for one in raised] == [7, 7]


def test_only_the_operation_and_key_that_match_fail() -> None:
    store = over([Fail(op="read", key="a*")])
    assert store.stat("a").size == 10
    assert store.read("b") == b"abc"
    with pytest.raises(TransientStoreError):
        store.read("a")
    assert store.calls == [("stat", "a"), ("read", "b"), ("read", "a")]


def test_a_short_read_ends_silently_at_its_byte_of_the_object(tmp_path: Path) -> None:
    store = over([ShortRead(at=6)])
    assert store.read("a") == b"012345"
    assert store.read("a", 4, 9) == b"45"
    assert store.read("a", 7) == b""
    store.get_file("a", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"012345"


def test_a_corrupt_byte_is_another_one(tmp_path: Path) -> None:
    store = over([Corrupt(at=2)])
    assert store.read("a") == b"01" + bytes([ord("2") ^ 0xFF]) + b"3456789"
    assert store.read("a", 3) == b"3456789"
    (tmp_path / "file").write_bytes(b"xyz")
    store.put_file(tmp_path / "file", "c")
    assert over([])._inner.read("a") == b"0123456789"
    assert store._inner.read("c") == b"xy" + bytes([ord("z") ^ 0xFF])
    assert (tmp_path / "file").read_bytes() == b"xyz"


def test_a_delay_waits_for_its_event() -> None:
    delay = Delay(until=threading.Event())
    store, got = over([delay]), []
    thread = threading.Thread(target=lambda: got.append(store.read("b")))
    thread.start()
    assert delay.reached.wait(10)
    assert not got
    delay.until.set()
    thread.join(10)
    assert got == [b"abc"]


def test_a_stall_leaves_a_piece_and_times_out(tmp_path: Path) -> None:
    with pytest.raises(StoreTimeoutError, match="byte 4"):
        over([Stall(at=4)]).get_file("a", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"0123"
