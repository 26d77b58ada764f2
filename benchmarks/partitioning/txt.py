"""Draw a partition as text: for each node, rank and worker the positions of its batches."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

__all__ = ["draw", "main"]


def draw(algo: str, *numbers: int) -> str:
    """The drawing of `get_partitions(algo, *numbers)`, "-" for padding."""
    sys.path.insert(0, str(ROOT))
    from streaming.partition import get_partitions

    array = get_partitions(algo, *numbers)
    width = max(len(str(int(array.max(initial=0)))), 1)
    lines = []
    for node, ranks in enumerate(array):
        for rank, workers in enumerate(ranks):
            for worker, batches in enumerate(workers):
                text = " | ".join(
                    " ".join(f"{'-' if i < 0 else i:>{width}}" for i in batch.tolist())
                    for batch in batches
                )
                lines.append(f"node {node} rank {rank} worker {worker}: {text}")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-a", "--algo", default="orig")
    parser.add_argument("-n", "--samples", type=int, default=678)
    parser.add_argument("-c", "--canonical-nodes", type=int, default=6)
    parser.add_argument("-p", "--nodes", type=int, default=3)
    parser.add_argument("-d", "--ranks-per-node", type=int, default=4)
    parser.add_argument("-w", "--workers-per-rank", type=int, default=5)
    parser.add_argument("-b", "--batch-size", type=int, default=7)
    parser.add_argument("-o", "--sample-in-epoch", type=int, default=0)
    args = parser.parse_args()
    print(
        draw(
            args.algo,
            args.samples,
            args.canonical_nodes,
            args.nodes,
            args.ranks_per_node,
            args.workers_per_rank,
            args.batch_size,
            args.sample_in_epoch,
        )
    )


if __name__ == "__main__":
    main()
