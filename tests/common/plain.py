"""Files of data as others leave them, without an index."""

import json
from pathlib import Path

import pytest

__all__ = ["PLAIN_KINDS", "write_plain_files"]

PLAIN_KINDS = ("jsonl", "csv", "parquet")


def write_plain_files(kind: str, path: Path) -> Path:
    """Write three files of ten rows each: `number`, and `text`, which is "row" and the number."""
    path.mkdir(parents=True)
    for start in range(0, 30, 10):
        numbers = range(start, start + 10)
        file = path / f"{start // 10}.{kind}"
        if kind == "parquet":
            arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            texts = [f"row {number}" for number in numbers]
            parquet.write_table(arrow.table({"number": list(numbers), "text": texts}), file)
        elif kind == "jsonl":
            rows = ({"number": number, "text": f"row {number}"} for number in numbers)
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            rows_of_text = (f"{number},row {number}\n" for number in numbers)
            file.write_text("number,text\n" + "".join(rows_of_text))
    return path
