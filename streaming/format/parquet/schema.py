"""Columns of tables: what a file has, what samples shall have, and whether one fits the other.

Types are made plain first: dictionaries, views and run-end encodings are ways to store values, not
other values. What tells how a value is given out, such as the shape of an array, stays with its
field as metadata (see `values`).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from streaming.errors import ConfigError, DataError, IndexFormatError, UnknownNameError

__all__ = [
    "KIND",
    "LENGTHS",
    "MATCH",
    "PHYSICAL_NAME",
    "field_matching",
    "load_schema",
    "num_leaves",
    "plain_schema",
    "project",
    "same",
    "unite",
    "widen",
]

# Metadata of a field: how its values are given out, ...
KIND = b"streaming.kind"
# ... and how it is found in files: by another name than its own, or by its id.
PHYSICAL_NAME = b"streaming.physical_name"
MATCH = b"streaming.match"
_FIELD_ID = b"PARQUET:field_id"

LENGTHS = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_SHORT = {large: short for short, large in LENGTHS.items()}
_SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_UNITS = ["s", "ms", "us", "ns"]


def load_schema(blob: bytes, where: str) -> pa.Schema:
    """The schema that was serialised.

    Raises:
        IndexFormatError: It was not.
    """
    try:
        return pa.ipc.read_schema(pa.BufferReader(blob))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise IndexFormatError(f"The schema in the index of {where} is broken: {error}") from error


def plain_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """The schema of samples of a file: plain types, and what they are for.

    Raises:
        DataError: Two columns have one name, or a type makes no sense.
    """
    names = schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{where} has columns of the same name: {', '.join(map(repr, twice))}. A sample is a "
            "dict, which can hold only one of them. Rename them where the file is written."
        )
    features = _features(schema)
    try:
        return pa.schema([_plain(field, features.get(field.name)) for field in schema])
    except (pa.ArrowException, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{where} has a column of a type that can't be: {error}") from error


def project(schema: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """The columns that are wanted, in the order asked; None for all.

    Raises:
        UnknownNameError: There is no such column.
    """
    if names is None:
        return schema
    for name in names:
        if name not in schema.names:
            raise UnknownNameError(
                f"There is no column {name!r}. Known: {', '.join(schema.names)}."
            )
    return pa.schema([schema.field(name) for name in dict.fromkeys(names)])


def field_matching(field: pa.Field, fields: Iterable[pa.Field]) -> pa.Field | None:
    """The field of a file that holds the values of a field of samples."""
    metadata = field.metadata or {}
    if metadata.get(MATCH) == b"id":
        wanted = metadata.get(_FIELD_ID)
        return next((x for x in fields if (x.metadata or {}).get(_FIELD_ID) == wanted), None)
    name = metadata.get(PHYSICAL_NAME, field.name.encode()).decode()
    return next((x for x in fields if x.name == name), None)


def unite(
    schemas: Sequence[tuple[pa.Schema, str]], *, allow_mismatch: bool, where: str
) -> pa.Schema:
    """One schema for files that each have their own.

    Args:
        schemas: Plain ones that differ in whatever way, each with a file that has it.
        allow_mismatch: Columns may be missing from files, and of types that one can be widened to.
        where: Path or URL of the table, for messages.

    Raises:
        DataError: They differ, and that was not allowed, or there is no common type.
    """
    united, first = schemas[0]
    for schema, file in schemas[1:]:
        differences = _differences(united, schema)
        if differences and not allow_mismatch:
            raise DataError(
                f"The files in {where} differ in their columns. {file} beside {first}: "
                f"{'; '.join(differences)}. Say allow_schema_mismatch=True to unite them, with "
                "None where a file lacks a column; or choose the files by a pattern."
            )
        fields = {field.name: field for field in united}
        for field in schema:
            known = fields.get(field.name)
            if known is None:
                fields[field.name] = field
                continue
            kind = known.type if same(known.type, field.type) else widen(known.type, field.type)
            if kind is None:
                raise DataError(
                    f"Column {field.name!r} is {known.type} in {first}, but {field.type} in "
                    f"{file}, and neither can be widened to the other. Choose the files by a "
                    "pattern, or leave the column out by `columns`."
                )
            fields[field.name] = known.with_type(kind)
        united = pa.schema(list(fields.values()))
    return united


def same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two plain types have the same values; how long their offsets are does not matter."""
    return bool(one.equals(other)) or bool(_shortened(one).equals(_shortened(other)))


