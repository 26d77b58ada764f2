"""The reader of decoded shards: order, bounds, files, threads."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming.errors import (  # noqa: E402
    ConfigError,
    SampleError,
    ShardCorruptError,
    StoreError,
)
from streaming.format import ShardReader, open_reader  # noqa: E402
from streaming.format.parquet import decode as decoding  # noqa: E402
from tests.common.parquet import nested_table, number_table, open_files, same_values  # noqa: E402

ROWS = number_table(0, 5000).to_pylist()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardReader:
    """Over an Arrow file of several batches."""
    monkeypatch.setattr(decoding, "_PIECE_ROWS", 1 << 10)
    monkeypatch.setattr(decoding, "_BATCH_ROWS", 1 << 10)
    pq.write_table(number_table(0, 5000), tmp_path / "a.parquet", row_group_size=700)
    (found,) = open_files(tmp_path / "a.parquet", tmp_path / "cache")
    assert len(found._batches) == 5  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_in_any_order_across_batches(reader: ShardReader, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for places in (
        draw.integers(0, 5000, 300),
        draw.permutation(5000),
        np.sort(draw.integers(0, 5000, 300)),
        draw.integers(1024, 2048, 50),
        np.arange(1000, 1100),
        np.arange(5000)[::-1],
        np.array([4999, 0]),
        np.empty(0, np.int64),
    ):
        expected = [ROWS[place] for place in places.tolist()]
        assert reader.take(places) == expected
        columns = reader.take_columns(places)
        assert list(columns["id"]) == [row["id"] for row in expected]
        assert list(columns["text"]) == [row["text"] for row in expected]


def test_places_are_checked(reader: ShardReader) -> None:
    assert reader[-1] == ROWS[-1]
    for places in ([5000], [-1], [0, 5000]):
        with pytest.raises(IndexError):
            reader.take(np.array(places))
        with pytest.raises(IndexError):
            reader.take_columns(np.array(places))
    with pytest.raises(IndexError):
        reader.get_item(5000)


def test_samples_of_several_shards_are_made_together(tmp_path: Path) -> None:
    for number in range(3):
        table = nested_table(number * 30, number * 30 + 30)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    readers = open_files(str(tmp_path / "*.parquet"), tmp_path / "cache")
    expected = nested_table(0, 90).to_pylist(maps_as_pydicts="strict")
    draw = np.random.default_rng(0)
    offsets = [draw.integers(0, 30, 20) for _ in readers]
    assert len({reader.group for reader in readers}) == 1
    ids = np.concatenate([30 * i + places for i, places in enumerate(offsets)])
    parts = list(zip(readers, offsets, strict=True))
    rows = readers[0].take_group(parts, None, "take")
    assert same_values(rows, [expected[place] for place in ids.tolist()])
    places = draw.permutation(60)
    order = np.argsort(places)
    rows = readers[0].take_group(parts, places, "take")
    assert same_values(rows, [expected[place] for place in ids[order].tolist()])
    columns = readers[0].take_group(parts, places, "take_columns")
    assert list(columns) == list(expected[0])
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert same_values(found, [expected[place] for place in ids[order].tolist()])


def test_shards_of_other_columns_are_not_made_together(tmp_path: Path) -> None:
    pq.write_table(number_table(0, 5), tmp_path / "a.parquet")
    (one,) = open_files(tmp_path / "a.parquet", tmp_path / "cache")
    (other,) = open_files(tmp_path / "a.parquet", tmp_path / "other", choose=["id"])
    (again,) = open_files(tmp_path / "a.parquet", tmp_path / "cache")
    assert one.group == again.group != other.group
    names = one.take_group([(one, np.arange(2)), (again, np.arange(3, 5))], None, "take")
    assert names == [ROWS[0], ROWS[1], ROWS[3], ROWS[4]]
    again.use_decoders({"text": bytes.decode})
    assert one.group != again.group


@pytest.mark.parametrize("names", [["text"], ["text", "id"], ["id"]])
def test_columns_that_nobody_asked_for_are_not_put_in_order(
    tmp_path: Path, names: list[str]
) -> None:
    pq.write_table(number_table(0, 5000), tmp_path / "a.parquet", row_group_size=700)
    (found,) = open_files(tmp_path / "a.parquet", tmp_path / "cache", choose=names)
    assert found._batches[0].schema.names == names  # type: ignore[attr-defined]
    places = np.random.default_rng(0).permutation(5000)
    rows = found.take(places)
    assert rows == [{name: ROWS[place][name] for name in names} for place in places.tolist()]
    columns = found.take_columns(places)
    assert list(columns) == names
    for name, column in columns.items():
        assert list(column) == [row[name] for row in rows]


def test_a_value_that_can_t_be_made_is_named_by_its_own_file(tmp_path: Path) -> None:
    def refuse(data: bytes) -> str:
        if b"number 7" in data:
            raise ValueError("seven")
        return data.decode()

    for name, start in (("a", 0), ("b", 5)):
        pq.write_table(number_table(start, start + 5), tmp_path / f"{name}.parquet")
    readers = open_files(str(tmp_path / "*.parquet"), tmp_path / "cache")
    assert len(readers) == 2
    for reader in readers:
        reader.use_decoders({"text": refuse})
    parts = [(reader, np.arange(5)) for reader in readers]
    with pytest.raises(SampleError, match=r"A value in b\.parquet .* seven"):
        readers[0].take_group(parts, None, "take")


def test_a_reader_holds_no_descriptor_and_outlives_its_file(reader: ShardReader) -> None:
    assert not any(
        ".arrow" in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
    )
    columns = reader.take_columns(np.arange(5000))
    reader.paths[-1].unlink()
    assert list(reader) == ROWS
    reader.close()
    assert list(columns["text"]) == [row["text"] for row in ROWS]


def test_threads_share_a_reader(reader: ShardReader) -> None:
    draw = np.random.default_rng(1)
    wanted = [draw.integers(0, 5000, 100) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for places, rows in zip(wanted, pool.map(reader.take, wanted), strict=True):
            assert rows == [ROWS[place] for place in places.tolist()]


def test_a_file_that_is_not_what_the_index_says_is_corrupt(reader: ShardReader) -> None:
    path = reader.paths[-1]
    data = path.read_bytes()
    for damaged in (b"", data[:-20], b"x" * len(data), data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ShardCorruptError, match=r"\.arrow is no whole Arrow file"):
            open_reader(reader.info, [path])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([])):
        pass
    with pytest.raises(ShardCorruptError, match=r"has 0 rows of \[\], but the index says 5000"):
        open_reader(reader.info, [path])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        open_reader(reader.info, [path])
    path.mkdir()
    with pytest.raises((StoreError, ShardCorruptError)):
        open_reader(reader.info, [path])


def test_there_are_no_bytes_of_a_sample(reader: ShardReader) -> None:
    with pytest.raises(ConfigError, match="Parquet stores columns"):
        reader.get_sample_data(0)
    with pytest.raises(ConfigError, match="Parquet stores columns"):
        reader.decode_sample(b"")
