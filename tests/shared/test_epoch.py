"""Epochs that workers agree on without a barrier."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import StateError
from streaming.shared.epoch import EpochRecord, RunDirectory, Start, sweep_runs


def never(start: Start) -> bool:
    return False


def runs() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob("streaming-run-*"))


@pytest.fixture
def record(tmp_path: Path) -> EpochRecord:
    return EpochRecord.create(tmp_path)


def test_epochs_follow_one_another(record: EpochRecord) -> None:
    assert record.position() is None
    assert [record.begin(never).epoch for _ in range(3)] == [0, 1, 2]
    assert record.position() == Start(epoch=2)
    assert record.upcoming() == Start(epoch=3)


def test_a_loaded_place_is_begun_once_and_its_order_stays(record: EpochRecord) -> None:
    record.begin(never)
    place = Start(epoch=7, seen=40, num_canonical_nodes=2, shuffle_seed=3, initial_physical_nodes=4)
    record.load(place)
    assert record.position() == place
    assert record.begin(never) == place
    following = record.begin(never)
    assert (following.epoch, following.seen) == (8, 0)
    assert (following.num_canonical_nodes, following.shuffle_seed) == (2, 3)


def test_a_place_at_the_end_of_its_epoch_begins_the_next(record: EpochRecord) -> None:
    record.load(Start(epoch=7, seen=40))
    assert record.begin(lambda start: start.seen >= 40) == Start(epoch=8)


def test_workers_of_one_ticket_share_an_epoch(record: EpochRecord) -> None:
    for epoch in range(3):
        ticket = (1234, epoch, 4)
        with ThreadPoolExecutor(4) as pool:
            joins = [pool.submit(record.join, ticket, worker, never) for worker in range(4)]
        starts = [join.result() for join in joins]
        assert starts == [Start(epoch=epoch)] * 4


def test_workers_that_never_start_hold_nobody_up(record: EpochRecord) -> None:
    assert record.join((1, 0, 3), 0, never).epoch == 0
    assert record.join((2, 0, 3), 2, never).epoch == 1
    assert record.join((2, 0, 3), 0, never).epoch == 1


def test_equal_seeds_in_every_epoch_do_not_join_epochs_that_are_over(record: EpochRecord) -> None:
    """A user may seed torch alike before each epoch."""
    for epoch in range(3):
        for worker in range(2):
            assert record.join((7, 0, 2), worker, never).epoch == epoch


def test_a_place_loaded_while_workers_live_is_taken_by_all_of_them(record: EpochRecord) -> None:
    assert record.join((1, 0, 2), 0, never) == record.join((1, 0, 2), 1, never)
    record.load(Start(epoch=5, seen=3))
    assert record.join((1, 1, 2), 0, never) == Start(epoch=5, seen=3)
    assert record.join((1, 1, 2), 1, never) == Start(epoch=5, seen=3)


@given(
    epochs=st.lists(
        st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 5)), min_size=1, max_size=12
    ),
    seed=st.integers(0, 1000),
)
def test_persistent_and_fresh_workers_always_agree(
    epochs: list[tuple[int, bool, int]], seed: int
) -> None:
    """Any mixture of fresh pools, pools that live on, and workers that never come."""
    shuffler = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        record = EpochRecord.create(Path(directory))
        base, times, pool = 0, 0, 0
        for number, (workers, lives_on, late) in enumerate(epochs):
            if lives_on and pool:
                times += 1
            else:
                base, times, pool = base + 1, 0, workers
            ids = list(range(pool))
            shuffler.shuffle(ids)
            arrived = ids[: max(1, pool - late)]
            got = {record.join((base, times, pool), worker, never).epoch for worker in arrived}
            assert got == {number}


def test_what_a_loader_announces_is_kept_apart_by_loader(record: EpochRecord) -> None:
    record.announce("a", Start(epoch=1))
    record.announce("b", Start(epoch=2))
    record.announce("a", Start(epoch=3))
    assert record.announced("a") == Start(epoch=3)
    assert record.announced("b") == Start(epoch=2)


def test_a_run_directory_goes_with_its_object() -> None:
    run = RunDirectory()
    assert runs() == [run.path]
    assert sweep_runs() == []
    del run
    assert runs() == []


def test_the_directory_of_a_killed_process_is_swept_by_the_next() -> None:
    code = (
        "import sys, time\n"
        "from streaming.shared.epoch import RunDirectory\n"
        "run = RunDirectory()\n"
        "print(run.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        assert sweep_runs() == []
        assert path.is_dir()
        process.send_signal(signal.SIGKILL)
    assert path.is_dir()
    run = RunDirectory()
    assert runs() == [run.path]


def test_a_sweep_leaves_young_ones_without_a_lease_and_what_is_not_ours() -> None:
    base = Path(tempfile.gettempdir())
    young = base / f"streaming-run-{os.getuid()}-young"
    old = base / f"streaming-run-{os.getuid()}-old"
    for path in (young, old):
        path.mkdir()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    link = base / f"streaming-run-{os.getuid()}-link"
    target = base / "precious"
    target.mkdir()
    link.symlink_to(target)
    assert len(sweep_runs()) == 1
    assert young.is_dir()
    assert not old.exists()
    assert target.is_dir()
    for path in (young, target):
        shutil.rmtree(path)
    link.unlink()


def test_a_sweep_that_another_one_disturbs_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = RunDirectory()
    lease = dead.path / "lease"
    dead._finalizer.detach()
    dead._lease.release()
    rmdir = os.rmdir

    def disturbed(path: Any, **options: Any) -> None:
        if not lease.exists():
            lease.touch()  # As whoever opens the lock that was there a moment ago.
        rmdir(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", disturbed)
        assert sweep_runs() == []
    assert sweep_runs() == [dead.path]
    assert runs() == []


def test_a_record_that_was_removed_is_an_error_and_no_new_beginning(tmp_path: Path) -> None:
    """Cleaners of /tmp take files, or directories with them."""
    (tmp_path / "run").mkdir()
    record = EpochRecord.create(tmp_path / "run")
    record.begin(never)
    (tmp_path / "run" / "epoch.json").unlink()
    with pytest.raises(StateError, match="TMPDIR"):
        record.begin(never)
    shutil.rmtree(tmp_path / "run")
    for use in (
        record.position,
        lambda: record.begin(never),
        lambda: record.join((1, 0, 1), 0, never),
    ):
        with pytest.raises(StateError, match="TMPDIR"):
            use()


def test_a_child_does_not_remove_the_directory_of_its_parent() -> None:
    run = RunDirectory()
    pid = os.fork()
    if pid == 0:
        run.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert run.path.is_dir()
