"""Tables of ids in files: made once, read meanwhile, believed only while their maker lives."""

import errno
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streaming.errors import WorkerError
from streaming.idmap import Ids, IdTable, Recipe, in_memory
from streaming.shared.ids import Materialised, temporary_orders
from streaming.shuffle import ShuffleSpec, shuffles
from tests.conftest import ROOT, RunPython

CHUNK = 1 << 16  # Smaller ones are put together before they are written.
LIMIT = 30.0


class Making:
    """A recipe whose chunks come one by one, as they are let; part p has ids p * 10^6 and so on."""

    def __init__(self, parts: int = 1, chunks: int = 4, name: str = "a") -> None:
        self.opened: list[int] = []
        self.waiting = threading.Event()  # for leave to make another chunk
        self.leave = threading.Semaphore(0)
        self.recipe = Recipe(
            digest=name * 32, sizes=[chunks * CHUNK] * parts, stop=10**8, open=self._open
        )
        self._chunks = chunks

    def let(self, chunks: int = 10**6) -> None:
        self.leave.release(chunks)

    def _open(self, part: int) -> Iterator[Ids]:
        self.opened.append(part)
        for chunk in range(self._chunks):
            self.waiting.set()
            assert self.leave.acquire(timeout=LIMIT)
            start = part * 10**6 + chunk * CHUNK
            yield np.arange(start, start + CHUNK)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., Materialised]]:
    """Make holders of one directory, closed at the end."""
    made = []

    def make(directory: Path = tmp_path / "orders", least: int = 1) -> Materialised:
        made.append(Materialised([directory], least=least))
        return made[-1]

    yield make
    for holder in made:
        holder.close(LIMIT)


def whole(table: IdTable) -> Ids:
    return table[np.arange(len(table))]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.ids")}


