"""The predecessor's import paths: `streaming.base.x` is `streaming.x`, the same module object."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import streaming
from streaming.base._old import MOVED, NAMES
from streaming.util.migration import AliasFinder, warn_user

if TYPE_CHECKING:
    from streaming.dataloader import StreamingDataLoader
    from streaming.dataset import StreamingDataset
    from streaming.format.json.writer import JSONWriter
    from streaming.format.mds.writer import MDSWriter
    from streaming.format.xsv.writer import CSVWriter, TSVWriter, XSVWriter
    from streaming.local import LocalDataset
    from streaming.stream import Stream

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
]

AliasFinder(__name__, "streaming", MOVED, names=NAMES).install()


def __getattr__(name: str) -> Any:
    """Find a name, or a module that nobody has imported yet; the predecessor imported them all."""
    if name in __all__:
        warn_user(
            f"`{__name__}.{name}` is `streaming.{name}` now. The old path goes on working.",
            DeprecationWarning,
        )
        globals()[name] = value = getattr(streaming, name)
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
