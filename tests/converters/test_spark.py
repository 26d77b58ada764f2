"""Spark DataFrames to datasets, by a real Spark on this machine."""

import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import StreamingDataset
from streaming.errors import ConfigError, OutputExistsError

pytest.importorskip("pyspark", reason='needs pyspark and Java: pip install "goldenspike[spark]"')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    }.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # Java is missing, too old or too new.  # noqa: BLE001
        pytest.skip(f"Spark does not start, it needs Java 17 or newer: {error}")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Spark keeps the processes of its tasks from one test to the next."""


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    """20 rows in 3 partitions."""
    return spark.range(0, 20, 1, 3).selectExpr("id", "concat('text ', id) AS text")


def read(directory: str) -> StreamingDataset:
    return StreamingDataset(local=directory, batch_size=1)


def convert(dataframe: Any, **arguments: Any) -> Any:
    from streaming.converters import dataframe_to_mds

    return dataframe_to_mds(dataframe, **arguments)


def infer(dataframe: Any, columns: dict[str, str] | None = None) -> Any:
    from streaming.converters import infer_dataframe_schema

    return infer_dataframe_schema(dataframe, columns)


def test_each_partition_becomes_a_part_and_all_one_dataset(numbers: Any, tmp_path: Path) -> None:
    given = {"out": str(tmp_path / "out"), "hashes": ["xxh64"]}
    local, remote = convert(numbers, mds_kwargs=given)
    assert (local, remote) == (str(tmp_path / "out"), "")
    assert given == {"out": str(tmp_path / "out"), "hashes": ["xxh64"]}
    folders = [path for path in (tmp_path / "out").iterdir() if path.name.isdigit()]
    assert len(folders) == 3
    assert {path.name for path in folders[0].iterdir()} == {"index.json", "shard.00000.mds.zstd"}
    dataset = read(local)
    assert [sample["id"] for sample in dataset] == list(range(20))
    assert dataset[7] == {"id": 7, "text": "text 7"}


def test_every_type_of_the_table_comes_back(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import Row
    from pyspark.sql import types as t

    schema = t.StructType(
        [
            t.StructField("byte", t.ByteType()),
            t.StructField("short", t.ShortType()),
            t.StructField("integer", t.IntegerType()),
            t.StructField("long", t.LongType()),
            t.StructField("float", t.FloatType()),
            t.StructField("double", t.DoubleType()),
            t.StructField("decimal", t.DecimalType(12, 3)),
            t.StructField("string", t.StringType()),
            t.StructField("binary", t.BinaryType()),
            t.StructField("longs", t.ArrayType(t.LongType(), containsNull=False)),
            t.StructField("shorts", t.ArrayType(t.ShortType())),
            t.StructField("doubles", t.ArrayType(t.DoubleType())),
            t.StructField(
                "a.struct", t.StructType([t.StructField("x", t.ArrayType(t.StringType()))])
            ),
            t.StructField("map", t.MapType(t.StringType(), t.IntegerType())),
        ]
    )
    row = [-1, -300, 1 << 20, 1 << 40, 0.5, 0.25, Decimal("12.345"), "ä", b"\0\1"]
    row += [[1, 2], [-3], [0.5], Row(x=["y", "z"]), {"k": 1}]
    frame = spark.createDataFrame([row], schema=schema)
    usual = infer(frame.drop("`a.struct`", "map").select([f"`{n}`" for n in frame.columns[:12]]))
    assert (usual["byte"], usual["short"], usual["longs"]) == ("int8", "int16", "ndarray:int64")
    columns = {**usual, "a.struct": "json", "map": "json"}
    convert(frame, mds_kwargs={"out": str(tmp_path / "out"), "columns": columns})
    found = read(str(tmp_path / "out"))[0]
    assert [found[name] for name in frame.columns[:9]] == row[:9]
    assert found["longs"].dtype == np.int64 and found["longs"].tolist() == [1, 2]
    assert found["shorts"].dtype == np.int16 and found["shorts"].tolist() == [-3]
    assert (found["a.struct"], found["map"]) == ({"x": ["y", "z"]}, {"k": 1})


def test_a_function_makes_samples_of_the_rows(numbers: Any, tmp_path: Path) -> None:
    def tokens(rows: Any, factor: int) -> Iterator[dict[str, Any]]:
        for number in rows["id"]:
            yield {"tokens": np.arange(factor * (number % 3 + 1), dtype=np.int32)}

    columns = {"tokens": "ndarray:int32"}
    convert(
        numbers,
        mds_kwargs={"out": str(tmp_path / "out"), "columns": columns},
        udf_iterable=tokens,
        udf_kwargs={"factor": 2},
    )
    dataset = read(str(tmp_path / "out"))
    assert [len(sample["tokens"]) for sample in dataset][:4] == [2, 4, 6, 2]


def test_only_the_columns_asked_for_are_written(numbers: Any, tmp_path: Path) -> None:
    convert(numbers, mds_kwargs={"out": str(tmp_path / "out"), "columns": {"text": "str"}})
    assert read(str(tmp_path / "out"))[3] == {"text": "text 3"}


@pytest.mark.parametrize("keep_local", [None, False])
def test_parts_go_to_the_remote(numbers: Any, tmp_path: Path, keep_local: bool | None) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    given = {"out": (here, there)} | ({} if keep_local is None else {"keep_local": keep_local})
    assert convert(numbers, mds_kwargs=given) == (here, there)
    assert len(read(there)) == 20
    assert os.path.exists(here) is (keep_local is None)


def test_parts_may_stay_parts(numbers: Any, tmp_path: Path) -> None:
    local, _ = convert(numbers, merge_index=False, mds_kwargs={"out": str(tmp_path / "out")})
    assert not (tmp_path / "out" / "index.json").exists()
    assert len(list(Path(local).glob("*/index.json"))) == 3


def test_empty_partitions_are_left_out(numbers: Any, tmp_path: Path) -> None:
    convert(numbers.where("id = 13"), mds_kwargs={"out": str(tmp_path / "out")})
    assert [s["id"] for s in read(str(tmp_path / "out"))] == [13]


def test_wrong_arguments_are_told_before_anything_is_written(numbers: Any, tmp_path: Path) -> None:
    out = {"out": str(tmp_path / "out")}
    for frame in (None, numbers.where("id < 0")):
        with pytest.raises(ConfigError, match="is empty"):
            convert(frame, mds_kwargs=out)
    with pytest.raises(ConfigError, match="must have `out`"):
        convert(numbers)
    with pytest.raises(ConfigError, match="must have `columns`"):
        convert(numbers, mds_kwargs=out, udf_iterable=lambda rows: [])
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    with pytest.raises(OutputExistsError):
        convert(numbers, mds_kwargs=out)


def test_columns_are_checked_against_the_types_of_the_frame(spark: Any, numbers: Any) -> None:
    frame = numbers.selectExpr("id", "text", "array(1, 2) AS list", "id > 3 AS flag", "now() AS t")
    assert infer(numbers) == {"id": "int64", "text": "str"}
    assert infer(frame, {"id": "int64", "list": "ndarray:int32:2", "flag": "json"}) is None
    assert infer(frame, {"list": "json", "flag": "bool"}) is None
    for columns, text in (
        ({"no": "int64"}, "no column 'no'"),
        ({"id": "what"}, "no encoding 'what'"),
        ({"id": "int32"}, "bigint, which can be written as 'int64', but not as 'int32'"),
        ({"id": "json"}, "but not as 'json'"),
        ({"text": "jpeg"}, "but not as 'jpeg'"),
        ({"list": "ndarray:int64:2"}, "but not as 'ndarray:int64:2'"),
        ({"t": "str"}, "can be written as nothing"),
    ):
        with pytest.raises(ConfigError, match=text):
            infer(frame, columns)
    with pytest.raises(ConfigError, match="'flag' is boolean.*Declare it as 'json'"):
        infer(frame.select("flag"))
    with pytest.raises(ConfigError, match="'t' is timestamp.*Cast it"):
        infer(frame.select("t"))


def test_json_holds_what_is_made_of_texts_numbers_and_flags() -> None:
    from pyspark.sql import types as t

    from streaming.converters import is_json_compatible

    struct = t.StructType([t.StructField("a", t.ArrayType(t.StringType()))])
    assert is_json_compatible(t.MapType(t.StringType(), struct))
    assert not is_json_compatible(t.ArrayType(t.LongType()))
    assert not is_json_compatible(t.TimestampType())


def test_the_function_keeps_its_name_beside_the_old_module_of_that_name() -> None:
    with pytest.warns(DeprecationWarning):
        module = import_module("streaming.base.converters.dataframe_to_mds")
        from streaming.base.converters import SPARK_TO_MDS, dataframe_to_mds
        from streaming.base.converters.dataframe_to_mds import dataframe_to_mds as the_same

    from streaming.converters import dataframe_to_mds as ours

    assert dataframe_to_mds is the_same is ours
    assert module.SPARK_TO_MDS is SPARK_TO_MDS
