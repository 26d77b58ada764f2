"""Datasets written as shards, streamed shuffled from anywhere, resumed to the sample.

The public names load on first use: ``import streaming`` alone imports neither torch nor a client
of any object store.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.errors import MissingExtraError
from streaming.util.installation import check_installation

if TYPE_CHECKING:
    from streaming import base, multimodal, text, vision
    from streaming.dataloader import StreamingDataLoader
    from streaming.dataset import StreamingDataset
    from streaming.format.images import ImageToArray
    from streaming.format.json.writer import JSONLWriter, JSONWriter
    from streaming.format.mds.writer import MDSWriter
    from streaming.format.xsv.writer import CSVWriter, TSVWriter, XSVWriter
    from streaming.local import LocalDataset
    from streaming.schedule import Schedule
    from streaming.stream import Stream
    from streaming.world import World

__all__ = [
    "CSVWriter",
    "ImageToArray",
    "JSONLWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Schedule",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "World",
    "XSVWriter",
    "__version__",
    "base",
    "multimodal",
    "text",
    "vision",
]

__version__ = "0.1.0"

_HOMES = {
    "CSVWriter": "streaming.format.xsv.writer",
    "ImageToArray": "streaming.format.images",
    "JSONLWriter": "streaming.format.json.writer",
    "JSONWriter": "streaming.format.json.writer",
    "LocalDataset": "streaming.local",
    "MDSWriter": "streaming.format.mds.writer",
    "Schedule": "streaming.schedule",
    "Stream": "streaming.stream",
    "StreamingDataLoader": "streaming.dataloader",
    "StreamingDataset": "streaming.dataset",
    "TSVWriter": "streaming.format.xsv.writer",
    "World": "streaming.world",
    "XSVWriter": "streaming.format.xsv.writer",
}
# The predecessor imports these with itself, so old code names them without an import of its own.
_MODULES = ("base", "multimodal", "text", "vision")

check_installation(Path(__file__).parent)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562).

    Raises:
        MissingExtraError: The name needs torch, which is not installed.
    """
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingExtraError(
            f"`streaming.{name}` needs the package 'torch', which is not installed. "
            f'Install it with: pip install "goldenspike[torch]"'
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
