"""Parquet files, readers of them, and what pyarrow itself reads."""

import decimal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.format import Column, Sample, ShardInfo, ShardReader, open_reader, read_once
from streaming.format.listing import Place
from streaming.format.parquet.decode import decode
from streaming.shared.plain import PlainData, PlainIndex, obtain_plain_index

__all__ = [
    "expected_rows",
    "nested_table",
    "number_table",
    "obtain",
    "open_files",
    "open_reader_of",
    "read_files",
    "read_passing",
    "rows_of",
    "same_values",
]


def obtain(place: Any, cache: Path, **said: Any) -> PlainIndex:
    """The index of files that are read where they are."""
    found = obtain_plain_index(PlainData(place=Place.parse(place), local=cache, **said))
    assert found is not None
    return found


def open_files(
    place: Any,
    cache: Path,
    *,
    choose: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    **said: Any,
) -> list[ShardReader]:
    """Readers of local files, decoded into a cache.

    Args:
        place: As a stream takes it.
        cache: The directory of the cache.
        choose: Columns that samples shall have.
        options: Of the format.
        said: More of `PlainData`.
    """
    names = None if choose is None else tuple(choose)
    found = obtain(place, cache, names=names, options=options or {}, **said)
    return [open_reader_of(info, found.directory.path, choose) for info in found.index]


def open_reader_of(
    info: ShardInfo, directory: Path, choose: Sequence[str] | None = None
) -> ShardReader:
    """A reader of a shard, decoded into a directory."""
    ((raw, zip),) = info.files
    assert zip is not None
    path = directory / raw.basename
    path.parent.mkdir(parents=True, exist_ok=True)
    decode(info, directory / zip.basename, path)
    return open_reader(info, [path], choose)


def read_files(place: Any, cache: Path, **said: Any) -> list[Sample]:
    """All samples, and a check that every way to read them gives the same."""
    samples: list[Sample] = []
    for reader in open_files(place, cache, **said):
        places = np.arange(len(reader))
        mine = reader.take(places)
        assert same_values([reader.get_item(i) for i in range(len(reader))], mine)
        assert same_values(reader.take(places[::-1]), mine[::-1])
        doubled = reader.take(np.concatenate([places, places]))
        assert same_values(doubled, mine + mine)
        for some, rows in ((places, mine), (places[::-1], mine[::-1]), (places[1:2], mine[1:2])):
            assert same_values(rows_of(reader.take_columns(some)), rows)
        assert same_values(read_passing(reader, Path(cache), "take"), mine)
        assert same_values(read_passing(reader, Path(cache), "take_columns"), mine)
        samples += mine
    return samples


def read_passing(
    reader: ShardReader, directory: Path, method: Literal["take", "take_columns"], step: int = 7
) -> list[Sample]:
    """The samples of a reader's shard, a few at a time, as they are decoded."""
    zip = reader.info.files[0][1]
    assert zip is not None
    passing = read_once(reader.info, directory / zip.basename, getattr(reader, "_names", None))
    samples: list[Sample] = []
    for start in range(0, len(reader), step):
        found = getattr(passing, method)(np.arange(start, min(start + step, len(reader))))
        samples += found if method == "take" else rows_of(found)
    return samples


def rows_of(columns: Mapping[str, Column]) -> list[Sample]:
    """Columns as samples."""
    values = {name: list(column) for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def expected_rows(path: Path | str, columns: Sequence[str] | None = None) -> list[Sample]:
    """What pyarrow reads."""
    table = pq.read_table(
        path, columns=columns, coerce_int96_timestamp_unit="us", use_threads=False
    )
    rows: list[Sample] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def same_values(one: Any, other: Any) -> bool:
    """Whether two values are equal, also if they are or hold arrays, NaN, or are numpy's own."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    if one is None or other is None:
        return one is other
    return bool(one == other) or (one != one and other != other)


def number_table(start: int, stop: int) -> pa.Table:
    """Numbers and texts about them."""
    numbers = list(range(start, stop))
    return pa.table({"id": numbers, "text": [f"number {i}, é" * (i % 4) for i in numbers]})


def nested_table(start: int, stop: int) -> pa.Table:
    """Rows in which everything is somewhere."""
    rows = [
        {
            "id": i,
            "maybe": None if i % 3 == 0 else i / 4,
            "price": decimal.Decimal(i) / 100,
            "tags": None if i % 7 == 0 else [f"tag {j}" for j in range(i % 4)],
            "who": {"name": f"é {i}", "at": [{"x": i, "y": None}] * (i % 3)},
            "counts": [("a", i), ("b", None)][: i % 3],
            "vector": [float(i), 0.5],
        }
        for i in range(start, stop)
    ]
    return pa.Table.from_pylist(
        rows,
        pa.schema(
            [
                ("id", pa.int64()),
                ("maybe", pa.float64()),
                ("price", pa.decimal128(12, 2)),
                ("tags", pa.list_(pa.string())),
                (
                    "who",
                    pa.struct(
                        [
                            ("name", pa.string()),
                            ("at", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.float32())]))),
                        ]
                    ),
                ),
                ("counts", pa.map_(pa.string(), pa.int64())),
                ("vector", pa.list_(pa.float32(), 2)),
            ]
        ),
    )
