"""Are two partitions equal, over a grid of worlds? Fails where they are not.

Two algorithms of this library, or one of them and the predecessor's with --peer.
"""

import argparse
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

__all__ = ["main"]


def numbers(text: str) -> list[int]:
    """The numbers of a range such as "1-64", or of one number."""
    low, _, high = text.partition("-")
    return list(range(int(low), int(high or low) + 1))


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import Turns

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="virtual environment with mosaicml-streaming")
    parser.add_argument("-a1", "--algo1", default="orig")
    parser.add_argument("-a2", "--algo2", help="default: that of -a1")
    parser.add_argument("-c", "--canonical-nodes", type=numbers, default=numbers("1-64"))
    parser.add_argument("-p", "--nodes", type=numbers, default=numbers("1-64"))
    parser.add_argument("-r", "--ranks-per-node", type=numbers, default=numbers("1-8"))
    parser.add_argument("-w", "--workers-per-rank", type=numbers, default=numbers("1-8"))
    parser.add_argument("-b", "--batch-size", type=numbers, default=numbers("1-8"))
    parser.add_argument("-n", "--samples", type=numbers, default=numbers("512-576"))
    parser.add_argument("-o", "--sample-in-epoch", type=numbers, default=[0])
    parser.add_argument("--cases", type=int, default=2000, help="drawn from the grid")
    args = parser.parse_args()
    grid = (
        args.samples,
        args.canonical_nodes,
        args.nodes,
        args.ranks_per_node,
        args.workers_per_rank,
        args.batch_size,
        args.sample_in_epoch,
    )
    draw = random.Random(0)
    cases = [[*map(draw.choice, grid), None] for _ in range(args.cases)]
    turns = Turns(Path(__file__).with_name("side.py"), args.peer)
    second = args.algo2 or args.algo1
    answers = []
    for name, algo in ((turns.names[0], args.algo1), (turns.names[-1], second)):
        digests, seconds = [], 0.0
        for start in range(0, len(cases), 200):
            some = cases[start : start + 200]
            answer = turns.run(name, {"algo": algo, "cases": some, "digest": True})
            if answer is None:
                sys.exit(f"{name}, {algo}: failed")
            digests += answer["digests"]
            seconds += answer["seconds"]
        done = sum(digest != "error" for digest in digests)
        print(f"{name}, {algo}: {seconds / max(done, 1) * 1e6:.0f} us a partition, {done} of them")
        answers.append(digests)
    bad = [case for case, one, other in zip(cases, *answers, strict=True) if one != other]
    if bad:
        sys.exit(f"{len(bad)} of {len(cases)} differ, the first for {bad[0]}")
    print(f"{len(cases)} equal")


if __name__ == "__main__":
    main()
