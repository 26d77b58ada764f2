import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from streaming.errors import StoreError, TransientStoreError
from streaming.storage import guard, open_store
from streaming.storage.download import fetch
from streaming.storage.guard import FetchHelper
from streaming.util.retrying import Retry
from tests.conftest import RunPython
from tests.servers.faulty import FaultyServer, Stall, Status

LOGGER = logging.getLogger("streaming.tests")


@pytest.fixture
def helper() -> Iterator[FetchHelper]:
    helper = FetchHelper()
    yield helper
    helper.close()


def complain() -> None:
    LOGGER.warning("Something is %s.", "odd")


def refuse() -> None:
    raise StoreError("No.")


def unsendable() -> object:
    return threading.Lock()


def test_what_a_function_gives_comes_back(helper: FetchHelper) -> None:
    assert helper.call(divmod, 7, 4) == (1, 3)
    assert helper.call(os.getpid) == helper.pid != os.getpid()


def test_what_it_raises_is_raised_here(helper: FetchHelper) -> None:
    with pytest.raises(StoreError, match="No"):
        helper.call(refuse)
    assert helper.call(divmod, 7, 4) == (1, 3)


def test_what_it_logs_is_logged_here(helper: FetchHelper, caplog: pytest.LogCaptureFixture) -> None:
    helper.call(complain)
    assert [record.getMessage() for record in caplog.records] == ["Something is odd."]
    assert caplog.records[0].name == "streaming.tests"


def test_an_answer_that_does_not_pickle_is_an_error(helper: FetchHelper) -> None:
    with pytest.raises(StoreError, match="can't be sent"):
        helper.call(unsendable)


def test_a_question_that_does_not_pickle_does_no_harm(helper: FetchHelper) -> None:
    with pytest.raises(Exception, match="pickle"):
        helper.call(threading.Lock().acquire)
    assert helper.call(divmod, 7, 4) == (1, 3)


def test_threads_share_it_and_wait_side_by_side(helper: FetchHelper) -> None:
    helper.call(int)
    start = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: helper.call(time.sleep, 0.2), range(16)))
        assert list(threads.map(lambda i: helper.call(abs, -i), range(200))) == list(range(200))
    assert time.monotonic() - start < 2


def test_when_it_is_killed_who_waits_is_told_and_the_next_call_works(helper: FetchHelper) -> None:
    first = helper.call(os.getpid)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(helper.call, time.sleep, 30) for _ in range(4)]
        time.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        for job in waiting:
            with pytest.raises(TransientStoreError, match="ended"):
                job.result(10)
    assert helper.call(os.getpid) != first


def test_closing_it_ends_what_it_is_at_work_on(helper: FetchHelper) -> None:
    helper.call(int)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(helper.call, time.sleep, 30)
        time.sleep(0.1)
        helper.close()
        with pytest.raises(TransientStoreError):
            waiting.result(10)


def test_it_ends_when_it_has_nothing_to_do_and_comes_back(helper: FetchHelper) -> None:
    helper.call(_be_impatient)
    helper.call(int)  # It waits for this with the patience that it had before.
    pid = helper.pid
    assert pid is not None
    _wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert helper.call(divmod, 7, 4) == (1, 3)
    assert helper.pid != pid


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _be_impatient() -> None:
    sys.modules["streaming.storage.helper"].IDLE = 0.05  # type: ignore[attr-defined]


def test_it_ends_with_the_process_that_it_works_for(run_python: RunPython) -> None:
    script = """
import os, signal
from streaming.storage.guard import FetchHelper
helper = FetchHelper()
if os.fork() == 0:  # A child that lives on must not keep the helper alive.
    import time
    time.sleep(1)
    os._exit(0)
print(helper.call(os.getpid), flush=True)
if os.fork() == 0:
    import time
    time.sleep(1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid = int(run_python(script, check=False).stdout)
    _wait_until(lambda: not psutil.pid_exists(pid))


def test_ctrl_c_in_mid_wait_does_no_harm(run_python: RunPython) -> None:
    script = """
import os, signal, threading, time
from streaming.storage.guard import FetchHelper
helper = FetchHelper()
helper.call(int)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    helper.call(time.sleep, 30)
except KeyboardInterrupt:
    print("interrupted", helper.call(divmod, 7, 4), flush=True)
helper.close()
"""
    assert run_python(script, timeout=20).stdout == "interrupted (1, 3)\n"


def test_a_runtime_that_somebody_else_started_is_seen_by_children(run_python: RunPython) -> None:
    script = """
import os, sys, tempfile
import obstore
from obstore.store import LocalStore
from streaming.storage import guard
with tempfile.TemporaryDirectory() as directory:
    obstore.put(LocalStore(directory), "x", b"x")
    pid = os.fork()
    if pid == 0:
        os._exit(10 + guard.inherited_runtime())
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    expected = "11\n" if sys.platform == "linux" else "10\n"
    assert run_python(script).stdout == expected


def test_kept_values_are_made_once_and_closed_when_dropped() -> None:
    class Value:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    value = guard.kept("a key", Value)
    assert guard.kept("a key", Value) is value
    guard.drop_kept("a key")
    assert value.is_closed
    assert guard.kept("a key", Value) is not value


def test_a_fetch_by_the_helper_is_cleaned_up_here_if_that_is_killed(tmp_path: Path) -> None:
    with FaultyServer({"b/x": b"x" * 1_000_000}, [Stall(600_000)]) as server:
        store, _ = open_store(f"{server.url}/b", {"timeout": 30})
        with ThreadPoolExecutor(1) as threads:
            job = threads.submit(fetch, store, "b/x", tmp_path / "x", retry=Retry(1))
            _wait_until(lambda: bool(list(tmp_path.iterdir())))
            guard.end_helper()
            with pytest.raises(TransientStoreError, match="ended"):
                job.result(10)
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_attempts_in_the_helper_are_seen_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultyServer({"b/x": b"x"}, [Status(500, times=3)]) as server:
        store, _ = open_store(f"{server.url}/b", {"timeout": 2})
        fetch(store, "b/x", tmp_path / "x", retry=Retry(2, base=0.01))
    assert any("Attempt 1 of 2" in record.getMessage() for record in caplog.records)


def test_an_import_of_the_stores_costs_little(run_python: RunPython) -> None:
    script = """
import subprocess, sys, time
before = set(sys.modules)
start = time.process_time()
import streaming.storage
print(time.process_time() - start)
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in (
    "obstore", "fsspec", "boto3", "multiprocessing", "urllib3")))
"""
    seconds, names = run_python(script).stdout.split("\n")[:2]
    assert names == ""
    assert float(seconds) < 0.5  # Far above what it takes: some 0.03 on an idle machine.
