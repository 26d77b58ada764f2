"""`streaming demo` in small, as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.demo import find_sources
from tests.conftest import ROOT


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "streaming.cli", "demo", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def losses_of(text: str) -> tuple[float, float]:
    found = re.search(r"loss ([0-9.]+) -> ([0-9.]+)", text)
    assert found
    return float(found[1]), float(found[2])


def test_the_demo_streams_trains_resumes_and_proves_it(tmp_path: Path) -> None:
    found = run("--out", tmp_path / "demo", "--files", 60, "--steps", 60)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert re.search(r"Streamed: \d+ samples, shuffled, 2 workers", found.stdout)
    assert re.search(
        r"Interrupted after \d+ samples .* 3 workers: \d+ more came\. "
        r"Together all \d+, none lost, none repeated",
        found.stdout,
    )
    first, last = losses_of(found.stdout)
    assert last < first - 1
    for what in ("samples/s", "MB/s", "time to first batch"):
        assert what in found.stdout
    left = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert left == ["cache", "remote", "state.json"]
    assert len(list((tmp_path / "demo" / "remote").glob("shard.*.mds.zstd"))) > 3


def test_only_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    found = run("--out", tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("streaming: error: ")
    assert "not empty" in found.stderr
    assert run("--out", tmp_path, "--overwrite").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_input_is_the_standard_library_of_this_python() -> None:
    root, files = find_sources()
    sizes = [path.stat().st_size for path in files]
    assert 300 < len(files) < 2000
    assert 5e6 < sum(sizes) < 30e6
    assert min(sizes) > 0
    assert all(path.suffix == ".py" and path.is_relative_to(root) for path in files)


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    found = run("--out", tmp_path / "demo")
    assert found.returncode == 0, found.stderr
    first, last = losses_of(found.stdout)
    assert last < first - 1
