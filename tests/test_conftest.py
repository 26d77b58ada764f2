"""The check in conftest.py, tried on tests that leave something behind."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKS = """
import fcntl, os, subprocess, sys, tempfile, threading

kept = []

def test_thread():
    thread = threading.Thread(target=threading.Event().wait, daemon=True, name="idler")
    thread.start()

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_lock(tmp_path):
    kept.append(open(tmp_path / "file", "w"))
    fcntl.flock(kept[-1], fcntl.LOCK_SH)

def test_lock_file(tmp_path):
    kept.append(open(tmp_path / "lock.0a", "w"))

def test_shared_memory():
    with open("/dev/shm/9%08d_left" % os.getpid(), "w"):
        pass

def test_run_directory():
    os.makedirs(tempfile.gettempdir() + "/streaming-run-0-abc")

def test_clean(tmp_path):
    with open(tmp_path / "lock.0a", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    thread = threading.Thread(target=kept.clear)
    thread.start()
    os.makedirs(tempfile.gettempdir() + "/streaming-cache-0")

def test_end():
    for name in os.listdir("/dev/shm"):
        if name == "9%08d_left" % os.getpid():
            os.unlink("/dev/shm/" + name)
"""

WANTED = {
    "thread": "thread idler",
    "child": "process [0-9]+ of [0-9]+: .*python.* input()",
    "lock": "a file lock: .*FLOCK",
    "lock_file": "an open lock file: descriptor .*/lock.0a",
    "shared_memory": "shared memory: /dev/shm/9[0-9]+_left",
    "run_directory": "a run directory: .*/streaming-run-0-abc",
}


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="looks at Linux's /proc")
def test_whatever_a_test_leaves_behind_fails_it(pytester: pytest.Pytester) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(conftest.replace("GRACE = 5.0", "GRACE = 0.2"))
    pytester.makepyfile(LEAKS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=8, errors=len(WANTED))
    for what, line in WANTED.items():
        result.stdout.re_match_lines([f".* test_{what} .*", line])
