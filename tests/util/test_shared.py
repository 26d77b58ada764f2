"""The cleaner removes what dead processes have left, and nothing that is in use."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from streaming.shared.epoch import RunDirectory
from streaming.util.shared import clean, clean_stale_shared_memory
from tests.conftest import RunPython

SHM = Path("/dev/shm")
# As the predecessor names its blocks; the number is one that it never reaches.
PREFIX = f"9{os.getpid():08}"

pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="needs shared memory as Linux has it")


@pytest.fixture
def leaked() -> Iterator[list[Path]]:
    """Blocks of a process that was killed: files that nobody has mapped."""
    paths = [SHM / f"{PREFIX}_{name}" for name in ("locals", "barrier", "cache_usage")]
    for path in paths:
        path.write_bytes(b"\0" * 16)
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def lock_file(prefix: str = PREFIX) -> Path:
    path = Path(tempfile.gettempdir(), f"{prefix}_cache_filelock")
    path.touch()
    return path


def test_blocks_and_lock_files_of_the_dead_go(leaked: list[Path]) -> None:
    lock = lock_file()
    clean_stale_shared_memory()
    assert [path for path in [*leaked, lock] if path.exists()] == []


def test_case_H13_a_running_job_is_unharmed(leaked: list[Path]) -> None:
    block, lock = SharedMemory(f"{PREFIX}_next_epoch", create=True, size=8), lock_file()
    try:
        clean_stale_shared_memory()
        # One block is in use, so the whole job is.
        assert all(path.exists() for path in [*leaked, lock])
        assert (SHM / block.name).exists()
    finally:
        block.close()
        block.unlink()
    clean_stale_shared_memory()
    assert [path for path in [*leaked, lock] if path.exists()] == []


def test_case_H13_the_cleaner_touches_no_gpu_and_no_process_group(run_python: RunPython) -> None:
    script = """
import sys, torch
from streaming.util import clean_stale_shared_memory
clean_stale_shared_memory()
print(torch.cuda.is_initialized(), torch.distributed.is_initialized())
"""
    env = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert run_python(script, env=env).stdout == "False False\n"


def test_a_lock_that_is_held_stays() -> None:
    path = lock_file()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clean_stale_shared_memory()
        assert path.exists()
    clean_stale_shared_memory()
    assert not path.exists()


def test_other_names_stay() -> None:
    path = Path(tempfile.gettempdir(), "12_cache_filelock")
    path.touch()
    clean_stale_shared_memory()
    assert path.exists()


def test_run_directories_of_the_living_stay() -> None:
    run = RunDirectory()
    clean_stale_shared_memory()
    assert run.path.is_dir()
    run.close()


def helper_pid() -> int | None:
    tracker: Any = resource_tracker
    pid: int | None = tracker._resource_tracker._pid
    return pid


def test_the_cleaner_starts_no_helper_process() -> None:
    before = helper_pid()
    clean_stale_shared_memory()
    assert helper_pid() == before


def test_the_directory_of_an_index_in_the_making_goes_once_its_process_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.jsonl").write_text('{"id": 1}\n')
    # It stands still where it would publish.
    code = f"""
import time
from streaming.format import publishing
def wait(*_):
    print("here", flush=True)
    time.sleep(60)
publishing._Publication.write = wait
publishing.write_index({str(tmp_path / "data")!r})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (scratch,) = Path(tempfile.gettempdir()).glob("streaming-index-*")
        assert scratch not in clean(is_dry=True)
        process.kill()
    assert scratch in clean(is_dry=True)
    assert scratch in clean()
    assert not scratch.exists()
