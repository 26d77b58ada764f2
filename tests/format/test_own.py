"""A format of a user's own, written and read by subclasses as the predecessor has them."""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.errors import ConfigError, RemovedError
from streaming.format import FileInfo, Reader, formats, reader_from_json
from streaming.format.json.reader import JSONReader
from streaming.format.mds.reader import MDSReader
from streaming.format.own import JointReader, SplitReader, own_format
from streaming.format.writer import JointWriter, SplitWriter


class LineWriter(JointWriter):
    """One file: lines."""

    format = "line"

    def __init__(self, *, columns: dict[str, str], out: Any, **kwargs: Any) -> None:
        super().__init__(out=out, extra_bytes_per_shard=5, extra_bytes_per_sample=1, **kwargs)
        self.columns = columns

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "columns": self.columns}

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        return str(sample["x"]).encode()

    def encode_joint_shard(self) -> bytes:
        return b"line\n" + b"".join(each + b"\n" for each in self.new_samples)


class LineReader(JointReader):
    format = "line"

    def get_sample_data(self, idx: int) -> bytes:
        return self.paths[0].read_bytes().splitlines()[1 + idx]

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        return {"x": int(data)}


class PairWriter(SplitWriter):
    """Two files: data, and where the samples end in it."""

    format = "pair"

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        return bytes(sample["x"])

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        ends, at = [], 0
        for each in self.new_samples:
            at += len(each)
            ends.append(at)
        return b"".join(self.new_samples), struct.pack(f"<{len(ends)}I", *ends)


class PairReader(SplitReader):
    def get_sample_data(self, idx: int) -> bytes:
        meta, data = (path.read_bytes() for path in self.paths)
        ends = [0, *struct.unpack(f"<{len(self)}I", meta)]
        return data[ends[idx] : ends[idx + 1]]

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        return {"x": len(data)}


def entries(out: Path) -> list[dict[str, Any]]:
    shards: list[dict[str, Any]] = json.loads((out / "index.json").read_text())["shards"]
    return shards


def file(entry: dict[str, Any], name: str) -> FileInfo:
    return FileInfo(**entry[name])


def test_a_format_of_one_file_is_written_and_read(tmp_path: Path) -> None:
    with LineWriter(columns={"x": "int"}, out=tmp_path / "out", size_limit=25) as out:
        for number in range(25):
            out.write({"x": number})
    found = entries(tmp_path / "out")
    assert [shard["samples"] for shard in found] == [10, 6, 6, 3]
    assert (found[0]["format"], found[0]["columns"]) == ("line", {"x": "int"})
    assert found[0]["raw_data"]["basename"] == "shard.00000.line"
    samples = []
    for entry in found:
        data = file(entry, "raw_data")
        reader = LineReader(str(tmp_path), "out", None, [], data, entry["samples"], 25, None)
        assert isinstance(reader, Reader) and reader.get_raw_size() == data.bytes
        samples += list(reader)
    assert samples == [{"x": number} for number in range(25)]
    assert reader[-1] == {"x": 24} and reader.raw_data == data


def test_a_format_of_two_files_is_written_and_read(tmp_path: Path) -> None:
    with PairWriter(out=tmp_path / "out", hashes=["md5"], compression=None) as out:
        for number in range(5):
            out.write({"x": number})
    (entry,) = entries(tmp_path / "out")
    assert entry["raw_meta"]["basename"] == "shard.00000.pair.meta"
    data, meta = file(entry, "raw_data"), file(entry, "raw_meta")
    out_dir = str(tmp_path / "out")
    reader = PairReader(out_dir, None, None, ["md5"], data, meta, 5, None, None, None)
    assert [sample["x"] for sample in reader] == [0, 1, 2, 3, 4]
    assert reader.hashes == ["md5"] and reader.raw_meta == meta


@pytest.fixture
def registered() -> Iterator[None]:
    for name, reader in ("line", LineReader), ("pair", PairReader):
        formats.register(name, own_format(name, reader))
    yield
    for name in ("line", "pair"):
        del formats.table[name]


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.usefixtures("registered")
def test_datasets_read_a_format_that_was_registered(
    tmp_path: Path, compression: str | None
) -> None:
    with LineWriter(
        columns={"x": "int"}, out=tmp_path / "a", size_limit=25, compression=compression
    ) as lines:
        for number in range(25):
            lines.write({"x": number})
    with PairWriter(out=tmp_path / "b", hashes=["md5"], compression=compression) as pairs:
        for number in range(5):
            pairs.write({"x": 25 + number})
    streams = [
        Stream(remote=str(tmp_path / name), local=str(tmp_path / "local" / name)) for name in "ab"
    ]
    dataset = StreamingDataset(streams=streams, batch_size=5, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=2)
    found = [number for batch in loader for number in batch["x"].tolist()]
    assert sorted(found) == list(range(30)) and dataset[29] == {"x": 29}


class Shifted(LineReader):
    """Made by a `from_json` of its own."""

    shift = 0

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: Mapping[str, Any]) -> "Shifted":
        data = FileInfo(**obj["raw_data"])
        made = cls(dirname, split, obj["compression"], [], data, obj["samples"], None, None)
        made.shift = 100
        return made

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        return {"x": int(data) + self.shift}


def test_a_reader_may_make_itself_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(formats.table, "line", own_format("line", Shifted))
    with LineWriter(columns={}, out=tmp_path) as out:
        out.write({"x": 7})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    assert list(dataset) == [{"x": 107}]


def test_what_a_class_must_define_is_said(tmp_path: Path) -> None:
    class Half(JointWriter):
        format = "half"

        def encode_sample(self, sample: dict[str, Any]) -> bytes:
            return b"x"

    with (
        pytest.raises(ConfigError, match="Half must define `encode_joint_shard`"),
        Half(out=tmp_path / "out") as out,
    ):
        out.write({})
    with pytest.raises(ConfigError, match="must define `encode_sample`"):
        JointWriter(out=tmp_path / "two").write({})
    with pytest.raises(TypeError, match="abstract"):
        JointReader("", None, None, [], FileInfo("x", 1, {}), 1, None, None)  # type: ignore[abstract]


def test_what_writers_had_says_what_to_do_without_it(tmp_path: Path) -> None:
    with LineWriter(columns={}, out=tmp_path / "out") as out:
        for name in ("cloud_writer", "executor", "event"):
            assert not hasattr(out, name)
        with pytest.raises(RemovedError, match="`local` and `remote`"):
            out.cloud_writer.remote  # noqa: B018  # That is what is tested.
        with pytest.raises(RemovedError, match="the next `write`"):
            out.exception_callback(None)
        with pytest.raises(AttributeError, match="no attribute 'other'"):
            out.other  # noqa: B018


@pytest.mark.parametrize("kind", [Reader, MDSReader, JSONReader])
def test_readers_are_made_of_an_entry_of_the_index(kind: Any, tmp_path: Path) -> None:
    file = {"basename": "x.mds", "bytes": 30, "hashes": {}}
    entry = {
        "column_encodings": ["int"],
        "column_names": ["x"],
        "column_sizes": [8],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": file,
        "samples": 1,
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    made = kind.from_json(str(tmp_path), None, entry)
    assert made.file_pairs == reader_from_json(str(tmp_path), None, entry).file_pairs
    with pytest.raises(RemovedError, match="evict_shard"):
        made.evict()
    with pytest.raises(RemovedError, match="cache_usage"):
        made.set_up_local(set(), True)
