"""The index of a version of a Delta table: its files, as Parquet with what the log says of each."""

import os
import re
from collections.abc import Mapping
from typing import Any

from streaming.errors import ConfigError, DataError, MissingFileError
from streaming.format.delta.state import DeltaFile, take_state
from streaming.format.index import Index
from streaming.format.indexing import IndexRequest
from streaming.format.listing import DataFile
from streaming.format.tables import TablePlace
from streaming.storage import Store, join_key
from streaming.util.importing import lazy

__all__ = ["index_dataset", "to_arrow"]

_COMMIT = re.compile(r"(\d{20})\.json")
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    """Make an index of a version of a Delta table.

    The option "partitions" is a mapping of partition columns to a value or a list of values: only
    files of these are read. Values are compared as texts; None stands for null.

    Args:
        store: Where it is.
        prefix: Key of its root.
        request: What is asked for; with a version.

    Raises:
        ConfigError: An option can't be meant as it is, or there is no such version.
        DataError: The log or a file is broken, or asks for something that is not done here.
        MissingFileError, ObjectNotFoundError: A file of the version is gone.
        StoreError: Something can't be had.
    """
    assert request.version is not None
    wanted = _check_options(request)
    _check_log(store, prefix, request)
    place = TablePlace.at(request.where, request.storage_options)
    state = take_state(place, request.version, request.kept / f"{request.tag}.delta.arrow")
    files = [file for file in state.files() if _is_wanted(file, wanted)]
    if request.in_place is not None:
        _check_files(files, request)
    # What reading needs is imported now, so that workers that are forked later find it done.
    lazy("streaming.format.parquet.values", "delta")
    lazy("pyarrow.compute", "delta")
    parquet: Any = lazy("streaming.format.parquet.table", "delta")
    tables = [
        parquet.TableFile(DataFile(file.key, file.size), file.rows, file.partition, file.deleted)
        for file in files
    ]
    schema = to_arrow(state.schema, state.mapping)
    index: Index = parquet.index_table(store, prefix, request, tables, schema)
    return index


def to_arrow(schema: Mapping[str, Any], mapping: str = "none") -> Any:
    """The Arrow schema of a Delta table's columns.

    Args:
        schema: The columns as the log has them.
        mapping: How they are found in files: "none", "name" or "id". Then the metadata of fields
            says as what.

    Raises:
        DataError: A column is of a type that is not known.
    """
    return lazy("pyarrow", "delta").schema([_field(field, mapping) for field in schema["fields"]])


def _field(field: Mapping[str, Any], mapping: str) -> Any:
    about = field.get("metadata") or {}
    metadata: dict[str, str] = {}
    if mapping == "name" and "delta.columnMapping.physicalName" in about:
        metadata = {"streaming.physical_name": about["delta.columnMapping.physicalName"]}
    elif mapping == "id" and "delta.columnMapping.id" in about:
        number = about["delta.columnMapping.id"]
        metadata = {"streaming.match": "id", "PARQUET:field_id": str(number)}
    kind = _type(field["type"], field["name"], mapping)
    return lazy("pyarrow", "delta").field(
        field["name"], kind, field.get("nullable", True), metadata or None
    )


def _type(kind: Any, name: str, mapping: str) -> Any:
    arrow = lazy("pyarrow", "delta")
    simple = {
        "string": arrow.string(),
        "long": arrow.int64(),
        "integer": arrow.int32(),
        "short": arrow.int16(),
        "byte": arrow.int8(),
        "float": arrow.float32(),
        "double": arrow.float64(),
        "boolean": arrow.bool_(),
        "binary": arrow.binary(),
        "date": arrow.date32(),
        "timestamp": arrow.timestamp("us", "UTC"),
        "timestamp_ntz": arrow.timestamp("us"),
    }
    if isinstance(kind, str):
        if kind in simple:
            return simple[kind]
        if match := _DECIMAL.fullmatch(kind):
            return arrow.decimal128(int(match[1]), int(match[2]))
        if kind == "decimal":
            return arrow.decimal128(10, 0)
    elif kind["type"] == "struct":
        return arrow.struct([_field(field, mapping) for field in kind["fields"]])
    elif kind["type"] == "array":
        element = _type(kind["elementType"], name, mapping)
        return arrow.list_(arrow.field("element", element, kind.get("containsNull", True)))
    elif kind["type"] == "map":
        key = _type(kind["keyType"], name, mapping)
        value = _type(kind["valueType"], name, mapping)
        is_nullable = kind.get("valueContainsNull", True)
        return arrow.map_(key, arrow.field("value", value, is_nullable))
    raise DataError(f"Column {name!r} is of type {kind!r:.100}, which this library does not read.")


def _check_options(request: IndexRequest) -> Mapping[str, frozenset[str | None]]:
    """The partitions that are wanted: column to values."""
    if request.columns is not None:
        raise ConfigError(
            "The columns of a Delta table have types, so `columns` is a list of names, but got "
            f"{dict(request.columns)}."
        )
    unknown = sorted(request.options.keys() - {"partitions", "decoded_limit"})
    if unknown:
        raise ConfigError(
            f"Delta tables have the options 'partitions' and 'decoded_limit', but got {unknown}."
        )
    wanted = request.options.get("partitions", {})
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"`partitions` must be a dict of columns and values, but is {wanted!r}.")
    return {
        name: frozenset(
            None if value is None else str(value)
            for value in (values if isinstance(values, list | tuple | set) else [values])
        )
        for name, values in wanted.items()
    }


def _is_wanted(file: DeltaFile, wanted: Mapping[str, frozenset[str | None]]) -> bool:
    unknown = wanted.keys() - file.partition.keys()
    if unknown:
        known = ", ".join(file.partition) or "none"
        raise ConfigError(f"{sorted(unknown)} are no partition columns. There are: {known}.")
    return all(file.partition[name] in values for name, values in wanted.items())


def _check_log(store: Store, prefix: str, request: IndexRequest) -> None:
    """See that no entry of the log is empty, which its library would take for one of no changes."""
    assert request.version is not None
    folder = f"{join_key(prefix, '_delta_log')}/"
    for found in store.list(folder):
        match = _COMMIT.fullmatch(found.key[len(folder) :])
        if match and not found.size and int(match[1]) <= request.version:
            raise DataError(
                f"{found.key} of {request.where} is empty: an entry of the log was lost. Restore "
                "it, or read a version before it."
            )


def _check_files(files: list[DeltaFile], request: IndexRequest) -> None:
    """See that the files of a local table are there, before any of them is needed."""
    assert request.in_place is not None
    for file in files:
        path = request.in_place / file.key
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            raise MissingFileError(
                f"{path} is gone, which is a file of version {request.version} of the Delta table "
                f"{request.where}: it was vacuumed. Read a newer version, or restore the file."
            ) from None
        if size != file.size:
            raise DataError(
                f"{path} has {size} bytes, but by version {request.version} of the Delta table "
                f"{request.where} it has {file.size}: it was written anew in its place."
            )
