"""Old import paths, and names that have no meaning any more."""

import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NoReturn, TypeVar

from streaming.errors import RemovedError

__all__ = ["AliasFinder", "alias_submodules", "extends", "removed", "warn_user"]

F = TypeVar("F", bound=Callable[..., Any])

# Modules whose frames lie between a statement of the user's and us.
_BETWEEN = ("importlib", "_frozen_importlib", "abc", "streaming")


class AliasFinder(MetaPathFinder):
    """Answers an import of an old module with the module that took its place: the same object.

    So classes are identical under both paths, pickles that name the old one load, and a patch of
    the old one is a patch of the new one. Each old path gives one DeprecationWarning, at the line
    that imports it. Private modules of the old package are left to Python.

    Args:
        old: The old package.
        new: Where its modules are now; each has the name it had, but for those in `moved`. None:
            there are no others.
        moved: Name of a module below `old` to the full name of the one in its place.
        gone: Name of a module or package below `old` to a sentence on what to do without it.
        names: Full name of a new module to names that only old code looks for in it, each with its
            value or, as "module:attribute", where that is. They are there once the module was
            imported by the old path.
    """

    def __init__(
        self,
        old: str,
        new: str | None,
        moved: Mapping[str, str],
        *,
        gone: Mapping[str, str] | None = None,
        names: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._old = old + "."
        self._new = new
        self._moved = moved
        self._gone = gone or {}
        self._names = names or {}

    def install(self) -> None:
        """Come before all other finders, which would load a second copy of a module."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an old module.

        Raises:
            ModuleNotFoundError: It is gone; the message says what to do.
        """
        name = fullname.removeprefix(self._old)
        if name == fullname or name.startswith("_"):
            return None
        for package, instead in self._gone.items():
            if name == package or name.startswith(package + "."):
                raise ModuleNotFoundError(f"`{fullname}` is gone: {instead}", name=fullname)
        home = self._moved.get(name, self._new and f"{self._new}.{name}")
        if home is None or not _exists(home):
            return None
        return ModuleSpec(fullname, _AliasLoader(home, self._names.get(home, {})))


def alias_submodules(
    module: str, moved: Mapping[str, str], gone: Mapping[str, str] | None = None
) -> list[str]:
    """Let what is one module now be imported by the paths of the package that it was.

    Args:
        module: Its name.
        moved: Name of an old module below it to the full name of the one in its place.
        gone: Name of an old module below it to a sentence on what to do without it.

    Returns:
        A `__path__` for it, with which Python takes it for a package: nothing.
    """
    AliasFinder(module, None, moved, gone=gone).install()
    itself = sys.modules[module]
    homes = {name: importlib.import_module(home) for name, home in moved.items()}
    vars(itself)["__getattr__"] = _OldNames(itself, homes)
    return []


class _AliasLoader(Loader):
    def __init__(self, home: str, names: Mapping[str, Any]) -> None:
        self._home = home
        self._names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Hand out the new module."""
        if not _is_parent():
            warn_user(
                f"`{spec.name}` is `{self._home}` now. The old path goes on working.",
                DeprecationWarning,
            )
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give it its own spec back, which the import system has just replaced, and old names."""
        module.__spec__ = self._spec
        if self._names and not isinstance(vars(module).get("__getattr__"), _OldNames):
            vars(module)["__getattr__"] = _OldNames(module, self._names)


class _OldNames:
    """The `__getattr__` of a module that has more names for old code; see PEP 562."""

    def __init__(self, module: ModuleType, names: Mapping[str, Any]) -> None:
        self._module = module
        self._names = names
        self._others: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def __call__(self, name: str) -> Any:
        if name in self._names:
            value = _resolve(self._names[name])
            setattr(self._module, name, value)
            return value
        if self._others is not None:
            return self._others(name)
        raise AttributeError(f"module {self._module.__name__!r} has no attribute {name!r}")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _resolve(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("streaming") and ":" in value:
        home, _, attribute = value.partition(":")
        return getattr(importlib.import_module(home), attribute)
    return value


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that led here, however it did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    assert frame is not None
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "unknown"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


class _Removed(type):
    """The class of stand-ins: whatever is done with one but naming it raises."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise RemovedError(cls.__doc__)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RemovedError(cls.__doc__)


def removed(name: str, instead: str) -> Any:
    """A stand-in for a class or function of the predecessor that has no meaning any more.

    It can be imported and named in annotations. It raises when it is called, or asked for an
    attribute; an error at its import would say less, and could not be caught at the right place.

    Args:
        name: Its name.
        instead: What took its place, as a sentence.
    """
    return _Removed(name, (), {"__doc__": f"`{name}` is gone: {instead}"})


def extends(base: type) -> Callable[[F], F]:
    """Show the signature of a constructor that passes the arguments it lacks on to `base`."""

    def decorate(method: F) -> F:
        own = inspect.signature(method).parameters
        inherited = inspect.signature(base.__init__).parameters  # type: ignore[misc]  # Read only.
        merged = {**inherited, **own}
        keywords = [each for each in merged.values() if each.kind is not each.VAR_KEYWORD]
        method.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return method

    return decorate


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN


def _is_parent() -> bool:
    """Whether a module is imported only because one below it is."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        depth += frame.f_code.co_name == "_find_and_load"
        frame = frame.f_back
    return depth > 1
