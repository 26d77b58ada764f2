"""Reading MDS shards."""

import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.errors import (
    MissingExtraError,
    SampleError,
    ShardCorruptError,
    UnknownNameError,
    UnsafeTypeError,
)
from streaming.format.column import Column, Pieces, Stack
from streaming.format.index import ShardInfo
from streaming.format.mapping import map_file
from streaming.format.mds.decoders import Decoder, Source, make_decoder
from streaming.format.mds.layout import MDSLayout, get_layout, make_rows
from streaming.format.mds.sample import make_one
from streaming.format.reader import Sample, ShardReader

__all__ = ["MDSReader"]

_range = struct.Struct("<II").unpack_from

# Samples up to which decoding one by one is faster than numpy's calls for a block.
_FEW = 48

Ints = NDArray[np.int64]


class _Plan:
    """How a sample is taken apart: made once for a layout and a choice of columns.

    Args:
        layout: The columns.
        columns: Those that are wanted; None for all.
        functions: What decodes some of them in place of their encodings.
    """

    def __init__(
        self,
        layout: MDSLayout,
        columns: frozenset[str] | None,
        functions: Mapping[str, Callable[[bytes], Any]] = MappingProxyType({}),
    ) -> None:
        self.layout = layout
        self.num_heads = layout.head_bytes // 4
        self.heads = struct.Struct(f"<{self.num_heads}I")
        # Name, fixed size or None, decoder or None, for each column as it is stored; and for the
        # wanted ones: fixed bytes before the value, values of variable size before it, is variable.
        self.steps: list[tuple[str, int | None, Decoder | None]] = []
        self.wanted: list[tuple[Decoder, int, int, int | None]] = []
        fixed, variable = layout.head_bytes, 0
        for column in layout.columns:
            decoder = None
            if columns is None or column.name in columns:
                decoder = make_decoder(column.encoding, functions.get(column.name))
                self.wanted.append((decoder, fixed, variable, column.size))
            self.steps.append((column.name, column.size, decoder))
            fixed += column.size or 0
            variable += column.size is None
        self.names = tuple(name for name, _, decoder in self.steps if decoder)
        self.rows = make_rows(len(self.names))
        self.bind = make_one(layout, [decoder for _, _, decoder in self.steps])

    def spans(self, source: Source, begins: Ints, ends: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Where the wanted values of these samples start and stop, column by column."""
        least, num_heads = self.layout.least_bytes, self.num_heads
        if num_heads:
            heads = source.gather(begins, 4 * num_heads).view("<u4").reshape(-1, num_heads)
            stops = np.cumsum(heads, axis=1, dtype=np.int64)
            extra = stops[:, -1]
        else:
            stops, extra = np.zeros((len(begins), 0), np.int64), np.zeros(len(begins), np.int64)
        if not np.array_equal(ends - begins, extra + least):
            raise ShardCorruptError("the sizes of the values do not add up to that of the sample")
        for _, fixed, variable, size in self.wanted:
            start = begins + fixed
            if variable:
                start = start + stops[:, variable - 1]
            if size is None:
                yield start, begins + fixed + stops[:, variable]
            else:
                yield start, start + size


@lru_cache(maxsize=256)
def _plan(layout: MDSLayout, columns: frozenset[str] | None) -> _Plan:
    return _Plan(layout, columns)


class MDSReader(ShardReader):
    """Reads an MDS shard; see `ShardReader`."""

    def __init__(
        self,
        info: ShardInfo,
        paths: Sequence[Path],
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
    ) -> None:
        super().__init__(info, paths, columns, allow_unsafe_types=allow_unsafe_types)
        self._plan = _plan(get_layout(info), None if columns is None else frozenset(columns))
        self._source = Source(map_file(self.paths[0], info.files[0][0].bytes))
        self._length = info.samples
        self._offsets = self._read_offsets()
        self._one = self._plan.bind(self._source.data, self._source.view)

    @classmethod
    def check_types(
        cls, info: ShardInfo, allow_unsafe_types: bool, columns: Sequence[str] | None = None
    ) -> None:
        found = {column.name: column for column in get_layout(info).columns}
        for name in found if columns is None else columns:
            if name not in found:
                raise UnknownNameError(f"There is no column {name!r}. Known: {', '.join(found)}.")
            column = found[name]
            if not (allow_unsafe_types or getattr(column.encoding, "safe", True)):
                raise UnsafeTypeError(
                    f"Column {name!r} is stored as {column.kind!r}: reading it runs code that the "
                    "data choose. If you trust whoever wrote them, pass allow_unsafe_types=True."
                )

    def use_decoders(self, decoders: Mapping[str, Callable[[bytes], Any]]) -> None:
        plan = self._plan
        for name in decoders:
            if name not in plan.names:
                raise UnknownNameError(
                    f"`decoders` has {name!r}, but there is no such column. Known: "
                    f"{', '.join(plan.names)}."
                )
        self._plan = _Plan(plan.layout, frozenset(plan.names), decoders)
        self._one = self._plan.bind(self._source.data, self._source.view)

    def take(self, offsets: Ints) -> list[Sample]:
        plan, source, places = self._plan, self._source, self._place(offsets)
        if len(places) <= _FEW:
            return [self.get_item(place) for place in places.tolist()]
        try:
            spans = plan.spans(source, *self._range(places))
            columns = [
                wanted[0].many(source, *span)
                for wanted, span in zip(plan.wanted, spans, strict=True)
            ]
        except Exception:
            self._blame(places)
            raise
        if not columns:
            return [{} for _ in range(len(places))]
        return plan.rows(plan.names, columns)

    def take_columns(self, offsets: Ints) -> Mapping[str, Column]:
        return self._take_each(offsets, attrgetter("column"))

    def take_parts(self, offsets: Ints) -> Mapping[str, Column | Pieces]:
        return self._take_each(offsets, attrgetter("part"))

    def take_stacked(self, offsets: Ints) -> Mapping[str, Stack]:
        return self._take_each(offsets, attrgetter("stack"))

    def _take_each(self, offsets: Ints, method: Callable[[Decoder], Any]) -> dict[str, Any]:
        """What a method of their decoders makes of the columns."""
        plan, source, places = self._plan, self._source, self._place(offsets)
        try:
            spans = plan.spans(source, *self._range(places))
            columns = [
                method(wanted[0])(source, *span)
                for wanted, span in zip(plan.wanted, spans, strict=True)
            ]
        except Exception:
            self._blame(places)
            raise
        return dict(zip(plan.names, columns, strict=True))

    def get_item(self, idx: int) -> Sample:
        # Small unsigned numbers of numpy would wrap around below.
        index = idx if type(idx) is int else operator.index(idx)
        if not 0 <= index < self._length:
            raise IndexError(f"Sample {index} is not in {self.paths[0]}, which has {len(self)}.")
        try:
            return self._one(index)
        except Exception:
            self._decode(self.read_raw(index), index)  # Raises what is wrong, and where it is.
            raise

    def getter(self) -> Callable[[int], Sample]:
        return self._one

    def read_raw(self, index: int) -> memoryview:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"Sample {index} is not in {self.paths[0]}, which has {len(self)}.")
        view = self._source.view
        begin, end = _range(view, 4 + 4 * index)
        return view[begin:end]

    def decode_sample(self, data: bytes) -> Sample:
        return self._decode(memoryview(data), None)

    def close(self) -> None:
        # The map itself goes when the last view of it does; what was given out stays good.
        self._source = Source(b"")
        self._one = self._plan.bind(self._source.data, self._source.view)

    def _range(self, places: Ints) -> tuple[Ints, Ints]:
        offsets = self._offsets
        return offsets[places].astype(np.int64), offsets[places + 1].astype(np.int64)

    def _decode(self, view: memoryview, idx: int | None) -> Sample:
        plan = self._plan
        if len(view) < plan.layout.least_bytes:
            self._fail_sizes(view, idx)
        heads = plan.heads.unpack_from(view)
        if plan.layout.least_bytes + sum(heads) != len(view):
            self._fail_sizes(view, idx)
        sample: Sample = {}
        sizes, at = iter(heads), plan.layout.head_bytes
        for name, size, decoder in plan.steps:
            stop = at + (next(sizes) if size is None else size)
            if decoder:
                try:
                    sample[name] = decoder.one(view[at:stop])
                except MissingExtraError:
                    raise
                except Exception as error:
                    raise SampleError(
                        f"Column {name!r} of {self._name(idx)} can't be decoded: "
                        f"{type(error).__name__}: {error}"
                    ) from error
            at = stop
        return sample

    def _blame(self, places: Ints) -> None:
        """Decode samples one by one, so that the error of the first bad one says where it is."""
        for place in places.tolist():
            self.get_item(place)

    def _fail_sizes(self, view: memoryview, idx: int | None) -> NoReturn:
        raise (SampleError if idx is None else ShardCorruptError)(
            f"The sizes of the values of {self._name(idx)} do not add up to its {len(view)} bytes."
        )

    def _name(self, idx: int | None) -> str:
        return "the bytes given" if idx is None else f"sample {idx} of shard file {self.paths[0]}"

    def _read_offsets(self) -> NDArray[Any]:
        """Map the table of offsets, shape (samples + 1,), and check that all samples are there."""
        view, samples, path = self._source.view, len(self), self.paths[0]
        if len(view) < 8 + 4 * samples:
            raise ShardCorruptError(
                f"Shard file {path} of {len(view)} bytes can't hold the table of the {samples} "
                "samples that the index says."
            )
        (found,) = struct.unpack_from("<I", view)
        if found != samples:
            raise ShardCorruptError(
                f"Shard file {path} has {found} samples, but the index says {samples}."
            )
        offsets = np.frombuffer(view, "<u4", samples + 1, 4)
        start, least = int(offsets[0]), self._plan.layout.least_bytes
        if not 8 + 4 * samples <= start <= len(view):
            raise ShardCorruptError(
                f"Sample 0 of shard file {path} should start between {8 + 4 * samples} and "
                f"{len(view)}, but starts at {start}."
            )
        wrong = offsets[1:] < offsets[:-1]
        if not wrong.any():
            wrong = (offsets[1:] > len(view)) | (offsets[1:] - offsets[:-1] < least)
        if wrong.any():
            at = int(wrong.argmax())
            raise ShardCorruptError(
                f"Sample {at} of shard file {path} lies at [{offsets[at]}, {offsets[at + 1]}), but "
                f"it takes {least} bytes or more, and the file has {len(view)}."
            )
        return offsets
