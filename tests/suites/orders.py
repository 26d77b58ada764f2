"""Recorded orders, and how they are compared."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.table import ShardTable

__all__ = ["Case", "differing", "read_cases", "shard_table"]


@dataclass(frozen=True)
class Case:
    """One recorded call: its arguments, and the arrays it gave or None where it raised."""

    id: str
    params: dict[str, Any]
    arrays: dict[str, NDArray[Any]] | None


def read_cases(golden: Path, family: str) -> Iterator[Case]:
    """All calls of one file of recorded orders."""
    cases = json.loads((golden / "orders" / f"{family}.json").read_text())["cases"]
    assert cases
    with np.load(golden / "orders" / f"{family}.npz") as arrays:
        for case in cases:
            if "error" in case:
                assert case["error"] == "ValueError"  # the only kind there is in these files
                yield Case(case["id"], case["params"], None)
                continue
            told = case["arrays"]
            # Stored as int32 where that suffices; `dtype` is what the predecessor returned.
            found = {k: arrays[f"{case['id']}/{k}"].astype(told[k]["dtype"]) for k in told}
            yield Case(case["id"], case["params"], found)


def differing(
    cases: Iterator[Case], call: Callable[[dict[str, Any]], dict[str, NDArray[Any]]]
) -> list[str]:
    """The cases for which `call` does not give what was recorded, in values, shape or dtype."""
    bad = []
    for case in cases:
        try:
            found = call(case.params)
        except ValueError:
            if case.arrays is not None:
                bad.append(f"{case.id} raises")
            continue
        if case.arrays is None:
            bad.append(f"{case.id} does not raise")
        else:
            bad += [
                f"{case.id} {name}"
                for name, array in found.items()
                if array.dtype != case.arrays[name].dtype
                or not np.array_equal(array, case.arrays[name])
            ]
    return bad


def shard_table(*streams: list[int]) -> ShardTable:
    """Shards of these sizes, stream by stream."""
    sizes = np.array([size for stream in streams for size in stream], np.int64)
    none = np.zeros_like(sizes)
    stream_ids = np.repeat(np.arange(len(streams), dtype=np.int32), list(map(len, streams)))
    return ShardTable(sizes, none, none, stream_ids)
