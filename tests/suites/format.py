"""What every format must do. A class inherits from FormatSuite and gives `columns`, `samples`."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streaming.errors import ShardCorruptError, StreamingError, UnknownNameError
from streaming.format import BytesColumn, Sample, ShardInfo, ShardReader, open_reader
from streaming.format.writer import Writer
from tests.common.golden import describe, load_index

__all__ = ["FormatSuite", "plain", "rows_of"]


def plain(value: Any) -> Any:
    """A value in a form that can be compared."""
    if type(value).__module__ == "torch":
        return {"t": "tensor", "dtype": str(value.dtype), "v": value.tolist()}
    return describe(value) if not isinstance(value, list) else [plain(item) for item in value]


def rows_of(columns: dict[str, Any]) -> list[Sample]:
    """The samples that a block of columns stands for."""
    lists = [
        column.to_pylist() if isinstance(column, BytesColumn) else list(column)
        for column in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _comparable(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in sample.items()} for sample in samples]


def _as_python(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The same, with numbers of numpy and of Python alike."""
    return [
        {
            name: plain(value.item() if isinstance(value, np.generic) else value)
            for name, value in sample.items()
        }
        for sample in samples
    ]


class FormatSuite:
    """The conformance suite of formats."""

    writer: ClassVar[Callable[..., Writer]]
    columns: ClassVar[dict[str, str]]
    fuzz_rounds: ClassVar[int] = 150

    def samples(self) -> list[Sample]:
        """Some ten samples that hold what is odd about the format."""
        raise NotImplementedError

    def write(self, out: Path, **options: Any) -> tuple[ShardInfo, list[Path]]:
        """Write `samples` as one shard; what its index says, and its files."""
        with self.writer(columns=self.columns, out=out, size_limit=None, **options) as writer:
            for sample in self.samples():
                writer.write(sample)
        info = load_index(out).shard(0)
        return info, [out / raw.basename for raw, _ in info.files]

    @pytest.fixture
    def reader(self, tmp_path: Path) -> ShardReader:
        return open_reader(*self.write(tmp_path / "data"))

    def test_what_was_written_is_read(self, reader: ShardReader) -> None:
        assert len(reader) == reader.size == len(self.samples())
        got = reader.take(np.arange(len(reader)))
        assert _comparable(got) == _comparable(self.samples())

    def test_all_ways_of_reading_agree(self, reader: ShardReader) -> None:
        places = np.array([3, 0, 0, len(reader) - 1, 2])
        expected = _comparable([reader.get_item(int(place)) for place in places])
        assert _comparable(reader.take(places)) == expected
        columns = rows_of(dict(reader.take_columns(places)))
        assert _as_python(columns) == _as_python(reader.take(places))
        raw = [reader.decode_sample(reader.get_sample_data(int(place))) for place in places]
        assert _comparable(raw) == expected
        assert _comparable(list(reader)) == _comparable(self.samples())
        assert _comparable([reader[-1]]) == _comparable(self.samples()[-1:])

    def test_no_samples_give_no_samples(self, reader: ShardReader) -> None:
        none = np.empty(0, np.int64)
        assert reader.take(none) == []
        columns = reader.take_columns(none)
        assert set(columns) == set(self.columns)
        assert all(len(column) == 0 for column in columns.values())

    @pytest.mark.parametrize("place", [-1, 1000])
    def test_a_place_that_is_not_there_is_an_index_error(
        self, reader: ShardReader, place: int
    ) -> None:
        for read in (reader.take, reader.take_columns):
            with pytest.raises(IndexError):
                read(np.array([0, place]))
        for get in (reader.get_item, reader.read_raw):
            with pytest.raises(IndexError):
                get(place)

    def test_columns_can_be_chosen(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        names = sorted(self.columns)[1:3]
        reader = open_reader(info, paths, names)
        expected = [{name: sample[name] for name in names} for sample in self.samples()]
        assert _comparable(reader.take(np.arange(len(reader)))) == _comparable(expected)
        assert _comparable([reader.get_item(0)]) == _comparable(expected[:1])
        assert set(reader.take_columns(np.arange(2))) == set(names)
        with pytest.raises(UnknownNameError, match="no-such"):
            open_reader(info, paths, ["no-such"])

    def test_samples_outlive_the_reader_and_its_files(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        reader = open_reader(info, paths)
        samples = reader.take(np.arange(len(reader)))
        raw = reader.read_raw(0)
        before = bytes(raw)
        reader.close()
        del reader
        for path in paths:
            path.unlink()
        assert _comparable(samples) == _comparable(self.samples())
        assert bytes(raw) == before

    def test_an_open_reader_holds_no_descriptor(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        before = len(os.listdir("/proc/self/fd"))
        readers = [open_reader(info, paths) for _ in range(5)]
        assert len(os.listdir("/proc/self/fd")) == before
        assert all(reader.take(np.arange(2)) for reader in readers)

    def test_a_missing_file_is_not_found(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        paths[0].unlink()
        with pytest.raises(FileNotFoundError):
            open_reader(info, paths)

    def test_a_file_of_another_size_is_corrupt(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        for path in paths:
            data = path.read_bytes()
            for other in (b"", data[:3], data[:-1], data + b"x"):
                path.write_bytes(other)
                with pytest.raises(ShardCorruptError, match=rf"{path.name}.* {len(other)} bytes"):
                    open_reader(info, paths)
            path.write_bytes(data)

    def test_hostile_bytes_give_only_our_errors(self, tmp_path: Path) -> None:
        info, paths = self.write(tmp_path / "data")
        draw = random.Random(0)
        whole = [path.read_bytes() for path in paths]
        for _ in range(self.fuzz_rounds):
            at = draw.randrange(len(paths))
            data = _damage(whole[at], draw)
            paths[at].write_bytes(data)
            # The index agrees with the size, as that of whoever made the file would.
            pairs = list(info.files)
            pairs[at] = (replace(pairs[at][0], bytes=len(data)), pairs[at][1])
            _read_all(replace(info, files=tuple(pairs)), paths)
            paths[at].write_bytes(whole[at])


def _damage(data: bytes, draw: random.Random) -> bytes:
    """Change some bytes, mostly near the start, where the structure is; perhaps cut or add."""
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = min(int(draw.expovariate(4 / len(out))), len(out) - 1)
        out[at] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
    if draw.random() < 0.2:
        del out[draw.randrange(len(out)) :]
    elif draw.random() < 0.1:
        out += draw.randbytes(9)
    return bytes(out)


def _read_all(info: ShardInfo, paths: list[Path]) -> None:
    """Read in every way; whatever comes must be of ours, and the ways must agree on the outcome."""
    try:
        reader = open_reader(info, paths)
    except StreamingError:
        return
    for i in range(len(reader)):
        outcomes = []
        for read in (reader.take, reader.take_columns):
            try:
                read(np.array([i]))
                outcomes.append("good")
            except StreamingError as error:
                assert f"sample {i} of shard file" in str(error)
                outcomes.append("bad")
        assert len(set(outcomes)) == 1
