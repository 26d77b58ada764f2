"""Files that others wrote, row for row as pyarrow reads them: polars, duckdb, Spark and more."""

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming import StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.errors import ShardCorruptError  # noqa: E402
from tests.common.parquet import (  # noqa: E402
    expected_rows,
    nested_table,
    read_files,
    same_values,
)

DATA = Path(__file__).parents[2] / "data" / "parquet"
REAL = Path(__file__).parents[4] / "shared" / "real" / "parquet"
# Values that Python's own types can't hold, so that pyarrow itself makes no rows of them.
BEYOND = ("int96_from_spark", "nested_structs.rust")
# Two rows of over 1 GB each, in 4 KB: more than pyarrow puts into one array.
HUGE = "large_string_map.brotli"


def columns() -> dict[str, list[Any]]:
    count = 300
    return {
        "id": list(range(count)),
        "small": [i % 100 for i in range(count)],
        "maybe": [None if i % 3 == 0 else i / 4 for i in range(count)],
        "text": [f"number {i}, é" if i % 11 else None for i in range(count)],
        "flag": [i % 2 == 0 for i in range(count)],
        "day": [dt.date(2024, 1, 1) + dt.timedelta(i) for i in range(count)],
        "at": [dt.datetime(2024, 1, 1, 12) + dt.timedelta(microseconds=i) for i in range(count)],
        "data": [bytes([i % 256]) * (i % 5) for i in range(count)],
        "tags": [[f"t{j}" for j in range(i % 4)] if i % 7 else None for i in range(count)],
        "who": [{"name": f"n {i}", "age": i if i % 2 else None} for i in range(count)],
        "price": [Decimal(i) / 100 for i in range(count)],
    }


def write_by_pyarrow(path: Path) -> None:
    pq.write_table(pa.table(columns()), path, row_group_size=37, compression="zstd")


def write_nested_by_pyarrow(path: Path) -> None:
    options: dict[str, Any] = {"data_page_version": "2.0", "use_dictionary": False}
    pq.write_table(nested_table(0, 90), path, row_group_size=11, compression="gzip", **options)


