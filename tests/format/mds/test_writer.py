"""Writing datasets: shards, the index last, and what is left when something goes wrong."""

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import (
    ColumnError,
    ConfigError,
    EncodeError,
    EncodeTypeError,
    EncodingNameError,
    OutputExistsError,
    StoreError,
    StreamingError,
    UnknownNameError,
)
from streaming.format import Sample
from streaming.format.json import JSONWriter
from streaming.format.mds import MDSEncoder, MDSWriter
from streaming.format.mds.layout import build_layout
from streaming.format.mds.writer import _encode_slowly
from streaming.format.xsv import CSVWriter
from streaming.storage import stores
from streaming.storage.store import Store
from streaming.storage.stores.fault import Delay, Fail, FaultStore
from streaming.storage.stores.memory import MemoryStore
from tests.common.golden import load_index, open_shards
from tests.conftest import ROOT

COLUMNS = {"i": "int", "s": "str"}


def samples(count: int) -> list[Sample]:
    return [{"i": i, "s": "x" * (i % 7)} for i in range(count)]


def write(out: Any, count: int = 10, columns: dict[str, str] | None = None, **options: Any) -> None:
    with MDSWriter(columns=columns or COLUMNS, out=out, **options) as writer:
        for sample in samples(count):
            writer.write(sample)


def read(root: Path, scratch: Path) -> list[Sample]:
    return [sample for reader in open_shards(root, scratch) for sample in reader]


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class Shared(FaultStore):
    """A store that outlives the writer that was given it."""

    def objects(self) -> list[str]:
        return [info.key for info in self._inner.list()]

    def put_file(self, path: Path, key: str) -> None:
        if key.endswith("index.json"):
            self.before_index = self.objects()
        super().put_file(path, key)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Shared:
    """What the URL fault://... opens, with faults in `_plan`."""
    found = Shared(MemoryStore(), [])

    def open_it(url: str) -> tuple[Store, str]:
        return found, url.removeprefix("fault://").strip("/")

    monkeypatch.setitem(stores.table, "fault", open_it)
    return found


