"""How random is the keyed permutation within a block, with how many rounds?

Chi-squares over keys, as deviations from chance in units of its own deviation; printed is the
largest of some keys, for which chance gives about 2.5.

place      64th of the input against 64th of the output
step 1     histogram of out[i + 1] - out[i]
step 64    histogram of out[i + 64] - out[i]
half       histogram of out[i + n/2] - out[i]
low-low    input modulo 64 against output modulo 64
low-high   input modulo 64 against 64th of the output
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

__all__ = ["main"]

Array = np.ndarray[Any, np.dtype[Any]]


def deviation(counts: Array, freedom: int) -> float:
    """Of counts that should be equal, from chance."""
    expected = counts.sum() / len(counts)
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def measure(make: Callable[[int], Array], size: int, keys: int) -> list[float]:
    """The largest deviations."""
    at = np.arange(size)
    rows = []
    for key in range(keys):
        out = make(key).astype(np.int64)
        steps = [
            np.bincount((out[k:] - out[:-k]) % size * 256 // size, minlength=256)
            for k in (1, 64, size // 2)
        ]
        high = out * 64 // size
        pairs = [(at * 64 // size, high), (at % 64, out % 64), (at % 64, high)]
        tables = [np.bincount(a * 64 + b, minlength=4096) for a, b in pairs]
        squares = [deviation(table, 63 * 63) for table in tables]
        rows.append([squares[0], *(deviation(step, 255) for step in steps), *squares[1:]])
    found: list[float] = np.abs(rows).max(axis=0).tolist()
    return found


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from streaming.shuffle import bijection

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=12)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1 << 18, 1 << 14, 200_000])
    args = parser.parse_args()
    print("| size | rounds | place | step 1 | step 64 | half | low-low | low-high |")
    print("|---|---|---|---|---|---|---|---|")

    for size in args.sizes:
        for rounds in (2, 3, 4, 5, 6, 0):
            bijection.ROUNDS = rounds or bijection.ROUNDS

            def make(key: int, size: int = size, rounds: int = rounds) -> Array:
                if not rounds:
                    return np.random.default_rng(key).permutation(size)
                places = np.arange(size, dtype=np.uint32)
                return bijection.permute(places, size, bijection.derive(1, (key,)))

            cells = [f"{each:,.1f}" for each in measure(make, size, args.keys)]
            print(f"| {size} | {rounds or 'numpy'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
