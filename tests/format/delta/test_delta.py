"""Versions of Delta tables: what the log says of files, rows and columns, and what it can't say."""

import datetime
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streaming import Stream, StreamingDataset
from streaming.errors import (
    ConfigError,
    DataError,
    EmptyDatasetError,
    MissingFileError,
    ObjectNotFoundError,
    StreamingError,
    UnknownNameError,
)
from streaming.format.delta.state import history, resolve, take_state
from streaming.format.tables import TablePlace
from tests.common.tables import (
    add_entry,
    added,
    as_set,
    delete_rows,
    deltalake,
    edit_log,
    make_delta,
    read_delta,
    table_of,
    write_delta,
)
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("opens_tables")

REAL = ROOT.parent / "shared" / "real" / "delta"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_delta(tmp_path_factory.mktemp("delta") / "table")


def open_table(path: Path, **arguments: Any) -> StreamingDataset:
    names = ("format", "version", "columns", "format_options", "follow")
    said = {name: arguments.pop(name) for name in names if name in arguments}
    stream = Stream(local=str(path), **said)
    return StreamingDataset(streams=[stream], **{"batch_size": 4, **arguments})


# --- Rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-v2-table",
        "delta-0.8.0-partitioned",
        "delta-0.8.0-special-partition",
        "http_requests",
        "simple_table",
        "simple_table_with_checkpoint",
        "table-with-dv-small",
        "table_with_column_mapping",
        "table_with_deletion_logs",
        pytest.param("COVID-19_NYT", marks=pytest.mark.slow),
    ],
)
def test_tables_of_others_are_read_as_deltalake_reads_them(name: str) -> None:
    if not (REAL / name).exists():
        pytest.skip(f"needs the tables in {REAL}")
    assert as_set(list(open_table(REAL / name, batch_size=64))) == as_set(read_delta(REAL / name))


@pytest.mark.parametrize("version", [0, 3, 4, 5, 6, 7])
def test_every_version_is_read_as_deltalake_reads_it(version: int, table: Path) -> None:
    dataset = open_table(table, version=version)
    assert dataset.versions == [version]
    assert as_set(list(dataset)) == as_set(read_delta(table, version))


def test_the_newest_version_is_read_if_none_is_named(table: Path) -> None:
    dataset = open_table(table)
    assert dataset.versions == [7]
    assert dataset.num_samples == len(read_delta(table))


def test_a_column_that_older_files_lack_is_none_there(table: Path) -> None:
    twice = {row["id"]: row["twice"] for row in open_table(table)}
    assert twice == {i: 2 * i if i >= 140 else None for i in twice}
    assert max(twice) == 149


