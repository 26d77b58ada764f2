"""What a version of a Delta table is, as plain data: its files, what is deleted, its columns.

The log is read by `deltalake`, in a process that may use it. What it says is kept as an Arrow file,
so that a version is taken apart once a node.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    ConfigError,
    DataError,
    ObjectNotFoundError,
    StreamingError,
)
from streaming.format.index import has_bad_name
from streaming.format.tables import (
    ForkedError,
    TablePlace,
    TableVersion,
    VersionLike,
    call_safely,
    kind_of_failure,
)
from streaming.storage.store import part_path, translated
from streaming.util.importing import lazy

__all__ = ["DeltaFile", "DeltaState", "history", "resolve", "take_state"]

# What a table may ask of those who read it, and is done here. Anything else is refused by name.
# Writers ask for variants although no column is one; a column that is will be refused by its type.
FEATURES = frozenset(
    (
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    )
)
# Of the names of what is kept, and how many there may be of one table.
_ENDING = ".delta.arrow"
_MOST_KEPT = 16
# A message of the library goes on with where in its own source it was raised.
_BACKTRACE = re.compile(r"\s+0: .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of a version.

    Attributes:
        key: Where it is below the table.
        size: Bytes.
        rows: Rows in it, also those deleted; None if the log does not say.
        partition: Values of the partition columns, as texts; None for null.
        deleted: Places of the rows that are deleted, ascending; None for none.
    """

    key: str
    size: int
    rows: int | None
    partition: Mapping[str, str | None]
    deleted: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class DeltaState:
    """A version of a table.

    Attributes:
        version: Its number.
        schema: Its columns, as the log has them: the JSON of a struct, parsed.
        mapping: How columns are found in files: "none", "name" or "id".
        table: A row a file, as `take_state` keeps it; with `null_count`, `min` and `max` of the
            columns that the log has statistics of.
    """

    version: int
    schema: Mapping[str, Any]
    mapping: str
    table: Any

    @classmethod
    def load(cls, path: Path) -> "DeltaState | None":
        """The state that was kept at a path; None if there is none, or no good one."""
        arrow = lazy("pyarrow", "delta")
        try:
            with arrow.memory_map(str(path)) as source, arrow.ipc.open_file(source) as file:
                table = file.read_all()
            about = msgspec.json.decode(table.schema.metadata[b"delta"], type=_About)
        except (OSError, arrow.ArrowInvalid, msgspec.MsgspecError, KeyError, TypeError):
            return None
        return cls(about.version, about.schema, about.mapping, table)

    def files(self) -> Iterator[DeltaFile]:
        """The files, the oldest first, and those of one time in the order of their names."""
        table = self.table
        partitions = table["partition"].to_pylist() if "partition" in table.schema.names else None
        deleted = table["deleted"].combine_chunks()
        for number, (key, size, rows) in enumerate(
            zip(*(table[name].to_pylist() for name in ("path", "size", "rows")), strict=True)
        ):
            gone = deleted[number]
            yield DeltaFile(
                key,
                size,
                rows,
                {} if partitions is None else partitions[number],
                gone.values.to_numpy(zero_copy_only=False) if gone.is_valid else None,
            )


class _About(msgspec.Struct):
    """What is kept of a version beside its files."""

    version: int
    schema: dict[str, Any]
    mapping: str


def resolve(place: TablePlace, version: VersionLike | None) -> int:
    """The number of a version; see `TableFormat`."""
    if isinstance(version, str):
        raise ConfigError(
            f"`version` is {version!r}, but the versions of a Delta table have no names: give a "
            "number, or a time such as 2026-01-31T12:00."
        )
    return call_safely(_resolve, place, version)


def history(place: TablePlace, limit: int) -> list[TableVersion]:
    """The versions of a table, newest first; see `TableFormat`."""
    return call_safely(_history, place, limit)


