"""Every way of starting a process, over every store: each must answer, within its time limit."""

import json
from pathlib import Path

import pytest

from streaming.storage import open_store
from streaming.storage.stores.object import ObjectStore
from tests.conftest import RunPython
from tests.servers.places import Opened

LIMIT = 60  # seconds

# One process, and a child of it that reads, lists and fetches. What the parent did before decides.
MATRIX = """
import json, multiprocessing, os, sys, tempfile
from pathlib import Path
from streaming.storage import guard, join_key, open_store
from streaming.storage.download import fetch
from streaming.util.retrying import Retry

url, options, way = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def use(store, prefix):
    key = join_key(prefix, "a/b.mds")
    assert store.read(key, 2, 5) == b"234", store.read(key, 2, 5)
    assert [info.size for info in store.list(join_key(prefix, "a/"))] == [10]
    target = Path(tempfile.mkdtemp()) / "x"
    assert fetch(store, key, target, size=10, retry=Retry(2)) == 10
    assert target.read_bytes() == b"0123456789"

def work(store, prefix, answers):
    if store is None:
        store, prefix = open_store(url, options)
    for _ in range(2):
        use(store, prefix)
    mine = guard.helper()
    answers.send((os.getpid(), guard.inherited_runtime(), mine is not None))

if __name__ == "__main__":
    start = way.split("-")[0]
    store, prefix = open_store(url, options)
    if "here" in way:
        guard.stay_single()
    if "used" in way or "here" in way or "fresh" in way:
        use(store, prefix)
    context = multiprocessing.get_context(start)
    given = None if "fresh" in way else store
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(target=work, args=(given, prefix, pipe[1]), daemon="alone" not in way)
        for pipe in pipes
    ]
    for process in processes:
        process.start()
    if "used" in way:
        use(store, prefix)  # While they do.
    for process, pipe in zip(processes, pipes):
        assert pipe[0].poll(40), "no answer"
        pid, inherited, helped = pipe[0].recv()
        process.join(10)
        assert process.exitcode == 0, process.exitcode
        print(json.dumps({"inherited": inherited, "helped": helped}))
    guard.end_helper()
"""

WAYS = [
    "fork-unused",
    "fork-used",
    "fork-fresh",
    "fork-here",
    "fork-here-fresh",
    "fork-used-alone",
    "spawn-used",
    "forkserver-used",
]


def fill(place: Opened, directory: Path) -> None:
    store, prefix = open_store(place.url, place.options)
    path = directory / "to-put"
    path.write_bytes(b"0123456789")
    store.put_file(path, f"{prefix}/a/b.mds" if prefix else "a/b.mds")


@pytest.mark.parametrize("way", WAYS)
def test_a_store_works_in_children_however_they_began(
    place: Opened, way: str, tmp_path: Path, run_python: RunPython
) -> None:
    fill(place, tmp_path)
    done = run_python(MATRIX, place.url, json.dumps(place.options), way, timeout=LIMIT)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2
    if isinstance(open_store(place.url, place.options)[0], ObjectStore):
        is_inherited = "here" in way
        is_helped = is_inherited or "alone" in way
        assert found == [{"inherited": is_inherited, "helped": is_helped}] * 2
