"""What an epoch costs before the first sample, in time and memory, beside the predecessor's plan.

64 nodes with 8 ranks of 8 workers. The worker that waits longest for an exact shuffle is one of
the last node, whose draws come after all others'.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

__all__ = ["main"]

BLOCK1 = (
    ("10^9 samples in 10^5 shards", 10**9, 10**5, "0.3 s, 100 MB"),
    ("10^12 samples in 10^6 shards", 10**12, 10**6, "3 s, 250 MB"),
)
WORLD = {"nodes": 64, "canonical": 64, "block": 1 << 18, "worker": 64 * 64 - 1}


def block1(turns: Any, rounds: int) -> list[dict[str, Any]]:
    """The arithmetic shuffle: first ids, memory, ids a second; and mixtures of many streams."""
    from benchmarks.turns import spread

    rows = []
    print("| `block1` | first 4,096 ids, s | MB | at most |\n|---|---|---|---|")
    cases: list[tuple[str, dict[str, Any], str]] = [
        (name, {"samples": samples, "shards": shards}, most)
        for name, samples, shards, most in BLOCK1
    ]
    for batching in ("random", "per_stream", "device_per_stream", "stratified"):
        request = {"samples": 10**9, "shards": 10**5, "streams": 1000, "batching": batching}
        if batching == "stratified":
            request["streams"] = 500  # A global batch must hold a sample of each.
        name = f"{request['streams']:,} streams by weight, 10^9 samples, {batching}"
        cases.append((name, request, "2 s, 200 MB"))
    for name, request, most in cases:
        found = measure(turns, {"what": "our_plan", "algo": "block1", **WORLD, **request}, rounds)
        rows.append({"case": name, "answers": found})
        seconds = spread([each["seconds"] for each in found], ".2f")
        print(f"| {name} | {seconds} | {spread([each['mb'] for each in found], '.0f')} | {most} |")
    print("\n| `block1`, million ids a CPU second, 64 apart | shuffle | whole plan | at least |")
    print("|---|---|---|---|")
    for name, samples, shards, _ in BLOCK1:
        for piece, least in ((4096, 10), (65536, 15)):
            request = {
                "what": "our_rate",
                "algo": "block1",
                "samples": samples,
                "shards": shards,
                "piece": piece,
                "ids": 1 << 22,
                **WORLD,
            }
            found = measure(turns, request, rounds)
            rows.append({"case": f"{name}, pieces of {piece}", "answers": found})
            cells = [spread([each[what] for each in found], ".1f") for what in ("shuffle", "plan")]
            print(f"| {name}, pieces of {piece:,} | {' | '.join(cells)} | {least} |", flush=True)
    return rows


def measure(turns: Any, request: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Answers of this library, each with a directory of its own."""
    found = []
    for _ in range(rounds):
        directory = tempfile.mkdtemp()
        try:
            answer = turns.run("ours", {**request, "directory": directory})
        finally:
            shutil.rmtree(directory)
        if answer is not None:
            found.append(answer)
    return found


def exact(turns: Any, algos: list[str], samples: int, rounds: int) -> list[dict[str, Any]]:
    """The predecessor's shuffles: first ids of a worker of the last node, by turns with it."""
    from benchmarks.turns import spread

    rows = []
    print(f"\n| exact, {samples:,} samples | canonical nodes | predecessor's whole plan, s | "
          f"first ids, s | ratio | whole table, s | MB, maker | MB, reader |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for algo in algos:
        for nodes, canonical in ((64, 64), (1, 64), (1, 1)):
            world = {
                "nodes": nodes,
                "canonical": canonical,
                "block": max(4_000_000 // canonical, 1 << 18),
                "worker": nodes * 64 - 1,
                "samples": samples,
                "shards": samples // 100_000,
                "algo": algo,
            }
            peers, ours, readers = [], [], []
            for _ in range(rounds):
                if "peer" in turns.names:
                    peers.append(turns.run("peer", {"what": "peer_plan", **world}))
                directory = tempfile.mkdtemp()
                try:
                    request = {**world, "directory": directory}
                    ours.append(turns.run("ours", {"what": "our_plan", "whole": True, **request}))
                    readers.append(turns.run("ours", {"what": "our_reader", **request}))
                finally:
                    shutil.rmtree(directory)
            row = {"algo": algo, **world, "peer": peers, "ours": ours, "reader": readers}
            rows.append(row)
            ratios = [
                one["seconds"] / other["seconds"]
                for one, other in zip(ours, peers, strict=False)
                if one and other
            ]
            cells = [
                spread([each["seconds"] for each in peers if each], ".2f"),
                spread([each["seconds"] for each in ours if each], ".2f"),
                spread(ratios, ".2f"),
                spread([each["whole"] for each in ours if each], ".2f"),
                spread([each["whole_mb"] for each in ours if each], ".0f"),
                spread([each["mb"] for each in readers if each], ".0f"),
            ]
            where = f"{canonical} on {nodes} node{'s' * (nodes > 1)}"
            print(f"| {algo} | {where} | {' | '.join(cells)} |", flush=True)
    return rows


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import Turns, add_arguments, header

    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=3)
    parser.add_argument("--algos", default="py1s,py1e,py1br", help="exact ones, comma-separated")
    parser.add_argument("--samples", type=int, default=10**8, help="of the exact ones")
    args = parser.parse_args()
    turns = Turns(Path(__file__).with_name("side.py"), args.peer, args.timeout)
    print(f"{header(args.rounds)}\n")
    rows = block1(turns, args.rounds)
    rows += exact(turns, args.algos.split(","), args.samples, args.rounds)
    if args.out:
        args.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
