"""The table of shard formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streaming.util.importing import Registry

if TYPE_CHECKING:
    from streaming.format.index import Index, ShardInfo
    from streaming.format.indexing import Export, IndexRequest
    from streaming.format.reader import ShardReader
    from streaming.storage import Store

__all__ = ["Format", "formats"]


@dataclass(frozen=True, slots=True)
class Format:
    """A way in which samples lie in the files of a shard.

    Attributes:
        name: What an index calls it; also the ending of its files.
        reader: Opens one shard.
        has_meta: A shard has a second file, `raw_meta`, which says where the samples are.
        least_bytes: Numbers of samples to the bytes that a shard's first file (meta, if there is
            one) has at least: a count in an index that can't be true is found before it is used.
        endings: Of files that are read without an index, such as ".csv".
        more_endings: Of files that are read so only if the format was asked for.
        index_dataset: Makes the index of such files: of a store, the key of their root, and what
            is asked for. None: the format always comes with an index.
        export_shard: What an index that lies beside such a file says of it: of the shard, and what
            else its meta file shall say for people.
    """

    name: str
    reader: "type[ShardReader]"
    has_meta: bool = False
    least_bytes: Callable[[NDArray[np.int64]], NDArray[np.int64]] = np.zeros_like
    endings: tuple[str, ...] = ()
    more_endings: tuple[str, ...] = ()
    index_dataset: "Callable[[Store, str, IndexRequest], Index] | None" = None
    export_shard: "Callable[[ShardInfo, Mapping[str, Any]], Export] | None" = None


formats: Registry[Format] = Registry(
    "shard format",
    {
        "mds": "streaming.format.mds:FORMAT",
        "json": "streaming.format.json:FORMAT",
        "jsonl": "streaming.format.json:JSONL_FORMAT",
        "xsv": "streaming.format.xsv:FORMAT",
        "csv": "streaming.format.xsv:CSV_FORMAT",
        "tsv": "streaming.format.xsv:TSV_FORMAT",
    },
    group="streaming.formats",
)