def take_state(place: TablePlace, version: int, path: Path) -> DeltaState:
    """Take apart a version of a table, unless that was done before.

    Args:
        place: The table.
        version: Of it.
        path: Where it is kept.

    Raises:
        ConfigError: There is no such version.
        DataError: The log is broken, or the table asks for something that is not done here.
        ObjectNotFoundError, StoreError: The log, or a deletion vector, can't be had.
    """
    state = DeltaState.load(path)
    if state is None or state.version != version:
        call_safely(_keep_state, place, version, path)
        state = DeltaState.load(path)
        _drop_old(path)
    if state is None:
        raise DataError(f"What was kept of version {version} of {place.where} is gone from {path}.")
    return state


def _drop_old(path: Path) -> None:
    """Remove what was kept of versions that nobody has opened for long; it can be had again."""
    with suppress(FileNotFoundError):  # Another process does the same.
        others = [(other.stat().st_mtime, other) for other in path.parent.glob(f"*{_ENDING}")]
        for _, old in sorted(others)[:-_MOST_KEPT]:
            old.unlink()


def _open(place: TablePlace, version: int | None) -> Any:
    library = lazy("deltalake", "delta")
    with _reading(place, version):
        table = library.DeltaTable(
            place.uri, version=version, storage_options=dict(place.options) or None
        )
        _check_features(place, table.protocol())
        return table


def _resolve(place: TablePlace, version: int | datetime | None) -> int:
    table = _open(place, version if isinstance(version, int) else None)
    if not isinstance(version, datetime):
        return int(table.version())
    # Not the library's own way, which goes by when files were written: copies are younger.
    with _reading(place, None):
        times = {int(item["version"]): _time(item) for item in table.history()}
    known = {number: time for number, time in times.items() if time is not None}
    found = [number for number, time in known.items() if time <= version]
    if not found:
        first = f"the first is of {min(known.values())}" if known else "it says of none"
        raise ConfigError(
            f"The Delta table at {place.where} has no version of {version} or before: {first}."
        )
    return max(found)


def _history(place: TablePlace, limit: int) -> list[TableVersion]:
    table = _open(place, None)
    with _reading(place, None):
        found = table.history(limit)
    return [
        TableVersion(int(item["version"]), _time(item), _describe(item))
        for item in found
        if "version" in item
    ]


def _time(item: Mapping[str, Any]) -> datetime | None:
    stamp = item.get("timestamp")
    return None if stamp is None else datetime.fromtimestamp(int(stamp) / 1000, UTC)


def _describe(item: Mapping[str, Any]) -> str:
    """What was done, and to how much, as far as the log says."""
    metrics = item.get("operationMetrics") or {}
    told = {
        "rows": ("num_added_rows", "numOutputRows", "num_output_rows"),
        "files": ("num_added_files", "numAddedFiles", "numFiles"),
        "deleted rows": ("num_deleted_rows", "numDeletedRows"),
        "removed files": ("num_removed_files", "numRemovedFiles"),
    }
    counts = {
        what: next((metrics[name] for name in names if metrics.get(name)), None)
        for what, names in told.items()
    }
    text = ", ".join(
        f"{count} {what}" for what, count in counts.items() if count not in (None, 0, "0")
    )
    return f"{item.get('operation', '')}{f' ({text})' if text else ''}"


