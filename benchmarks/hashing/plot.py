"""Draw what `bench.py --out` wrote: MB a CPU second against size, a line a hash."""

import argparse
import json
import statistics
from importlib import import_module
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what `bench.py --out` wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text())
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    figure, axis = pyplot.subplots(figsize=(8, 5))
    answers = [each["hashes"] for each in rows["ours"]]
    for algo in sorted(answers[0]):
        sizes = [size for size in rows["sizes"] if str(size) in answers[0][algo]]
        seconds = [statistics.median(each[algo][str(size)] for each in answers) for size in sizes]
        speeds = [size / 1e6 / max(one, 1e-9) for size, one in zip(sizes, seconds, strict=True)]
        axis.plot(sizes, speeds, "o-", label=algo)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("bytes")
    axis.set_ylabel("MB a CPU second")
    axis.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
