"""Draw what `bench.py --out` wrote: the rates of all libraries, a panel a case."""

import argparse
import json
import statistics
from importlib import import_module
from pathlib import Path

import bench  # type: ignore[import-not-found]  # It lies beside this file.

__all__ = ["main"]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what `bench.py --out` wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text())["rows"]
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    cases = [case for case in bench.CASES if any(row["case"] == case for row in rows)]
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    wide = 4
    figure, axes = pyplot.subplots(
        -(-len(cases) // wide),
        wide,
        figsize=(4 * wide, 2.2 * -(-len(cases) // wide)),
        squeeze=False,
    )
    for axis in axes.flat[len(cases) :]:
        axis.axis("off")
    for axis, case in zip(axes.flat, cases, strict=False):
        for place, peer in enumerate(peers):
            found = list(bench.rates(rows, peer, case).values())
            if found:
                middle = statistics.median(found)
                spread = [[middle - min(found)], [max(found) - middle]]
                axis.barh(place, middle, xerr=spread, color="C1" if peer == "ours" else "C0")
        axis.set_xscale("log")
        axis.set_yticks(range(len(peers)), peers, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(bench.CASES[case][0], fontsize=9)
    figure.supxlabel("samples a CPU second (starts, in the last)", fontsize=9)
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