@pytest.mark.parametrize("algo", ["naive", "py1b", "py1br", "py1e", "py1s", "py2s"])
@pytest.mark.parametrize("wanted", [None, (1,), (0, 2)])
def test_orders_in_files_are_those_in_memory(
    hold: Callable[..., Materialised], algo: str, wanted: tuple[int, ...] | None
) -> None:
    sizes = np.array([40_000, 7, 90_000, 50_001, 0, 33_333])
    everything = ShuffleSpec(sizes, 3, 1, 2, 30_000)
    some = ShuffleSpec(sizes, 3, 1, 2, 30_000, wanted)
    expected = shuffles.get(algo).open(everything, in_memory)
    found = shuffles.get(algo).open(some, hold())
    for node in wanted or range(3):
        positions = np.arange(node * sizes.sum() // 3, (node + 1) * sizes.sum() // 3)
        assert np.array_equal(found(positions), expected(positions))
    scattered = np.random.default_rng(0).permutation(positions)[:999].reshape(3, -1)
    assert np.array_equal(found(scattered), expected(scattered))
    scattered[0, ::2] = -1
    assert np.array_equal(found(scattered), expected(scattered))


def test_a_table_of_few_ids_stays_in_memory(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    making = Making()
    making.let()
    table = hold(least=4 * CHUNK + 1)(making.recipe)
    assert isinstance(table, np.ndarray)
    assert not (tmp_path / "orders").exists()


def test_a_short_table_that_is_much_work_is_shared(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    recipe = Recipe(
        digest="d", sizes=[3], stop=9, open=lambda part: iter([np.arange(3)]), work=1000
    )
    assert whole(hold(least=1000)(recipe)).tolist() == [0, 1, 2]
    assert names(tmp_path / "orders") == {"draws-d.ids"}


def test_the_next_run_makes_nothing(hold: Callable[..., Materialised], tmp_path: Path) -> None:
    first, second = Making(), Making()
    first.let()
    assert np.array_equal(whole(hold()(first.recipe)), np.arange(4 * CHUNK))
    hold().close(LIMIT)
    assert np.array_equal(whole(hold()(second.recipe)), np.arange(4 * CHUNK))
    assert second.opened == []
    # 4 bytes an id.
    (path,) = (tmp_path / "orders").glob("*.ids")
    assert path.stat().st_size - CHUNK == 4 * 4 * CHUNK


def test_ids_are_there_while_later_ones_are_made(hold: Callable[..., Materialised]) -> None:
    making = Making()
    making.let(1)
    table = hold()(making.recipe)
    assert table[np.array([[0, 5], [CHUNK - 1, 9]])].tolist() == [[0, 5], [CHUNK - 1, 9]]
    making.let()
    assert table[np.array([4 * CHUNK - 1])].tolist() == [4 * CHUNK - 1]


def test_what_is_waited_for_is_made_first(hold: Callable[..., Materialised]) -> None:
    making = Making(parts=8)
    table = hold()(making.recipe)
    assert making.waiting.wait(LIMIT)
    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.extend(table[np.array([6, 3]) * 4 * CHUNK].tolist())
    )
    reader.start()
    while making.opened[-1] != 6:  # Chunks of other parts until the wish is seen.
        making.waiting.clear()
        making.let(1)
        assert making.waiting.wait(LIMIT)
    making.let(1)
    reader.join(LIMIT)
    assert found == [6_000_000, 3_000_000]
    assert set(making.opened) <= {0, 3, 6}
    making.let()
    assert np.array_equal(whole(table), in_memory(making.recipe))


def test_ids_above_32_bits_are_kept(hold: Callable[..., Materialised]) -> None:
    ids = np.arange(5) + 2**40
    recipe = Recipe(digest="e", sizes=[5], stop=2**41, open=lambda part: iter([ids]))
    assert np.array_equal(whole(hold()(recipe)), ids)


def test_two_tables_are_kept_and_those_in_use(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    holder = hold()

    def make(name: str) -> IdTable:
        making = Making(chunks=1, name=name)
        making.let()
        table = holder(making.recipe)
        whole(table)
        return table

    for name in "abc":
        make(name)
    kept = {path[6] for path in names(tmp_path / "orders")}
    assert kept == {"b", "c"}
    tables = [make(name) for name in "bcd"]
    assert {path[6] for path in names(tmp_path / "orders")} == {"b", "c", "d"}
    del tables
    make("e")
    assert {path[6] for path in names(tmp_path / "orders")} == {"d", "e"}
    assert sorted(path.name for path in (tmp_path / "orders").glob("*.lock")) == sorted(
        name.replace(".ids", ".lock") for name in names(tmp_path / "orders")
    )


def test_a_full_disk_leaves_the_table_in_memory_and_says_how_much(
    hold: Callable[..., Materialised],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    making = Making()
    making.let()
    assert np.array_equal(whole(hold()(making.recipe)), np.arange(4 * CHUNK))
    assert "No space left" in caplog.text
    assert "takes 2 MB of memory in each process" in caplog.text
    assert names(tmp_path / "orders") == set()


def test_a_disk_that_fails_half_way_does_too(
    hold: Callable[..., Materialised],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write, left = os.pwrite, 2

    def fail_later(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", fail_later)
    making = Making()
    making.let()
    assert np.array_equal(whole(hold()(making.recipe)), np.arange(4 * CHUNK))
    assert "takes 2 MB of memory" in caplog.text


LIMITED = """
import logging, resource, signal, sys
import numpy as np
from pathlib import Path
from streaming.idmap import Recipe
from streaming.shared.ids import Materialised

logging.basicConfig()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
recipe = Recipe(digest="f", sizes=[10**6], stop=10**6, open=lambda part: iter([np.arange(10**6)]))
table = Materialised([Path(sys.argv[1]), Path(sys.argv[2])], least=1)(recipe)
print(table[np.array([999_999])].tolist())
"""


def test_a_limit_of_the_system_is_met_in_memory(tmp_path: Path, run_python: RunPython) -> None:
    done = run_python(LIMITED, tmp_path / "a", tmp_path / "b")
    assert done.stdout == "[999999]\n"
    assert "takes 8 MB of memory" in done.stderr


def test_the_next_directory_is_taken_where_the_first_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    making = Making(chunks=1)
    making.let()
    (path,) = temporary_orders()
    holder = Materialised([tmp_path / "file" / "orders", path], least=1)
    whole(holder(making.recipe))
    holder.close(LIMIT)
    assert len(names(path)) == 1
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_temporary_directory_of_somebody_else_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    (path,) = temporary_orders()
    path.mkdir()  # Made by us, who are not who we say.
    assert temporary_orders() == ()
    making = Making(chunks=1)
    making.let()
    table = Materialised(temporary_orders(), least=1)(making.recipe)
    assert whole(table)[-1] == CHUNK - 1
    assert "takes 1 MB of memory" in caplog.text


def test_without_a_directory_there_is_memory(caplog: pytest.LogCaptureFixture) -> None:
    making = Making(chunks=1)
    making.let()
    assert whole(Materialised([], least=1)(making.recipe))[-1] == CHUNK - 1
    assert "no directory is given" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "another", "empty"])
def test_a_file_that_is_not_as_meant_is_made_anew(
    hold: Callable[..., Materialised], tmp_path: Path, damage: str
) -> None:
    first, second = Making(chunks=1), Making(chunks=1)
    first.let()
    holder = hold()
    whole(holder(first.recipe))
    holder.close(LIMIT)
    (path,) = (tmp_path / "orders").glob("*.ids")
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-1], "another": b"x" + data[1:], "empty": b""}[damage])
    second.let()
    assert whole(hold()(second.recipe))[-1] == CHUNK - 1
    assert second.opened == [0]


def test_ids_that_the_disk_has_lost_are_made_anew(
    hold: Callable[..., Materialised], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Making(), Making()
    first.let()
    holder = hold()
    whole(holder(first.recipe))
    holder.close(LIMIT)
    (path,) = (tmp_path / "orders").glob("*.ids")
    with path.open("r+b") as file:  # What a hole reads as.
        file.seek(CHUNK + 4000)
        file.write(bytes(4096))
    second.let()
    assert np.array_equal(whole(hold()(second.recipe)), np.arange(4 * CHUNK))
    assert "lacks ids" in caplog.text


def test_what_a_killed_maker_left_is_completed_and_not_trusted(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    with maker(tmp_path / "orders") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "some\n"
        process.send_signal(signal.SIGKILL)
    (path,) = (tmp_path / "orders").glob("*.ids")
    with path.open("r+b") as file:  # As if the machine had lost it.
        file.seek(CHUNK)
        file.write(b"\1" * 5000)
    making = Making()
    making.let()
    assert np.array_equal(whole(hold()(making.recipe)), np.arange(4 * CHUNK))
    again = Making()
    assert np.array_equal(whole(hold()(again.recipe)), np.arange(4 * CHUNK))


def test_a_waiting_reader_takes_over_from_a_killed_maker(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    with maker(tmp_path / "orders") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "some\n"
        making = Making()
        making.let()
        table = hold()(making.recipe)
        # The living maker's ids are read and not made again.
        assert table[np.array([CHUNK - 1])].tolist() == [CHUNK - 1]
        assert making.opened == []
        process.send_signal(signal.SIGKILL)
        assert np.array_equal(whole(table), np.arange(4 * CHUNK))
        assert making.opened == [0]


MAKER = """
import sys, threading
import numpy as np
from pathlib import Path
from streaming.idmap import Recipe
from streaming.shared.ids import Materialised

CHUNK = 1 << 16

def chunks(part):
    yield np.arange(CHUNK)
    threading.Event().wait()

recipe = Recipe(digest="a" * 32, sizes=[4 * CHUNK], stop=10**8, open=chunks)
holder = Materialised([Path(sys.argv[1])], least=1)
table = holder(recipe)
table[np.array([CHUNK - 1])]
print("some", flush=True)
threading.Event().wait()
"""


def maker(directory: Path) -> "subprocess.Popen[str]":
    """A process that makes the first of four chunks, says so, and stays."""
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


TOGETHER = """
import sys
import numpy as np
from pathlib import Path
from streaming.shared.ids import Materialised
from streaming.shuffle import ShuffleSpec, shuffles

def read(number):
    hold = Materialised([Path(sys.argv[1])], least=1)
    spec = ShuffleSpec(np.full(60, 9_999), 4, 7, number // 4, 30_000)
    order = shuffles.get("py1e").open(spec, hold)
    found = [order(np.arange(at, 60 * 9_999, 4)) for at in (number % 4, 0)]
    hold.close()
    return hash(found[0].tobytes()), hash(found[1].tobytes())

if __name__ == "__main__":
    import multiprocessing
    with multiprocessing.get_context(sys.argv[2]).Pool(4) as pool:
        found = pool.map(read, range(8), chunksize=1)
    assert len({second for first, second in found[:4]}) == 1
    assert len({first for first, second in found}) == 8
    print(len(list(Path(sys.argv[1]).glob("*.ids"))))
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_processes_agree(tmp_path: Path, run_python: RunPython, how: str) -> None:
    environment = {"PYTHONHASHSEED": "0"}
    assert run_python(TOGETHER, tmp_path / how, how, env=environment).stdout == "2\n"


def test_a_table_goes_through_a_fork(hold: Callable[..., Materialised]) -> None:
    making = Making()
    making.let()
    table = hold()(making.recipe)
    whole(table)
    if (child := os.fork()) == 0:
        try:
            os._exit(0 if np.array_equal(whole(table), np.arange(4 * CHUNK)) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_the_next_table_is_made_after_this_one(hold: Callable[..., Materialised]) -> None:
    now, then = Making(name="a"), Making(name="b")
    holder = hold()
    table = holder(now.recipe)
    holder.prepare(lambda: then.recipe)
    assert now.waiting.wait(LIMIT)
    assert not then.waiting.is_set()
    now.let()
    assert then.waiting.wait(LIMIT)
    then.let()
    whole(table)
    again = Making(name="b")
    assert np.array_equal(whole(hold()(again.recipe)), np.arange(4 * CHUNK))
    assert again.opened == []


def test_what_is_needed_now_does_not_wait_for_what_is_made_ahead(
    hold: Callable[..., Materialised],
) -> None:
    ahead, now = Making(chunks=50, name="a"), Making(name="b")
    now.let()
    holder = hold()
    holder.prepare(lambda: ahead.recipe)
    assert ahead.waiting.wait(LIMIT)
    table = holder(now.recipe)
    ahead.let(1)
    assert np.array_equal(whole(table), np.arange(4 * CHUNK))


def test_a_table_that_is_made_ahead_may_be_read_meanwhile(
    hold: Callable[..., Materialised],
) -> None:
    ahead, later = Making(name="a"), Making(name="b")
    holder = hold()
    holder.prepare(lambda: ahead.recipe)
    ahead.let(1)
    assert ahead.waiting.wait(LIMIT)
    table = holder(ahead.recipe)
    assert table[np.array([CHUNK - 1])].tolist() == [CHUNK - 1]
    holder.prepare(lambda: later.recipe)
    ahead.let()
    later.let()
    assert np.array_equal(whole(table), np.arange(4 * CHUNK))
    holder._maker.join(LIMIT)
    assert ahead.opened == [0]
    assert later.opened == [0]


def test_the_next_table_is_left_to_whoever_makes_this_one(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    with maker(tmp_path / "orders") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "some\n"
        holder, then = hold(), Making(name="b")
        holder(Making().recipe)
        holder.prepare(lambda: then.recipe)
        holder.close(LIMIT)
        assert then.opened == []
        process.kill()


def test_what_goes_wrong_ahead_of_time_is_for_those_who_ask(
    hold: Callable[..., Materialised], caplog: pytest.LogCaptureFixture
) -> None:
    holder = hold()

    def fail() -> Recipe:
        spec = ShuffleSpec(np.array([3]), 8, 0, 0)
        shuffles.get("py1e").open(spec, in_memory)
        raise AssertionError

    with caplog.at_level(logging.DEBUG):
        holder.prepare(fail)
        holder.prepare(lambda: None)
        holder.close(LIMIT)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_what_goes_wrong_in_making_is_told_to_those_who_wait(
    hold: Callable[..., Materialised],
) -> None:
    def fail(part: int) -> Iterator[Ids]:
        raise ZeroDivisionError("so it is")

    table = hold()(Recipe(digest="c", sizes=[3], stop=3, open=fail))
    with pytest.raises(WorkerError, match="so it is") as raised:
        whole(table)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "streaming-ids"]


def test_the_thread_ends_when_all_is_made_when_closed_and_as_garbage(
    hold: Callable[..., Materialised], tmp_path: Path
) -> None:
    making = Making()
    making.let()
    holder = hold()
    whole(holder(making.recipe))
    holder.close(LIMIT)
    assert threads() == []
    making = Making(name="b")
    holder = hold()
    table = holder(making.recipe)
    assert making.waiting.wait(LIMIT)
    making.let(1)
    holder.close(0)
    making.let(1)
    holder.close(LIMIT)
    assert threads() == []
    making.let()
    # Who still reads makes what he needs.
    assert np.array_equal(whole(table), np.arange(4 * CHUNK))
    making = Making(name="c")
    other = Materialised([tmp_path / "other"], least=1)
    other(making.recipe)
    (thread,) = [each for each in threading.enumerate() if each.name == "streaming-ids"]
    assert making.waiting.wait(LIMIT)
    del other
    making.let(1)
    thread.join(LIMIT)
    assert threads() == []


def test_it_cannot_be_pickled(hold: Callable[..., Materialised]) -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(hold())
