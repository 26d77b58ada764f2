"""Draw every shuffle as a web page: a row a canonical node, a hue a place in the data."""

import argparse
import random
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]

__all__ = ["draw", "main"]

_STYLE = "body{font:14px sans-serif;background:#fff;color:#222}svg{display:block;margin:4px 0 20px}"


def draw(sizes: list[int], nodes: int, seed: int, epoch: int, block_size: int) -> str:
    """The page."""
    sys.path.insert(0, str(ROOT))
    from streaming.shuffle import get_shuffle, shuffles

    total = sum(sizes)
    parts = [f"<!doctype html><meta charset=utf-8><title>Shuffles</title><style>{_STYLE}</style>"]
    for algo in ("none", *sorted(shuffles)):
        order = np.arange(total)
        if algo != "none":
            order = get_shuffle(algo, np.array(sizes), nodes, seed, epoch, block_size)
        parts.append(f"<h3>{algo}</h3>{_picture(order, nodes)}")
    return "\n".join(parts)


def _picture(order: "np.ndarray[tuple[int], np.dtype[np.int64]]", nodes: int) -> str:
    total = len(order)
    height = 6
    cells = []
    for node in range(nodes):
        start, stop = node * total // nodes, (node + 1) * total // nodes
        for x, draw_id in enumerate(order[start:stop].tolist()):
            hue = draw_id * 360 // total
            cells.append(
                f"<rect x={x} y={node * height} width=1 height={height - 1} "
                f'fill="hsl({hue} 80% 50%)"/>'
            )
    width = -(-total // nodes)
    return f"<svg width={width} height={nodes * height}>{''.join(cells)}</svg>"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-shards", type=int, default=100)
    parser.add_argument("--base-samples-per-shard", type=int, default=20)
    parser.add_argument("--canonical-nodes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0xD06E)
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--out", type=Path, help="HTML to write; else it is printed")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    base = args.base_samples_per_shard
    sizes = [base + rng.randrange(base // 2 + 1) for _ in range(args.num_shards)]
    page = draw(sizes, args.canonical_nodes, args.seed, args.epoch, args.block_size)
    if args.out:
        args.out.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
