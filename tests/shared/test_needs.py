"""What processes need next, and that the needs of the dead count for nothing."""

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from streaming.shared.needs import Needs


def others(needs: Needs) -> list[int]:
    needs._read_at = needs._swept_at = float("-inf")  # Not what is still remembered.
    return sorted(needs.of_others().tolist())


def test_a_process_knows_what_others_need_and_not_its_own(tmp_path: Path) -> None:
    one, other, third = (Needs(tmp_path) for _ in range(3))
    one.tell([3, 1])
    other.tell([1, 7])
    assert others(one) == [1, 7]
    assert others(other) == [1, 3]
    assert others(third) == [1, 1, 3, 7]
    one.tell([])
    assert others(third) == [1, 7]
    for needs in (one, other, third):
        needs.close()
    assert list(tmp_path.iterdir()) == []


def test_more_than_can_be_told_is_cut(tmp_path: Path) -> None:
    one, other = Needs(tmp_path), Needs(tmp_path)
    one.tell(range(1000))
    assert others(other) == list(range(255))
    one.close()
    other.close()


def tell_and_die(folder: Path) -> None:
    Needs(folder).tell([5])
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_dead_need_nothing(tmp_path: Path) -> None:
    needs = Needs(tmp_path)
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=tell_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert others(needs) == []
    needs.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    needs = Needs(tmp_path / "file" / "needs")
    needs.tell([1])
    assert others(needs) == []
    needs.close()


def test_needs_are_not_pickled(tmp_path: Path) -> None:
    needs = Needs(tmp_path)
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(needs)
    needs.close()
