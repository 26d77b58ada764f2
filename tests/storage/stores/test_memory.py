from pathlib import Path

import pytest

from streaming.errors import StoreError
from streaming.storage.stores.memory import MemoryStore
from tests.suites.store import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


def test_it_begins_with_the_objects_given() -> None:
    store = MemoryStore({"b": b"22", "a": b"1"})
    assert [(info.key, info.size) for info in store.list()] == [("a", 1), ("b", 2)]


def test_the_dict_that_was_given_stays_as_it_is(tmp_path: Path) -> None:
    objects = {"a": b"1"}
    MemoryStore(objects).delete("a")
    assert objects == {"a": b"1"}


def test_a_bad_key_is_refused_at_once() -> None:
    with pytest.raises(StoreError, match=r"\.\./a"):
        MemoryStore({"../a": b""})
