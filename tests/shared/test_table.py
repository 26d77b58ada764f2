import os
from pathlib import Path

import numpy as np
import pytest

from streaming.shared.table import SharedTable
from tests.conftest import RunPython

DTYPE = np.dtype([("bytes", "<i8"), ("flags", "<i8")])


def make(path: Path, rows: int = 3) -> SharedTable:
    records = np.zeros(rows, DTYPE)
    records["bytes"] = np.arange(rows)
    return SharedTable.create(path, records, "digest")


def test_a_table_is_found_again(tmp_path: Path) -> None:
    make(tmp_path / "table").records["flags"][1] = 7
    found = SharedTable.open(tmp_path / "table", DTYPE, 3, "digest")
    assert found is not None
    assert found.records.tolist() == [(0, 0), (1, 7), (2, 0)]
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_processes_see_each_others_records(tmp_path: Path, run_python: RunPython) -> None:
    table = make(tmp_path / "table")
    script = """
import sys
from pathlib import Path
import numpy as np
from streaming.shared.table import SharedTable
dtype = np.dtype([("bytes", "<i8"), ("flags", "<i8")])
table = SharedTable.open(Path(sys.argv[1]), dtype, 3, "digest")
table.records["flags"] = table.records["bytes"] + 5
"""
    run_python(script, tmp_path / "table")
    assert table.records["flags"].tolist() == [5, 6, 7]


@pytest.mark.parametrize("rows, digest", [(4, "digest"), (3, "other")])
def test_a_table_of_something_else_is_not_opened(tmp_path: Path, rows: int, digest: str) -> None:
    make(tmp_path / "table")
    assert SharedTable.open(tmp_path / "table", DTYPE, rows, digest) is None


def test_a_table_of_other_records_is_not_opened(tmp_path: Path) -> None:
    make(tmp_path / "table")
    assert SharedTable.open(tmp_path / "table", np.dtype([("a", "<i8")]), 3, "digest") is None


@pytest.mark.parametrize("size", [0, 10, 64, 100, 111, 113])
def test_a_table_of_a_wrong_size_is_not_opened(tmp_path: Path, size: int) -> None:
    make(tmp_path / "table")
    assert (tmp_path / "table").stat().st_size == 112
    os.truncate(tmp_path / "table", size)
    assert SharedTable.open(tmp_path / "table", DTYPE, 3, "digest") is None


def test_a_table_that_is_not_there_is_not_opened(tmp_path: Path) -> None:
    assert SharedTable.open(tmp_path / "table", DTYPE, 3, "digest") is None


def test_a_table_may_be_empty(tmp_path: Path) -> None:
    make(tmp_path / "table", rows=0)
    found = SharedTable.open(tmp_path / "table", DTYPE, 0, "digest")
    assert found is not None
    assert len(found.records) == 0


def test_a_new_table_leaves_the_old_one_to_those_who_have_it(tmp_path: Path) -> None:
    old = make(tmp_path / "table")
    new = make(tmp_path / "table", rows=1)
    new.records["bytes"] = 9
    assert old.records["bytes"].tolist() == [0, 1, 2]


def test_a_table_has_blocks_on_the_disk_for_every_record(tmp_path: Path) -> None:
    make(tmp_path / "table", rows=10_000)
    found = (tmp_path / "table").stat()
    assert found.st_blocks * 512 >= found.st_size
