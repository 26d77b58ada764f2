"""From a Spark DataFrame to a dataset: its own processes write, each task a part of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streaming.converters.parts import Batches, Part, Parts, Udf
from streaming.errors import ConfigError
from streaming.format.mds.encodings import is_mds_encoding
from streaming.util.importing import lazy

__all__ = ["SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"]

_types: Final = lazy("pyspark.sql.types", "spark")
lazy("pandas", "spark")

# Type of a column to its encoding; None: there is none. Integers keep their sign, other than with
# the predecessor, whose uint8 and uint16 hold no negative number.
SPARK_TO_MDS: Final[Mapping[Any, str | None]] = {
    _types.ByteType(): "int8",
    _types.ShortType(): "int16",
    _types.IntegerType(): "int32",
    _types.LongType(): "int64",
    _types.FloatType(): "float32",
    _types.DoubleType(): "float64",
    _types.DecimalType(): "str_decimal",
    _types.StringType(): "str",
    _types.BinaryType(): "bytes",
    _types.BooleanType(): None,
    _types.TimestampType(): None,
    _types.TimestampNTZType(): None,
    _types.DateType(): None,
    _types.DayTimeIntervalType(): None,
    _types.ArrayType(_types.IntegerType()): "ndarray:int32",
    _types.ArrayType(_types.ShortType()): "ndarray:int16",
    _types.ArrayType(_types.LongType()): "ndarray:int64",
    _types.ArrayType(_types.FloatType()): "ndarray:float32",
    _types.ArrayType(_types.DoubleType()): "ndarray:float64",
}

# What else may be asked for.
_ALSO: Final[Mapping[Any, frozenset[str]]] = {
    _types.ByteType(): frozenset({"uint8"}),
    _types.ShortType(): frozenset({"uint16"}),
    _types.BooleanType(): frozenset({"bool"}),
    _types.BinaryType(): frozenset({"pil", "png", "jpeg", "pkl"}),
}


def dataframe_to_mds(
    dataframe: Any,
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Udf | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a Spark DataFrame as a dataset.

    Each task writes a dataset of its own, into the folder named by the id of its attempt, so that
    one that Spark tries again does no harm. Where executors run on other machines, `out` must have
    a remote, or be a directory that all of them see.

    Args:
        dataframe: The DataFrame.
        merge_index: Write an index over all of them, too, in the order of Spark's partitions.
        mds_kwargs: As for `MDSWriter`. `out` must be there. `columns` are inferred if left out, and
            `compression` is "zstd". Local files go only if there is a remote, and `keep_local` is
            False.
        udf_iterable: Makes samples, as dicts, of a pandas DataFrame of some rows. Then `columns`
            must be there, and say what the samples have.
        udf_kwargs: More arguments for it.

    Returns:
        The local directory and the remote URL, "" for none.

    Raises:
        ConfigError: An argument can't be used, or there is nothing in the DataFrame.
        OutputExistsError: There is something at `out`, and `exist_ok` is not among `mds_kwargs`.
    """
    arguments = {"compression": "zstd", **(mds_kwargs or {})}
    if dataframe is None or dataframe.isEmpty():
        raise ConfigError("There is nothing to write: the DataFrame is empty.")
    if not arguments.get("out"):
        raise ConfigError("`mds_kwargs` must have `out`: where the dataset shall be written.")
    columns = arguments.get("columns")
    if udf_iterable is None:
        inferred = infer_dataframe_schema(dataframe, columns)
        columns = arguments["columns"] = dict(columns or inferred or {})
        dataframe = dataframe.select([dataframe[f"`{name}`"] for name in columns])
    elif not columns:
        raise ConfigError("With `udf_iterable`, `mds_kwargs` must have `columns`.")
    keep_local = arguments.pop("keep_local", True) is not False
    parts = Parts.open(keep_local=keep_local, **arguments)
    names = dataframe.columns
    batches = Batches(columns, names, udf_iterable, udf_kwargs)
    task = _Task(parts, batches, merge_index or keep_local)
    frame = dataframe.toDF(*map(str, range(len(names))))  # Here Spark takes no name with a dot.
    rows = frame.mapInPandas(task, "local string, remote string").collect()
    if merge_index:
        parts.merge([Part(*row) for row in rows])
    parts.clean()
    return parts.local, parts.remote or ""