class TestArguments:
    @pytest.mark.parametrize(
        "options",
        [
            *(
                {"nope": 1},
                {"compression": "nope"},
                {"compression": "zstd:99"},
                {"hashes": ["nope"]},
            ),
            *({"hashes": ["sha1", "md5"]}, {"hashes": ["md5", "md5"]}, {"size_limit": -1}),
            *({"size_limit": 1 << 32}, {"size_limit": "5 parsecs"}, {"sample_limit": 0}),
            *({"sample_limit": "many"}, {"max_workers": 0}, {"max_workers": 1.5}, {"retry": -1}),
            *({"columns": {}}, {"columns": {1: "int"}}, {"columns": {"a": 5}}),
            *({"out": ("a", "b", "c")}, {"out": ("a", None)}, {"out": "nope://bucket/x"}),
        ],
        ids=str,
    )
    def test_an_argument_that_can_not_be_used_is_told(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            MDSWriter(**{"columns": COLUMNS, "out": tmp_path / "out", **options})
        assert isinstance(caught.value, ValueError)
        assert not (tmp_path / "out").exists()

    def test_a_level_that_there_is_not_is_told_with_those_there_are(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match="no such level of zstd, but from 1 to 22"):
            MDSWriter(columns=COLUMNS, out=tmp_path / "out", compression="zstd:99")

    @pytest.mark.parametrize("kind", ["nope", "list[nope]", "int:8", "ndarray:x"])
    def test_an_unknown_encoding_is_a_type_error(self, tmp_path: Path, kind: str) -> None:
        with pytest.raises(TypeError, match="nope.*ndarray|int:8|'x'.*uint8") as caught:
            MDSWriter(columns={"a": kind}, out=tmp_path / "out")
        assert isinstance(caught.value, EncodingNameError)

    def test_all_of_them_are_keywords(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError):
            MDSWriter(COLUMNS, tmp_path)  # type: ignore[call-arg]

    @pytest.mark.parametrize("size_limit", [None, 0, "0"])
    def test_no_limit_is_null_in_the_index(self, tmp_path: Path, size_limit: Any) -> None:
        write(tmp_path / "out", size_limit=size_limit)
        (shard,) = json.loads((tmp_path / "out" / "index.json").read_bytes())["shards"]
        assert shard["size_limit"] is None

    def test_a_home_directory_is_expanded_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        write("~/data")
        assert (tmp_path / "home" / "data" / "index.json").exists()
        write(("~/two", "~/remote"))
        assert (tmp_path / "home" / "remote" / "index.json").exists()
        assert not (tmp_path / "~").exists()


class TestShards:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"size_limit": 500}, None),
            ({"size_limit": "1kb"}, None),
            ({"size_limit": "64mb"}, [100]),
            ({"sample_limit": 30}, [30, 30, 30, 10]),
            ({"sample_limit": 1, "size_limit": None}, [1] * 100),
            ({"sample_limit": 100}, [100]),
            ({"size_limit": 500, "sample_limit": 3}, None),
        ],
    )
    def test_case_F12_shards_end_where_the_limits_say(
        self, tmp_path: Path, options: dict[str, Any], expected: list[int] | None
    ) -> None:
        write(tmp_path / "out", 100, **options)
        table = load_index(tmp_path / "out").table
        assert table.samples.sum() == 100
        if expected is not None:
            assert table.samples.tolist() == expected
            return
        limit = 1024 if options["size_limit"] == "1kb" else 500
        assert table.raw_bytes.max() <= limit
        assert len(table) >= 3
        most = options.get("sample_limit", 1 << 30)
        assert table.samples.max() <= most
        # Each shard was as full as it could be: one sample more (28 bytes at most) would not fit.
        full = (table.raw_bytes[:-1] > limit - 28) | (table.samples[:-1] == most)
        assert full.all()

    def test_a_limit_by_samples_leaves_no_trace_in_the_index(self, tmp_path: Path) -> None:
        write(tmp_path / "out", sample_limit=3)
        (shard, *_) = json.loads((tmp_path / "out" / "index.json").read_bytes())["shards"]
        assert set(shard) == {
            *("column_encodings", "column_names", "column_sizes", "compression", "format"),
            *("hashes", "raw_data", "samples", "size_limit", "version", "zip_data"),
        }

    def test_a_sample_over_the_limit_has_a_shard_of_its_own(self, tmp_path: Path) -> None:
        sizes = [500, 1, 1, 500, 500, 1]
        with MDSWriter(columns={"b": "bytes"}, out=tmp_path / "out", size_limit=300) as writer:
            for size in sizes:
                writer.write({"b": b"x" * size})
        assert load_index(tmp_path / "out").table.samples.tolist() == [1, 2, 1, 1, 1]
        assert [len(x["b"]) for x in read(tmp_path / "out", tmp_path)] == sizes

    def test_no_shard_outgrows_its_offsets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MDSEncoder, "max_bytes", 400)  # The format's own limit is 4 GiB.
        out = tmp_path / "out"
        with MDSWriter(columns={"b": "bytes"}, out=out, size_limit=None) as writer:
            for _ in range(5):
                writer.write({"b": b"x" * 90})
            with pytest.raises(EncodeError, match="holds 400"):
                writer.write({"b": b"x" * 400})
            writer.write({"b": b"x" * 90})
        table = load_index(out).table
        assert table.samples.sum() == 6
        assert table.raw_bytes.max() <= 400

    def test_nothing_written_is_an_empty_dataset(self, tmp_path: Path) -> None:
        write(tmp_path / "out", 0)
        assert names(tmp_path / "out") == ["index.json"]
        assert (tmp_path / "out" / "index.json").read_bytes() == b'{"shards": [], "version": 2}'

    @pytest.mark.parametrize("compression", ["br:3", "bz2", "gz:1", "snappy", "zstd:3"])
    def test_compressed_shards_come_in_order_with_their_digests(
        self, tmp_path: Path, compression: str
    ) -> None:
        write(
            tmp_path / "out", 300, compression=compression, hashes=["md5", "xxh64"], size_limit=400
        )
        index = load_index(tmp_path / "out")
        assert len(index) > 10
        assert read(tmp_path / "out", tmp_path) == samples(300)
        for info in index:
            ((raw, zipped),) = info.files
            assert zipped is not None
            path = tmp_path / "out" / zipped.basename
            assert path.stat().st_size == zipped.bytes
            assert set(raw.hashes) == set(zipped.hashes) == {"md5", "xxh64"}
        assert len(names(tmp_path / "out")) == len(index) + 1

    def test_the_old_hooks_are_called(self, tmp_path: Path) -> None:
        class Loud(MDSWriter):
            def encode_sample(self, sample: Sample) -> bytes:
                return super().encode_sample({**sample, "s": sample["s"].upper()})

            def encode_joint_shard(self) -> bytes:
                seen.append((len(self.new_samples), self.new_shard_size))
                data = super().encode_joint_shard()
                assert len(data) == self.new_shard_size
                return data

            def flush_shard(self) -> None:
                flushed.append(len(self.new_samples))
                super().flush_shard()

            def get_config(self) -> dict[str, Any]:
                return {**super().get_config(), "size_limit": 77}

        seen: list[tuple[int, int]] = []
        flushed: list[int] = []
        with Loud(columns=COLUMNS, out=tmp_path / "out", sample_limit=4) as writer:
            for sample in samples(10):
                writer.write(sample)
            assert [shard["samples"] for shard in writer.shards] == [4, 4]
            assert (writer.format, writer.extra_bytes_per_sample) == ("mds", 4)
            assert writer.local == tmp_path / "out"
            assert writer.remote is None
        assert flushed == [count for count, _ in seen] == [4, 4, 2]
        assert [x["s"] for x in read(tmp_path / "out", tmp_path)] == [
            sample["s"].upper() for sample in samples(10)
        ]
        shards = json.loads((tmp_path / "out" / "index.json").read_bytes())["shards"]
        assert {shard["size_limit"] for shard in shards} == {77}


