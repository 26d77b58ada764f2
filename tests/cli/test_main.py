"""The command line as a module: `python -m streaming`."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("module", ["streaming", "streaming.cli"])
def test_the_package_runs_as_the_command(module: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", module, "inspect", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "Usage: streaming inspect " in found.stdout