@dataclass(frozen=True)
class _Task:
    """What a task does with its rows. Runs in a process of an executor."""

    parts: Parts
    batches: Batches
    keep_local: bool

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        """Write them, and give one row that says where."""
        context = lazy("pyspark", "spark").TaskContext.get()
        batches = map(self.batches.make, frames)
        part = self.parts.write(str(context.taskAttemptId()), batches, self.keep_local)
        if part is not None:
            yield lazy("pandas", "spark").DataFrame([part._asdict()])


def infer_dataframe_schema(
    dataframe: Any, user_defined_cols: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Find encodings for the columns of a DataFrame, or check those that were given.

    Args:
        dataframe: A Spark DataFrame.
        user_defined_cols: Name to encoding; None: all columns are to be encoded as `SPARK_TO_MDS`
            says.

    Returns:
        Name to encoding; None if `user_defined_cols` were given and are good.

    Raises:
        ConfigError: A column is not there, or its type has no such encoding.
    """
    types = {field.name: field.dataType for field in dataframe.schema.fields}
    if not user_defined_cols:
        return {name: _infer(name, kind) for name, kind in types.items()}
    for name, encoding in user_defined_cols.items():
        if name not in types:
            raise ConfigError(f"The DataFrame has no column {name!r}. It has: {', '.join(types)}.")
        if not is_mds_encoding(encoding):
            raise ConfigError(f"Column {name!r}: there is no encoding {encoding!r}.")
        _check(name, types[name], encoding)
    return None


def is_json_compatible(data_type: Any) -> bool:
    """Whether values of a Spark type can be encoded as "json"."""
    if isinstance(data_type, _types.StructType):
        return all(is_json_compatible(field.dataType) for field in data_type.fields)
    if isinstance(data_type, _types.ArrayType):
        return is_json_compatible(data_type.elementType)
    if isinstance(data_type, _types.MapType):
        return is_json_compatible(data_type.keyType) and is_json_compatible(data_type.valueType)
    plain = (
        _types.StringType,
        _types.IntegerType,
        _types.FloatType,
        _types.BooleanType,
        _types.NullType,
    )
    return isinstance(data_type, plain)


def _key(kind: Any) -> Any:
    """A type without what makes no difference to its encoding."""
    if isinstance(kind, _types.DecimalType):
        return _types.DecimalType()
    if isinstance(kind, _types.ArrayType):
        return _types.ArrayType(kind.elementType)
    return kind


def _infer(name: str, kind: Any) -> str:
    encoding = SPARK_TO_MDS.get(_key(kind))
    if encoding is None:
        hint = "Declare it as 'json' in `columns`" if is_json_compatible(kind) else "Cast it"
        raise ConfigError(
            f"Column {name!r} is {kind.simpleString()}, which has no encoding. {hint}, or leave it "
            "out, by `select` or by naming the `columns` to write."
        )
    return encoding


def _check(name: str, kind: Any, encoding: str) -> None:
    usual = SPARK_TO_MDS.get(_key(kind))
    allowed = {usual, *_ALSO.get(_key(kind), ())} - {None}
    if usual is not None and usual.startswith("ndarray"):
        allowed.add("ndarray")
    if is_json_compatible(kind):
        allowed.add("json")
    asked = ":".join(encoding.split(":")[:2]) if encoding.startswith("ndarray") else encoding
    if asked not in allowed:
        choice = " or ".join(sorted(repr(each) for each in allowed)) or "nothing"
        raise ConfigError(
            f"Column {name!r} is {kind.simpleString()}, which can be written as {choice}, but not "
            f"as {encoding!r}."
        )
