"""Which old paths differ from today's by more than `base.`, and names only old code asks for."""

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from streaming.shuffle.spans import cut
from streaming.util.migration import removed

__all__ = ["MOVED", "NAMES"]

# Below `streaming.base`: the old module to the one in its place.
MOVED: Mapping[str, str] = {
    "converters.dataframe_to_mds": "streaming.converters.spark",
    "format.base": "streaming.format",
    "format.base.reader": "streaming.format.reader",
    "format.base.writer": "streaming.format.writer",
    "registry_utils": "streaming.util.registries",
    **{
        f"shared.{name}": "streaming.base._shared"
        for name in ("array", "barrier", "memory", "prefix", "scalar")
    },
}


class _ShardState(enum.IntEnum):
    """The states that a shard had. Here it is whole, or not there; nobody asks for these."""

    INVALID = 0
    REMOTE = 1
    PREPARING = 2
    LOCAL = 3


class _IterState(enum.IntEnum):
    """The states that an iteration had."""

    ITERATING = 0
    EXITING = 1
    EXITED = 2


def divide_spans(
    spans: list[tuple[int, int]], num_samples: int, num_parts: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Divide spans into parts of equal length; a span that goes over a border is cut there.

    Args:
        spans: Begin and end (half-open) of each.
        num_samples: Sum of their lengths.
        num_parts: Number of parts.

    Returns:
        The spans as they are cut, and of each part the first of them and the first behind it.
    """
    parts = cut(np.array(spans, np.int64).reshape(-1, 2), num_parts)
    stops = np.cumsum([len(part) for part in parts]).tolist()
    cut_spans = [(begin, end) for part in parts for begin, end in part.tolist()]
    return cut_spans, list(zip([0, *stops[:-1]], stops, strict=True))


def _codec(family: str) -> str:
    return (
        f"use `compress({family!r}, data)` of `streaming.compression`, which takes a level, too, "
        f"as in '{family}:5'."
    )


_BLOCKS = (
    "locals barrier next_epoch cache_usage shard_states shard_access_times resume epoch_shape "
    "epoch_data"
).split()

# Full name of a module of today to the names that old code finds in it, on top of its own.
NAMES: Mapping[str, Mapping[str, Any]] = {
    "streaming.batching": {
        f"generate_work_{name}_batching": f"streaming.batching.{name}:generate_work_{name}_batching"
        for name in ("device_per_stream", "per_stream", "random", "stratified")
    },
    "streaming.compression": {
        name: removed(name, _codec(family))
        for name, family in {
            "Compression": "zstd",
            "LevelledCompression": "zstd",
            "Brotli": "br",
            "Bzip2": "bz2",
            "Gzip": "gz",
            "Snappy": "snappy",
            "Zstandard": "zstd",
        }.items()
    },
    "streaming.constant": {
        **{name.upper(): name for name in _BLOCKS},
        "SHM_TO_CLEAN": _BLOCKS,
        "BARRIER_FILELOCK": "barrier_filelock",
        "CACHE_FILELOCK": "cache_filelock",
    },
    "streaming.dataset": {
        "NEVER": np.iinfo(np.uint64).max,
        "TICK": "streaming.constant:TICK",
        "_IterState": _IterState,
        "_Iterator": removed("_Iterator", "`iter(dataset)` is an ordinary generator."),
        "_ShardState": _ShardState,
    },
    "streaming.format": {
        "Reader": "streaming.format.lazy:Reader",
        **{
            f"{kind}{what}": f"streaming.format.{home}.{what.lower()}:{kind}{what}"
            for kind, home in {"CSV": "xsv", "JSON": "json", "TSV": "xsv", "XSV": "xsv"}.items()
            for what in ("Reader", "Writer")
        },
        "MDSReader": "streaming.format.mds.reader:MDSReader",
        "MDSWriter": "streaming.format.mds.writer:MDSWriter",
    },
    "streaming.format.reader": {
        "FileInfo": "streaming.format.index:FileInfo",
        "Reader": "streaming.format.lazy:Reader",
        "JointReader": "streaming.format.own:JointReader",
        "SplitReader": "streaming.format.own:SplitReader",
    },
    "streaming.partition": {
        f"get_partitions_{name}": f"streaming.partition.{name}:get_partitions_{name}"
        for name in ("orig", "relaxed")
    },
    "streaming.shared": {
        name: f"streaming.base._shared:{name}"
        for name in (
            "SharedArray SharedBarrier SharedMemory SharedScalar get_shm_prefix _get_path"
        ).split()
    },
    "streaming.shuffle": {
        f"get_shuffle_{name}": f"streaming.shuffle.{name}:get_shuffle_{name}"
        for name in ("naive", "py1br", "py1e", "py1s", "py2s")
    },
    "streaming.shuffle.py1s": {"divide_spans": divide_spans},
    "streaming.storage.download": {
        "BOTOCORE_CLIENT_ERROR_CODES": frozenset({"403", "404", "NoSuchKey"}),
        "GCS_ERROR_NO_AUTHENTICATION": "no credentials for GCS were found",
    },
}
