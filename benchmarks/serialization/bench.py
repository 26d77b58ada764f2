"""How many bytes, and how fast: the column encodings beside other ways to store the same values.

``compare`` takes values of several kinds through every encoding of ours that holds them and through
JSON, MessagePack and pickle. ``survey_fixed_decimals`` takes numbers of a fixed count of decimals,
as prices are, through all encodings that could hold them, and says what each loses.
"""

import argparse
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streaming.format.mds.encodings import get_encoding

__all__ = ["compare", "main", "survey_fixed_decimals"]

Row = dict[str, Any]
Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]


def rates(encode: Any, decode: Any, values: Sequence[Any], rounds: int) -> tuple[Row, list[Any]]:
    """Bytes a value, values a CPU second each way (median of the rounds), and what came back."""
    times: dict[str, list[float]] = {"encode": [], "decode": []}
    for _ in range(rounds):
        start = time.process_time()
        encoded = [encode(value) for value in values]
        middle = time.process_time()
        decoded = [decode(data) for data in encoded]
        stop = time.process_time()
        times["encode"].append(middle - start)
        times["decode"].append(stop - middle)
    row: Row = {"bytes": sum(map(len, encoded)) / len(values)}
    for what, found in times.items():
        per = [len(values) / max(one, 1e-9) for one in found]
        row[what] = statistics.median(per)
        row[f"{what}_range"] = [min(per), max(per)]
    return row, decoded


def ours(name: str) -> Codec:
    """An encoding of this library."""
    encoding = get_encoding(name)
    return encoding.encode, encoding.decode


def others() -> dict[str, Codec]:
    """Ways to store any value."""
    return {
        "json": (lambda value: json.dumps(value).encode(), json.loads),
        "msgpack": (msgspec.msgpack.encode, msgspec.msgpack.decode),
        "pickle": (pickle.dumps, pickle.loads),
    }


def compare(count: int, rounds: int) -> list[Row]:
    """Encodings of ours beside general ones, by kind of value."""
    draw = np.random.default_rng(0)
    integers = draw.integers(-(10**9), 10**9, count).tolist()
    lists = [draw.integers(0, 50_000, 64).tolist() for _ in range(count // 50)]
    kinds: dict[str, tuple[Sequence[Any], Sequence[str]]] = {
        "int": (integers, ["int", "int64", "str_int"]),
        "float": (draw.random(count).tolist(), ["float", "float64", "float32", "str_float"]),
        "text": ([f"a line with {number} in it" for number in integers], ["str", "json"]),
        "64 ints": (lists, ["list[int]", "json"]),
        "int32[64]": ([np.array(one, np.int32) for one in lists], _ARRAYS),
    }
    rows = []
    for kind, (values, names) in kinds.items():
        codecs = {name: ours(name) for name in names}
        if isinstance(values[0], np.ndarray):
            codecs["pickle"] = others()["pickle"]
        else:
            codecs |= {f"{name} (general)": codec for name, codec in others().items()}
        for name, codec in codecs.items():
            rows.append({"kind": kind, "way": name, **rates(*codec, values, rounds)[0]})
    return rows


_ARRAYS = ("ndarray", "ndarray:int32", "ndarray:int32:64")


def survey_fixed_decimals(count: int, rounds: int) -> list[Row]:
    """Numbers with 0 to 8 decimals: bytes, speed, and the share that comes back as it was."""
    draw = np.random.default_rng(1)
    rows = []
    for places in (0, 2, 4, 8):
        scale = 10**places
        units = (draw.integers(-(10**7), 10**7, count) * 10 + 1).tolist()
        exact = [Decimal(unit).scaleb(-places) for unit in units]
        ways: dict[str, tuple[Codec, Callable[[Any], Any], Callable[[Any], Decimal]]] = {
            "str_decimal": (ours("str_decimal"), lambda x: x, lambda x: x),
            "str_float": (ours("str_float"), float, _shortest),
            "float64": (ours("float64"), float, _shortest),
            "float32": (ours("float32"), float, _shortest),
            "int, scaled": (
                ours("int"),
                lambda x, scale=scale: int(x * scale),  # type: ignore[misc]
                lambda x, places=places: Decimal(x).scaleb(-places),  # type: ignore[misc]
            ),
        }
        for name, (codec, prepare, restore) in ways.items():
            row, decoded = rates(*codec, [prepare(value) for value in exact], rounds)
            kept = sum(restore(a) == b for a, b in zip(decoded, exact, strict=True)) / count
            rows.append({"kind": f"{places} decimals", "way": name, **row, "kept": kept})
    return rows


def _shortest(number: Any) -> Decimal:
    return Decimal(str(number))


def show(rows: Sequence[Row]) -> str:
    """A table as Markdown."""
    extra = "kept" in rows[0]
    lines = [
        "| values | way | bytes | encoded a second | decoded a second |"
        + (" come back exactly |" if extra else ""),
        "|---|---|---|---|---|" + ("---|" if extra else ""),
    ]
    for row in rows:
        cells = [row["kind"], row["way"], f"{row['bytes']:.1f}"]
        for what in ("encode", "decode"):
            low, high = row[f"{what}_range"]
            cells.append(f"{row[what]:,.0f} ({low:,.0f}-{high:,.0f})")
        if extra:
            cells.append(f"{row['kept']:.1%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("compare", "survey_fixed_decimals"))
    parser.add_argument("--count", type=int, default=100_000, help="values")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    args = parser.parse_args()
    function = {"compare": compare, "survey_fixed_decimals": survey_fixed_decimals}[args.what]
    rows = function(args.count, args.rounds)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=0))
    print(
        f"{time.strftime('%Y-%m-%d')}, one of {os.cpu_count()} cores, Python "
        f"{sys.version.split()[0]}, {args.count} values, {args.rounds} rounds; values a CPU "
        f"second: median (smallest-largest); load {os.getloadavg()[0]:.1f}\n"
    )
    print(show(rows))


if __name__ == "__main__":
    main()