def _keep_state(place: TablePlace, version: int, path: Path) -> None:
    arrow = lazy("pyarrow", "delta")
    table = _open(place, version)
    with _reading(place, version):
        actions = arrow.table(table.get_add_actions())
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        vectors = arrow.table(table.deletion_vectors()) if has_vectors else None
        schema = msgspec.json.decode(table.schema().to_json())
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    keys = [_key(place, path) for path in actions["path"].to_pylist()]
    columns = {
        "path": arrow.array(keys, arrow.string()),
        "size": actions["size_bytes"],
        "rows": actions["num_records"],
        "deleted": _deleted(actions["path"].to_pylist(), vectors),
    }
    if "partition" in actions.schema.names:
        columns["partition"] = _as_texts(actions["partition"].combine_chunks())
    for name in ("null_count", "min", "max"):
        if name in actions.schema.names:
            columns[name] = actions[name]
    # The library gives them in any order, and samples must have the same one everywhere.
    order = [("time", "ascending"), ("path", "ascending")]
    kept = arrow.table({**columns, "time": actions["modification_time"]}).sort_by(order)
    about = msgspec.json.encode(_About(version, schema, mapping))
    kept = kept.replace_schema_metadata({b"delta": about})
    part = part_path(path)
    with translated(f"Can't write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with arrow.OSFile(str(part), "wb") as sink, arrow.ipc.new_file(sink, kept.schema) as file:
            file.write_table(kept)
        part.replace(path)


def _key(place: TablePlace, path: str) -> str:
    """Where a file is, of what the log says: percent-encoded, below the table or anywhere."""
    key = unquote(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", path):
        raise DataError(
            f"{place.where} is a clone: its file {key} lies outside of it, which can't be read. "
            "Make it a table of its own (a deep clone)."
        )
    if has_bad_name([key]):
        raise DataError(f"The log of {place.where} names a file {key!r}, which none can have.")
    return key


def _as_texts(values: Any) -> Any:
    """A struct of partition values, as texts that can be read back."""
    arrow = lazy("pyarrow", "delta")
    fields = []
    for i, field in enumerate(values.type):
        column = values.field(i)
        if arrow.types.is_timestamp(field.type):  # In UTC, without saying so.
            column = column.cast(arrow.timestamp(field.type.unit))
        fields.append(column.cast(arrow.string()))
    return arrow.StructArray.from_arrays(fields, values.type.names)


def _deleted(paths: list[str], vectors: Any) -> Any:
    """For each file the places of its deleted rows, or null."""
    arrow = lazy("pyarrow", "delta")
    found: list[NDArray[np.int64] | None] = [None] * len(paths)
    names = [] if vectors is None else vectors["filepath"].to_pylist()
    if names:
        # Whole addresses of files, while the log has what follows the table's.
        root = next(names[0][: -len(path)] for path in paths if names[0].endswith(f"/{path}"))
        places = {f"{root}{path}": i for i, path in enumerate(paths)}
        for name, mask in zip(names, vectors["selection_vector"], strict=True):
            is_kept = mask.values.to_numpy(zero_copy_only=False)
            found[places[name]] = np.flatnonzero(~is_kept.astype(np.bool_))
    return arrow.array(found, arrow.list_(arrow.int64()))


def _check_features(place: TablePlace, protocol: Any) -> None:
    unknown = sorted(set(protocol.reader_features or ()) - FEATURES)
    if unknown or protocol.min_reader_version > 3:
        what = ", ".join(unknown) or f"version {protocol.min_reader_version} of the protocol"
        raise DataError(
            f"The Delta table at {place.where} asks its readers for {what}, which this library "
            f"does not have. It has {', '.join(sorted(FEATURES))}."
        )


@contextmanager
def _reading(place: TablePlace, version: int | None) -> Iterator[None]:
    """Turn what the library raises into our errors."""
    try:
        yield
    except (StreamingError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # A panic of the library is none of the usual ones.
        raise _named(error, place, version) from error


def _named(error: BaseException, place: TablePlace, version: int | None) -> StreamingError:
    text = " ".join(_BACKTRACE.sub("", str(error)).split())[:1000]
    if "Forked process detected" in text:
        return ForkedError(text)
    where = f"the Delta table at {place.where}"
    if version is not None:
        where = f"version {version} of {where}"
    is_empty = "No files in log segment" in text
    if version is None if is_empty else type(error).__name__ == "TableNotFoundError":
        return ObjectNotFoundError(f"There is no Delta table at {place.where}: {text}.")
    if is_empty or re.search(r"not the same as the specified end|nvalid table version", text):
        return ConfigError(f"There is no {where}, or not any more: {text}.")
    if feature := re.search(r"Feature '([\w-]+)' is not supp|features required: \[(.+?)\]", text):
        return DataError(
            f"The Delta table at {place.where} asks its readers for {feature[1] or feature[2]}, "
            "which this library does not have."
        )
    if re.search(r"not ?found|no such file", text, re.IGNORECASE):
        return ObjectNotFoundError(f"A file of {where} is gone: {text}.")
    store_error = kind_of_failure(text)
    if store_error is not None:
        return store_error(f"Can't read {where}: {text}.")
    return DataError(f"The log of {where} can't be read: {text}.")