def test_partition_values_come_back_whatever_they_are(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    zone = datetime.UTC
    texts = ["a b", "a/b", "ü=%", "x+y", "%41", None]
    days = [datetime.date(2020, 2, 29), None, datetime.date(1969, 1, 1)] * 2
    times = [datetime.datetime(2020, 1, 1, 12, 30, 0, 5, zone), None] * 3
    rows = arrow.table(
        {
            "id": range(6),
            "text": texts,
            "number": arrow.array([1, -2, None, 0, 5, 6], arrow.int32()),
            "day": days,
            "time": arrow.array(times, arrow.timestamp("us", "UTC")),
            "flag": [True, False, None, True, False, None],
        }
    )
    names = ["text", "number", "day", "time", "flag"]
    write_delta(tmp_path / "table", rows, partition_by=names)
    found = list(open_table(tmp_path / "table"))
    assert as_set(found) == as_set(read_delta(tmp_path / "table"))
    assert {row["text"] for row in found} == set(texts)
    some = open_table(
        tmp_path / "table", format_options={"partitions": {"text": ["a/b", "ü=%"], "number": -2}}
    )
    assert [row["id"] for row in some] == [1]
    none = open_table(tmp_path / "table", format_options={"partitions": {"text": None}})
    assert [row["id"] for row in none] == [5]


def test_files_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for start in range(0, 30, 5):
        write_delta(path, table_of(start, start + 5).select(["id"]), mode="append")

    def date(time: int, action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["modificationTime"] = time
        return action

    for version in range(6):
        edit_log(path, version, partial(date, 1000 + version))
    assert [row["id"] for row in open_table(path)] == list(range(30))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found_in_files(mode: str, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kind = arrow.struct([("a", arrow.int64()), ("b", arrow.string())])
    schema = arrow.schema([("id", arrow.int64()), ("pair", kind), ("p", arrow.string())])
    rows = [{"id": i, "pair": {"a": -i, "b": f"b{i}"}, "p": "xy"[i % 2]} for i in range(8)]
    path = tmp_path / "table"
    settings = {
        "delta.columnMapping.mode": "name",
        "delta.minReaderVersion": "2",
        "delta.minWriterVersion": "5",
    }
    write_delta(
        path,
        arrow.Table.from_pylist(rows, schema),
        configuration=settings,
        partition_by=["p"],
    )
    if mode == "id":

        def by_id(action: dict[str, Any]) -> dict[str, Any]:
            if "metaData" in action:
                action["metaData"]["configuration"]["delta.columnMapping.mode"] = "id"
            return action

        _number_fields(path)
        edit_log(path, 0, by_id)
    assert as_set(list(open_table(path))) == as_set(rows)
    assert [row["p"] for row in open_table(path, columns=["p"])].count("x") == 4
    assert {row["id"] for row in open_table(path, columns=["id"])} == set(range(8))


def _number_fields(path: Path) -> None:
    """Write the files of a mapped table anew, with the numbers that its log has for columns."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    entry = (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    (about,) = [json.loads(line)["metaData"] for line in entry if "metaData" in line]
    fields = json.loads(about["schemaString"])["fields"]

    def field(known: Any, found: Any, number: int) -> Any:
        kind = found.type
        if arrow.types.is_struct(kind):
            parts = zip(known["type"]["fields"], kind, strict=True)
            kind = arrow.struct([field(a, b, i) for i, (a, b) in enumerate(parts)])
        mark = {"PARQUET:field_id": str(known["metadata"]["delta.columnMapping.id"])}
        return arrow.field(f"renamed-{number}", kind, metadata=mark)

    def renamed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {f"renamed-{i}": renamed(inner) for i, inner in enumerate(value.values())}

    for action in added(path, 0):
        file = path / action["path"]
        old = parquet.ParquetFile(file).read()
        known = [one for one in fields if one["name"] != "p"]
        pairs = zip(known, old.schema, strict=True)
        schema = arrow.schema([field(a, b, i) for i, (a, b) in enumerate(pairs)])
        rows = [renamed(row) for row in old.to_pylist()]
        parquet.write_table(arrow.Table.from_pylist(rows, schema), file)
        size = os.path.getsize(file)

        def resize(entry: dict[str, Any], name: str = action["path"], size: int = size) -> Any:
            if entry.get("add", {}).get("path") == name:
                entry["add"] |= {"size": size}
                entry["add"].pop("stats", None)
            return entry

        edit_log(path, 0, resize)


@pytest.mark.parametrize("kind", ["inline", "file"])
def test_deleted_rows_are_left_out(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 100).select(["id", "text"]))
    write_delta(path, table_of(100, 110).select(["id", "text"]), mode="append")
    delete_rows(path, [0, 1, 50, 99], kind)
    dataset = open_table(path)
    assert as_set(list(dataset)) == as_set(read_delta(path))
    assert {row["id"] for row in dataset} == set(range(110)) - {0, 1, 50, 99}
    assert open_table(path, version=1).num_samples == 110


def test_a_checkpoint_stands_for_the_entries_before_it(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "table"
    shutil.copytree(table, path)
    deltalake().DeltaTable(str(path)).create_checkpoint()
    for version in range(7):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    assert as_set(list(open_table(path))) == as_set(read_delta(table))
    with pytest.raises(StreamingError, match="version 2 of the Delta table"):
        open_table(path, version=2)


def test_a_shallow_log_of_another_table_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    assert len(list(open_table(path, version=0))) == 5
    shutil.rmtree(path)
    write_delta(path, table_of(0, 9).select(["id"]))
    assert len(list(open_table(path, version=0))) == 9


def test_only_the_columns_that_are_wanted_come(table: Path) -> None:
    assert list(next(iter(open_table(table, columns=["text", "id"])))) == ["text", "id"]
    with pytest.raises(UnknownNameError, match="nope"):
        open_table(table, columns=["nope"])


# --- What is known of a version -------------------------------------------------------------------


def test_statistics_of_files_are_kept(table: Path, tmp_path: Path) -> None:
    state = take_state(TablePlace.at(str(table)), 7, tmp_path / "state.arrow")
    files = list(state.files())
    lows = [row["id"] for row in state.table["min"].to_pylist()]
    highs = [row["id"] for row in state.table["max"].to_pylist()]
    assert (min(lows), max(highs)) == (1, 149)
    assert sum(file.rows or 0 for file in files) == len(read_delta(table))


def test_the_library_is_asked_once_for_a_version(table: Path, tmp_path: Path) -> None:
    place = TablePlace.at(str(table))
    first = take_state(place, 3, tmp_path / "state.arrow")
    nowhere = TablePlace.at(str(tmp_path / "nowhere"))
    assert take_state(nowhere, 3, tmp_path / "state.arrow").schema == first.schema


def test_only_some_versions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.format.delta.state._MOST_KEPT", 2)
    for version in range(4):
        write_delta(tmp_path / "table", table_of(0, 5).select(["id"]), mode="append")
        place = TablePlace.at(str(tmp_path / "table"))
        take_state(place, version, tmp_path / f"{version}.delta.arrow")
    assert sorted(path.name[0] for path in tmp_path.glob("*.arrow")) == ["2", "3"]


def test_history_tells_what_was_done(table: Path) -> None:
    found = history(TablePlace.at(str(table)), 4)
    assert [item.version for item in found] == [7, 6, 5, 4]
    assert "OPTIMIZE" in found[3].what
    assert found[0].what == "WRITE (10 rows, 1 files)"
    assert found[0].time is not None
    assert found[0].time.tzinfo is not None


def test_a_time_means_the_newest_version_that_is_not_later(table: Path) -> None:
    place = TablePlace.at(str(table))
    times = {item.version: item.time for item in history(place, 100)}
    assert times[3] is not None
    assert resolve(place, times[3]) == 3
    with pytest.raises(ConfigError, match="no version of 2001.* or before: the first is of 2"):
        resolve(place, datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC))


@pytest.mark.slow
def test_a_log_of_many_files_is_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    (about,) = added(path, 0)
    names = [about | {"path": f"part-{i}.parquet"} for i in range(100_000)]
    add_entry(path, [{"add": name} for name in names])
    state = take_state(TablePlace.at(str(path)), 1, tmp_path / "state.arrow")
    assert sum(1 for _ in state.files()) == 100_001


# --- Bad input ------------------------------------------------------------------------------------


def test_a_table_without_files_is_an_empty_dataset(tmp_path: Path) -> None:
    write_delta(tmp_path / "table", table_of(0, 5).select(["id"]))
    deltalake().DeltaTable(str(tmp_path / "table")).delete()
    with pytest.raises(EmptyDatasetError):
        open_table(tmp_path / "table")


def test_there_is_a_way_out_of_a_version_that_is_not_there(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no version 99 of the Delta table"):
        open_table(table, version=99)
    with pytest.raises(ConfigError, match="have no names: give a number, or a time"):
        open_table(table, version="best")
    with pytest.raises(ObjectNotFoundError, match="no Delta table at"):
        open_table(tmp_path / "nowhere", format="delta")


def _feature(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def edit(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            names = {"readerFeatures": [name], "writerFeatures": [name]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **names}
        return action

    return edit


@pytest.mark.parametrize("feature", ["zebra", "geospatial", "catalogManaged"])
def test_a_feature_that_can_t_be_honoured_is_refused_by_its_name(
    feature: str, tmp_path: Path
) -> None:
    write_delta(tmp_path / "table", table_of(0, 5).select(["id"]))
    edit_log(tmp_path / "table", 0, _feature(feature))
    with pytest.raises(StreamingError, match=f"(?i){feature[:7]}"):
        open_table(tmp_path / "table")


@pytest.mark.parametrize("feature", ["vacuumProtocolCheck", "timestampNtz", "typeWidening"])
def test_a_feature_that_changes_nothing_here_is_fine(feature: str, tmp_path: Path) -> None:
    write_delta(tmp_path / "table", table_of(0, 5).select(["id"]))
    edit_log(tmp_path / "table", 0, _feature(feature))
    assert len(list(open_table(tmp_path / "table"))) == 5


def test_a_widened_column_is_read_from_narrow_files(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "table"
    write_delta(path, arrow.table({"id": arrow.array([1, 2, -3], arrow.int16())}))

    def widen(action: dict[str, Any]) -> dict[str, Any]:
        if "metaData" in action:
            text = action["metaData"]["schemaString"]
            action["metaData"]["schemaString"] = text.replace('"short"', '"long"')
        return _feature("typeWidening")(action)

    edit_log(path, 0, widen)
    assert [row["id"] for row in open_table(path)] == [1, 2, -3]
    assert open_table(path).take_columns([0])["id"].dtype == "int64"  # type: ignore[union-attr]


def test_a_variant_is_refused_by_its_column(tmp_path: Path) -> None:
    write_delta(tmp_path / "table", table_of(0, 5).select(["id"]))

    def edit(action: dict[str, Any]) -> dict[str, Any]:
        if "metaData" in action:
            text = action["metaData"]["schemaString"]
            action["metaData"]["schemaString"] = text.replace('"long"', '"variant"')
        return _feature("variantType")(action)

    edit_log(tmp_path / "table", 0, edit)
    with pytest.raises(DataError, match="'id'.*variant"):
        open_table(tmp_path / "table")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (None, "version|gap"),
        (lambda data: data[: len(data) // 2], "log of version 2 of the Delta table"),
        (lambda data: b"no log\n", "log of version 2 of the Delta table"),
        (lambda data: b"", "an entry of the log was lost"),
    ],
)
def test_a_log_with_an_entry_lost_or_broken_is_an_error(
    damage: Callable[[bytes], bytes] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    for start in range(3):
        write_delta(path, table_of(start, start + 1).select(["id"]), mode="append")
    entry = path / "_delta_log" / f"{1:020d}.json"
    if damage is None:
        entry.unlink()
    else:
        entry.write_bytes(damage(entry.read_bytes()))
    with pytest.raises(DataError, match=message):
        open_table(path, version=2)


def test_a_checkpoint_that_lies_about_rows_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))

    def lie(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["stats"] = '{"numRecords": 7}'
        return action

    edit_log(path, 0, lie)
    with pytest.raises(DataError, match="should have 7 rows, but has 5"):
        open_table(path)


@pytest.mark.parametrize("name", ["../outside.parquet", "/etc/outside.parquet", "file:///x.pq"])
def test_a_log_can_t_name_files_outside_of_the_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))

    def move(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["path"] = name
        return action

    edit_log(path, 0, move)
    with pytest.raises(StreamingError, match="outside|names a file"):
        open_table(path)


def test_a_vacuumed_file_is_named_with_its_version_before_training(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    write_delta(path, table_of(0, 5).select(["id"]), mode="overwrite")
    (name,) = [action["path"] for action in added(path, 0)]
    deltalake().DeltaTable(str(path)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    with pytest.raises(MissingFileError, match=f"{name} is gone.*version 0 of the Delta table"):
        open_table(path, version=0)
    assert len(list(open_table(path))) == 5


def test_a_file_written_anew_in_its_place_is_named_with_its_version(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    (action,) = added(path, 0)
    with (path / action["path"]).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=f"{action['path']} has .* bytes, but by version 0"):
        open_table(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format_options": {"partition": {}}}, "options 'partitions' and"),
        ({"format_options": {"partitions": 3}}, "a dict of columns and values"),
        ({"format_options": {"partitions": {"id": 1}}}, "no partition columns. There are: none"),
        ({"columns": {"id": "int"}}, "a list of names"),
    ],
)
def test_what_can_t_be_meant_is_refused(
    arguments: dict[str, Any], message: str, table: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_table(table, **arguments)
