"""Where the columns of row groups lie in a file: asked of pyarrow in a process of its own.

pyarrow ends the process, without an exception, when it is asked so of a footer that contradicts
itself, and of columns that are encrypted. What comes from elsewhere must not be able to do that to
a training run.
"""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.errors import DataError

__all__ = ["ChunkScanner"]

Ints = NDArray[np.int64]

_SCRIPT = str(Path(__file__).with_name("answering.py"))
_WIDTH = 8  # bytes of the numbers that go over the pipes


class ChunkScanner:
    """Says where columns lie. Threads may share it; its process begins with the first question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ChunkScanner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._end()

    def find(self, footer: bytes, groups: int, where: str) -> tuple[Ints, Ints]:
        """Where the columns of each row group begin, and their bytes, shape (groups, leaves) each.

        Args:
            footer: The end of the file, from the footer on.
            groups: Row groups that it speaks of.
            where: Path or URL of the file, for messages.

        Raises:
            DataError: It contradicts itself, or columns are encrypted.
        """
        with self._lock:
            try:
                answer = self._ask(footer)
            except (OSError, EOFError) as error:
                self._end()
                raise DataError(
                    f"{where} has a damaged footer, or encrypted columns: pyarrow can't say where "
                    f"its columns are. {error}"
                ) from error
        numbers = np.frombuffer(answer, np.int64).reshape(2, groups, -1)
        return numbers[0], numbers[1]

    def _ask(self, footer: bytes) -> bytes:
        if self._process is None:
            line = [sys.executable, "-I", _SCRIPT]
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        sink.write(len(footer).to_bytes(_WIDTH, "little") + footer)
        sink.flush()
        size = int.from_bytes(_read(source, _WIDTH), "little")
        return _read(source, size)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # What was not sent is not wanted any more.
        process.wait()


def _read(source: Any, size: int) -> bytes:
    data: bytes = source.read(size)
    if len(data) < size:
        raise EOFError("It was ended by the question.")
    return data
