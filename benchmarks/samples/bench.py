"""Samples a CPU second, beside other libraries: reading, writing, starting.

The libraries take turns, case by case, each measurement in a process of its own, and every round
gives one ratio. Peers are virtual environments, of one's own or made from PyPI::

    bench.py --peer mosaic=/path/to/venv --peer litdata=/path/to/venv ...
    bench.py --install /folder/for/environments

Names: mosaic, litdata, hf, lance, arrow, array_record. A path without a name is mosaic's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # Behind this folder, whose modules lie beside this file.

import data  # type: ignore[import-not-found]  # noqa: E402
import venvs  # type: ignore[import-not-found]  # noqa: E402

from benchmarks.turns import spread  # noqa: E402

__all__ = ["main"]

# Case to what it is, and to the least that this library should have of each peer's rate.
CASES: dict[str, tuple[str, dict[str, float]]] = {
    "rows:text": ("sequential, dicts", {"mosaic": 150, "litdata": 6, "lance": 0.7}),
    "columns:text": ("sequential, columns", {"mosaic": 400}),
    "get:text": ("random `dataset[i]`", {"mosaic": 12, "arrow": 3}),
    "loader:text": ("shuffled, loader, 0 workers", {"mosaic": 100, "hf": 4}),
    "loader:text:2": ("shuffled, loader, 2 workers", {"mosaic": 15, "hf": 2}),
    "loader_columns:text": ("the same by columns, 0 workers", {}),
    "loader:tokens": ("tokens, loader, 0 workers", {"mosaic": 80, "litdata": 3, "copies": 0.5}),
    "loader_columns:tokens": ("the same by columns", {}),
    "loader:jpeg": ("JPEG to tensors, loader, 0 workers", {"mosaic": 3, "litdata": 1.3, "hf": 1.3}),
    "write:text": ("write, sample by sample", {"mosaic": 3, "array_record": 1.5}),
    "write_table:text": ("write an Arrow table", {"mosaic": 8}),
    "start:text": ("start with 50,000 shards", {"mosaic": 10, "litdata": 1}),
}


def run(python: str, path: str | None, peer: str, case: str, folder: Path, budget: float) -> Any:
    """One measurement by another Python; None if the peer does not have the case."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    script = str(Path(__file__).with_name("side.py"))
    command = [python, script, peer, case, "--data", str(folder), "--budget", str(budget)]
    # In a folder without a `streaming`, or Python would import that one.
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{peer} {case} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(lines[-1])


def measure(
    pythons: Mapping[str, tuple[str, str | None]],
    cases: Sequence[str],
    folder: Path,
    rounds: int,
    budget: float,
    every: bool,
) -> list[dict[str, Any]]:
    """Take turns; a row a measurement. Of peers, those that a case names, or `every` one."""
    found = []
    for peer, (python, path) in pythons.items():
        for kind in data.KINDS:
            if not (folder / peer / kind).exists():
                run(python, path, peer, f"make:{kind}", folder, budget)
    for case in cases:
        for turn in range(rounds):
            for peer, (python, path) in pythons.items():
                if not (every or peer == "ours" or peer in CASES[case][1]):
                    continue
                load = os.getloadavg()[0]
                row = run(python, path, peer, case, folder, budget)
                if row is not None:
                    found.append({"peer": peer, "case": case, "turn": turn, "load": load, **row})
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def rates(rows: Sequence[dict[str, Any]], peer: str, case: str) -> dict[int, float]:
    """Samples a CPU second, by round."""
    return {
        row["turn"]: row["count"] / row["cpu"]
        for row in rows
        if (row["peer"], row["case"]) == (peer, case)
    }


def ratios(rows: Sequence[dict[str, Any]], peer: str, case: str) -> list[float]:
    """This library's rate by another's, round by round."""
    ours, theirs = rates(rows, "ours", case), rates(rows, peer, case)
    return [ours[turn] / theirs[turn] for turn in theirs if turn in ours]


def show(rows: Sequence[dict[str, Any]], peers: Sequence[str]) -> str:
    """The tables of a results page, as Markdown."""
    lines = [
        "| case | ours, samples a CPU second | beside | ratio | asked |",
        "|---|---|---|---|---|",
    ]
    for case, (what, floors) in CASES.items():
        ours = list(rates(rows, "ours", case).values())
        if not ours:
            continue
        first = f"| {what} | {spread(ours, ',.0f' if case != 'start:text' else ',.1f')} |"
        others = [peer for peer in peers if peer != "ours" and ratios(rows, peer, case)]
        for peer in others or [""]:
            if peer:
                ratio, asked = spread(ratios(rows, peer, case), ",.2f"), floors.get(peer)
                lines.append(f"{first} {peer} | {ratio} | {f'{asked:g}' if asked else ''} |")
            else:
                lines.append(f"{first} | | |")
            first = "| | |"
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=VENV")
    parser.add_argument(
        "--install", type=Path, metavar="DIR", help="fill an environment for each peer there"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--every", action="store_true", help="all peers in all cases")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--scale", type=float, default=1, help="share of the usual samples")
    parser.add_argument("--budget", type=float, default=4, help="seconds after which reading stops")
    parser.add_argument("--data", type=Path, help="where datasets are or go (default: temporary)")
    parser.add_argument("--out", type=Path, help="where the measurements go, as JSON")
    args = parser.parse_args()
    pythons: dict[str, tuple[str, str | None]] = {
        "ours": (sys.executable, str(ROOT)),
        "copies": (sys.executable, None),
    }
    installed = venvs.fill(args.install) if args.install else {}
    for text in [*(f"{name}={place}" for name, place in installed.items()), *args.peer]:
        name, _, venv = text.rpartition("=")
        pythons[name or "mosaic"] = (str(Path(venv).absolute() / "bin" / "python"), None)
    began = time.strftime("%Y-%m-%d %H:%M")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.data or Path(temporary)).absolute()
        data.make(folder, args.scale)
        rows = measure(
            pythons, args.case or list(CASES), folder, args.rounds, args.budget, args.every
        )
    if args.out:
        args.out.write_text(json.dumps({"began": began, "rows": rows}, indent=0))
    print(
        f"{began}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {args.rounds} rounds;"
    )
    print("median (smallest-largest) of the rounds; load 1 minute before each:", end=" ")
    print(spread([row["load"] for row in rows], ".1f"), end="\n\n")
    print(show(rows, list(pythons)))


if __name__ == "__main__":
    main()
