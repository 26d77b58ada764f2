"""Rows that are read once, in order, without an Arrow file."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import MissingFileError, ShardCorruptError
from streaming.format import ShardReader, read_once
from streaming.format.parquet import decode as decoding
from tests.common.parquet import number_table, obtain

ROWS = number_table(0, 5000).to_pylist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(number_table(0, 5000), tmp_path / "a.parquet", row_group_size=700)
    return tmp_path / "a.parquet"


@pytest.fixture
def reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardReader:
    monkeypatch.setattr(decoding, "_PIECE_ROWS", 1 << 10)
    return open_once(path)


def open_once(path: Path, columns: list[str] | None = None) -> ShardReader:
    (info,) = obtain(path, path.parent / "cache").index
    return read_once(info, path, columns)


def span(start: int, stop: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(start, stop)


def test_samples_come_in_order_over_the_ends_of_pieces(reader: ShardReader) -> None:
    assert reader.reads_once
    assert reader.take(span(0, 0)) == []
    assert reader.take(span(0, 1000)) == ROWS[:1000]
    assert list(reader.take_columns(span(1000, 4096))["id"]) == list(range(1000, 4096))
    assert reader.take(span(4096, 5000)) == ROWS[4096:]


def test_what_lies_in_between_is_left_out(reader: ShardReader) -> None:
    """As where a run goes on in the middle of a shard."""
    assert reader.take(span(3000, 3001)) == ROWS[3000:3001]
    assert reader.take(span(4990, 5000)) == ROWS[4990:]


def test_anything_else_is_not_there(reader: ShardReader) -> None:
    assert reader.take(span(2000, 2100)) == ROWS[2000:2100]
    for places in ([0, 1], [2101, 2100], [2100, 2102], [2100, 2100]):
        with pytest.raises(MissingFileError, match=r"a\.parquet is read once, in order, from row"):
            reader.take(np.array(places))
    with pytest.raises(MissingFileError):
        reader.get_item(2100)
    with pytest.raises(IndexError):
        reader.take(span(4999, 5001))
    reader.close()
    with pytest.raises(MissingFileError):
        reader.take(span(2100, 2101))


def test_only_the_columns_that_are_asked_for_are_decoded(path: Path) -> None:
    assert open_once(path, ["text"]).take(span(0, 3)) == [{"text": row["text"]} for row in ROWS[:3]]


def test_a_row_has_about_as_many_bytes_as_the_first_ones(reader: ShardReader) -> None:
    table = number_table(0, 1000)
    assert reader.mean_bytes == pytest.approx(table.nbytes / 1000, rel=0.2)


def test_a_file_that_changes_while_it_is_read_is_an_error(path: Path) -> None:
    reader = open_once(path)
    assert reader.take(span(0, 10)) == ROWS[:10]
    path.rename(path.with_suffix(".old"))
    pq.write_table(number_table(1, 5001), path, row_group_size=700)
    with pytest.raises(ShardCorruptError, match=r"a\.parquet changed after it was indexed"):
        reader.take(span(10, 5000))


def test_a_damaged_page_is_an_error_when_it_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_PIECE_ROWS", 1 << 10)
    (info,) = obtain(path, path.parent / "cache").index
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = b"\xff" * 3000
    path.write_bytes(data)
    reader = read_once(dataclasses.replace(info, extra=dict(info.extra, etag=None)), path)
    assert reader.take(span(0, 10)) == ROWS[:10]
    with pytest.raises(ShardCorruptError, match=r"can't be read from .*a\.parquet"):
        reader.take(span(10, 5000))


def test_a_page_that_is_not_what_its_checksum_says_is_an_error(path: Path) -> None:
    table = pa.table({"id": range(5000)})
    kind = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, **kind)
    data = path.read_bytes()
    place = data.index((2500).to_bytes(8, "little"))
    (info,) = obtain(path, path.parent / "cache").index
    path.write_bytes(data[:place] + b"\x07" + data[place + 1 :])
    info = dataclasses.replace(info, extra=dict(info.extra, etag=None))
    with pytest.raises(ShardCorruptError, match="(?i)crc"):
        read_once(info, path).take(span(0, 5000))


@pytest.mark.parametrize("has_dictionary", [False, True])
def test_pieces_are_small(has_dictionary: bool, tmp_path: Path) -> None:
    """Also where a dictionary hides how large rows are, or the file before had smaller ones."""
    name = f"text {has_dictionary}"
    small, large = pa.table({name: ["y"] * 200}), pa.table({name: ["x" * 100_000] * 200})
    for table in (large,) if has_dictionary else (small, large):
        path = tmp_path / f"{table.nbytes}.parquet"
        pq.write_table(table, path, use_dictionary=has_dictionary)
        (info,) = obtain(path, tmp_path / "cache").index
        found = list(decoding.pieces(info, path, decoding.schema_of(info)))
        assert sum(piece.num_rows for piece in found) == 200
        assert max(piece.nbytes for piece in found) <= 2 << 20
