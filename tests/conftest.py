"""What every test gets: its own temporary directory, and a check that it leaves nothing behind."""

import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import psutil
import pytest

from streaming.storage import guard

pytest.register_assert_rewrite("tests.suites")

# One profile everywhere: a test that fails by chance on another machine is of no use. A deadline
# would measure the machine.
hypothesis.settings.register_profile(
    "repository",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repository")

ROOT = Path(__file__).parents[1]
GRACE = 5.0  # seconds for threads and children that are already on their way out
SHM = Path("/dev/shm")
# As tests name the blocks that they leak on purpose, by the process: another may do so just now.
NUMBERED_BLOCK = re.compile(r"9(\d{8})_")
LOCK_FILE = re.compile(r"/(lease|lock\.[0-9a-f]{2}|total|[^/]*lock)( \(deleted\))?$")


def pytest_collection_finish() -> None:
    """Spare the collector what was imported: it runs at the end of tests that leave garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Recorded datasets, orders and tables. Read them, or copy them first: never write there."""
    return ROOT / "tests" / "golden"


# Standard library helpers that live as long as the process, by design of multiprocessing.
def _helpers() -> set[int | None]:
    forkserver = getattr(multiprocessing.forkserver, "_forkserver", None)
    tracker = getattr(multiprocessing.resource_tracker, "_resource_tracker", None)
    return {getattr(forkserver, "_forkserver_pid", None), getattr(tracker, "_pid", None)}


def _threads() -> set[str]:
    return {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _children() -> set[str]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        if child.pid in _helpers():
            continue
        try:
            name = f"process {child.pid} of {child.ppid()}"
            found.add(f"{name}: {' '.join(child.cmdline())[:200]}")
        except psutil.ZombieProcess:
            if child.ppid() == os.getpid():  # Others' are theirs to wait for.
                found.add(f"{name}: (not waited for)")
        except psutil.NoSuchProcess:
            continue
    return found


def _is_known(found: str, before: set[str]) -> bool:
    """Whether this is a process that was there before, by whatever name, or a child of one."""
    match = re.match(r"process (\d+) of (\d+)", found)
    known = {number for entry in before for number in re.findall(r"^process (\d+) ", entry)}
    return match is not None and not known.isdisjoint(match.groups())


def _locks() -> set[str]:
    """Locks on files that this process holds."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except FileNotFoundError:  # Not Linux.
        return set()
    mine = re.compile(rf"\d+: (FLOCK|POSIX|OFDLCK) .* {os.getpid()} (\S+) ")
    return {f"a file lock: {line}" for line in lines if mine.match(line)}


def _lock_files() -> set[str]:
    """Open descriptors of lock files."""
    found = set()
    for link in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # The descriptor that listed the folder.
            continue
        if LOCK_FILE.search(target):
            found.add(f"an open lock file: descriptor {link.name} of {target}")
    return found


def _shared_memory() -> set[str]:
    return {f"shared memory: {path}" for path in SHM.glob("*")}


def is_of_others(path: str) -> bool:
    """Whether a process that is not ours uses this file of /dev/shm, or has done so until now.

    By its inode: glibc maps a semaphore under another name, and then gives it this one.
    """
    match = NUMBERED_BLOCK.match(os.path.basename(path))
    if match is not None and int(match[1]) != os.getpid():
        return True
    try:
        inode = str(os.stat(path).st_ino)
    except FileNotFoundError:
        return True
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if int(maps.parent.name) not in ours and any(
                "/dev/shm/" in line and line.split()[4] == inode
                for line in maps.read_text().splitlines()
            ):
                return True
        except (OSError, UnicodeDecodeError):  # It ended, or is another user's.
            continue
    return not os.path.exists(path)


def _run_directories(temporary: Path) -> set[str]:
    """Run directories of datasets. Caches in the temporary directory are meant to stay."""
    return {f"a run directory: {path}" for path in temporary.glob("streaming-run-*")}


LOOKS: Mapping[str, Callable[[], set[str]]] = {
    "threads": _threads,
    "children": _children,
    "locks": _locks,
    "lock files": _lock_files,
    "shared memory": _shared_memory,
}


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Give the test a temporary directory of its own; fail it for anything it does not end.

    That is: threads, child processes, file locks, open lock files, files in /dev/shm, and run
    directories of datasets.
    """
    # These two are made once a process, on first use: not in the directory of one test.
    multiprocessing.util.get_temp_dir()
    tmp_path_factory.getbasetemp()
    temporary = Path(tempfile.mkdtemp(prefix="t-"))  # Short: paths of sockets have 108 bytes.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before = {name: look() for name, look in LOOKS.items()}

    def left() -> set[str]:
        new = {found for name, look in LOOKS.items() for found in look() - before[name]}
        others = {
            found
            for found in new
            if (found.startswith("shared memory") and is_of_others(found.split()[-1]))
            or _is_known(found, before["children"])
        }
        return (new - others) | _run_directories(temporary)

    yield
    if left():
        request.node.funcargs.clear()  # Values of fixtures, which may own what is left.
        _wait_until(lambda: not left())
    remains = left()
    shutil.rmtree(temporary, ignore_errors=True)
    if remains:
        pytest.fail("The test leaves behind:\n" + "\n".join(sorted(remains)), pytrace=False)


def _wait_until(is_done: Callable[[], bool]) -> None:
    wait = threading.Event()
    for _ in range(50):
        gc.collect()  # A loader in a cycle of references ends its workers when collected.
        if is_done():
            return
        wait.wait(GRACE / 50)


@pytest.fixture(scope="session")
def helper_of_session() -> Iterator[int | None]:
    """The process that opens tables for this one, started once: it loads large libraries."""
    helper = guard.helper()
    assert helper is not None
    helper.call(os.getpid)
    yield helper.pid
    guard.end_helper()


@pytest.fixture
def opens_tables(helper_of_session: int | None) -> Iterator[None]:
    """For tests that read tables: let go of what is kept of them."""
    yield
    guard.drop_kept()
    helper = guard.helper()
    if helper is not None and helper.pid != helper_of_session:
        guard.end_helper()


class RunPython(Protocol):
    """The type of the fixture `run_python`."""

    def __call__(
        self,
        code: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run_python(tmp_path_factory: pytest.TempPathFactory) -> RunPython:
    """Run a script in a fresh Python that can import this repository.

    The code is the text of a file, so that it may start processes of its own; `args` is its
    ``sys.argv[1:]``. The script and all its children are killed after `timeout` seconds. With
    `check`, a failing script fails the test and shows its errors.
    """

    def run(
        code: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path_factory.mktemp("script") / "script.py"
        script.write_text(code, encoding="utf-8")
        command = [sys.executable, "-X", "faulthandler", str(script), *map(str, args)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode:
            pytest.fail(f"The script ended with {process.returncode}:\n{errors}", pytrace=False)
        return subprocess.CompletedProcess[Any](command, process.returncode, output, errors)

    return run
