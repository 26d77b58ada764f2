"""How long it takes to deal out epochs of growing size: as a whole array, and for one worker."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

__all__ = ["main"]


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import Turns, add_arguments, header, spread

    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=3)
    parser.add_argument("--algo", default="orig")
    parser.add_argument("--canonical-nodes", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--workers-per-rank", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sample-in-epoch", type=int, default=0)
    parser.add_argument("--min-power", type=int, default=10)
    parser.add_argument("--max-power", type=int, default=28)
    parser.add_argument("--most", type=int, default=28, help="largest power as a whole array")
    parser.add_argument("--step", type=int, default=3)
    args = parser.parse_args()
    turns = Turns(Path(__file__).with_name("side.py"), args.peer, args.timeout)
    print(f"{header(args.rounds)}\n")
    print("| samples | whole, ours | whole, peer | MB, ours | MB, peer | one worker, ours |")
    print("|---|---|---|---|---|---|")
    rows = []
    for power in range(args.min_power, args.max_power + 1, args.step):
        samples = 1 << power
        case = [
            samples,
            args.canonical_nodes,
            args.nodes,
            args.ranks_per_node,
            args.workers_per_rank,
            args.batch_size,
            args.sample_in_epoch,
            None,
        ]
        request = {"algo": args.algo, "cases": [case]}
        found = turns.rounds(request, args.rounds if power <= args.most else 0)
        parts = [turns.run("ours", {**request, "part": True}) for _ in range(args.rounds)]
        row: dict[str, Any] = {
            "samples": samples,
            **{name: [each["seconds"] for each in answers] for name, answers in found.items()},
            **{f"{name}_mb": [each["mb"] for each in answers] for name, answers in found.items()},
            "part": [each["seconds"] for each in parts if each],
        }
        rows.append(row)
        cells = [spread(row.get(name, []), ".4f") for name in ("ours", "peer")]
        cells += [spread(row.get(f"{name}_mb", []), ".0f") for name in ("ours", "peer")]
        print(f"| 2^{power} | {' | '.join(cells)} | {spread(row['part'], '.4f')} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
