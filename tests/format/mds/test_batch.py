"""Writing by columns gives the bytes of writing row by row."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from streaming.errors import ColumnError, ConfigError, EncodeError, StreamingError
from streaming.format import Sample
from streaming.format.mds import MDSWriter
from tests.common.shards import listing

COLUMNS = {"f": "float32", "n": "int", "s": "str", "v": "ndarray:int16:3"}


def by_rows(
    out: Path, columns: dict[str, str], rows: list[Sample], **options: Any
) -> dict[str, bytes]:
    with MDSWriter(columns=columns, out=out, **options) as writer:
        for row in rows:
            writer.write(row)
    return listing(out)


def by_columns(
    out: Path, columns: dict[str, str], *batches: Any, **options: Any
) -> dict[str, bytes]:
    with MDSWriter(columns=columns, out=out, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return listing(out)


def table(count: int) -> dict[str, Any]:
    return {
        "n": np.arange(count) - 3,
        "s": ["é" * (i % 5) for i in range(count)],
        "f": np.arange(count, dtype=np.float64) / 3,
        "v": np.arange(3 * count, dtype=np.int16).reshape(count, 3),
        "not declared": [object()] * count,
    }


def rows_of(columns: dict[str, Any]) -> list[Sample]:
    lists = {
        name: column.tolist() if getattr(column, "ndim", 2) == 1 else list(column)
        for name, column in columns.items()
    }
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size_limit": 400},
        {"size_limit": 10},  # Each sample is larger.
        {"sample_limit": 7},
        {"compression": "zstd:3", "hashes": ["sha1"], "size_limit": 1000},
    ],
    ids=str,
)
def test_shards_are_cut_as_by_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    columns = table(100)
    first = {name: column[:30] for name, column in columns.items()}
    rest = {name: column[30:] for name, column in columns.items()}
    found = by_columns(tmp_path / "columns", COLUMNS, first, rest, **options)
    assert found == by_rows(tmp_path / "rows", COLUMNS, rows_of(columns), **options)


def test_rows_and_batches_may_be_mixed(tmp_path: Path) -> None:
    columns = table(20)
    rows = rows_of(columns)
    with MDSWriter(columns=COLUMNS, out=tmp_path / "mixed", size_limit=300) as writer:
        writer.write(rows[0])
        writer.write_batch({name: column[1:19] for name, column in columns.items()})
        writer.write(rows[19])
    assert listing(tmp_path / "mixed") == by_rows(tmp_path / "r", COLUMNS, rows, size_limit=300)


def test_blocks_of_a_long_table_follow_one_another(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"n": list(range(10_000)), "s": list(map(str, range(10_000)))}
    kinds = {"n": "int", "s": "str"}
    found = by_columns(tmp_path / "c", kinds, columns)
    assert found == by_rows(tmp_path / "r", kinds, rows_of(columns | {"n": np.arange(10_000)}))


NUMBERS = "bool int float int8 uint16 int64 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("kind", NUMBERS)
@settings(max_examples=20)
@given(
    array=st_numpy.arrays(
        st.sampled_from([np.bool_, np.int8, np.uint8, np.int64, np.uint64, np.float16, np.float64]),
        st.integers(1, 5),
    )
)
def test_numbers_of_any_type_are_those_of_rows_or_refused_like_them(
    kind: str, array: np.ndarray[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("numbers")

    def outcome(write: Any, *args: Any) -> Any:
        try:
            return write(root / write.__name__, {"x": kind}, *args, exist_ok=True)
        except StreamingError as error:
            return type(error)

    expected = outcome(by_rows, [{"x": value} for value in array.tolist()])
    assert outcome(by_columns, {"x": array}) == expected
    assert outcome(by_columns, {"x": array.tolist()}) == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("json", [{"a": 1}, None, [1.5]]),
        ("list[int]", [[1], [], [2, 3]]),
        ("bytes", [b"", b"a", b"bc"]),
        ("str", ["a", b"already encoded", ""]),
        ("str_int", [1, 2, 10**30]),
        ("datetime", [datetime(2020, 1, 2), datetime.min, datetime.max]),
        ("ndarray", [np.arange(2), np.ones((2, 2), np.float32)]),
    ],
)
def test_other_encodings_take_lists_of_their_values(
    kind: str, values: list[Any], tmp_path: Path
) -> None:
    found = by_columns(
        tmp_path / "c", {"x": kind, "y": "str"}, {"x": values, "y": ["z"] * len(values)}
    )
    rows = [{"x": value, "y": "z"} for value in values]
    assert found == by_rows(tmp_path / "r", {"x": kind, "y": "str"}, rows)


class TestArrow:
    """Arrow tables, record batches and arrays."""

    kinds = {  # noqa: RUF012
        "b": "bytes", "d": "str", "f": "float", "i": "uint8", "l": "list[int]",
        "n": "ndarray:int32", "s": "str", "t": "datetime", "v": "ndarray:float32:2",
    }  # fmt: skip

    def table(self) -> Any:
        arrow = pytest.importorskip("pyarrow")
        count = 50
        return arrow.table(
            {
                "b": arrow.array(
                    [bytes([i]) * (i % 4) for i in range(count)], arrow.large_binary()
                ),
                "d": arrow.array(["x", "y"] * (count // 2)).dictionary_encode(),
                "f": arrow.array([i / 7 for i in range(count)]),
                "i": arrow.array(range(count)),
                "l": arrow.array([[i] * (i % 3) for i in range(count)]),
                "n": arrow.array(
                    [[i] * (1 + i % 3) for i in range(count)], arrow.list_(arrow.int32())
                ),
                "s": arrow.array(["é" * (i % 3) for i in range(count)]),
                "t": arrow.array([datetime(2020, 1, 1 + i % 28) for i in range(count)]),
                "v": arrow.FixedSizeListArray.from_arrays(
                    arrow.array(np.arange(2 * count, dtype=np.float32)), 2
                ),
            }
        )

    def rows(self) -> list[Sample]:
        return [
            {
                **row,
                "n": np.array(row["n"], np.int32),
                "v": np.array(row["v"], np.float32),
            }
            for row in self.table().to_pylist()
        ]

    def test_a_table_gives_the_bytes_of_its_rows(self, tmp_path: Path) -> None:
        expected = by_rows(tmp_path / "r", self.kinds, self.rows())
        assert by_columns(tmp_path / "c", self.kinds, self.table()) == expected
        batches = self.table().to_batches(max_chunksize=9)
        assert by_columns(tmp_path / "b", self.kinds, *batches) == expected

    def test_slices_and_chunks_are_read_where_they_lie(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        chunks = arrow.concat_tables([self.table().slice(11, 9), self.table().slice(30)])
        rows = self.rows()
        found = by_columns(tmp_path / "c", self.kinds, chunks)
        assert found == by_rows(tmp_path / "r", self.kinds, rows[11:20] + rows[30:])

    def test_a_null_is_refused_with_its_row(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        for kind, values in (("int", [1, 2, None]), ("str", ["a", "b", None])):
            writer = MDSWriter(columns={"x": kind}, out=tmp_path / kind)
            with pytest.raises(EncodeError, match=r"Row 2 of the batch: Column 'x'"):
                writer.write_batch({"x": arrow.array(values)})
            assert len(writer.new_samples) == 2
            writer.finish()


def test_a_pandas_frame_gives_the_bytes_of_its_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = table(40)
    frame = pandas.DataFrame({name: list(columns[name]) for name in COLUMNS})
    frame = frame.set_index(np.arange(40)[::-1])  # Rows are told by place, not by label.
    found = by_columns(tmp_path / "c", COLUMNS, frame)
    assert found == by_rows(tmp_path / "r", COLUMNS, rows_of(columns))


def test_tensors_are_taken_row_by_row(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    columns = {"t": torch.arange(12, dtype=torch.int32).reshape(4, 3), "n": torch.arange(4)}
    kinds = {"t": "tensor:int32:3", "n": "int"}
    rows = [{"t": columns["t"][i], "n": i} for i in range(4)]
    assert by_columns(tmp_path / "c", kinds, columns) == by_rows(tmp_path / "r", kinds, rows)


@pytest.mark.parametrize("bad", [5000, 0, 4095, 4096])
def test_rows_before_a_bad_one_are_written(bad: int, tmp_path: Path) -> None:
    values: list[Any] = [str(i) for i in range(6000)]
    values[bad] = 1.5
    writer = MDSWriter(columns={"s": "str"}, out=tmp_path)
    with pytest.raises(EncodeError, match=rf"Row {bad} of the batch: Column 's'.*1\.5"):
        writer.write_batch({"s": values})
    writer.finish()
    with MDSWriter(columns={"s": "str"}, out=tmp_path / "rows") as rows:
        for value in values[:bad]:
            rows.write({"s": value})
    assert {x: y for x, y in listing(tmp_path).items() if "rows" not in x} == listing(
        tmp_path / "rows"
    )


def test_a_subclass_sees_each_row(tmp_path: Path) -> None:
    class Upper(MDSWriter):
        def encode_sample(self, sample: Sample) -> bytes:
            return super().encode_sample({"s": sample["s"].upper()})

    with Upper(columns={"s": "str"}, out=tmp_path / "c") as writer:
        writer.write_batch({"s": ["a", "b"]})
    assert listing(tmp_path / "c") == by_rows(
        tmp_path / "r", {"s": "str"}, [{"s": "A"}, {"s": "B"}]
    )


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with MDSWriter(columns={"s": "str", "n": "int"}, out=tmp_path) as writer:
        with pytest.raises(ConfigError, match="not list"):
            writer.write_batch([{"s": "a", "n": 1}])
        with pytest.raises(ColumnError, match=r"\['n'\] are missing"):
            writer.write_batch({"s": ["a"]})
        with pytest.raises(ConfigError, match="differ in length"):
            writer.write_batch({"s": ["a"], "n": [1, 2]})
        writer.write_batch({"s": [], "n": []})
        assert writer.new_samples == []


def test_a_finished_writer_takes_no_batch(tmp_path: Path) -> None:
    with MDSWriter(columns={"s": "str"}, out=tmp_path) as writer:
        pass
    with pytest.raises(ConfigError, match="finished"):
        writer.write_batch({"s": ["a"]})
