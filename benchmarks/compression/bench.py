"""What the compressions make of a shard: its size, how fast it is made and read, in two threads."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from streaming.compression import compress, decompress, get_compressions, is_compression

__all__ = ["main", "survey"]

Row = dict[str, Any]
LEVELS = (None, 1, 3, 6, 9)
SLOWEST = 10.0  # seconds that one pass may take; slower levels are left out


def shards(size: int) -> dict[str, bytes]:
    """Two shards of about `size` bytes: lines of words, and token ids."""
    draw = np.random.default_rng(0)
    words = [f"word{i}" for i in range(5000)]
    picks = (draw.pareto(1.2, size // 8) * 20).astype(int) % len(words)
    text = " ".join(words[pick] for pick in picks.tolist()).encode()[:size]
    tokens = np.exp(draw.random(size // 4) * np.log(50_000)).astype("<i4").tobytes()
    return {"text": text, "tokens": tokens}


def survey(size: int, rounds: int) -> list[Row]:
    """Every compression at some levels; MB a second of raw bytes."""
    rows = []
    for kind, raw in shards(size).items():
        for family in sorted(name for name in get_compressions() if ":" not in name):
            for level in LEVELS:
                spec = family if level is None else f"{family}:{level}"
                if is_compression(spec):
                    rows += measure(kind, spec, raw, rounds)
    return rows


def measure(kind: str, spec: str, raw: bytes, rounds: int) -> list[Row]:
    """One compression of one shard."""
    start = time.perf_counter()
    packed = compress(spec, raw)
    took = time.perf_counter() - start
    if took > SLOWEST:
        return []
    if took > SLOWEST / 20:
        rounds = 1
    row: Row = {"kind": kind, "spec": spec, "ratio": len(raw) / len(packed)}

    def unpack() -> None:
        decompress(spec, packed, size=len(raw))

    work: dict[str, Callable[[], Any]] = {
        "compress": lambda: compress(spec, raw),
        "decompress": unpack,
    }
    for what, function in work.items():
        found = [len(raw) / 1e6 / clock(function, 1) for _ in range(rounds)]
        row[what] = statistics.median(found)
        row[f"{what}_range"] = [min(found), max(found)]
    # Twice the work by two threads in the time of one is 2; a codec that keeps the GIL has 1.
    row["threads"] = statistics.median(
        2 * clock(unpack, 1) / clock(unpack, 2) for _ in range(rounds)
    )
    return [row]


def clock(function: Callable[[], Any], threads: int) -> float:
    """Seconds until all of some threads have done the same."""
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        for job in [pool.submit(function) for _ in range(threads)]:
            job.result()
        return time.perf_counter() - start


def show(rows: Sequence[Row]) -> str:
    """A table as Markdown."""
    lines = [
        "| shard | compression | ratio | compressed, MB/s | decompressed, MB/s | by two threads |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["kind"], row["spec"], f"{row['ratio']:.2f}"]
        for what in ("compress", "decompress"):
            low, high = row[f"{what}_range"]
            cells.append(f"{row[what]:,.0f} ({low:,.0f}-{high:,.0f})")
        lines.append(f"| {' | '.join(cells)} | {row['threads']:.1f}x |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1 << 24, help="bytes of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    args = parser.parse_args()
    rows = survey(args.size, args.rounds)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=0))
    print(
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        f"shards of {args.size >> 10} KiB, {args.rounds} rounds: median (smallest-largest); load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    print(show(rows))


if __name__ == "__main__":
    main()
