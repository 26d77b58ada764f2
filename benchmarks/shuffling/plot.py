"""Draw what `bench.py --out` wrote: seconds against size, and how well is shuffled."""

import argparse
import json
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["main"]

MEASURES = {
    "distance": "distance of neighbours\n(full permutation: 1)",
    "shards": "shards in a global batch",
    "stream_error": "error of stream shares\nin a global batch",
    "chi_square": "chi-square of places\n(full permutation: 1)",
}


def draw_speeds(axis: Any, speeds: list[dict[str, Any]]) -> None:
    """Whole orders, and the first ids of the last canonical node."""
    algos = list(dict.fromkeys(row["algo"] for row in speeds))
    for number, algo in enumerate(algos):
        rows = [row for row in speeds if row["algo"] == algo]
        for name, style in (("peer", ":"), ("ours", "-"), ("first", "--")):
            found = [row for row in rows if row.get(name)]
            if found:
                sizes = [row["samples"] for row in found]
                seconds = [statistics.median(row[name]) for row in found]
                label = algo if name == "ours" else None
                axis.plot(sizes, seconds, style, color=f"C{number}", label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("samples")
    axis.set_title("CPU seconds: whole (solid), predecessor's (dotted),\nfirst ids (dashed)")
    axis.legend()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="what `bench.py --out` wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    rows = json.loads(args.rows.read_text())
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, 5, figsize=(19, 4), width_ratios=[2, 1, 1, 1, 1])
    draw_speeds(axes[0], rows["speeds"])
    quality = [row for row in rows["quality"] if row["algo"] != "not shuffled"]
    for axis, (name, title) in zip(axes[1:], MEASURES.items(), strict=True):
        axis.barh([row["algo"] for row in quality], [row[name] for row in quality])
        axis.set_title(title)
        if name == "chi_square":
            axis.set_xscale("log")
    figure.tight_layout()
    figure.savefig(args.picture, dpi=100)


if __name__ == "__main__":
    main()
