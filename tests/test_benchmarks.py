"""The benchmarks run, in small; what they measure is not looked at here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "benchmarks"


def run(script: Path, *arguments: object) -> str:
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    ).stdout


@pytest.mark.slow
def test_the_benchmark_of_samples_runs(tmp_path: Path) -> None:
    cases = ["rows:text", "columns:text", "get:text", "loader:tokens", "write:text"]
    pytest.importorskip("pyarrow")
    pytest.importorskip("PIL")
    chosen = [part for case in cases for part in ("--case", case)]
    options = ["--scale", "0.001", "--rounds", "1", "--data", tmp_path]
    output = run(FOLDER / "samples" / "bench.py", *options, *chosen)
    for what in ("sequential, dicts", "sequential, columns", "random", "tokens", "write"):
        assert f"| {what}" in output


@pytest.mark.slow
@pytest.mark.parametrize("what", ["compare", "survey_fixed_decimals"])
def test_the_benchmark_of_serialization_runs(what: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    script = FOLDER / "serialization" / "bench.py"
    assert "| float64 |" in run(script, what, "--count", 500, "--rounds", 1, "--out", out)
    draw(FOLDER / "serialization" / "plot.py", out)


@pytest.mark.slow
def test_the_benchmark_of_compression_runs(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    script = FOLDER / "compression" / "bench.py"
    assert "| text | zstd:3 |" in run(script, "--size", 20_000, "--rounds", 1, "--out", out)
    draw(FOLDER / "compression" / "plot.py", out)


@pytest.mark.slow
def test_the_benchmark_of_text_runs(tmp_path: Path) -> None:
    options = ["--rows", 5000, "--copies", 2, "--rounds", 1, "--data", tmp_path]
    output = run(FOLDER / "text" / "bench.py", *options)
    for what in ("record starts", "JSONL as dicts", "CSV as dicts", "random `dataset[i]`"):
        assert what in output


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_benchmark_of_the_cache_runs(tmp_path: Path) -> None:
    script = FOLDER / "cache" / "bench.py"
    small = ["--rounds", 1, "--epochs", 1, "--ranks", 2, "--workers", 1, "--temporary", tmp_path]
    for what, expected in {
        "warm": "| warm |",
        "cold": "1.000 of the data fetched, the index 1 times",
        "half": "| block1 | 4 |",
        "locks": "| last-use stamp |",
        "shards": "all shards by last use",
    }.items():
        assert expected in run(script, what, *small, "--samples", 640, "--count", 1000)


def draw(script: Path, rows: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = rows.with_suffix(".png")
    run(script, rows, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
