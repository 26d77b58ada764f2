"""How long the shuffles take, and how well they shuffle."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

__all__ = ["main", "measure", "rate"]

ALGOS = ("naive", "py1s", "py2s", "py1br", "py1e", "block1")


def measure(turns: Any, algos: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """CPU seconds and MB of whole orders, and until the first ids of the last canonical node."""
    rows = []
    for algo in algos:
        for power in range(args.min_power, args.max_power + 1, args.step):
            request = {
                "algo": algo,
                "samples": 1 << power,
                "shard": args.samples_per_shard,
                "nodes": args.canonical_nodes,
                "seed": args.seed,
                "epoch": args.epoch,
                "block": args.block_size,
            }
            found = turns.rounds(request, args.rounds)
            early = [turns.run("ours", {**request, "first": True}) for _ in range(args.rounds)]
            row: dict[str, Any] = {"algo": algo, "samples": 1 << power}
            for name, answers in found.items():
                row[name] = [each["seconds"] for each in answers]
                row[f"{name}_mb"] = [each["mb"] for each in answers]
            row["first"] = [each["seconds"] for each in early if each]
            row["first_mb"] = [each["mb"] for each in early if each]
            rows.append(row)
            show(row)
    return rows


def show(row: dict[str, Any]) -> None:
    """Print one row of a Markdown table."""
    from benchmarks.turns import spread

    cells = [row["algo"], f"{row['samples']:,}"]
    cells += [spread(row.get(name, []), ".3f") for name in ("ours", "peer", "first")]
    cells += [spread(row.get(f"{name}_mb", []), ".0f") for name in ("ours", "peer", "first")]
    print(f"| {' | '.join(cells)} |", flush=True)


def rate(args: argparse.Namespace) -> list[dict[str, Any]]:
    """How well orders are shuffled, of two streams, one three times as large as the other."""
    from dataclasses import asdict

    from streaming.explain import WholeEpoch, measure_quality
    from streaming.plan import OrderSpec, Position
    from streaming.sampling import Weight, weigh
    from streaming.table import ShardTable
    from streaming.world import World

    shards = [3 * args.quality_shards // 4, args.quality_shards // 4]
    samples = np.full(sum(shards), args.quality_samples_per_shard)
    none = np.zeros_like(samples)
    stream = np.repeat(np.arange(2, dtype=np.int32), shards)
    table = ShardTable(samples, none, none, stream)
    shares, size = weigh([Weight()] * 2, [int(samples[stream == i].sum()) for i in (0, 1)], None, 0)
    rows = []
    for algo in (None, *ALGOS):
        spec = OrderSpec(
            batch_size=32,
            shuffle=algo is not None,
            shuffle_algo=algo or "naive",
            shuffle_block_size=args.block_size,
            num_canonical_nodes=args.canonical_nodes,
            shuffle_seed=args.seed,
        )
        world = World(args.canonical_nodes, 8, 1)
        epoch = WholeEpoch(spec, table, shares, world, Position(args.epoch))
        ids = np.concatenate([found.ravel() for _, found in epoch.walk(epoch.num_steps)])
        ids = ids[ids >= 0]
        where = epoch.spanner(ids)[0]
        quality = measure_quality(ids, where, stream[where], size, world.num_ranks * 32)
        rows.append({"algo": algo or "not shuffled", **asdict(quality)})
    return rows


def show_quality(rows: list[dict[str, Any]]) -> None:
    """Print a Markdown table."""
    window = rows[0]["window"]
    print(f"\n| order | distance of neighbours | neighbours of one shard | shards in {window:,} "
          f"| in the worst | error of stream shares | chi-square of places |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['algo']} | {row['distance']:.3f} | {row['same_shard']:.2f} | "
            f"{row['shards']:.0f} | {row['shards_least']} | {row['stream_error']:.4f} | "
            f"{row['chi_square']:.2f} |"
        )
    chance = rows[0]
    print(
        f"| full permutation (chance) | 1 | 1 | {chance['shards_by_chance']:.0f} | | "
        f"{chance['stream_error_by_chance']:.4f} | 1 |"
    )


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import Turns, add_arguments, header

    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=3)
    parser.add_argument("--algos", default="", help="comma-separated; all if left out")
    parser.add_argument("--canonical-nodes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=9186)
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=1 << 18)
    parser.add_argument("--samples-per-shard", type=int, default=50_000)
    parser.add_argument("--min-power", type=int, default=20)
    parser.add_argument("--max-power", type=int, default=26)
    parser.add_argument("--step", type=int, default=3)
    parser.add_argument("--quality-shards", type=int, default=1600)
    parser.add_argument("--quality-samples-per-shard", type=int, default=10_000)
    args = parser.parse_args()
    algos = args.algos.split(",") if args.algos else list(ALGOS)
    turns = Turns(Path(__file__).with_name("side.py"), args.peer, args.timeout)
    print(f"{header(args.rounds)}\n")
    titles = "whole, ours | whole, peer | first ids, ours | MB | MB, peer | MB, first"
    print(f"| shuffle | samples | {titles} |")
    print("|---|---|---|---|---|---|---|---|")
    speeds = measure(turns, algos, args)
    quality = rate(args)
    show_quality(quality)
    if args.out:
        args.out.write_text(json.dumps({"speeds": speeds, "quality": quality}))


if __name__ == "__main__":
    main()
