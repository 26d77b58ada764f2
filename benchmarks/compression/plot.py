"""Draw what `bench.py --out` wrote: ratio against the speed of reading, a panel a shard."""

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
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(5 * len(kinds), 4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        found = [row for row in rows if row["kind"] == kind]
        for family in dict.fromkeys(row["spec"].partition(":")[0] for row in found):
            mine = [row for row in found if row["spec"].partition(":")[0] == family]
            axis.plot(
                [x["ratio"] for x in mine], [x["decompress"] for x in mine], "o", label=family
            )
        axis.set_yscale("log")
        axis.set_title(kind)
        axis.set_xlabel("raw bytes by compressed bytes")
        axis.legend()
    axes[0][0].set_ylabel("decompressed, MB/s")
    figure.tight_layout()
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
