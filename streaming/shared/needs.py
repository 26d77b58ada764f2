"""Which shards the processes of a node need next, so that none evicts what another will read."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming.shared.own import OwnFile, is_dead, own_files, read_own_file, sweep_unborn

__all__ = ["Needs"]

logger = logging.getLogger(__name__)

_MARK = b"STRMNED1"
_MOST = 255  # shards that are told; others would not all find room anyway
_SIZE = 1 + _MOST
_KEPT_SECONDS = 0.01  # how long what was read is believed
_SWEPT_SECONDS = 2.0


class Needs:
    """What this process needs of a directory, told to others, and what they need.

    Threads may share it. Without a file, as on a full disk, it tells and knows nothing.

    Args:
        folder: Where the processes of the directory have their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: OwnFile | None = None
        self._others = np.zeros(0, np.int64)
        self._read_at = self._swept_at = -np.inf
        try:
            sweep_unborn(folder)
            self._sweep()
            self._file = OwnFile(folder, _MARK, _SIZE)
        except OSError as error:
            logger.debug("What this process needs stays its own: %s", error)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Needs belong to one process; they can't be pickled.")

    def tell(self, shards: Sequence[int]) -> None:
        """Say what this process needs next, in order of use; for what was said before."""
        if self._file is not None:
            told = shards[:_MOST]
            self._file.values[0] = 0
            self._file.values[1 : 1 + len(told)] = told
            self._file.values[0] = len(told)

    def of_others(self) -> NDArray[np.int64]:
        """What other living processes need next, some of it more than once."""
        now = time.monotonic()
        if now - self._read_at > _KEPT_SECONDS:
            if now - self._swept_at > _SWEPT_SECONDS:
                self._sweep()
                self._swept_at = now
            self._others = np.concatenate([np.zeros(0, np.int64), *map(_read, self._files())])
            self._read_at = now
        return self._others

    def close(self) -> None:
        """Need nothing any more."""
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _files(self) -> list[Path]:
        mine = None if self._file is None else self._file.path
        return [path for path in own_files(self._folder, _MARK) if path != mine]

    def _sweep(self) -> None:
        for path in self._files():
            if is_dead(path):
                path.unlink(missing_ok=True)


def _read(path: Path) -> NDArray[np.int64]:
    values = read_own_file(path, _MARK, _SIZE)
    return values[1 : 1 + max(0, int(values[0]))]
