"""Indexing JSONL files that have no index."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError, DataError, SampleError
from streaming.format.index import Index, ShardInfo
from streaming.format.indexing import Export, IndexRequest
from streaming.format.json.encodings import get_json_encoding
from streaming.format.json.reader import parse_object
from streaming.format.text.columns import encoding_of, join_kinds, kind_of
from streaming.format.text.indexing import export_table, index_text, read_records
from streaming.format.text.scan import File, line_starts
from streaming.storage import Store

__all__ = ["export_shard", "index_dataset", "infer_kinds"]


def index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    """Make an index of JSONL files.

    The columns are those declared, or inferred from the first lines of every file: a key whose
    values are all texts is "str"; all whole numbers, "int"; all numbers, "float"; all true or
    false, "bool"; anything else "json", also a key that some of these lines lack.

    Args:
        store: Where they are.
        prefix: Key of their root.
        request: What is asked for.

    Raises:
        ConfigError: There are options, or a column is declared with an encoding that there is not.
        DataError: A file is not what it should be.
        StoreError: A file can't be had.
    """
    if request.options:
        raise ConfigError(f"Lines of JSON have no options, but got {dict(request.options)}.")
    declared = request.columns
    for kind in (declared or {}).values():
        get_json_encoding(kind)

    def combine(files: Mapping[str, Any]) -> Mapping[str, Any]:
        if declared is not None:
            return {"columns": dict(declared), "newline": "\n", "declared": True}
        kinds = _unite(list(files.values()))
        columns = {name: encoding_of(kind) for name, kind in kinds.items()}
        return {"columns": columns, "newline": "\n"}

    return index_text(store, prefix, request, lambda: _Lines(declared is None), combine)


def export_shard(info: ShardInfo, config: Mapping[str, Any]) -> Export:
    """A shard as an index beside the data has it."""
    settings = {key: value for key, value in info.extra.items() if key != "table"}
    return export_table(info, settings, config)


class _Lines:
    """Looks through a file for lines; see `Look`."""

    def __init__(self, infers: bool) -> None:
        self._infers = infers

    def starts(self, file: File, threads: int) -> Iterator[NDArray[np.int64]]:
        return line_starts(file, threads=threads)

    def describe(self, file: File, head: NDArray[np.int64]) -> dict[str, str] | None:
        if not self._infers:
            return None
        rows = []
        for line, start in zip(read_records(file, head), head.tolist(), strict=False):
            try:
                rows.append(parse_object(line))
            except SampleError as error:
                raise DataError(
                    f"In {file.name}, line {file.line_of(start)} (byte {start}) {error}"
                ) from None
        return infer_kinds(rows)


def infer_kinds(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The kind of each key, in the order in which they come."""
    kinds: dict[str, str] = {}
    counts: dict[str, int] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = join_kinds(kinds.get(name), kind_of(value), "json")
            counts[name] = counts.get(name, 0) + 1
    return {name: kind if counts[name] == len(rows) else "json" for name, kind in kinds.items()}


def _unite(files: list[dict[str, str]]) -> dict[str, str]:
    """The kinds of columns of several files."""
    united: dict[str, str] = {}
    for kinds in files:
        for name, kind in kinds.items():
            united[name] = join_kinds(united.get(name), kind, "json")
    return {
        name: kind if all(name in kinds for kinds in files) else "json"
        for name, kind in united.items()
    }
