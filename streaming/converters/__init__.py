"""From data that others wrote to datasets.

A source (`folder.FolderSource`, `jsonl.JsonlSource`) reads samples; `writing.write_dataset` writes
them. A Spark DataFrame is written by its own processes (`spark`), a part each (`parts`).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.converters.spark import (
        SPARK_TO_MDS,
        dataframe_to_mds,
        infer_dataframe_schema,
        is_json_compatible,
    )

__all__ = ["SPARK_TO_MDS", "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"]


def __getattr__(name: str) -> Any:
    """The names of `spark`, which needs an extra (PEP 562)."""
    if name in __all__:
        return getattr(import_module("streaming.converters.spark"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps the function `dataframe_to_mds` under its name.

    The predecessor has a module of this name, too, here; who imports that by its old path would
    find it in the place of the function from then on.
    """

    @property
    def dataframe_to_mds(self) -> Any:
        return __getattr__("dataframe_to_mds")

    @dataframe_to_mds.setter
    def dataframe_to_mds(self, module: ModuleType) -> None:
        """Python's import of the module, which is found in `sys.modules` anyway."""


sys.modules[__name__].__class__ = _Package