def write_by_polars(path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(columns())
    more = [
        polars.col("text").cast(polars.Categorical).alias("kind"),
        polars.col("at").dt.time().alias("time"),
        (polars.col("at") - polars.col("at").min()).alias("since"),
    ]
    frame.with_columns(more).write_parquet(path, row_group_size=37)


def write_by_duckdb(path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("t", pa.table(columns()))
        connection.execute(
            "COPY (SELECT *, {'a': id, 'b': [id, NULL]} AS s, MAP {'k': id} AS m, "
            "CAST(id AS HUGEINT) AS h, CAST(t.at AS TIMESTAMP_NS) AS ns, INTERVAL 1 DAY AS i, "
            f"uuid() AS u FROM t ORDER BY id) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)"
        )


@pytest.mark.parametrize(
    "write", [write_by_pyarrow, write_nested_by_pyarrow, write_by_polars, write_by_duckdb]
)
def test_files_of_other_engines_are_read_as_pyarrow_does(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    write(path)
    rows = read_files(path, tmp_path / "cache")
    check(rows, expected_rows(path))
    dataset = StreamingDataset(
        remote=str(path.parent), local=str(tmp_path / "other"), batch_size=4, shuffle=True
    )
    check(sorted(dataset, key=lambda row: row["id"]), expected_rows(path))


def check(rows: list[Any], expected: list[Any]) -> None:
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert list(row) == list(wanted)
        for name in row:
            assert same_values(plain(row[name]), plain(wanted[name])), name


def plain(value: Any) -> Any:
    """What is finer than Python's time, as pandas has it or numpy, as one of both."""
    return value.to_datetime64() if hasattr(value, "to_datetime64") else value


@pytest.mark.parametrize("name", ["plain", "legacy", "partitioned"])
def test_tables_of_spark_are_read_as_pyarrow_does(name: str, tmp_path: Path) -> None:
    check_spark(DATA / name, name, tmp_path)


def check_spark(folder: Path, name: str, tmp_path: Path) -> None:
    rows = read_files(folder, tmp_path / f"cache-{name}")
    if name == "partitioned":
        assert sorted(row["id"] for row in rows) == list(range(20))
        for row in rows:
            i = row["id"]
            assert row["year"] == 2020 + i % 2
            assert row["kind"] == ["x y", "a/b", None][i % 3]
        return
    check(rows, expected_rows(folder / "part-0.snappy.parquet"))
    moments = [row["at"] for row in rows]
    assert [(x.hour, x.microsecond) for x in moments] == [(i, 123456) for i in range(20)]


@pytest.mark.slow
def test_spark_itself_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
    line = [sys.executable, str(DATA / "make.py"), str(tmp_path / "data")]
    subprocess.run(line, check=True, env=environment, timeout=110, capture_output=True)
    for name in ("plain", "legacy", "partitioned"):
        check_spark(tmp_path / "data" / name, name, tmp_path)


def real_files() -> list[Any]:
    names = sorted(path.stem for path in REAL.glob("*.parquet"))
    return [
        pytest.param(name, marks=pytest.mark.slow) if name == HUGE else name for name in names
    ] or [pytest.param("", marks=pytest.mark.skip(reason=f"needs files in {REAL}"))]


@pytest.mark.parametrize("name", real_files())
def test_files_of_old_writers_are_read_as_pyarrow_does(name: str, tmp_path: Path) -> None:
    path = REAL / f"{name}.parquet"
    if name == HUGE:
        with pytest.raises(pa.ArrowNotImplementedError):
            pq.read_table(path)
        with pytest.raises(ShardCorruptError, match="large_string_map.*Nested data conversions"):
            read_files(path, tmp_path / "cache")
        return
    rows = read_files(path, tmp_path / "cache")
    if name in BEYOND:
        table = pq.read_table(path, coerce_int96_timestamp_unit="us")
        assert len(rows) == table.num_rows
        for column in table.column_names:
            for value, wanted in zip([row[column] for row in rows], table[column], strict=True):
                assert same_scalar(value, wanted)
        return
    check(rows, expected_rows(path))
    whole = StreamingDataset(
        remote=str(path), local=str(tmp_path / "s"), batch_size=1, shuffle=True
    )
    assert len(list(whole)) == len(rows)


def same_scalar(value: Any, wanted: Any) -> bool:
    """Whether a value is what an Arrow scalar holds, compared in integers."""
    if not wanted.is_valid:
        return value is None
    kind = wanted.type
    if pa.types.is_struct(kind):
        return all(same_scalar(value[name], wanted[name]) for name in wanted)
    if pa.types.is_timestamp(kind):
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return bool(np.datetime64(value, kind.unit).astype(np.int64) == wanted.value)
    if pa.types.is_date(kind):
        return bool(np.datetime64(value, "D").astype(np.int64) == wanted.value)
    return same_values(value, wanted.as_py())


def tables(folder: Path) -> dict[str, Path]:
    """A folder for each engine whose files there are."""
    found = {name: DATA / name for name in ("plain", "legacy", "partitioned")}
    for write in (write_by_pyarrow, write_nested_by_pyarrow, write_by_polars, write_by_duckdb):
        place = folder / write.__name__
        place.mkdir(parents=True)
        write(place / "a.parquet")
        found[write.__name__] = place
    for name in ("alltypes_tiny_pages", "delta_byte_array"):
        if (REAL / f"{name}.parquet").exists():
            found[name] = REAL / f"{name}.parquet"
    return found


@pytest.mark.parametrize(
    ("context", "is_used"),
    [("fork", False), ("fork", True), pytest.param("spawn", True, marks=pytest.mark.slow)],
)
def test_tables_of_all_engines_go_through_workers_and_resumes(
    context: str, is_used: bool, tmp_path: Path
) -> None:
    places = tables(tmp_path / "data")
    if context == "spawn":  # Each worker imports torch anew.
        places = {"partitioned": places["partitioned"]}
    for name, place in places.items():

        def load(name: str = name, place: Path = place) -> StreamingDataLoader:
            dataset = StreamingDataset(
                remote=str(place), local=str(tmp_path / name), batch_size=5, shuffle=True
            )
            if is_used:
                assert dataset[1]
            return StreamingDataLoader(
                dataset,
                batch_size=5,
                num_workers=2,
                collate_fn=list,
                multiprocessing_context=context,
            )

        expected = read_files(place, tmp_path / f"{name}-cache")
        whole = list(load())
        assert_same_rows([row for batch in whole for row in batch], expected)
        loader = load()
        batches = iter(loader)
        seen = [next(batches) for _ in range(2)]
        state = loader.state_dict()
        assert state is not None
        batches.close()  # type: ignore[attr-defined]
        again = load()
        again.load_state_dict(state)
        assert same_values(seen + list(again), whole)


def assert_same_rows(rows: list[Any], expected: list[Any]) -> None:
    """Whether two lists hold the same rows in whatever order."""
    assert len(rows) == len(expected)
    for row, wanted in zip(sorted(rows, key=repr), sorted(expected, key=repr), strict=True):
        assert same_values(row, wanted)
