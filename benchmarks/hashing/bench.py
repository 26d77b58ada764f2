"""How fast the hashes are, by size of what is hashed, beside the predecessor's."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

__all__ = ["main"]


def rates(answers: list[dict[str, Any]], algo: str, size: int) -> list[float]:
    """MB a CPU second, of the answers that have it."""
    found = [each["hashes"].get(algo, {}).get(str(size)) for each in answers]
    return [size / 1e6 / max(seconds, 1e-9) for seconds in found if seconds is not None]


def main() -> None:
    """Parse the command line."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.turns import Turns, add_arguments, header, spread

    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, rounds=3)
    parser.add_argument("--min-power", type=int, default=10)
    parser.add_argument("--max-power", type=int, default=24)
    parser.add_argument("--step", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10, help="most for one digest")
    args = parser.parse_args()
    sizes = [1 << power for power in range(args.min_power, args.max_power + 1, args.step)]
    turns = Turns(Path(__file__).with_name("side.py"), args.peer, args.timeout)
    found = turns.rounds({"sizes": sizes, "seconds": args.seconds}, args.rounds)
    print(f"{header(args.rounds).replace('CPU seconds', 'MB a CPU second')}\n")
    titles = [f"2^{size.bit_length() - 1} bytes, {name}" for size in sizes for name in turns.names]
    print(f"| hash | characters | {' | '.join(titles)} |")
    print("|---" * (len(titles) + 2) + "|")
    for algo in sorted(found["ours"][0]["hashes"]):
        characters = found["ours"][0]["hashes"][algo]["characters"]
        cells = [
            spread(rates(found[name], algo, size), ",.0f") for size in sizes for name in turns.names
        ]
        print(f"| {algo} | {characters} | {' | '.join(cells)} |")
    if args.out:
        rows = {"sizes": sizes, **{name: found[name] for name in turns.names}}
        args.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
