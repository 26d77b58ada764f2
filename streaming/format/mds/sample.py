"""Decoding one sample, at random, by a function made for its columns."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from streaming.format.mapping import Mapped
from streaming.format.mds.decoders import Decoder
from streaming.format.mds.encodings import Bytes, Number, Scalar, Str
from streaming.format.mds.layout import MDSLayout
from streaming.format.reader import Sample

__all__ = ["BindOne", "make_one"]


class BindOne(Protocol):
    """Makes, for a file and a view of it, the function that decodes the sample at a place of it.

    That one raises anything, if there is no such place, or no sample of these columns.
    """

    def __call__(self, data: Mapped, view: memoryview, /) -> Callable[[int], Sample]: ...


def make_one(layout: MDSLayout, decoders: Sequence[Decoder | None]) -> BindOne:
    """Write that function as source text; a loop over columns takes over twice as long.

    The function knows its file as a closure does; a `partial` takes longer to call.

    The source holds numbers only; names, types and functions are values in its scope.

    Args:
        layout: The columns.
        decoders: One for each; None for a column that is not wanted.
    """
    scope: dict[str, Any] = {"span": struct.Struct("<II").unpack_from}
    lines = ["begin, end = span(view, 4 + 4 * place)", "at = begin"]
    items: list[str] = []
    sizes = [f"size{i}" for i, column in enumerate(layout.columns) if column.size is None]
    # The sizes at the head are unpacked with the numbers right behind them.
    codes, found, offset = "I" * len(sizes), list(sizes), 4 * len(sizes)
    checks = [
        f"if begin + {' + '.join([str(layout.least_bytes), *sizes])} != end: raise ValueError"
    ]
    later: list[str] = []

    def end_run() -> None:
        """What lies side by side takes one call of `struct`; then comes all that waits for it."""
        if found:
            unpack = f"unpack{len(lines)}"
            scope[unpack] = struct.Struct(f"<{codes}").unpack_from
            lines.append(f"{', '.join(found)}, = {unpack}(view, at)")
        lines.extend([*checks, *later])
        checks.clear()
        found.clear()
        later.clear()

    for i, (column, decoder) in enumerate(zip(layout.columns, decoders, strict=True)):
        value = f"v{i}"
        if column.size is None:
            end_run()
            lines += [f"at += {offset}", f"stop = at + size{i}"]
            codes, offset = "", 0
            if decoder is not None:
                lines.append(f"v{i} = {_take(scope, i, decoder)}")
            lines.append("at = stop")
        elif decoder is not None and (code := _code(decoder)):
            codes += code
            found.append(f"v{i}")
            if isinstance(decoder.encoding, Scalar):
                scope[f"type{i}"] = np.dtype(code).type
                value = f"type{i}(v{i})"
            offset += column.size
        else:
            codes += f"{column.size}x"
            if decoder is not None:
                scope[f"decode{i}"] = decoder.one
                later.append(f"v{i} = decode{i}(view[at + {offset}:at + {offset + column.size}])")
            offset += column.size
        if decoder is not None:
            scope[f"name{i}"] = column.name
            items.append(f"name{i}: {value}")
    end_run()
    body = "\n        ".join([*lines, f"return {{{', '.join(items)}}}"])
    source = f"def bind(data, view):\n    def one(place):\n        {body}\n    return one\n"
    exec(source, scope)
    return cast(BindOne, scope["bind"])


def _code(decoder: Decoder) -> str | None:
    """What the values are to `struct`, if that is all there is to decoding them."""
    encoding = decoder.encoding
    plain = isinstance(encoding, Number) and type(encoding).decode in (Number.decode, Scalar.decode)
    return encoding.code if decoder.is_own and plain else None  # type: ignore[attr-defined]


def _take(scope: dict[str, Any], i: int, decoder: Decoder) -> str:
    """An expression for a value of variable size, in [at, stop)."""
    if decoder.is_own and type(decoder.encoding) is Str:
        return "data[at:stop].decode()"
    if decoder.is_own and type(decoder.encoding) is Bytes:
        return "data[at:stop]"
    scope[f"decode{i}"] = decoder.one
    return f"decode{i}(view[at:stop])"
