"""A sample a file, from the files of a folder."""

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import numpy as np

from streaming.converters.writing import Row
from streaming.errors import ConfigError, EncodeError

__all__ = ["FIELDS", "FolderSource", "find_files"]

# What there is to know of a file, and how it is stored unless told otherwise.
FIELDS: Final[Mapping[str, str]] = {
    "path": "str",
    "text": "bytes",
    "size": "int",
    "tokens": "ndarray:uint8",
}


def find_files(root: Path, pattern: str = "*") -> list[Path]:
    """List the files below a folder, in the order of their paths.

    Hidden files and folders (a dot first), links to folders, and what is no regular file (pipes,
    sockets, links that lead nowhere) are left out.

    Args:
        root: The folder.
        pattern: Shell pattern that the path below `root` must match; "*" matches "/" as well.

    Raises:
        ConfigError: `root` is no folder, or can't be listed.
    """
    found = []
    for directory, names, files in os.walk(root, onerror=_raise):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in files:
            path = Path(directory, name)
            shown = path.relative_to(root).as_posix()
            if not name.startswith(".") and fnmatch(shown, pattern) and path.is_file():
                found.append(path)
    return sorted(found)


def _raise(error: OSError) -> None:
    raise ConfigError(f"{error.filename} can't be listed: {error.strerror}.") from error


class FolderSource:
    """Files as samples.

    A file's fields are `path` (below the root, "/"-joined; bytes of a name that are not UTF-8 are
    escaped), `text` (its bytes), `size` (how many) and `tokens` (its bytes as numbers).

    Args:
        root: The folder.
        files: Files below it, in the order wanted; see `find_files`.
        columns: Fields to write and how: a `text` of "bytes" takes any file, one of "str" only
            UTF-8, one of "jpeg" or "png" takes such pictures. With `tokens`, empty files are left
            out: there is no empty array in MDS.

    Raises:
        ConfigError: A column is none of the fields.
    """

    def __init__(
        self, root: Path, files: Sequence[Path], columns: Mapping[str, str] | None = None
    ) -> None:
        self.columns = dict(columns or {name: FIELDS[name] for name in ("path", "text", "size")})
        unknown = sorted(self.columns.keys() - FIELDS.keys())
        if unknown:
            raise ConfigError(
                f"A file has no field {unknown[0]!r}. There are: {', '.join(FIELDS)}."
            )
        self._root = root
        self._files = files

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self._files)

    def __iter__(self) -> Iterator[Row]:
        for path in self._files:
            text = path.read_bytes()
            if text or "tokens" not in self.columns:
                yield Row(self._sample(path, text), str(path), len(text))

    def _sample(self, path: Path, text: bytes) -> dict[str, Any]:
        fields = {
            "path": os.fsencode(path.relative_to(self._root).as_posix()).decode(
                "utf-8", "backslashreplace"
            ),
            "text": _as_text(path, text) if self.columns.get("text") == "str" else text,
            "size": len(text),
            "tokens": np.frombuffer(text, np.uint8),
        }
        return {name: fields[name] for name in self.columns}


def _as_text(path: Path, text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EncodeError(
            f"{path} is not UTF-8 (byte {error.start}), so it does not fit a column of type 'str'. "
            f"Use 'bytes'."
        ) from error
