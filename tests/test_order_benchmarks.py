"""The benchmarks of the order run, in small; what they measure is not looked at here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "benchmarks"


def run(script: str, *arguments: object) -> str:
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    ).stdout


def draw(script: str, rows: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = rows.with_suffix(".png")
    run(script, rows, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_partitions_are_measured_compared_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--min-power", 10, "--max-power", 12, "--step", 2, "--rounds", 1, "--out", out]
    assert "| 2^12 |" in run("partitioning/bench.py", *options)
    draw("partitioning/plot.py", out)
    assert "50 equal" in run("partitioning/diff.py", "-a2", "relaxed", "--cases", 50)
    text = run("partitioning/txt.py", "-n", 30, "-c", 2, "-p", 2, "-d", 2, "-w", 2, "-b", 3)
    assert text.startswith("node 0 rank 0 worker 0:  0  2  4 | 12 14  -")


@pytest.mark.slow
def test_shuffles_are_measured_rated_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    sizes = ["--min-power", 12, "--max-power", 12, "--samples-per-shard", 100]
    small = ["--quality-shards", 80, "--quality-samples-per-shard", 100, "--block-size", 1024]
    output = run("shuffling/bench.py", *sizes, *small, "--rounds", 1, "--out", out)
    assert "| block1 | 4,096 |" in output
    assert "full permutation" in output
    draw("shuffling/plot.py", out)
    assert "| 1024 | 6 |" in run("shuffling/permutation.py", "--sizes", 1024, "--keys", 2)
    page = run("shuffling/vis.py", "--num-shards", 10)
    assert page.count("<svg") == 8


@pytest.mark.slow
def test_hashes_are_measured_and_drawn(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--min-power", 10, "--max-power", 10, "--rounds", 1, "--out", out]
    assert "| xxh3_64 | 16 |" in run("hashing/bench.py", *options)
    draw("hashing/plot.py", out)


@pytest.mark.slow
def test_an_epoch_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ["--rounds", 1, "--samples", 2 * 10**6, "--algos", "py1e", "--out", out]
    output = run("epoch/bench.py", *options)
    assert "10^12 samples in 10^6 shards" in output
    assert "| py1e | 1 on 1 node |" in output
    assert all(row.get("ours") or row.get("answers") for row in json.loads(out.read_text()))
