"""What a process keeps for itself."""

import os
import pickle
import sys

import pytest

from streaming.runtime import PerProcess


def make() -> list[int]:
    return [os.getpid()]


def test_a_value_is_made_once() -> None:
    held = PerProcess(make)
    assert held.value is None
    assert held.get() is held.get() is held.value


def test_a_copy_by_pickle_starts_without_one() -> None:
    held = PerProcess(make)
    held.get()
    copy = pickle.loads(pickle.dumps(held))
    assert copy.value is None
    assert copy.get() == [os.getpid()]


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
def test_a_forked_child_makes_its_own_and_keeps_the_copy_alive() -> None:
    held = PerProcess(make)
    copied = held.get()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        is_kept = sys.getrefcount(copied) == sys.getrefcount(make()) + 2
        os.write(writer, repr((held.value, held.get() == [os.getpid()], is_kept)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"(None, True, True)"
    os.close(reader)
    os.close(writer)
    assert held.value is copied
