from pathlib import Path

import numpy as np
import pytest

from streaming.errors import ShardCorruptError
from streaming.format.text.table import RecordTable, pack_table, write_table


def test_a_packed_table_is_that_of_the_predecessor() -> None:
    table = pack_table(np.array([0, 5, 9]), b"{}")
    assert table == b"\x02\0\0\0" + b"\0\0\0\0\x05\0\0\0\x09\0\0\0" + b"{}"


@pytest.mark.parametrize("width", [4, 8])
def test_a_table_written_piece_by_piece_is_read(tmp_path: Path, width: int) -> None:
    pieces = [np.array([1, 4]), np.array([], np.int64), np.array([9])]
    assert write_table(tmp_path / "a", iter(pieces), 12, b"{}", width=width) == 3
    size = (tmp_path / "a").stat().st_size
    assert size == width * 5 + 2
    table = RecordTable(tmp_path / "a", size, 3, width)
    assert table.offsets.tolist() == [1, 4, 9, 12]
    assert table.at[2] == 9
    table.check(12)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_both_ways_to_write_give_the_same_bytes(tmp_path: Path) -> None:
    write_table(tmp_path / "a", iter([np.array([3, 7])]), 8, b"x", width=4)
    assert (tmp_path / "a").read_bytes() == pack_table(np.array([3, 7, 8]), b"x")


def test_a_table_of_a_file_over_4_gib_holds_its_places(tmp_path: Path) -> None:
    write_table(tmp_path / "a", iter([np.array([0, 5 << 32])]), 6 << 32, b"", width=8)
    table = RecordTable(tmp_path / "a", 32, 2, 8)
    assert table.offsets.tolist() == [0, 5 << 32, 6 << 32]


def test_nothing_is_left_of_a_table_whose_source_failed(tmp_path: Path) -> None:
    def pieces() -> "object":
        yield np.array([1])
        raise ShardCorruptError("enough")

    with pytest.raises(ShardCorruptError, match="enough"):
        write_table(tmp_path / "a", pieces(), 12, b"", width=4)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "samples", "message"),
    [
        (pack_table(np.array([0, 5, 9]), b""), 3, "can't hold the table of the 3 samples"),
        (pack_table(np.array([0, 5, 9]), b"    "), 3, "places of 2 samples, but the index says 3"),
    ],
)
def test_a_table_of_another_number_of_records_is_corrupt(
    tmp_path: Path, data: bytes, samples: int, message: str
) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ShardCorruptError, match=message):
        RecordTable(tmp_path / "a", len(data), samples, 4)


@pytest.mark.parametrize("offsets", [[0, 9, 5, 12], [0, 5, 9, 13], [14, 14, 14, 14]])
def test_records_that_do_not_lie_in_the_file_are_corrupt(
    tmp_path: Path, offsets: list[int]
) -> None:
    data = pack_table(np.array(offsets), b"")
    (tmp_path / "a").write_bytes(data)
    table = RecordTable(tmp_path / "a", len(data), 3, 4)
    with pytest.raises(ShardCorruptError, match=r"sample \d lies at .* of a file of 12 bytes"):
        table.check(12)
