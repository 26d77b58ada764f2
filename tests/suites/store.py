"""What every store must do. A test class inherits from StoreSuite and gives the fixture `store`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming.errors import ObjectNotFoundError, StoreError
from streaming.storage.store import Store

__all__ = ["StoreSuite"]

KEYS = ["a", "a.b", "a/b", "a/b.c", "a/b/c", "ab", "b b/ü.mds", "b%20b", "日本"]
BAD_KEYS = ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "\ud800"]


def put(store: Store, directory: Path, key: str, content: bytes) -> None:
    path = directory / "to-put"
    path.write_bytes(content)
    store.put_file(path, key)


class StoreSuite:
    """The conformance suite of stores; `store` is empty at first."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
    def test_what_was_put_comes_back(self, store: Store, tmp_path: Path, content: bytes) -> None:
        put(store, tmp_path, "a/b.mds", content)
        assert store.read("a/b.mds") == content
        store.get_file("a/b.mds", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == content
        assert store.stat("a/b.mds").size == len(content)

    def test_a_second_put_replaces_the_first(self, store: Store, tmp_path: Path) -> None:
        put(store, tmp_path, "a", b"first")
        first = store.stat("a")
        put(store, tmp_path, "a", b"2nd")
        assert store.read("a") == b"2nd"
        assert store.stat("a").etag != first.etag or first.etag is None

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(0, None), (0, 0), (0, 3), (2, 5), (9, 10), (9, 99), (10, 10), (10, 20), (50, 60), (5, 3)],
    )
    def test_a_range_is_half_open_and_ends_with_the_object(
        self, store: Store, tmp_path: Path, start: int, stop: int | None
    ) -> None:
        put(store, tmp_path, "a", b"0123456789")
        assert store.read("a", start, stop) == b"0123456789"[start:stop]

    def test_a_huge_range_takes_no_more_memory_than_the_object(
        self, store: Store, tmp_path: Path
    ) -> None:
        put(store, tmp_path, "a", b"0123456789")
        assert store.read("a", 1, 1 << 60) == b"123456789"

    @pytest.mark.parametrize("op", ["read", "stat", "get_file"])
    @pytest.mark.parametrize("key", ["nothing", "no/thing", "a", "a/b/c"])
    def test_what_is_not_there_is_not_found(
        self, store: Store, tmp_path: Path, op: str, key: str
    ) -> None:
        put(store, tmp_path, "a/b", b"x")
        arguments = (key, tmp_path / "got") if op == "get_file" else (key,)
        with pytest.raises(ObjectNotFoundError, match=key):
            getattr(store, op)(*arguments)
        with pytest.raises(FileNotFoundError):
            getattr(store, op)(*arguments)

    def test_a_missing_file_can_not_be_put(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no-such-file"):
            store.put_file(tmp_path / "no-such-file", "a")
        assert list(store.list()) == []

    def test_a_target_without_directory_is_our_error(self, store: Store, tmp_path: Path) -> None:
        put(store, tmp_path, "a", b"x")
        with pytest.raises(StoreError, match="missing"):
            store.get_file("a", tmp_path / "missing" / "got")

    def test_the_list_is_in_the_order_of_keys(self, store: Store, tmp_path: Path) -> None:
        keys = sorted(set(KEYS) - {"a", "a/b"})  # In a file system, "a" can't be both.
        for i, key in enumerate(reversed(keys)):
            put(store, tmp_path, key, b"x" * i)
        assert [info.key for info in store.list()] == keys
        assert [info.size for info in store.list()] == [*reversed(range(len(keys)))]
        assert [store.stat(info.key) for info in store.list()] == list(store.list())

    @pytest.mark.parametrize(
        "prefix", ["a", "a/", "a.", "a/b", "a/b/", "a/b/c", "b ", "x", "a/x/y"]
    )
    def test_a_prefix_is_text_and_not_a_directory(
        self, store: Store, tmp_path: Path, prefix: str
    ) -> None:
        keys = sorted(set(KEYS) - {"a", "a/b"})
        for key in keys:
            put(store, tmp_path, key, b"x")
        assert [info.key for info in store.list(prefix)] == [
            key for key in keys if key.startswith(prefix)
        ]

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert list(store.list()) == list(store.list("a/b")) == []

    def test_what_was_deleted_is_gone(self, store: Store, tmp_path: Path) -> None:
        put(store, tmp_path, "a/b", b"x")
        put(store, tmp_path, "a/c", b"y")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/was")
        assert [info.key for info in store.list()] == ["a/c"]
        with pytest.raises(ObjectNotFoundError):
            store.read("a/b")

    def test_a_key_that_has_others_below_it_is_not_deleted_with_them(
        self, store: Store, tmp_path: Path
    ) -> None:
        put(store, tmp_path, "a/b", b"x")
        store.delete("a")
        assert store.read("a/b") == b"x"

    @pytest.mark.parametrize("key", BAD_KEYS)
    @pytest.mark.parametrize("op", ["read", "stat", "get_file", "put_file", "delete"])
    def test_a_key_that_is_no_clean_path_is_refused(
        self, store: Store, tmp_path: Path, op: str, key: str
    ) -> None:
        path = tmp_path / "file"
        if op == "put_file":
            path.write_bytes(b"x")
        arguments = {"get_file": (key, path), "put_file": (path, key)}.get(op, (key,))
        with pytest.raises(StoreError, match="key of an object"):
            getattr(store, op)(*arguments)
        assert list(store.list()) == []

    @pytest.mark.parametrize("prefix", ["../", "a/../", "/", "a//"])
    def test_a_prefix_that_no_key_has_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(StoreError, match="key of an object"):
            list(store.list(prefix))

    def test_threads_may_share_it(self, store: Store, tmp_path: Path) -> None:
        def work(i: int) -> bytes:
            directory = tmp_path / str(i)
            directory.mkdir()
            put(store, directory, f"{i % 3}/{i}", b"%d" % i)
            return store.read(f"{i % 3}/{i}")

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(32))) == [b"%d" % i for i in range(32)]
        assert len(list(store.list())) == 32

    def test_its_repr_names_its_kind(self, store: Store) -> None:
        assert type(store).__name__ in repr(store)