class TestSamples:
    def test_a_caller_may_use_his_dict_again(self, tmp_path: Path) -> None:
        sample: Sample = {"a": np.zeros(2, np.int32), "j": [0]}
        columns = {"a": "ndarray:int32:2", "j": "json"}
        with MDSWriter(columns=columns, out=tmp_path / "out") as writer:
            for i in range(3):
                sample["a"][:] = i
                sample["j"][0] = i
                writer.write(sample)
        assert [(x["a"].tolist(), x["j"]) for x in read(tmp_path / "out", tmp_path)] == [
            ([i, i], [i]) for i in range(3)
        ]

    def test_undeclared_columns_are_left_out(self, tmp_path: Path) -> None:
        with MDSWriter(columns=COLUMNS, out=tmp_path / "out") as writer:
            writer.write({"i": 1, "s": "a", "more": object()})
        assert read(tmp_path / "out", tmp_path) == [{"i": 1, "s": "a"}]

    @pytest.mark.parametrize(
        ("sample", "error", "match"),
        [
            ({"i": 1}, ColumnError, r"'s' \(str\) is missing; the sample has \['i'\]"),
            ({}, KeyError, "'i' .*missing"),
            ({"i": "1", "s": ""}, AttributeError, r"'i' \(int\): expected int, found str: '1'"),
            ({"i": 1 << 63, "s": ""}, OverflowError, "'i'"),
            ({"i": 10**5000, "s": ""}, OverflowError, "'i'"),
            ({"i": b"short", "s": ""}, KeyError, "'i'.*8 bytes, but the value has 5"),
            ({"i": 1, "s": "\ud800"}, EncodeError, "'s'"),
            ([1, 2], EncodeTypeError, "dict of columns, but not list"),
            (None, EncodeTypeError, "NoneType"),
        ],
    )
    def test_what_can_not_be_encoded_names_the_column_and_changes_nothing(
        self, tmp_path: Path, sample: Any, error: type[Exception], match: str
    ) -> None:
        with MDSWriter(columns=COLUMNS, out=tmp_path / "out") as writer:
            writer.write({"i": 0, "s": "before"})
            with pytest.raises(error, match=match) as caught:
                writer.write(sample)
            assert isinstance(caught.value, EncodeError)
            writer.write({"i": 1, "s": "after"})
        assert [x["s"] for x in read(tmp_path / "out", tmp_path)] == ["before", "after"]

    def test_an_encoding_of_another_package_must_give_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from streaming.format.mds import encodings

        class Bad:
            size = None

            def encode(self, obj: Any) -> Any:
                return obj

            def decode(self, data: bytes) -> Any:
                return data

        monkeypatch.setitem(encodings._encodings, "bad", Bad)
        with MDSWriter(columns={"a": "bad"}, out=tmp_path / "out") as writer:
            for value in ("text", bytearray(b"x"), None):
                with pytest.raises(EncodeTypeError, match="'a'"):
                    writer.write({"a": value})
            writer.write({"a": b"x"})
        assert read(tmp_path / "out", tmp_path) == [{"a": b"x"}]


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.binary(min_size=8, max_size=8),
    "uint8": st.integers(0, 255) | st.builds(np.uint8, st.integers(0, 255)),
    "int16": st.integers(-(2**15), 2**15 - 1) | st.floats(-100, 100),
    "float16": st.floats(width=16),
    "float32": st.floats() | st.builds(np.float64, st.floats(-1e30, 1e30)),
    "float64": st.floats() | st.integers(-1000, 1000),
    "float": st.floats(),
    "bool": st.booleans() | st.builds(np.bool_, st.booleans()),
    "str": st.text() | st.binary(),
    "bytes": st.binary(),
    "str_int": st.integers(),
    "json": st.lists(st.integers()),
    "list[int]": st.lists(st.integers(-5, 5)),
    "ndarray:int32:2": st.just(np.array([1, 2], np.int32)) | st.binary(min_size=8, max_size=8),
    "ndarray": st.just(np.array([[1.5]])),
}


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12), st.data())
def test_the_record_function_gives_what_the_plain_loop_gives(
    kinds: list[str], data: st.DataObject
) -> None:
    columns = {f"c{i:02}": kind for i, kind in enumerate(kinds)}
    sample = {name: data.draw(KINDS[kind]) for name, kind in columns.items()}
    layout = build_layout(sorted(columns), [columns[name] for name in sorted(columns)])
    assert MDSEncoder(columns).encode(sample) == _encode_slowly(layout, sample)


