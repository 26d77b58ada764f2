"""Tables that have versions: what is asked of their formats, and how their libraries are called.

The libraries reach object stores by themselves, and what they leave in a process may not survive a
fork. So they are called by a process that may do so, and give plain data.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

from streaming.errors import (
    AccessDeniedError,
    ConfigError,
    StoreError,
    StreamingError,
    TransientStoreError,
)
from streaming.format.registry import formats
from streaming.storage import StoreOptions, join_key, open_store
from streaming.storage.guard import helper, note_inherited
from streaming.storage.stores.local import LocalStore

__all__ = [
    "ForkedError",
    "TableFormat",
    "TablePlace",
    "TableVersion",
    "VersionLike",
    "call_safely",
    "find_marker",
    "kind_of_failure",
    "parse_version",
]

P = ParamSpec("P")
T = TypeVar("T")

# What users name a version by: its number, a tag, or a time: the newest version that is not later.
VersionLike = int | str | datetime

# Schemes of the addresses that the libraries know, by ours.
_SCHEMES = {
    "s3": "s3",
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "abfss",
    "abfss": "abfss",
    "azure-dl": "abfss",
}
# What the names of our settings begin with there.
_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_storage_", "abfss": "azure_storage_"}
# Settings that have other names there.
_NAMES = {
    "google_application_credentials": "google_application_credentials",
    "azure_storage_federated_token_file": "azure_federated_token_file",
}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table, as far as it is known without a look at the data.

    Attributes:
        version: Its number.
        time: When it was made, in UTC.
        what: What was done to make it, such as "append"; "" if unknown.
        rows: Rows that it has; None if unknown.
        files: Files of data that it has.
        size: Bytes of these.
    """

    version: int
    time: datetime | None = None
    what: str = ""
    rows: int | None = None
    files: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table as a library finds it. Plain data.

    Attributes:
        where: URL or path as the user gave it, for messages.
        uri: Path, or URL as the libraries know it.
        options: How to reach it, by their names.
    """

    where: str
    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def at(cls, where: str, options: Mapping[str, Any] | None = None) -> "TablePlace":
        """The table at a place.

        Args:
            where: URL or path.
            options: How to reach it, over what the environment says; see `StoreOptions`.

        Raises:
            ConfigError: The libraries know no such address.
        """
        store, prefix = open_store(where, options)
        store.close()
        if isinstance(store, LocalStore):
            return cls(where, str((store.root / prefix).absolute()))
        scheme = where.partition(":")[0].lower()
        if scheme not in _SCHEMES:
            raise ConfigError(
                f"Tables are read from this machine and from {', '.join(_SCHEMES)}, but not from "
                f"{where}. Copy the table to one of these."
            )
        there = _SCHEMES[scheme]
        uri = f"{there}:{where.partition(':')[2]}"
        found = StoreOptions.from_env("az" if there == "abfss" else there).updated(options)
        return cls(where, uri, tuple(sorted(_settings_of(there, found).items())))


@dataclass(frozen=True, slots=True)
class TableFormat:
    """What a format whose data are tables can be asked, beside the index of a version.

    Attributes:
        name: What people call it.
        marker: Directory by which such a table is known.
        keys: Names, below the table, that the record of a version may have.
        resolve: The number of a version; of the newest for None. Raises `ConfigError` if there is
            no such version, `ObjectNotFoundError` if there is no table.
        history: Its versions, newest first, so many at most. Both may be called by any process.
    """

    name: str
    marker: str
    keys: Callable[[int], tuple[str, ...]]
    resolve: Callable[[TablePlace, VersionLike | None], int]
    history: Callable[[TablePlace, int], list[TableVersion]]


def find_marker(where: str, options: Mapping[str, Any] | None = None) -> str | None:
    """Name of the format of the table that is at a place; None if none is, or it can't be listed.

    Args:
        where: URL or path of a folder.
        options: How to reach it; see `StoreOptions`.
    """
    try:
        store, prefix = open_store(where, options)
        try:
            for name in formats:
                table = formats.get(name).table
                marker = None if table is None else f"{join_key(prefix, table.marker)}/"
                if marker is not None and next(iter(store.list(marker)), None) is not None:
                    return name
        finally:
            store.close()
    except StoreError:
        return None  # If it has to be listed, that will be the news.
    return None


def call_safely(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that uses a library of tables, in a process that may do so.

    All of it travels by pickle, as does what the function returns or raises.
    """
    other = helper()
    if other is None:
        try:
            return function(*args, **kwargs)
        except ForkedError:  # From a process that knew nothing of us.
            note_inherited()
            other = helper()
            assert other is not None
    return other.call(function, *args, **kwargs)


class ForkedError(StreamingError):
    """A library has found that its runtime was left behind by a fork."""


def kind_of_failure(text: str) -> type[StoreError] | None:
    """What kind of failure of a store a message of a library tells of; None if of none."""
    if re.search(r"permission denied|forbidden|unauthorized|status:? 40[13]", text, re.IGNORECASE):
        return AccessDeniedError
    if re.search(r"timed? ?out|connection|status:? (5\d\d|429)|retries", text, re.IGNORECASE):
        return TransientStoreError
    return None


def parse_version(version: VersionLike | None) -> VersionLike | None:
    """A version as users write it: a text may be a number or a time.

    Raises:
        ConfigError: It can't be meant as it is.
    """
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        if version is not None and version < 0:
            raise ConfigError(f"`version` of a table is at least 0, but is {version}.")
        return version
    if isinstance(version, datetime):
        return version if version.tzinfo else version.replace(tzinfo=UTC)
    if isinstance(version, str) and version.strip():
        text = version.strip()
        if text.isdecimal():
            return int(text)
        try:
            return parse_version(datetime.fromisoformat(text))
        except ValueError:
            return text
    raise ConfigError(
        f"`version` must be the number of a version, a time, or a tag, but is {version!r}."
    )


def _settings_of(scheme: str, options: StoreOptions) -> dict[str, str]:
    """Options under the names that the libraries' client has for them.

    A recipe for credentials is left out: they look for the same profiles and tokens themselves.
    """
    prefix = _PREFIXES[scheme]
    found: dict[str, str] = {}
    for key, value in options.settings:
        name = key if key.startswith(prefix.partition("_")[0]) else f"{prefix}{key}"
        found[_NAMES.get(name, name)] = value
    if options.endpoint is not None:
        found[f"{prefix}endpoint"] = options.endpoint
        if options.endpoint.startswith("http:"):
            found["allow_http"] = "true"
    if options.region is not None:
        found[f"{prefix}region"] = options.region
    if options.anonymous:
        found[f"{prefix}skip_signature"] = "true"
    return found
