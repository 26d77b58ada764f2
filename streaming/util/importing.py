"""Imports that wait until they are needed, and registries of names that files and users write."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from streaming.errors import ConfigError, MissingExtraError, UnknownNameError

__all__ = ["Registry", "get_import_exception_message", "lazy"]

T = TypeVar("T")


def lazy(name: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say how to get it.

    Args:
        name: Module to import, dotted.
        extra: The extra of this distribution that brings it.

    Raises:
        MissingExtraError: The module is not installed.
    """
    module = sys.modules.get(name)
    # Importing again what is there takes 10 us; a module may be there that is not whole yet.
    if module is not None and not getattr(module.__spec__, "_initializing", True):
        return module
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and name != error.name and not name.startswith(error.name + "."):
            raise  # The module is there and one of *its* imports is broken: that is the news.
        message = get_import_exception_message(name.partition(".")[0], extra)
        raise MissingExtraError(message) from error


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """What to say when a package is not installed: which extra brings it, and how."""
    return (
        f"This needs the package {package_name!r}, which is not installed. "
        f'Install it with: pip install "goldenspike[{extra_deps}]"'
    )


class Registry(Generic[T]):
    """Names that may stand in a file or an argument, each with the code it means.

    Args:
        kind: What the names are names of, in the singular, for messages.
        entries: Name to value, or to ``"module:attribute"``, imported on first use.
        group: Entry-point group in which other distributions may offer more.
    """

    def __init__(self, kind: str, entries: Mapping[str, str | T], group: str | None = None) -> None:
        self._kind = kind
        self._entries: dict[str, str | T] = dict(entries)
        self._group = group

    def register(self, name: str, value: T) -> None:
        """Add a name.

        Raises:
            ConfigError: The name is taken.
        """
        if name in self._entries:
            raise ConfigError(f"There is already a {self._kind} named {name!r}.")
        self._entries[name] = value

    def get(self, name: str) -> T:
        """What a name means.

        Raises:
            UnknownNameError: Nobody registered the name; the message lists those known.
        """
        if name not in self._entries:
            self._entries.update(
                {point.name: point.value for point in self._offered() if point.name == name}
            )
        try:
            entry = self._entries[name]
        except (KeyError, TypeError):
            known = ", ".join(sorted(self)) or "none"
            raise UnknownNameError(f"There is no {self._kind} {name!r}. Known: {known}.") from None
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = cast(T, getattr(importlib.import_module(module), attribute))
            self._entries[name] = entry
        return entry

    @property
    def table(self) -> dict[str, str | T]:
        """The names held now, live: for a module-level dict that old code adds to."""
        return self._entries

    def __contains__(self, name: object) -> bool:
        return name in self._entries or any(point.name == name for point in self._offered())

    def __iter__(self) -> Iterator[str]:
        yield from {**self._entries, **{point.name: None for point in self._offered()}}

    def _offered(self) -> tuple[Any, ...]:
        if not self._group:
            return ()
        from importlib.metadata import entry_points  # Takes as long to load as all the rest.

        return tuple(entry_points(group=self._group))
