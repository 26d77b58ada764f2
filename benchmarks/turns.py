"""Measurements by turns: a script of one topic under this library and beside it the predecessor.

A topic's `side.py` makes one measurement in one process, under the library that its Python has:
both are imported as ``streaming``. It takes a request as JSON and prints its answer as JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Turns", "add_arguments", "ask", "header", "spread"]

ROOT = Path(__file__).parents[1]


def ask(command: Sequence[str], more: Mapping[str, str], folder: Path) -> Any:
    """What a measurement in a process of its own prints at last, as JSON.

    Args:
        command: What is run.
        more: Variables of its environment; of `PYTHONPATH` it has only what stands here.
        folder: Where it runs: one without a `streaming`, or Python would import that one.

    Returns:
        None if a module is not installed there.
    """
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        env={**environment, **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


class Turns:
    """Runs a side script under one Python after the other.

    Args:
        side: The script.
        peer: Virtual environment with mosaicml-streaming; None: there is none.
        timeout: Seconds that one measurement may take.
    """

    def __init__(self, side: Path, peer: Path | None, timeout: float = 600) -> None:
        self._side = side
        self._timeout = timeout
        self.names = ["ours"] if peer is None else ["ours", "peer"]
        self._pythons = {"ours": (sys.executable, str(ROOT))}
        if peer is not None:
            self._pythons["peer"] = (str(peer / "bin" / "python"), "")

    def run(self, name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """One measurement; None if it took too long or too much."""
        python, path = self._pythons[name]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if path:
            environment["PYTHONPATH"] = path
        try:
            done = subprocess.run(
                [python, str(self._side), json.dumps({**request, "library": name})],
                env=environment,
                timeout=self._timeout,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def rounds(self, request: Mapping[str, Any], rounds: int) -> dict[str, list[dict[str, Any]]]:
        """Take turns for some rounds: the answers of each library that gave any."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.names}
        for _ in range(rounds):
            for name in self.names:
                answer = self.run(name, request)
                if answer is not None:
                    found[name].append(answer)
        return found


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add what all benchmarks of this kind take."""
    parser.add_argument("--peer", type=Path, help="virtual environment with mosaicml-streaming")
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each case")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one measurement")
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")


def header(rounds: int) -> str:
    """When, where and how a table was measured."""
    from importlib.metadata import version

    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        f"numpy {version('numpy')}, {rounds} rounds by turns: median (smallest-largest) of CPU "
        f"seconds; load {os.getloadavg()[0]:.1f}"
    )


def spread(values: Sequence[float], form: str | None = None) -> str:
    """Median, smallest and largest, as a cell; a dash for nothing.

    Args:
        values: The measurements.
        form: How a number is written; None: with as many digits as its size asks for.
    """
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    if form is None:
        form = ".2f" if middle >= 0.1 else ".3f" if middle >= 0.01 else ".4f"
    if len(values) == 1:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"
