"""What was made for a version of a table goes when nobody reads that version any more."""

import gc
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming import StreamingDataset
from streaming.errors import CacheError
from streaming.shared.pin import Pin, sweep_made
from streaming.util.shared import clean
from tests.common.tables import delete_rows, deltalake, table_of, write_delta
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("opens_tables")

GONE = {2, 5}

OPEN = """
import sys
from streaming import StreamingDataset
print(StreamingDataset(remote=sys.argv[1], local=sys.argv[2]).num_samples)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A Delta table with deleted rows in versions 1 and 2."""
    deltalake()
    path = tmp_path / "table"
    rows = table_of(0, 30).select(["id", "text"])
    write_delta(path, rows)
    delete_rows(path, sorted(GONE), "inline")
    write_delta(path, rows.slice(0, 10), mode="append")
    return path


def open_version(table: Path, version: int, **arguments: str) -> StreamingDataset:
    cache = str(table.parent / "cache")
    return StreamingDataset(remote=str(table), local=cache, version=version, batch_size=4)


def open_newest_elsewhere(table: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(table), str(table.parent / "cache")]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert run.stdout == "38\n", run.stderr


def vectors(table: Path) -> list[Path]:
    return sorted((table.parent / "cache").rglob("deleted-*.npy"))


def read(dataset: StreamingDataset) -> Iterator[int]:
    return (row["id"] for row in dataset)


def test_deletion_vectors_of_a_version_that_is_open_stay(table: Path) -> None:
    dataset = open_version(table, 1)
    mine = vectors(table)
    assert len(mine) == 1
    open_newest_elsewhere(table)
    assert set(mine) < set(vectors(table))
    assert set(read(dataset)) == set(range(30)) - GONE


def test_those_of_a_version_that_nobody_has_open_go(table: Path) -> None:
    dataset = open_version(table, 1)
    [mine] = vectors(table)
    del dataset
    gc.collect()
    assert vectors(table) == [mine]
    open_newest_elsewhere(table)
    [other] = vectors(table)
    assert other != mine
    again = open_version(table, 1)
    assert vectors(table) == [mine]
    assert set(read(again)) == set(range(30)) - GONE


def test_a_copy_keeps_them_too(table: Path) -> None:
    dataset = open_version(table, 1)
    copy: StreamingDataset = pickle.loads(pickle.dumps(dataset))
    del dataset
    gc.collect()
    open_newest_elsewhere(table)
    assert set(read(copy)) == set(range(30)) - GONE


def test_clean_removes_them_where_nobody_reads(table: Path) -> None:
    cache = table.parent / "cache"
    dataset = open_version(table, 1)
    open_newest_elsewhere(table)
    assert len(vectors(table)) == 2
    [found] = clean([cache], is_dry=True)
    assert len(vectors(table)) == 2
    assert clean([cache]) == [found]
    [mine] = vectors(table)
    assert not mine.is_relative_to(found)
    assert set(read(dataset)) == set(range(30)) - GONE
    del dataset
    gc.collect()
    assert clean([cache]) == [mine.parent]
    assert not vectors(table)


def test_a_copy_whose_original_ended_before_says_what_is_missing(table: Path) -> None:
    dataset = open_version(table, 1)
    data = pickle.dumps(dataset)
    del dataset
    gc.collect()
    open_newest_elsewhere(table)
    copy: StreamingDataset = pickle.loads(data)
    with pytest.raises(CacheError, match="Make the dataset anew"):
        list(read(copy))


def test_a_folder_that_is_held_twice_stays_until_both_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "x.made"
    folder.mkdir()
    one, two = Pin(folder), Pin(folder)
    assert sweep_made(tmp_path) == []
    del one
    assert sweep_made(tmp_path) == []
    del two
    assert sweep_made(tmp_path, folder) == []
    assert sweep_made(tmp_path, is_dry=True) == [folder]
    assert sweep_made(tmp_path) == [folder]
    assert not folder.exists()