def test_a_column_may_be_called_anything(tmp_path: Path) -> None:
    odd = ["", "'", '"""', "\\", "\n", "sample", "v0", "__import__('os')", "é", "{0}"]
    with MDSWriter(columns=dict.fromkeys(odd, "int"), out=tmp_path / "out") as writer:
        writer.write({name: i for i, name in enumerate(odd)})
    assert read(tmp_path / "out", tmp_path) == [{name: i for i, name in enumerate(odd)}]


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
def test_a_column_whose_name_no_index_can_hold_is_refused(tmp_path: Path, writer: Any) -> None:
    with pytest.raises(ConfigError, match="No column can be called"):
        writer(columns={"a": "int", "\ud800": "int"}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


class TestEnds:
    def test_case_F14_an_exception_in_the_block_leaves_no_index(self, tmp_path: Path) -> None:
        with (
            pytest.raises(RuntimeError, match="mine"),
            MDSWriter(columns=COLUMNS, out=tmp_path / "out", sample_limit=2) as writer,
        ):
            for sample in samples(5):
                writer.write(sample)
            raise RuntimeError("mine")
        assert all(name.endswith(".mds") for name in names(tmp_path / "out"))
        with pytest.raises(ConfigError, match="stopped by an error"):
            writer.write({"i": 1, "s": ""})
        with pytest.raises(RuntimeError, match="mine"):
            writer.finish()
        assert "index.json" not in names(tmp_path / "out")

    def test_case_F14_nothing_complete_is_published(self, tmp_path: Path, store: Shared) -> None:
        with (
            pytest.raises(KeyboardInterrupt),
            MDSWriter(columns=COLUMNS, out="fault://b/x", sample_limit=2) as writer,
        ):
            for sample in samples(5):
                writer.write(sample)
            raise KeyboardInterrupt
        assert "b/x/index.json" not in store.objects()
        assert not writer.local.exists()

    def test_a_finished_writer_takes_no_more(self, tmp_path: Path) -> None:
        with MDSWriter(columns=COLUMNS, out=tmp_path / "out") as writer:
            writer.write({"i": 1, "s": ""})
            writer.finish()
            with pytest.raises(ConfigError, match="finished"):
                writer.write({"i": 2, "s": ""})
            writer.finish()
        assert read(tmp_path / "out", tmp_path) == [{"i": 1, "s": ""}]

    def test_a_directory_in_use_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "out")
        before = {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")}
        with pytest.raises(OutputExistsError, match="exist_ok=True") as caught:
            MDSWriter(columns=COLUMNS, out=tmp_path / "out")
        assert isinstance(caught.value, FileExistsError)
        (tmp_path / "file").write_bytes(b"")
        for exist_ok in (False, True):
            with pytest.raises(OutputExistsError, match="is a file"):
                MDSWriter(columns=COLUMNS, out=tmp_path / "file", exist_ok=exist_ok)
        assert before == {
            name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")
        }

    def test_a_directory_is_replaced_if_asked_for(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        write(out, 50, sample_limit=5)
        (out / "sub").mkdir()
        (out / "sub" / "file").write_bytes(b"x")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
        (out / "link").symlink_to(tmp_path / "elsewhere")
        write(out, 3, exist_ok=True)
        assert names(out) == ["index.json", "shard.00000.mds"]
        assert (tmp_path / "elsewhere" / "precious").exists()

    def test_an_unwritable_shard_is_told_and_leaves_no_index(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with (
            pytest.raises(StoreError, match=r"shard\.00001\.mds"),
            MDSWriter(columns=COLUMNS, out=out, sample_limit=2) as writer,
        ):
            (out / "shard.00001.mds").mkdir()  # In the way of the second shard.
            for sample in samples(10):
                writer.write(sample)
        assert "index.json" not in names(out)
        assert not any(".part" in name for name in names(out))

    def test_of_two_writers_to_one_directory_one_fails(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        first, second = (MDSWriter(columns=COLUMNS, out=out, sample_limit=2) for _ in range(2))
        for i in range(6):
            first.write({"i": i, "s": "first"})
        assert len(first.shards) == 2
        for i in range(2):
            second.write({"i": i, "s": "other"})
        with pytest.raises(StoreError, match=r"00000\.mds, for it is there already.*somebody else"):
            second.finish()
        assert "index.json" not in names(out)
        first.finish()
        assert [sample["s"] for sample in read(out, tmp_path)] == ["first"] * 6
        assert not any(".part" in name for name in names(out))

    def test_an_index_of_another_writer_is_not_replaced(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with (
            pytest.raises(StoreError, match=r"index\.json, for it is there already"),
            MDSWriter(columns=COLUMNS, out=out) as writer,
        ):
            (out / "index.json").write_text("theirs")
            writer.write({"i": 1, "s": ""})
        assert (out / "index.json").read_text() == "theirs"

    def test_a_file_system_without_hard_links_will_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
        out = tmp_path / "out"
        write(out, 6, sample_limit=2)
        assert read(out, tmp_path) == samples(6)
        with (
            pytest.raises(StoreError, match="there already"),
            MDSWriter(columns=COLUMNS, out=tmp_path / "other") as writer,
        ):
            (tmp_path / "other" / "shard.00000.mds").write_bytes(b"theirs")
            writer.write({"i": 1, "s": ""})

    def test_shards_that_were_removed_meanwhile_get_no_index(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        writer = MDSWriter(columns=COLUMNS, out=out, sample_limit=2)
        for sample in samples(6):
            writer.write(sample)
        assert len(writer.shards) == 2
        (out / "shard.00001.mds").unlink()
        with pytest.raises(StoreError, match=r"shard\.00001\.mds was removed"):
            writer.finish()
        assert "index.json" not in names(out)


class TestRemote:
    @pytest.mark.parametrize("scheme", ["", "file://"])
    @pytest.mark.parametrize("keep_local", [False, True])
    def test_files_go_to_the_remote_and_stay_if_asked(
        self, tmp_path: Path, scheme: str, keep_local: bool
    ) -> None:
        local, remote = tmp_path / "local", tmp_path / "remote" / "deep"
        out = (str(local), f"{scheme}{remote}")
        write(out, 20, sample_limit=6, compression="gz", keep_local=keep_local)
        assert read(remote, tmp_path) == samples(20)
        assert names(remote) == ["index.json", *(f"shard.{i:05}.mds.gz" for i in range(4))]
        if keep_local:
            assert names(local) == names(remote)
        else:
            assert not local.exists()

    def test_a_url_alone_passes_through_a_temporary_directory(self, tmp_path: Path) -> None:
        with MDSWriter(columns=COLUMNS, out=f"file://{tmp_path}/remote") as writer:
            assert writer.local.is_dir()
            assert writer.local.parent == Path(tempfile.gettempdir())
            writer.write({"i": 1, "s": ""})
        assert not writer.local.exists()
        assert read(tmp_path / "remote", tmp_path) == [{"i": 1, "s": ""}]

    def test_the_only_copy_is_not_uploaded_onto_itself(self, tmp_path: Path) -> None:
        out = str(tmp_path / "out")
        for remote in (out, f"{out}/", f"{out}/../out", f"file://{out}"):
            write((out, remote), exist_ok=True)
            assert names(tmp_path / "out") == ["index.json", "shard.00000.mds"]

    def test_files_of_others_in_the_local_directory_stay(self, tmp_path: Path) -> None:
        local = tmp_path / "local"
        with MDSWriter(columns=COLUMNS, out=(local, tmp_path / "remote")) as writer:
            (local / "mine").write_bytes(b"x")
            writer.write({"i": 1, "s": ""})
        assert names(local) == ["mine"]

    def test_of_two_writers_to_one_remote_the_later_fails(self, store: Shared) -> None:
        first, second = (MDSWriter(columns=COLUMNS, out="fault://b/x") for _ in range(2))
        for i, writer in enumerate((first, second)):
            writer.write({"i": i, "s": "x" * i})
        first.finish()
        index = store.read("b/x/index.json")
        with pytest.raises(StoreError, match="got an index while this dataset was written"):
            second.finish()
        assert store.read("b/x/index.json") == index

    def test_the_index_comes_last(self, store: Shared) -> None:
        gate = Delay(until=threading.Event(), op="put_file", key="*00000.mds")
        store._plan = [gate]
        with MDSWriter(columns=COLUMNS, out="fault://b", sample_limit=2) as writer:
            for sample in samples(6):
                writer.write(sample)
            assert gate.reached.wait(10)
            threading.Timer(0.1, gate.until.set).start()  # While `finish` waits for it.
        assert store.before_index == [f"b/shard.{i:05}.mds" for i in range(3)]
        assert store.objects() == ["b/index.json", *store.before_index]

    # After the failure of a shard the next `write` may be refused already, and end the last one.
    @pytest.mark.parametrize(("key", "least"), [("*00001*", 2), ("*index.json", 3)])
    @pytest.mark.parametrize("keep_local", [False, True])
    def test_a_failed_upload_is_told_and_loses_nothing(
        self, tmp_path: Path, store: Shared, key: str, least: int, keep_local: bool
    ) -> None:
        store._plan = [Fail(op="put_file", key=key, error=StoreError("no room"))]
        local = tmp_path / "local"
        options: dict[str, Any] = {"sample_limit": 2, "keep_local": keep_local}
        with pytest.raises(StoreError, match="no room"):
            write((local, "fault://b"), 6, **options)
        assert "b/index.json" not in store.objects()
        assert "index.json" not in names(local)
        there = {key.removeprefix("b/") for key in store.objects()} | set(names(local))
        assert there >= {f"shard.{i:05}.mds" for i in range(least)}

    def test_a_failed_upload_keeps_a_temporary_directory(self, store: Shared) -> None:
        store._plan = [Fail(op="put_file", error=StoreError("no room"))]
        with (
            pytest.raises(StoreError, match="no room"),
            MDSWriter(columns=COLUMNS, out="fault://b", sample_limit=2) as writer,
        ):
            for sample in samples(6):
                writer.write(sample)
        assert "shard.00000.mds" in names(writer.local)

    def test_a_failure_comes_up_while_writing(self, store: Shared) -> None:
        store._plan = [Fail(op="put_file", error=StoreError("no room"))]
        written = 0
        with (
            pytest.raises(StoreError, match="no room"),
            MDSWriter(columns=COLUMNS, out="fault://b", sample_limit=1) as writer,
        ):
            for sample in samples(10_000):
                writer.write(sample)
                written += 1
        assert written < 10_000

    def test_what_fails_for_a_moment_is_tried_again(self, tmp_path: Path, store: Shared) -> None:
        store._plan = [Fail(op="put_file", key="*.mds", times=1)]
        write("fault://b", retry=2)
        assert store.objects() == ["b/index.json", "b/shard.00000.mds"]

    def test_an_older_dataset_is_refused_or_loses_its_index_first(
        self, tmp_path: Path, store: Shared
    ) -> None:
        write("fault://b", 20, sample_limit=2)
        with pytest.raises(OutputExistsError, match="exist_ok=True"):
            write((tmp_path / "local", "fault://b"))
        assert not (tmp_path / "local").exists()
        store.calls.clear()
        write("fault://b", 3, exist_ok=True)
        changes = [call for call in store.calls if call[0] in ("delete", "put_file")]
        assert changes[0] == ("delete", "b/index.json")
        assert changes[-1] == ("put_file", "b/index.json")

    def test_memory_holds_few_shards_at_a_time(self, store: Shared) -> None:
        gate = Delay(until=threading.Event(), op="put_file")
        store._plan = [gate]
        too_far = threading.Event()

        def write_on() -> None:
            with MDSWriter(columns=COLUMNS, out="fault://b", sample_limit=1, max_workers=1) as w:
                for i, sample in enumerate(samples(200)):
                    w.write(sample)
                    if i == 60:
                        too_far.set()

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            assert gate.reached.wait(10)
            assert not too_far.wait(0.3)
        finally:
            gate.until.set()
            thread.join(30)
        assert len(store.objects()) == 201

    def test_progress_is_shown_by_rich(self, store: Shared, capsys: Any) -> None:
        pytest.importorskip("rich")
        write("fault://b", progress_bar=True)
        assert "Uploading files" in capsys.readouterr().out


KILLED = """
import sys
from streaming.format.mds import MDSWriter

with MDSWriter(columns={"i": "int", "s": "str"}, out=sys.argv[1], size_limit=20_000,
               compression=sys.argv[2] or None, exist_ok=True) as writer:
    i = 0
    while True:
        writer.write({"i": i, "s": "x" * (i % 500)})
        i += 1
        if i % 100 == 0:
            print(i, flush=True)
"""


@pytest.fixture
def killed_writer(tmp_path: Path) -> Iterator[Any]:
    def run(out: Path, compression: str, lines: int) -> None:
        script = tmp_path / "script.py"
        script.write_text(KILLED)
        with subprocess.Popen(
            [sys.executable, str(script), str(out), compression],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            for _ in range(lines):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)

    yield run


@pytest.mark.parametrize(("compression", "lines"), [("", 3), ("", 40), ("zstd", 17), ("gz", 60)])
def test_a_killed_writer_leaves_whole_files_and_no_index(
    tmp_path: Path, killed_writer: Any, compression: str, lines: int
) -> None:
    from streaming.compression import decompress

    out = tmp_path / "out"
    killed_writer(out, compression, lines)
    found = names(out)
    assert "index.json" not in found
    for name in found:
        if name.endswith(".part"):
            continue
        data = decompress(compression or None, (out / name).read_bytes())
        (count,) = struct.unpack_from("<I", data)
        (end,) = struct.unpack_from("<I", data, 4 + 4 * count)
        assert end == len(data)
    write(out, 5, exist_ok=True)
    assert names(out) == ["index.json", "shard.00000.mds"]
    assert read(out, tmp_path) == samples(5)


def test_all_errors_are_ours() -> None:
    for error in (ColumnError, EncodeTypeError, EncodingNameError, OutputExistsError):
        assert issubclass(error, StreamingError)
