"""Recorded datasets: how their expected.json writes values, and a parser of its own for MDS."""

import decimal
import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from streaming.compression import decompress
from streaming.format import Index, ShardInfo, ShardReader, open_reader, parse_index

__all__ = [
    "describe",
    "encoded_values",
    "load_expected",
    "load_index",
    "open_shards",
    "raw_file",
    "short",
]


def describe(value: Any) -> dict[str, Any]:
    """A value as expected.json has it (docstring of golden/streaming/gen_formats.py)."""
    if isinstance(value, bytes):
        return {"t": "bytes", "hex": value.hex()}
    if isinstance(value, str):
        return {"t": "str", "v": value}
    if isinstance(value, np.ndarray):
        shape = list(value.shape)
        return {"t": "ndarray", "dtype": value.dtype.name, "shape": shape, "hex": _hex(value)}
    if isinstance(value, np.generic):
        return {"t": "scalar", "dtype": value.dtype.name, "v": repr(value.item())}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"t": "int", "v": str(value)}
    if isinstance(value, float):
        return {"t": "float", "v": repr(value)}
    if isinstance(value, decimal.Decimal):
        return {"t": "decimal", "v": str(value)}
    if hasattr(value, "tobytes"):  # an image
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return {"t": "image", "mode": value.mode, "size": list(value.size), "sha256": digest}
    if isinstance(value, list) and value and hasattr(value[0], "tobytes"):
        return {"t": "list", "v": [describe(item) for item in value]}
    return {"t": "json", "v": value}


def _hex(array: np.ndarray[Any, Any]) -> str:
    return array.tobytes().hex()


def short(value: bytes) -> str:
    """Encoded bytes as expected.json has them."""
    return value.hex() if len(value) <= 64 else "sha256:" + hashlib.sha256(value).hexdigest()


def load_index(root: Path) -> Index:
    """The index of a directory."""
    path = root / "index.json"
    return parse_index(path.read_bytes(), str(path))


def raw_file(root: Path, info: ShardInfo, scratch: Path) -> Path:
    """The raw file of a one-file shard; made in `scratch` if only the compressed one is there."""
    ((raw, zipped),) = info.files
    if zipped is None:
        return root / raw.basename
    path = scratch / raw.basename.replace("/", "-")
    data = (root / zipped.basename).read_bytes()
    path.write_bytes(decompress(info.compression, data, size=raw.bytes))
    return path


def open_shards(root: Path, scratch: Path, **options: Any) -> list[ShardReader]:
    """Readers of all shards of a directory."""
    return [
        open_reader(info, [raw_file(root, info, scratch)], **options) for info in load_index(root)
    ]


def encoded_values(root: Path, info: ShardInfo, scratch: Path) -> list[dict[str, bytes]]:
    """The stored bytes of the values of an MDS shard, by a parser that shares no code with ours."""
    data = raw_file(root, info, scratch).read_bytes()
    (count,) = struct.unpack_from("<I", data)
    starts = struct.unpack_from(f"<{count + 1}I", data, 4)
    rows = []
    for start, stop in pairwise(starts):
        at, sizes = start, []
        for size in info.extra["column_sizes"]:
            if size is None:
                (size,) = struct.unpack_from("<I", data, at)
                at += 4
            sizes.append(size)
        row = {}
        for name, size in zip(info.extra["column_names"], sizes, strict=True):
            row[name] = data[at : at + size]
            at += size
        assert at == stop
        rows.append(row)
    return rows


def load_expected(root: Path) -> dict[str, Any]:
    """The recording beside a dataset."""
    expected: dict[str, Any] = json.loads((root / "expected.json").read_text())
    return expected
