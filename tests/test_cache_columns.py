"""Jobs that read different columns, or versions, through one cache directory."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import StreamingDataset
from streaming.shared import directory

ROWS, FILES = 500, 12


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Files of two columns, each of which takes 4,000 bytes."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    (tmp_path / "table").mkdir()
    for file in range(FILES):
        numbers = np.arange(ROWS) + file * ROWS
        parquet.write_table(
            arrow.table({"a": numbers, "b": -numbers}),
            tmp_path / "table" / f"{file:02d}.parquet",
            compression="none",
            use_dictionary=False,
        )
    return tmp_path / "table"


@pytest.fixture
def open_column(table: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StreamingDataset]:
    monkeypatch.setattr(directory, "_STRANGERS_SECONDS", 0.0)
    monkeypatch.setattr(directory, "_STRANGERS_SHARE", 0.0)

    def open_it(column: str, limit: int | None = None, **more: Any) -> StreamingDataset:
        cache = str(table.parent / "cache")
        return StreamingDataset(
            remote=str(table),
            local=cache,
            columns=[column],
            batch_size=50,
            cache_limit=limit,
            **more,
        )

    return open_it


def on_disk(table: Path) -> int:
    found = (table.parent / "cache").rglob("*")
    return sum(p.stat().st_size for p in found if p.is_file() and ".streaming" not in p.parts)


def test_jobs_of_different_columns_do_not_take_the_cache_from_each_other(
    open_column: Callable[..., StreamingDataset],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each made the table of the directory anew for itself, and the other took it for removed."""
    one, other = open_column("a", 30_000), open_column("b", 30_000)
    for _ in range(2):
        pairs = zip(one, other, strict=True)
        assert [(row["a"], row2["b"]) for row, row2 in pairs] == [
            (i, -i) for i in range(ROWS * FILES)
        ]
    assert "removed or moved" not in caplog.text


def test_a_limit_counts_what_others_have_in_the_directory(
    table: Path, open_column: Callable[..., StreamingDataset]
) -> None:
    one = open_column("a", None, shuffle=True)
    assert sum(1 for _ in one) == ROWS * FILES
    theirs = on_disk(table)
    other = open_column("b", theirs + 20_000, shuffle=True, shuffle_block_size=ROWS)
    assert sum(1 for _ in other) == ROWS * FILES
    assert theirs < on_disk(table) <= theirs + 20_000
    assert other.stats().evictions
    assert not one.stats().evictions
    # What nobody needs any more goes first.
    del one
    gc.collect()
    before = other.stats().evictions
    assert sum(1 for _ in other) == ROWS * FILES
    assert on_disk(table) <= theirs + 20_000
    assert other.stats().evictions - before < FILES // 2
