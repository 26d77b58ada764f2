"""Files of a process's own, made while others sweep."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from streaming.shared import own
from streaming.shared.lock import FileLock
from streaming.shared.own import OwnFile, is_dead, own_files, sweep_unborn

MARK = b"STRMTST1"


class SweptLock(FileLock):
    """Another process takes the file for a dead one's."""

    left = 0

    def acquire(self, **options: Any) -> bool:
        swept = self.left > 0 and self.path.suffix == ".new"
        found = super().acquire(**options)
        if swept:
            SweptLock.left -= 1
            self.path.unlink(missing_ok=True)
        return found


@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(own, "FileLock", SweptLock)
    monkeypatch.setattr(SweptLock, "left", times)
    file = OwnFile(tmp_path, MARK, 2)
    file.values[1] = 7
    assert list(own_files(tmp_path, MARK)) == [file.path]
    assert file.path.read_bytes() == MARK + bytes(8) + (7).to_bytes(8, "little")
    assert not is_dead(file.path)
    file.close()
    assert is_dead(file.path)


def make_some(folder: Path) -> None:
    for _ in range(200):
        file = OwnFile(folder, MARK, 1)
        assert file.path.exists()
        file.close()


def test_processes_that_make_and_sweep_at_once_do_not_meet(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    makers = [fork.Process(target=make_some, args=(tmp_path,)) for _ in range(3)]
    for maker in makers:
        maker.start()
    while any(maker.is_alive() for maker in makers):
        sweep_unborn(tmp_path)
    assert [maker.exitcode for maker in makers] == [0] * 3


def test_without_its_folder_no_file_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory|File exists"):
        OwnFile(tmp_path / "file" / "folder", MARK, 1)
