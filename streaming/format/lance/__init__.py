"""Lance datasets: a fragment is a shard, read by `pylance` where it is, cached, or from afar."""

from streaming.format.lance.client import history, resolve
from streaming.format.lance.indexing import index_dataset
from streaming.format.lance.reader import LanceReader
from streaming.format.registry import Format
from streaming.format.tables import TableFormat

__all__ = ["FORMAT", "LanceReader"]


def _keys(version: int) -> tuple[str, ...]:
    """Names that the manifest of a version may have: newer ones sort from the newest on."""
    return tuple(f"_versions/{name}.manifest" for name in (f"{2**64 - 1 - version:020d}", version))


FORMAT = Format(
    "lance",
    LanceReader,
    index_dataset=index_dataset,
    open_remote=LanceReader.open_remote,
    table=TableFormat("Lance dataset", "_versions", _keys, resolve, history),
)
