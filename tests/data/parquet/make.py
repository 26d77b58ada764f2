"""Writes the folders beside it with Spark: `python make.py` where pyspark and Java are."""

import datetime as dt
import shutil
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

ROWS = 20

__all__ = ["write"]


def _rows() -> list[tuple[Any, ...]]:
    return [
        (
            i,
            None if i % 3 == 0 else i / 4,
            Decimal(i) / 100,
            f"number {i}, é",
            bytes([i, 255]),
            i % 2 == 0,
            dt.date(2024, 1, 1 + i),
            dt.datetime(2024, 1, 1, i, 30, 0, 123456),
            None if i % 5 == 0 else [f"tag {j}" for j in range(i % 4)],
            (i, [(f"é {i}", None)] * (i % 3)),
            {"a": i, "b": None},
            2020 + i % 2,
            ["x y", "a/b", None][i % 3],
        )
        for i in range(ROWS)
    ]


SCHEMA = T.StructType(
    [
        T.StructField("id", T.IntegerType(), False),
        T.StructField("maybe", T.DoubleType()),
        T.StructField("price", T.DecimalType(12, 2)),
        T.StructField("text", T.StringType()),
        T.StructField("data", T.BinaryType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField(
            "deep",
            T.StructType(
                [
                    T.StructField("n", T.LongType()),
                    T.StructField(
                        "list",
                        T.ArrayType(
                            T.StructType(
                                [
                                    T.StructField("name", T.StringType()),
                                    T.StructField("x", T.ShortType()),
                                ]
                            )
                        ),
                    ),
                ]
            ),
        ),
        T.StructField("counts", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField("year", T.IntegerType()),
        T.StructField("kind", T.StringType()),
    ]
)


def write(folder: Path) -> None:
    """Write three tables: plain, as older versions wrote, and partitioned."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    frame = spark.createDataFrame(_rows(), SCHEMA)
    plain = frame.drop("year", "kind")
    for name, table, options, by in (
        ("plain", plain, {}, []),
        (
            "legacy",
            plain,
            {
                "spark.sql.parquet.writeLegacyFormat": "true",
                "spark.sql.parquet.outputTimestampType": "INT96",
            },
            [],
        ),
        ("partitioned", frame.select("id", "text", "year", "kind"), {}, ["year", "kind"]),
    ):
        for key, value in options.items():
            spark.conf.set(key, value)
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        table.coalesce(1).write.partitionBy(*by).parquet(str(target))
        for key in options:
            spark.conf.unset(key)
        for path in [*target.rglob(".*.crc"), *target.rglob("_SUCCESS")]:
            path.unlink()
        for path in target.rglob("*.parquet"):
            path.rename(path.with_name("part-0.snappy.parquet"))
    spark.stop()


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
