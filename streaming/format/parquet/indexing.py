"""Indexing Parquet files: what users may say of them, and columns that come from their paths."""

import logging
import re
from collections.abc import Mapping
from urllib.parse import unquote

from streaming.errors import ConfigError
from streaming.format.index import Index
from streaming.format.indexing import IndexRequest
from streaming.format.parquet.footer import INDEX_NAME, dump_footers
from streaming.format.parquet.table import TableFile, find_footers, index_table
from streaming.storage import Store

__all__ = ["dump_index", "index_dataset"]

logger = logging.getLogger(__name__)

_SPLIT = re.compile(r"(?:^|/)(train|test|validation|valid|dev)(?=[-_./\d])")
_OPTIONS = ("allow_schema_mismatch", "decoded_limit", "index", "partitions")
# What Hive writes for a value that is null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


def index_dataset(store: Store, prefix: str, request: IndexRequest) -> Index:
    """Make an index of Parquet files.

    Args:
        store: Where they are.
        prefix: Key of their root.
        request: What is asked for.

    Raises:
        ConfigError: An option can't be meant as it is.
        DataError: A file is not what it should be, or does not fit the others.
        StoreError: A file can't be had.
    """
    for name in request.options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"Parquet files have no option {name!r}. Known: {', '.join(_OPTIONS)}."
            )
    has_partitions = request.options.get("partitions", True)
    if not isinstance(has_partitions, bool):
        raise ConfigError(f"`partitions` is True or False, but not {has_partitions!r}.")
    _warn_of_splits(request)
    files = [
        TableFile(file, constants=partition(file.key) if has_partitions else {})
        for file in request.files
    ]
    return index_table(store, prefix, request, files)


def dump_index(store: Store, prefix: str, request: IndexRequest) -> tuple[str, bytes]:
    """What is written beside Parquet files so that nobody need read their footers: name, content.

    Raises:
        DataError: A file is not what it should be, or does not fit the others.
        StoreError: A file can't be had.
    """
    footers = find_footers(store, prefix, request, request.files, with_all=True)
    marks = [(file.key, file.size, file.etag) for file in request.files]
    return INDEX_NAME, dump_footers(dict(zip(marks, footers, strict=True)))


def _warn_of_splits(request: IndexRequest) -> None:
    """Say so if a repository of the Hugging Face Hub is read with its test data."""
    if not request.where.startswith("hf://"):
        return
    found = {match[1]: None for file in request.files for match in _SPLIT.finditer(file.key)}
    if len(found) > 1:
        logger.warning(
            "%s has files of several splits (%s), and all are read. Choose one by a pattern, such "
            'as "%s/**/%s*".',
            request.where,
            ", ".join(found),
            request.where,
            next(iter(found)),
        )


def partition(key: str) -> Mapping[str, str | None]:
    """The columns that a path says, as in "year=2024/part-0.parquet"."""
    found: dict[str, str | None] = {}
    for part in key.split("/")[:-1]:
        name, equals, text = part.partition("=")
        if name and equals:
            found[unquote(name)] = None if text == _NULL else unquote(text)
    return found
