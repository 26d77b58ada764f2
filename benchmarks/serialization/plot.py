"""Draw what `bench.py --out` wrote: bytes and decoding speed, a panel a kind of value."""

import argparse
import json
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
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(3.6 * len(kinds), 3.6), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for row in rows:
            if row["kind"] == kind:
                (dots,) = axis.loglog(row["bytes"], row["decode"], "o", label=row["way"])
                axis.loglog(row["bytes"], row["encode"], "x", color=dots.get_color())
        axis.set_title(kind)
        axis.set_xlabel("bytes a value")
        axis.legend(fontsize=6)
    axes[0][0].set_ylabel("values a CPU second (o decoded, x encoded)")
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
