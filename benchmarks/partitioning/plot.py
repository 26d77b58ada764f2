"""Draw what `bench.py --out` wrote: CPU seconds against the size of the epoch."""

import argparse
import json
import statistics
from importlib import import_module
from pathlib import Path

__all__ = ["main"]

LABELS = {"peer": "predecessor, whole", "ours": "ours, whole", "part": "ours, one worker"}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what `bench.py --out` wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text())
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    figure, axis = pyplot.subplots(figsize=(6, 4))
    for name, label in LABELS.items():
        found = [row for row in rows if row.get(name)]
        if found:
            sizes = [row["samples"] for row in found]
            axis.plot(sizes, [statistics.median(row[name]) for row in found], "o-", label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("samples")
    axis.set_ylabel("CPU seconds")
    axis.legend()
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
