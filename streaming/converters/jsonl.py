"""A sample a line, from a file of JSON objects, with columns inferred from all of them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from streaming.converters.writing import Progress, Row
from streaming.errors import ConfigError, DataError, EmptyDatasetError

__all__ = ["JsonlSource"]

_INT64: Final = range(-(2**63), 2**63)
_EXACT: Final = range(-(2**53), 2**53 + 1)  # whole numbers that float64 holds exactly
_BOM: Final = b"\xef\xbb\xbf"


class JsonlSource:
    """The lines of a JSONL file as samples.

    The whole file is read once to find the columns, then again for the samples. Lines with nothing
    but blanks are left out. The rule: a key whose values are all texts becomes `str`; all whole
    numbers of 64 bits, `int`; all numbers, `float64`; everything else `json`: true and false,
    lists, objects, null, a mix, or a key that some lines lack (it reads as None there).

    Args:
        path: The file.
        columns: Encodings that are not to be inferred, by key. A text goes into `bytes` as its
            UTF-8, a list into `ndarray...` as an array.
        progress: Is told how many bytes of the first reading are done.

    Raises:
        ConfigError: The file can't be read, or has no line with a key of `columns`.
        DataError: A line is not a JSON object; the message has its number.
        EmptyDatasetError: There are no lines, or nothing in them.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str] | None = None,
        progress: Progress = lambda size: None,
    ) -> None:
        self._path = path
        self._state = self._look()
        kinds: dict[str, str] = {}
        num_samples = 0
        for row in _rows(path):
            _widen(kinds, row.sample, is_first=num_samples == 0)
            num_samples += 1
            progress(row.size)
        if not num_samples:
            raise EmptyDatasetError(f"{path} holds no samples: every line of it is blank.")
        found = {name: _ENCODINGS[kind] for name, kind in kinds.items()}
        if not found:
            raise EmptyDatasetError(f"{path} holds no values: every line of it is an empty object.")
        unknown = sorted((columns or {}).keys() - found.keys())
        if unknown:
            raise ConfigError(
                f"No line of {path} has the key {unknown[0]!r}. There are: "
                f"{', '.join(sorted(found))}."
            )
        self.columns: dict[str, str] = {**found, **(columns or {})}

    def __iter__(self) -> Iterator[Row]:
        lacking = dict.fromkeys(self.columns)
        for row in _rows(self._path):
            sample = {**lacking, **row.sample}
            for name, encoding in self.columns.items():
                sample[name] = _suited(sample[name], encoding)
            yield Row(sample, row.where, row.size)
        if self._look() != self._state:
            raise DataError(f"{self._path} changed while it was read. Convert a finished file.")

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._state[0]

    def _look(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise ConfigError(f"{self._path} can't be read: {error.strerror}.") from error
        return found.st_size, found.st_mtime_ns


# "long" is a whole number of 64 bits that float64 can't hold exactly, so it can't become one.
_ENCODINGS: Final = {"str": "str", "int": "int", "long": "int", "float": "float64", "json": "json"}
_WIDER: Final = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "float",
}


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "str"
    if isinstance(value, float):
        return "float"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if value in _EXACT else "long" if value in _INT64 else "json"
    return "json"


def _join(old: str, new: str) -> str:
    return old if old == new else _WIDER.get(frozenset({old, new}), "json")


def _widen(kinds: dict[str, str], sample: Mapping[str, Any], *, is_first: bool) -> None:
    """Make the kinds of the columns fit one more sample."""
    for name in kinds.keys() - sample.keys():
        kinds[name] = "json"
    for name, value in sample.items():
        new = _kind(value)
        kinds[name] = _join(kinds.get(name, new if is_first else "json"), new)


def _suited(value: Any, encoding: str) -> Any:
    """A JSON value as its encoding wants it; the writer refuses what has no such form."""
    if encoding == "bytes" and isinstance(value, str):
        return value.encode()
    if encoding == "float64" and isinstance(value, int):
        return float(value)
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray" and isinstance(value, list):
        return np.array(value, rest.partition(":")[0] or None)
    return value


def _rows(path: Path) -> Iterator[Row]:
    decode = msgspec.json.Decoder().decode
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if text:
                where = f"{path}, line {number}"
                yield Row(_parse(text, where, decode), where, len(line))


def _parse(text: bytes, where: str, decode: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        try:
            value = decode(text)
        except msgspec.MsgspecError:
            # Python's own parser also reads what its writer writes: NaN, half a surrogate pair.
            value = json.loads(text.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg} (column {error.colno}).") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise DataError(f"{where} is nested too deeply.") from None
    if not isinstance(value, dict):
        raise DataError(
            f"{where} holds {_NAMES.get(type(value), 'no object')}; each line must be one JSON "
            f'object, such as {{"text": "..."}}.'
        )
    return value


_NAMES: Final = {list: "a list", str: "a text", int: "a number", float: "a number"}
