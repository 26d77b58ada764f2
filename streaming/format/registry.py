"""The table of shard formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streaming.util.importing import Registry

if TYPE_CHECKING:
    from streaming.format.index import Index, ShardInfo
    from streaming.format.indexing import Export, IndexRequest
    from streaming.format.reader import Remote, ShardReader
    from streaming.format.tables import TableFormat
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
        dump_index: Makes what is written beside such files instead of an index, for formats that
            need only the state of each file: its name and content.
        decode: Makes the raw file of a shard from the compressed one, for formats in which that is
            more than to decompress it, and its size is not known before: of the shard, the one
            file and the other.
        read_once: Opens a shard of the compressed file itself, for whoever reads each sample once
            and in order, if that costs less than to decode it first: of the shard, the file and
            columns. See `ShardReader.reads_once`.
        export_shard: What an index that lies beside such a file says of it: of the shard, and what
            else its meta file shall say for people.
        open_remote: Opens a shard where it is, without bringing any of it here: of the shard, its
            source and columns. None: what is read must be here.
        table: What is asked of tables that have versions; None: the data are files.
    """

    name: str
    reader: "type[ShardReader]"
    has_meta: bool = False
    least_bytes: Callable[[NDArray[np.int64]], NDArray[np.int64]] = np.zeros_like
    endings: tuple[str, ...] = ()
    more_endings: tuple[str, ...] = ()
    index_dataset: "Callable[[Store, str, IndexRequest], Index] | None" = None
    dump_index: "Callable[[Store, str, IndexRequest], tuple[str, bytes]] | None" = None
    decode: "Callable[[ShardInfo, Path, Path], None] | None" = None
    read_once: "Callable[[ShardInfo, Path, Sequence[str] | None], ShardReader] | None" = None
    export_shard: "Callable[[ShardInfo, Mapping[str, Any]], Export] | None" = None
    open_remote: "Callable[[ShardInfo, Remote, Sequence[str] | None], ShardReader] | None" = None
    table: "TableFormat | None" = None


formats: Registry[Format] = Registry(
    "shard format",
    {
        "mds": "streaming.format.mds:FORMAT",
        "json": "streaming.format.json:FORMAT",
        "jsonl": "streaming.format.json:JSONL_FORMAT",
        "xsv": "streaming.format.xsv:FORMAT",
        "csv": "streaming.format.xsv:CSV_FORMAT",
        "tsv": "streaming.format.xsv:TSV_FORMAT",
        "parquet": "streaming.format.parquet:FORMAT",
        "delta": "streaming.format.delta:FORMAT",
        "lance": "streaming.format.lance:FORMAT",
    },
    group="streaming.formats",
)
