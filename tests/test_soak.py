"""The soak test, in small; `make soak` runs it for ten minutes."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_minutes_of_kills_full_disks_and_damage_lose_nothing() -> None:
    script = str(ROOT / "regression" / "soak" / "run.py")
    options = ["--minutes", "2", "--kills", "45", "--temporary", "/tmp"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    kills = re.search(r"(\d+)  kills in all", done.stdout)
    assert kills is not None
    assert int(kills[1]) > 20
