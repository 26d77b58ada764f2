"""Workers whose parent was killed end, however early that was."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT

SCRIPT = """
import multiprocessing, os, signal, sys, time
from streaming.shared import orphans

orphans._LOOK_SECONDS = orphans._GRACE_SECONDS = 0.1

def work(path, is_early):
    if is_early:  # The parent is gone before anything is arranged.
        os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
        time.sleep(0.5)
    orphans.end_with_parent()
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    os.rename(path, path + ".ready")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    process = context.Process(target=work, args=(sys.argv[1], sys.argv[3] == "early"))
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_worker_ends_with_its_parent(tmp_path: Path, method: str, when: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path / "pid"), method, when]
    with subprocess.Popen(command, env=environment, start_new_session=True) as parent:
        ready = tmp_path / "pid.ready"
        try:
            wait_until(ready.exists)
            worker = int(ready.read_text())
            if when == "late":
                time.sleep(0.5)
                assert psutil.pid_exists(worker)
                parent.kill()
            wait_until(lambda: not psutil.pid_exists(worker) or is_zombie(worker))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def wait_until(is_done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
