"""How `pylance` is called: opened once a process, its errors as ours."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from streaming.errors import (
    ConfigError,
    DataError,
    MissingFileError,
    ObjectNotFoundError,
    ShardCorruptError,
    StreamingError,
)
from streaming.format.tables import (
    TablePlace,
    TableVersion,
    VersionLike,
    call_safely,
    kind_of_failure,
)
from streaming.util.importing import lazy

__all__ = ["history", "load_library", "open_dataset", "reading", "resolve"]

_ALL = 1 << 40  # versions

# What a message of the library ends with: the place in its own source.
_SOURCE = re.compile(r",? /(home|rustc)/\S+\.rs:\d+(:\d+)?.*", re.DOTALL)


def open_dataset(place: TablePlace, version: int | str | None) -> Any:
    """A version of a dataset; the newest one for None.

    Raises:
        MissingExtraError: `pylance` is not installed.
        ConfigError: There is no such version or tag.
        ObjectNotFoundError: There is no dataset.
        DataError, StoreError: It can't be opened.
    """
    lance = load_library()
    options = dict(place.options) or None
    try:
        with reading(place.where):
            return lance.dataset(place.uri, version=version, storage_options=options)
    except (DataError, MissingFileError, ObjectNotFoundError) as error:
        if version is not None and _is_missing(error):
            raise ConfigError(_no_version(place, version, options)) from error
        if _is_missing(error):
            raise ObjectNotFoundError(f"There is no Lance dataset at {place.where}.") from error
        raise


def load_library() -> Any:
    """The library. To import it starts nothing: workers that are forked later find it done."""
    if "lance" not in sys.modules:
        # Where we bring the library, nobody else has handles of it; ours do not outlive a fork.
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
    return lazy("lance", "lance")


def resolve(place: TablePlace, version: VersionLike | None) -> int:
    """The number of a version; see `TableFormat`."""
    if isinstance(version, datetime):
        return _at_time(place, version)
    return call_safely(_number, place, version)


def history(place: TablePlace, limit: int) -> list[TableVersion]:
    """The versions of a dataset, newest first; see `TableFormat`."""
    return call_safely(_history, place, limit)


def _number(place: TablePlace, version: int | str | None) -> int:
    return int(open_dataset(place, version).version)


def _history(place: TablePlace, limit: int) -> list[TableVersion]:
    dataset = open_dataset(place, None)
    with reading(place.where):
        found = sorted(dataset.versions(), key=lambda item: -item["version"])[:limit]
        tags = {about["version"]: name for name, about in dataset.tags.list().items()}
    return [_describe(item, tags.get(item["version"])) for item in found]


@contextmanager
def reading(what: str, version: int | None = None) -> Iterator[None]:
    """Turn what the library raises into our errors.

    Args:
        what: Path or URL of what is read, for messages.
        version: That is read.
    """
    try:
        yield
    except StreamingError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # A panic of the library is none of the usual ones.
        raise _named(error, what, version) from error


def _named(error: BaseException, what: str, version: int | None) -> StreamingError:
    text = " ".join(_SOURCE.sub("", str(error)).removeprefix("External error: ").split())
    where = what if version is None else f"version {version} of {what}"
    if _is_missing(error):
        return MissingFileError(
            f"A file of {where} is gone: {text}. Datasets lose files of old versions when they are "
            "cleaned up: read a newer version, and keep those that are in use by a tag."
        )
    store_error = kind_of_failure(text)
    if store_error is not None:
        return store_error(f"Can't read {where}: {text}.")
    if "Schema error" in text or "Ref not found" in text or "Invalid user input: Err" in text:
        return ConfigError(f"{where} can't be read so: {text}.")
    return ShardCorruptError(f"{where} can't be read: {type(error).__name__}: {text}.")


def _is_missing(error: BaseException) -> bool:
    text = str(error)
    return "Not found" in text or "was not found" in text or "does not exist" in text


def _no_version(place: TablePlace, version: int | str, options: Any) -> str:
    known = _history(place, 1)
    newest = f"the newest is {known[0].version}" if known else "there are none"
    kind = "version" if isinstance(version, int) else "version or tag"
    return (
        f"The Lance dataset at {place.where} has no {kind} {version!r}, or not any more: {newest}."
    )


def _at_time(place: TablePlace, time: datetime) -> int:
    known = history(place, _ALL)
    for found in known:
        if found.time is not None and found.time <= time:
            return found.version
    oldest = f"the oldest is of {known[-1].time}" if known else "there are none"
    raise ConfigError(
        f"The Lance dataset at {place.where} has no version of {time} or before: {oldest}."
    )


def _describe(item: Any, tag: str | None) -> TableVersion:
    about = item["metadata"]

    def number(name: str) -> int | None:
        return int(about[name]) if name in about else None

    return TableVersion(
        int(item["version"]),
        item["timestamp"].astimezone(UTC),  # The library gives local time without saying so.
        f"tag {tag}" if tag else "",
        number("total_rows"),
        number("total_data_files"),
        number("total_files_size"),
    )