def widen(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest type that holds all values of two others exactly; None if there is none."""
    if same(one, other):
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    for ladder in (_SIGNED, _UNSIGNED, _FLOATS):
        if one in ladder and other in ladder:
            return max(one, other, key=ladder.index)
    for small, large in ((one, other), (other, one)):
        found = _widen_number(small, large)
        if found is not None:
            return found
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return _widen_decimal(one, other)
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz == other.tz:
        return pa.timestamp(max(one.unit, other.unit, key=_UNITS.index), one.tz)
    if pa.types.is_duration(one) and pa.types.is_duration(other):
        return pa.duration(max(one.unit, other.unit, key=_UNITS.index))
    return _widen_nested(one, other)


def num_leaves(kind: pa.DataType) -> int:
    """Columns that a file has for one column of a table."""
    if isinstance(kind, pa.BaseExtensionType):
        return num_leaves(kind.storage_type)
    if pa.types.is_dictionary(kind) or not pa.types.is_nested(kind):
        return 1
    if pa.types.is_map(kind):
        return num_leaves(kind.key_type) + num_leaves(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(num_leaves(field.type) for field in kind)
    return num_leaves(kind.value_type)


def _widen_number(small: pa.DataType, large: pa.DataType) -> pa.DataType | None:
    """Of different kinds of numbers."""
    if small in _UNSIGNED and large in _SIGNED:
        needed = _UNSIGNED.index(small) + 1
        return _SIGNED[max(needed, _SIGNED.index(large))] if needed < len(_SIGNED) else None
    if small in _SIGNED[:3] + _UNSIGNED[:3] and large in _FLOATS:
        return pa.float64()
    if pa.types.is_date32(small) and pa.types.is_timestamp(large) and large.tz is None:
        return large
    if pa.types.is_integer(small) and pa.types.is_decimal(large):
        digits = {8: 3, 16: 5, 32: 10, 64: 20}[small.bit_width]
        return large if digits <= large.precision - large.scale else None
    return None


def _widen_decimal(one: Any, other: Any) -> pa.DataType | None:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    if digits > 76:
        return None
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def _widen_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field for field in one}
        for field in other:
            known = fields.get(field.name, field)
            kind = widen(known.type, field.type)
            if kind is None:
                return None
            fields[field.name] = known.with_type(kind)
        return pa.struct(list(fields.values()))
    if pa.types.is_map(one) and pa.types.is_map(other):
        key, item = widen(one.key_type, other.key_type), widen(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if _is_list(one) and _is_list(other):
        kind = widen(one.value_type, other.value_type)
        return None if kind is None else pa.list_(one.value_field.with_type(kind))
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _shortened(kind: pa.DataType) -> pa.DataType:
    """A type without what does not change its values."""
    if kind in _SHORT:
        return _SHORT[kind]
    if pa.types.is_map(kind):
        return pa.map_(_shortened(kind.key_type), _shortened(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(x.name, _shortened(x.type)) for x in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("item", _shortened(kind.value_type)), kind.list_size)
    if _is_list(kind):
        return pa.list_(pa.field("item", _shortened(kind.value_type)))
    return kind


def _differences(one: pa.Schema, other: pa.Schema) -> list[str]:
    """How the second differs from the first, in words."""
    found = [f"it lacks {name!r}" for name in one.names if name not in other.names]
    found += [f"it has {name!r} more" for name in other.names if name not in one.names]
    for field in other:
        known = one.field(field.name) if field.name in one.names else field
        if not same(known.type, field.type):
            found.append(f"{field.name!r} is {field.type}, not {known.type}")
    return found


def _plain(field: pa.Field, feature: Any = None) -> pa.Field:
    """A field with a plain type, marked with how its values are given out."""
    metadata = {
        key: value
        for key, value in (field.metadata or {}).items()
        if key in (KIND, PHYSICAL_NAME, MATCH, _FIELD_ID)
    }
    kind = _kind_of(field.type, feature)
    if kind:
        metadata[KIND] = kind.encode()
    inner = feature if not kind else None
    return pa.field(field.name, _plain_type(field.type, inner), True, metadata or None)


def _plain_type(kind: pa.DataType, feature: Any = None) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    if pa.types.is_struct(kind):
        inner = feature if isinstance(feature, dict) and "_type" not in feature else {}
        return pa.struct([_plain(x, inner.get(x.name)) for x in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field).with_nullable(False), _plain(kind.item_field))
    if not pa.types.is_nested(kind):
        return kind
    value = _plain(kind.value_field, _inner_feature(feature))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return pa.large_list(value) if is_large else pa.list_(value)


def _kind_of(kind: pa.DataType, feature: Any) -> str | None:
    """How values of a type are given out, where the plain type does not say it."""
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return "uuid"
        if kind.extension_name == "arrow.bool8":
            return "bool"
        if kind.extension_name == "arrow.fixed_shape_tensor":
            return "tensor:" + ",".join(map(str, kind.shape))
    name = feature.get("_type") if isinstance(feature, dict) else None
    if name == "Image":
        return "image"
    if name in ("Array2D", "Array3D", "Array4D", "Array5D"):
        shape = feature.get("shape")
        dtype = feature.get("dtype")
        if isinstance(shape, list) and isinstance(dtype, str) and len(shape) == int(name[5]):
            sizes = ",".join("-1" if size is None else str(int(size)) for size in shape)
            return f"array:{dtype}:{sizes}"
    return None


def _inner_feature(feature: Any) -> Any:
    """What the elements of a list are, in the words of Hugging Face."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        return feature.get("feature")
    return None


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What Hugging Face datasets say of their columns."""
    try:
        said = json.loads((schema.metadata or {}).get(b"huggingface", b"null"))
        features = said["info"]["features"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def check_names(columns: object) -> None:
    """See that `columns` is a list of names.

    Raises:
        ConfigError: It is a mapping to encodings.
    """
    if columns is not None:
        raise ConfigError(
            "Parquet files say themselves what their columns are: give `columns` as a list of "
            "names, without encodings."
        )
