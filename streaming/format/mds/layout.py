"""The columns of an MDS shard: where each lies in the bytes of a sample."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from streaming.errors import EncodingNameError, IndexFormatError
from streaming.format.index import ShardInfo
from streaming.format.mds.encodings import Encoding, encodings, get_encoding
from streaming.format.reader import Sample

__all__ = ["MDSColumn", "MDSLayout", "build_layout", "get_layout", "make_rows"]


@dataclass(frozen=True, slots=True)
class MDSColumn:
    """One column: its name, its encoding and what that is called, and bytes if they are fixed."""

    name: str
    kind: str
    encoding: Encoding
    size: int | None


@dataclass(frozen=True, slots=True)
class MDSLayout:
    """A sample is the u32 size of every value of variable size, then all values, in order.

    Attributes:
        columns: In the order in which they are stored.
        head_bytes: Bytes of the sizes.
        least_bytes: Bytes of a sample whose variable values are all empty.
    """

    columns: tuple[MDSColumn, ...]
    head_bytes: int
    least_bytes: int


def build_layout(names: Sequence[str], kinds: Sequence[str]) -> MDSLayout:
    """Put columns together.

    Args:
        names: Their names, in the order in which they are stored.
        kinds: What their encodings are called.

    Raises:
        EncodingNameError: There is no such encoding.
    """
    made = [(name, kind, get_encoding(kind)) for name, kind in zip(names, kinds, strict=True)]
    columns = tuple(MDSColumn(name, kind, item, item.size) for name, kind, item in made)
    head = 4 * sum(column.size is None for column in columns)
    return MDSLayout(columns, head, head + sum(column.size or 0 for column in columns))


@lru_cache(maxsize=256)
def _layout(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    sizes: tuple[int | None, ...],
    known: tuple[object, ...],
) -> MDSLayout:
    """Remembered for as long as the names of encodings mean the same, which `known` tells."""
    try:
        layout = build_layout(names, kinds)
    except EncodingNameError as error:
        raise EncodingNameError(
            f"{error} An index asks for it; perhaps a newer version of this library, or a package "
            "that is not installed here, wrote the data."
        ) from error
    for column, size in zip(layout.columns, sizes, strict=True):
        if column.size != size:
            raise IndexFormatError(
                f"Column {column.name!r} has size {size} in the index, but {column.kind} has "
                f"{column.size}."
            )
    return layout


def get_layout(info: ShardInfo) -> MDSLayout:
    """The columns of a shard by what its index says. Like shards share one.

    Raises:
        IndexFormatError: The index contradicts itself.
        EncodingNameError: There is no such encoding.
    """
    lists = []
    for key, kinds in (
        ("column_names", str),
        ("column_encodings", str),
        ("column_sizes", int | None),
    ):
        found = info.extra.get(key)
        if not isinstance(found, list) or not all(
            isinstance(item, kinds) and not isinstance(item, bool) for item in found
        ):
            raise IndexFormatError(
                f"`{key}` of {info.files[0][0].basename} should be a list of "
                f"{getattr(kinds, '__name__', kinds)}, but is {found!r:.100}."
            )
        lists.append(tuple(found))
    if len({len(found) for found in lists}) != 1 or len(set(lists[0])) != len(lists[0]):
        raise IndexFormatError(
            f"The columns of {info.files[0][0].basename} don't match, or one comes twice: {lists}."
        )
    return _layout(*lists, tuple(encodings.table.values()))


@lru_cache(maxsize=64)
def make_rows(count: int) -> Callable[[Sequence[str], Sequence[Sequence[Any]]], list[Sample]]:
    """A function from the names of `count` columns, and the columns, to one dict a row.

    A dict display is over twice as fast as `dict(zip(...))`, so one is written out for the number
    of columns. The source holds numbers only; the names stay values.
    """
    if not 0 < count <= 64:
        return lambda names, columns: [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    names = "".join(f"n{i}," for i in range(count))
    values = "".join(f"v{i}," for i in range(count))
    items = ",".join(f"n{i}:v{i}" for i in range(count))
    source = f"""
def rows(names, columns):
    {names} = names
    return [{{{items}}} for {values} in zip(*columns)]
"""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return cast(Callable[[Sequence[str], Sequence[Sequence[Any]]], list[Sample]], scope["rows"])
