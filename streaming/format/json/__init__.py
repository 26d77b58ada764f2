"""JSON: an object a line, with or without a table of lines (docs/text.md)."""

from dataclasses import replace

from streaming.format.json.indexing import export_shard, index_dataset
from streaming.format.json.reader import JSONReader
from streaming.format.json.writer import JSONEncoder, JSONLWriter, JSONWriter
from streaming.format.registry import Format
from streaming.format.text.table import least_table_bytes

__all__ = ["FORMAT", "JSONL_FORMAT", "JSONEncoder", "JSONLWriter", "JSONReader", "JSONWriter"]

FORMAT = Format(
    "json",
    JSONReader,
    has_meta=True,
    least_bytes=least_table_bytes,
    endings=(".jsonl", ".ndjson"),
    more_endings=(".json",),
    index_dataset=index_dataset,
    export_shard=export_shard,
)
JSONL_FORMAT = replace(FORMAT, name="jsonl")
