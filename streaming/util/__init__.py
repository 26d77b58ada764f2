"""Small tools, and the predecessor's names for them, which load on first use (PEP 562)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.util.importing import get_import_exception_message
    from streaming.util.merging import merge_index
    from streaming.util.pretty import bytes_to_int, get_list_arg, number_abbrev_to_int
    from streaming.util.retrying import retry
    from streaming.util.shared import clean_stale_shared_memory
    from streaming.util.waiting import wait_for_file_to_exist

__all__ = [
    "bytes_to_int",
    "clean_stale_shared_memory",
    "get_import_exception_message",
    "get_list_arg",
    "merge_index",
    "number_abbrev_to_int",
    "retry",
    "wait_for_file_to_exist",
]

_HOMES = {
    "bytes_to_int": "streaming.util.pretty",
    "clean_stale_shared_memory": "streaming.util.shared",
    "get_import_exception_message": "streaming.util.importing",
    "get_list_arg": "streaming.util.pretty",
    "merge_index": "streaming.util.merging",
    "number_abbrev_to_int": "streaming.util.pretty",
    "retry": "streaming.util.retrying",
    "wait_for_file_to_exist": "streaming.util.waiting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
