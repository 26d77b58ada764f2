"""Lance datasets and Delta tables, as their own libraries write and read them."""

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.format.reader import Sample

__all__ = [
    "add_entry",
    "added",
    "as_set",
    "delete_rows",
    "deltalake",
    "edit_log",
    "lance",
    "make_delta",
    "make_lance",
    "plain",
    "read_delta",
    "read_lance",
    "rows_of",
    "table_of",
    "write_delta",
]


def lance() -> Any:
    """The library; skips the test where it is not installed."""
    return pytest.importorskip("lance", reason='needs pylance: pip install "goldenspike[lance]"')


def table_of(start: int, stop: int) -> Any:
    """Rows of numbers, texts, vectors, lists and missing values."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    numbers = list(range(start, stop))
    vectors = np.arange(start * 3, stop * 3, dtype=np.float32)
    return arrow.table(
        {
            "id": arrow.array(numbers, arrow.int64()),
            "text": [f"row {i} é" * (i % 4) for i in numbers],
            "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(vectors), 3),
            "tags": arrow.array(
                [[i, i + 1] if i % 5 else None for i in numbers], arrow.list_(arrow.int64())
            ),
            "share": arrow.array([i / 3 if i % 7 else None for i in numbers], arrow.float64()),
        }
    )


def rows_of(table: Any) -> list[Sample]:
    """The rows of an Arrow table, as Arrow makes them."""
    rows: list[Sample] = table.to_pylist()
    return rows


def plain(rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """Samples with lists in place of arrays, so that they compare."""
    return [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def make_lance(path: Path) -> Path:
    """A dataset with a past: appends, deletes, an update, a new column, and a compaction of some.

    Its versions: 1 has rows 0 to 119; 2 has 20 more; 3 lacks multiples of 7; in 4 some texts are
    "new"; in 5 there is `twice`; in 7 small fragments are one, and that version is tagged "good"; 8
    lacks a whole fragment.
    """
    library = lance()
    library.write_dataset(table_of(0, 120), str(path), max_rows_per_file=30)
    dataset = library.write_dataset(table_of(120, 140), str(path), mode="append")
    dataset.delete("id % 7 = 0")
    dataset.update({"text": "'new'"}, where="id < 10")
    dataset.add_columns({"twice": "id * 2"})
    dataset.optimize.compact_files(target_rows_per_fragment=40)
    dataset.tags.create("good", dataset.version)
    dataset.delete("id >= 30 and id < 60")
    return path


def read_lance(path: Path, version: int | str | None = None, **arguments: Any) -> list[Sample]:
    """What pylance itself reads, in its order."""
    return rows_of(lance().dataset(str(path), version=version).to_table(**arguments))


# --- Delta ----------------------------------------------------------------------------------------


def deltalake() -> Any:
    """The library; skips the test where it is not installed."""
    reason = 'needs deltalake: pip install "goldenspike[delta]"'
    return pytest.importorskip("deltalake", reason=reason)


def write_delta(path: Path, table: Any, **arguments: Any) -> None:
    """Make a table, or add a version to one."""
    deltalake().write_deltalake(str(path), table, **arguments)


def make_delta(path: Path) -> Path:
    """A table with a past.

    Its versions: 0 to 2 have 40 rows more each, 3 has 20 more, in 4 these files are one, 5
    lacks multiples of 7, in 6 some texts are "new", 7 has ten rows more, which alone have `twice`.
    """
    arrow = pytest.importorskip("pyarrow")
    names = ["id", "text", "tags", "share"]
    for start in range(0, 120, 40):
        rows = table_of(start, start + 40).select(names)
        write_delta(path, rows, mode="append" if start else "error")
    write_delta(path, table_of(120, 140).select(names), mode="append")
    table = deltalake().DeltaTable(str(path))
    table.optimize.compact()
    table.delete("id % 7 = 0")
    table.update(updates={"text": "'new'"}, predicate="id < 10")
    more = table_of(140, 150).select(names)
    more = more.append_column("twice", arrow.array([2 * i for i in range(140, 150)]))
    write_delta(path, more, mode="append", schema_mode="merge")
    return path


def read_delta(path: Path, version: int | None = None) -> list[Sample]:
    """What deltalake itself reads: by a query, which knows deletions and mapped columns."""
    arrow = pytest.importorskip("pyarrow")
    library = deltalake()
    table = library.DeltaTable(str(path), version=version)
    query = library.QueryBuilder().register("t", table).execute("select * from t")
    return rows_of(arrow.table(query.read_all()))


def as_set(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Samples whose order does not matter, to compare: times as numpy's and Python's are one."""

    def text(value: Any) -> str:
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, np.datetime64):
            value = value.astype("M8[us]").item()
        return repr(dict(value) if isinstance(value, list) and _is_map(value) else value)

    return sorted(repr(sorted((name, text(value)) for name, value in row.items())) for row in rows)


def _is_map(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, tuple) and len(item) == 2 for item in value)


def edit_log(path: Path, version: int, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the actions of an entry of the log: `edit` gives each anew."""
    entry = path / "_delta_log" / f"{version:020d}.json"
    actions = [edit(json.loads(line)) for line in entry.read_text().splitlines()]
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def add_entry(path: Path, actions: Sequence[Mapping[str, Any]]) -> None:
    """Add an entry to a log."""
    log = path / "_delta_log"
    version = sum(1 for _ in log.glob("*.json"))
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020d}.json").write_text(text)


def added(path: Path, version: int) -> list[dict[str, Any]]:
    """The files that an entry of the log adds."""
    lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [action["add"] for line in lines if "add" in (action := json.loads(line))]


def delete_rows(path: Path, places: Sequence[int], kind: str) -> None:
    """Add a version in which rows of the first file are deleted, as the protocol describes it.

    Args:
        path: The table.
        places: Of the rows in the file.
        kind: Where the deletion vector is: "inline" or "file".
    """
    about = added(path, 0)[0]
    vector = _deletion_vector(places)
    told: dict[str, Any] = {"sizeInBytes": len(vector), "cardinality": len(places)}
    if kind == "inline":
        told |= {"storageType": "i", "pathOrInlineDv": _z85(vector)}
    else:
        number = uuid.UUID(int=7)
        data = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
        (path / f"deletion_vector_{number}.bin").write_bytes(b"\x01" + data)
        told |= {"storageType": "u", "pathOrInlineDv": _z85(number.bytes), "offset": 1}
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    gone = {"path": about["path"], "deletionTimestamp": 1_700_000_000_000, "dataChange": True}
    add_entry(
        path,
        [{"protocol": protocol}, {"remove": gone}, {"add": {**about, "deletionVector": told}}],
    )


def _deletion_vector(places: Sequence[int]) -> bytes:
    """Places below 65,536 as the 64-bit roaring bitmap of the protocol, which has one container."""
    values = np.array(sorted(places), "<u2")
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16) + values.tobytes()
    return struct.pack("<iqi", 1681511377, 1, 0) + bitmap


def _z85(data: bytes) -> str:
    """ZeroMQ's base 85."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    data += bytes(-len(data) % 4)
    words = (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
    return "".join(digits[word // 85**power % 85] for word in words for power in range(4, -1, -1))
