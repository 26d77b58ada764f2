"""The predecessor's registries: names that a user gives to classes and functions of his own."""

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points as find_entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from streaming.errors import ConfigError, WorkerError
from streaming.util.importing import Registry

__all__ = [
    "TypedRegistry",
    "construct_from_registry",
    "create_registry",
    "import_file",
    "save_registry",
]

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

# Namespace to the names in it, of all registries of the process: two that are made for one
# namespace hold the same.
_spaces: dict[tuple[str, ...], dict[str, Any]] = {}


class TypedRegistry(Generic[T]):
    """Names in a namespace. A name that is registered again means the newer value.

    Args:
        namespace: Parts of the namespace.
        entry_points: Take names that other distributions offer as well, in the entry-point group
            of the parts joined by "_".
        description: What the names are names of.
    """

    def __init__(
        self, namespace: Sequence[str], entry_points: bool = False, description: str = ""
    ) -> None:
        self.namespace = tuple(namespace)
        self.entry_points = entry_points
        self.description = description
        self._group = "_".join(self.namespace)
        self._values = _spaces.setdefault(self.namespace, {})

    def register(self, name: str, *, func: C | None = None) -> Any:
        """Register a value; without `func`, decorate what stands below.

        Returns:
            The value, or the decorator.
        """
        if func is None:
            return functools.partial(self._add, name)
        return self._add(name, func)

    register_class = register

    def __call__(self, name: str, func: C | None = None) -> Any:
        """Like `register`."""
        return self.register(name, func=func)

    def get(self, name: str) -> T:
        """What a name means.

        Raises:
            UnknownNameError: Nobody registered it; the message lists those known.
        """
        group = self._group if self.entry_points else None
        kind = f"entry in the registry {' -> '.join(self.namespace)}"
        return Registry[T](kind, self._values, group).get(name)

    def get_all(self) -> dict[str, T]:
        """All names and what they mean."""
        return {**self.get_entry_points(), **self._values}

    def get_entry_points(self) -> dict[str, T]:
        """The names that other distributions offer."""
        if not self.entry_points:
            return {}
        return {point.name: point.load() for point in find_entry_points(group=self._group)}

    def get_entry_point(self, name: str, default: T | None = None) -> T | None:
        """What another distribution offers under a name."""
        return self.get_entry_points().get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self.get_entry_points()

    def _add(self, name: str, value: Any) -> Any:
        self._values[name] = value
        return value


def create_registry(
    *namespace: str, generic_type: Any, entry_points: bool = False, description: str = ""
) -> TypedRegistry[Any]:
    """Make a registry; `generic_type` says to readers of the code what its values are."""
    return TypedRegistry(namespace, entry_points, description)


def construct_from_registry(
    name: str,
    registry: TypedRegistry[Any],
    partial_function: bool = True,
    pre_validation_function: Callable[[Any], None] | type | None = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Make what a registered name stands for.

    Args:
        name: The name.
        registry: Where it is registered.
        partial_function: Of a function, give one with `kwargs` filled in; else call it.
        pre_validation_function: Called with what is registered; a class: it must be a subclass.
        post_validation_function: Called with what was made.
        kwargs: Arguments for it.

    Raises:
        UnknownNameError: There is no such name.
        ConfigError: It is of the wrong class, or can't be called.
    """
    found, kwargs = registry.get(name), kwargs or {}
    if isinstance(pre_validation_function, type):
        if not (inspect.isclass(found) and issubclass(found, pre_validation_function)):
            raise ConfigError(
                f"{name!r} must be a subclass of {pre_validation_function.__name__}, but is "
                f"{found!r}."
            )
    elif pre_validation_function is not None:
        pre_validation_function(found)
    if not callable(found):
        raise ConfigError(f"{name!r} must be a class or a function, but is {found!r}.")
    if inspect.isclass(found) or not partial_function:
        made = found(**kwargs)
    else:
        made = functools.partial(found, **kwargs)
    if post_validation_function is not None:
        post_validation_function(made)
    return made


def import_file(loc: str | os.PathLike[str]) -> ModuleType:
    """Run a Python file as a module, for what it registers.

    Raises:
        FileNotFoundError: It isn't there.
        WorkerError: It raised something, which is the cause.
    """
    path = os.fspath(loc)
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path} to import.")
    spec = importlib.util.spec_from_file_location("python_code", path)
    if spec is None or spec.loader is None:
        raise WorkerError(f"{path} can't be imported: it is no Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise WorkerError(f"Importing {path} failed: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def save_registry() -> Iterator[None]:
    """Undo at the end of the block what is registered in it, however it ends."""
    saved = {namespace: dict(values) for namespace, values in _spaces.items()}
    try:
        yield
    finally:
        for namespace, values in _spaces.items():
            values.clear()
            values.update(saved.get(namespace, {}))
