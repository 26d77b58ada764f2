"""Indexes of tables: footers found and kept, schemas united, partitions, row groups cut."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming.errors import ConfigError, DataError  # noqa: E402
from streaming.format.indexing import IndexRequest, local_path  # noqa: E402
from streaming.format.listing import DataFile, Place, list_files  # noqa: E402
from streaming.format.parquet import footer as footers  # noqa: E402
from streaming.format.parquet.chunks import ChunkScanner  # noqa: E402
from streaming.format.parquet.footer import dump_footers, load_footers  # noqa: E402
from streaming.format.parquet.indexing import partition  # noqa: E402
from streaming.format.parquet.schema import widen  # noqa: E402
from streaming.format.parquet.table import TableFile, index_table  # noqa: E402
from streaming.storage import open_store  # noqa: E402
from tests.common.parquet import (  # noqa: E402
    nested_table,
    number_table,
    obtain,
    open_reader_of,
    read_files,
    same_values,
)


def write(path: Path, table: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def table_of(
    folder: Path, cache: Path, files: list[TableFile], schema: Any = None, **said: Any
) -> list[Any]:
    """The samples of a table that is given file by file."""
    store, prefix = open_store(str(folder))
    request = IndexRequest(
        where=str(folder),
        files=(),
        format="parquet",
        kept=cache / "kept",
        in_place=local_path(store, prefix),
        **said,
    )
    index = index_table(store, prefix, request, files, schema)
    return [row for info in index for row in open_reader_of(info, cache)]


def entry(folder: Path, key: str, **said: Any) -> TableFile:
    (found,) = list_files(Place(str(folder), (key,))).files
    return TableFile(found, **said)


def read(data: bytes, scanner: ChunkScanner) -> footers.Footer:
    """The footer of a file, with where its columns lie."""
    footer, end = footers.read_footer(
        DataFile("a", len(data)), "a", lambda start, stop: data[start:stop]
    )
    if not len(footer.rows):
        return footer
    return footers.with_chunks(footer, end, len(data), "a", scanner)


# --- Footers ---------------------------------------------------------------------------------


def test_footers_are_read_once_and_those_of_changed_files_again(
    parsed: list[str], tmp_path: Path
) -> None:
    for name in "abc":
        write(tmp_path / "data" / f"{name}.parquet", number_table(0, 10))
    for _ in range(2):
        assert obtain(tmp_path / "data", tmp_path / "cache").index.samples == 30
    assert sorted(parsed) == ["a.parquet", "b.parquet", "c.parquet"]
    write(tmp_path / "data" / "b.parquet", number_table(0, 11))
    assert obtain(tmp_path / "data", tmp_path / "cache").index.samples == 31
    assert parsed[3:] == ["b.parquet"]


def test_footers_survive_being_kept(tmp_path: Path) -> None:
    for number, table in enumerate([number_table(0, 9), nested_table(0, 9), number_table(0, 0)]):
        write(tmp_path / f"{number}.parquet", table, row_group_size=4)
    found = {}
    for file in list_files(Place(str(tmp_path))).files:
        data = (tmp_path / file.key).read_bytes()
        with ChunkScanner() as scanner:
            found[file.key, file.size, file.etag] = read(data, scanner)
    again = load_footers(dump_footers(found))
    assert again.keys() == found.keys()
    for key in found:
        for name in ("schema", "length", "rows", "sizes", "starts", "lengths"):
            assert np.array_equal(getattr(again[key], name), getattr(found[key], name))


@pytest.mark.parametrize("damage", [b"", b"ARROW1", None])
def test_kept_footers_that_are_broken_are_found_anew(damage: bytes | None, tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", number_table(0, 10))
    obtain(tmp_path / "data", tmp_path / "cache")
    (path,) = (tmp_path / "cache").rglob("footers.arrow")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    assert obtain(tmp_path / "data", tmp_path / "cache").index.samples == 10


def test_a_kept_footer_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", number_table(0, 10), row_group_size=5)
    data = path.read_bytes()
    with ChunkScanner() as scanner:
        good = read(data, scanner)
    size = len(data)
    mark = ("a", size, None)
    for change in (
        {"rows": -good.rows},
        {"starts": good.starts + size},
        {"lengths": -good.lengths},
        {"starts": good.starts[:, :1]},
        {"rows": np.zeros(0, np.int64)},
    ):
        values = {name: getattr(good, name) for name in footers.Footer.__slots__}
        bad = footers.Footer(**{**values, **change})
        assert load_footers(dump_footers({mark: bad})) == {}


def test_a_long_footer_takes_a_second_look(tmp_path: Path) -> None:
    wide = pa.table({f"column {i:04}": [1] for i in range(1000)})
    path = write(tmp_path / "data" / "a.parquet", wide)
    data = path.read_bytes()
    asked: list[tuple[int, int]] = []

    def read_range(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return data[start:stop]

    footers.read_footer(DataFile("a", len(data)), "a", read_range)
    assert len(asked) == 2
    assert all(stop == len(data) for _, stop in asked)


# --- What a shard is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "expected"), [(None, [1, 1, 1]), ("file", [1, 1, 1]), ("row_group", [4, 1, 1])]
)
def test_a_shard_is_some_row_groups_or_one_or_a_file(
    unit: str | None, expected: list[int], tmp_path: Path
) -> None:
    rows = 40_000
    large = pa.table(
        {"id": np.arange(rows), "noise": np.random.default_rng(0).random((rows, 13)).tolist()}
    )
    write(tmp_path / "data" / "a.parquet", large, row_group_size=rows // 4, use_dictionary=False)
    write(tmp_path / "data" / "b.parquet", number_table(0, 30), row_group_size=3)
    write(tmp_path / "data" / "c.parquet", number_table(0, 0))
    write(tmp_path / "data" / "d.parquet", number_table(30, 40))
    index = obtain([f"{tmp_path}/data/a.parquet"], tmp_path / "one", unit=unit).index
    assert len(index) == expected[0]
    index = obtain(f"{tmp_path}/data/[bcd].parquet", tmp_path / "two", unit=unit).index
    assert index.table.samples.tolist() == [30, 10]


def test_a_file_without_row_groups_has_no_shard(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    pq.ParquetWriter(path, pa.schema([("id", pa.int64())])).close()
    assert pq.ParquetFile(path).num_row_groups == 0
    assert len(obtain(tmp_path / "data", tmp_path / "cache").index) == 0
    write(tmp_path / "data" / "b.parquet", number_table(0, 3))
    assert read_files(tmp_path / "data", tmp_path / "cache") == number_table(0, 3).to_pylist()


# --- Schemas -----------------------------------------------------------------------------------


def test_files_that_differ_are_refused_with_the_difference(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", pa.table({"id": [1], "x": [1], "z": [1]}))
    write(tmp_path / "data" / "b.parquet", pa.table({"id": [1], "x": [1.5], "y": ["a"]}))
    with pytest.raises(DataError) as caught:
        obtain(tmp_path / "data", tmp_path / "cache")
    message = str(caught.value)
    for part in (
        "b.parquet beside a.parquet",
        "lacks 'z'",
        "has 'y' more",
        "'x' is double, not int64",
        "allow_schema_mismatch=True",
    ):
        assert part in message


def test_what_differs_only_in_how_it_is_stored_is_the_same(tmp_path: Path) -> None:
    texts = ["a", "b"]
    plain = pa.table({"t": texts, "n": pa.array([1, 2])})
    write(tmp_path / "data" / "a.parquet", plain)
    stored = pa.table({"n": pa.array([1, 2]), "t": pa.array(texts).dictionary_encode()})
    write(tmp_path / "data" / "b.parquet", stored)
    large = plain.cast(pa.schema([pa.field("t", pa.large_string(), False), ("n", pa.int64())]))
    write(tmp_path / "data" / "c.parquet", large)
    rows = read_files(tmp_path / "data", tmp_path / "cache")
    assert rows == 3 * plain.to_pylist()


def test_files_that_differ_are_united_if_that_is_allowed(tmp_path: Path) -> None:
    write(
        tmp_path / "data" / "a.parquet", pa.table({"id": pa.array([1], pa.int8()), "gone": ["x"]})
    )
    nested = pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))
    write(
        tmp_path / "data" / "b.parquet", pa.table({"id": pa.array([300], pa.int32()), "s": nested})
    )
    wider = pa.array([{"a": 2**40, "b": "new"}], pa.struct([("a", pa.int64()), ("b", pa.string())]))
    write(
        tmp_path / "data" / "c.parquet", pa.table({"s": wider, "id": pa.array([None], pa.null())})
    )
    rows = read_files(
        tmp_path / "data", tmp_path / "cache", options={"allow_schema_mismatch": True}
    )
    assert rows == [
        {"id": 1, "gone": "x", "s": None},
        {"id": 300, "gone": None, "s": {"a": 1, "b": None}},
        {"id": None, "gone": None, "s": {"a": 2**40, "b": "new"}},
    ]


def test_values_deep_inside_are_widened(tmp_path: Path) -> None:
    def table(number: Any, more: bool) -> Any:
        fields = [pa.field("x", number), *([pa.field("y", pa.string())] if more else [])]
        inner = pa.struct(fields)
        item: dict[str, Any] = {"x": 1, **({"y": "b"} if more else {})}
        rows = [[item, None, {"x": None}], None, []]
        return pa.table(
            {
                "list": pa.array(rows, pa.list_(inner)),
                "map": pa.array([[("a", item)], None, []], pa.map_(pa.string(), inner)),
                "lists": pa.array([[[1], None], None, []], pa.list_(pa.list_(number))),
                "tags": pa.array(
                    [["a"], None, []], pa.list_(pa.dictionary(pa.int8(), pa.string()))
                ),
            }
        )

    write(tmp_path / "data" / "a.parquet", table(pa.int8(), False))
    write(tmp_path / "data" / "b.parquet", table(pa.int64(), True))
    rows = read_files(
        tmp_path / "data", tmp_path / "cache", options={"allow_schema_mismatch": True}
    )
    for name, first in (
        ("list", [{"x": 1, "y": None}, None, {"x": None, "y": None}]),
        ("map", {"a": {"x": 1, "y": None}}),
        ("lists", [[1], None]),
        ("tags", ["a"]),
    ):
        values = [row[name] for row in rows]
        assert values[:3] == [first, None, {} if name == "map" else []]
        assert values[4:] == values[1:3]
    assert rows[3]["list"][0] == {"x": 1, "y": "b"}
    assert rows[3]["map"] == {"a": {"x": 1, "y": "b"}}


def test_what_cannot_be_widened_is_refused_all_the_same(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", pa.table({"id": [1]}))
    write(tmp_path / "data" / "b.parquet", pa.table({"id": ["one"]}))
    with pytest.raises(DataError, match=r"'id' is int64 in a\.parquet, but string in b\.parquet"):
        obtain(tmp_path / "data", tmp_path / "cache", options={"allow_schema_mismatch": True})


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("int8", "int64", "int64"),
        ("uint8", "uint32", "uint32"),
        ("uint8", "int8", "int16"),
        ("uint32", "int64", "int64"),
        ("uint64", "int64", None),
        ("float16", "float32", "float32"),
        ("int32", "float32", "float64"),
        ("int64", "float64", None),
        ("date32", "timestamp_us", "timestamp_us"),
        ("decimal_5_2", "decimal_10_4", "decimal_10_4"),
        ("decimal_10_0", "decimal_6_4", "decimal_14_4"),
        ("int8", "decimal_10_4", "decimal_10_4"),
        ("int64", "decimal_10_4", None),
        ("string", "binary", None),
        ("bool", "int8", None),
        ("null", "string", "string"),
        ("timestamp_us", "timestamp_ns", "timestamp_ns"),
    ],
)
def test_types_are_widened_only_where_no_value_changes(
    one: str, other: str, expected: str | None
) -> None:
    def kind(name: str) -> Any:
        if name.startswith("decimal"):
            return pa.decimal128(*map(int, name.split("_")[1:]))
        if name.startswith("timestamp"):
            return pa.timestamp(name.split("_")[1])
        return pa.type_for_alias(name)

    for a, b in ((one, other), (other, one)):
        assert widen(kind(a), kind(b)) == (None if expected is None else kind(expected))
        assert widen(pa.list_(kind(a)), pa.list_(kind(b))) == (
            None if expected is None else pa.list_(kind(expected))
        )


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", pa.table([[1], [2]], names=["x", "x"]))
    with pytest.raises(DataError, match=r"a\.parquet has columns of the same name: 'x'"):
        obtain(tmp_path / "data", tmp_path / "cache")


def test_columns_are_chosen_by_name_and_not_declared(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", nested_table(0, 9))
    rows = read_files(tmp_path / "data", tmp_path / "cache", choose=["who", "id"])
    assert [list(row) for row in rows] == [["who", "id"]] * 9
    assert same_values([row["who"] for row in rows], nested_table(0, 9)["who"].to_pylist())
    with pytest.raises(KeyError, match=r"no column 'other'. Known: id, maybe"):
        obtain(tmp_path / "data", tmp_path / "cache", names=("other",))
    with pytest.raises(ConfigError, match="`columns` as a list of names, without encodings"):
        obtain(tmp_path / "data", tmp_path / "cache", columns={"id": "int"})


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.parquet", number_table(0, 9))
    with pytest.raises(ConfigError, match="no option 'separator'. Known: allow_schema_mismatch"):
        obtain(tmp_path / "data", tmp_path / "cache", options={"separator": ","})
    for name in ("allow_schema_mismatch", "partitions"):
        with pytest.raises(ConfigError, match=f"`{name}` is True or False, but not 'yes'"):
            obtain(tmp_path / "data", tmp_path / "cache", options={name: "yes"})


# --- Partitions --------------------------------------------------------------------------------


def test_paths_name_columns() -> None:
    assert partition("a.parquet") == {}
    assert partition("year=2024/kind=a%2Fb%20c/x=/=y/plain/part-0.parquet") == {
        "year": "2024",
        "kind": "a/b c",
        "x": "",
    }
    assert partition("n=__HIVE_DEFAULT_PARTITION__/a") == {"n": None}


def test_partition_columns_are_numbers_if_all_values_are(tmp_path: Path) -> None:
    for path in ("n=1/t=x/o=007", "n=-20/t=2/o=8", "n=__HIVE_DEFAULT_PARTITION__/t=3/o=9"):
        write(tmp_path / "data" / path / "a.parquet", pa.table({"id": [1]}))
    rows = read_files(tmp_path / "data", tmp_path / "cache")
    assert [tuple(row.values()) for row in rows] == [
        (1, -20, "2", "8"),
        (1, 1, "x", "007"),
        (1, None, "3", "9"),
    ]
    rows = read_files(tmp_path / "data", tmp_path / "off", options={"partitions": False})
    assert rows == [{"id": 1}] * 3
    only = read_files(tmp_path / "data", tmp_path / "only", choose=["t"])
    assert [row["t"] for row in only] == ["2", "x", "3"]


def test_a_path_comes_before_a_column_of_its_name(tmp_path: Path) -> None:
    write(tmp_path / "data" / "id=7" / "a.parquet", pa.table({"id": [1, 2], "x": [3, 4]}))
    assert read_files(tmp_path / "data", tmp_path / "cache") == [
        {"x": 3, "id": 7},
        {"x": 4, "id": 7},
    ]


def test_paths_with_different_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a=1" / "a.parquet", number_table(0, 1))
    write(tmp_path / "data" / "b=1" / "a.parquet", number_table(0, 1))
    with pytest.raises(
        DataError, match=r"name different columns.*'partitions': False|\"partitions\": False"
    ):
        obtain(tmp_path / "data", tmp_path / "cache")


# --- Tables that say more ----------------------------------------------------------------------


def test_deleted_rows_are_left_out(tmp_path: Path) -> None:
    rows = number_table(0, 100).to_pylist()
    write(tmp_path / "a.parquet", number_table(0, 100), row_group_size=9)
    write(tmp_path / "b.parquet", number_table(0, 5))
    deleted = np.array([0, 8, 9, 50, *range(63, 100)])
    files = [
        entry(tmp_path, "a.parquet", deleted=deleted, rows=100),
        entry(tmp_path, "b.parquet", deleted=np.arange(5)),
    ]
    found = table_of(tmp_path, tmp_path / "cache", files, unit="row_group")
    assert found == [row for row in rows if row["id"] not in deleted]
    with pytest.raises(DataError, match=r"a\.parquet should have 99 rows, but has 100"):
        table_of(tmp_path, tmp_path / "cache", [entry(tmp_path, "a.parquet", rows=99)])


def test_a_schema_names_columns_as_files_call_them(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("col-1", pa.int32()), pa.field("col-2", pa.string())])
    physical = pa.table(
        {
            "col-a": pa.array([1, 2], pa.int32()),
            "col-b": pa.array([[{"col-1": 5, "col-2": "x"}], None], pa.list_(inner)),
        }
    )
    write(tmp_path / "a.parquet", physical)

    def field(name: str, kind: Any, called: str) -> Any:
        return pa.field(name, kind, metadata={b"streaming.physical_name": called.encode()})

    struct = pa.struct([field("y", pa.string(), "col-2"), field("x", pa.int64(), "col-1")])
    schema = pa.schema(
        [
            field("list", pa.list_(struct), "col-b"),
            field("id", pa.int64(), "col-a"),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("none", pa.string()),
        ]
    )
    constants = {"day": "2024-02-29", "at": "2024-01-01 10:00:00"}
    rows = table_of(
        tmp_path, tmp_path / "cache", [entry(tmp_path, "a.parquet", constants=constants)], schema
    )
    assert [row["list"] for row in rows] == [[{"y": "x", "x": 5}], None]
    assert [row["id"] for row in rows] == [1, 2]
    assert str(rows[0]["day"]) == "2024-02-29"
    assert rows[0]["at"].isoformat() == "2024-01-01T10:00:00+00:00"
    assert rows[0]["none"] is None
    assert list(rows[0]) == schema.names


def test_a_schema_may_find_columns_by_their_numbers(tmp_path: Path) -> None:
    written = pa.schema(
        [
            pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field("b", pa.int64(), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    write(tmp_path / "a.parquet", pa.table({"a": [1], "b": [2]}, schema=written))
    schema = pa.schema(
        [pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "2", "streaming.match": "id"})]
    )
    assert table_of(tmp_path, tmp_path / "cache", [entry(tmp_path, "a.parquet")], schema) == [
        {"a": 2}
    ]


def test_a_constant_or_column_that_does_not_fit_the_schema_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"id": ["x"]}))
    file = entry(tmp_path, "a.parquet", constants={"n": "one"})
    with pytest.raises(DataError, match="'one' can't be a value of type int64"):
        table_of(tmp_path, tmp_path / "cache", [file], pa.schema([("n", pa.int64())]))
    with pytest.raises(
        DataError, match=r"'id' of a\.parquet is string, which can't be widened to int64"
    ):
        table_of(tmp_path, tmp_path / "cache", [file], pa.schema([("id", pa.int64())]))


def test_the_index_says_no_more_than_plain_values(tmp_path: Path) -> None:
    write(tmp_path / "data" / "y=1" / "a.parquet", nested_table(0, 9))
    for info in obtain(tmp_path / "data", tmp_path / "cache").index:
        json.dumps(dict(info.extra))
