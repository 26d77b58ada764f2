"""Separated text: CSV, TSV and others, with or without a table of lines (docs/text.md)."""

from dataclasses import replace

from streaming.format.registry import Format
from streaming.format.text.table import least_table_bytes
from streaming.format.xsv.indexing import export_shard, index_dataset
from streaming.format.xsv.reader import CSVReader, TSVReader, XSVReader
from streaming.format.xsv.writer import CSVWriter, TSVWriter, XSVEncoder, XSVWriter

__all__ = [
    "CSV_FORMAT",
    "FORMAT",
    "TSV_FORMAT",
    "CSVReader",
    "CSVWriter",
    "TSVReader",
    "TSVWriter",
    "XSVEncoder",
    "XSVReader",
    "XSVWriter",
]

FORMAT = Format(
    "xsv",
    XSVReader,
    has_meta=True,
    least_bytes=least_table_bytes,
    index_dataset=index_dataset,
    export_shard=export_shard,
)
CSV_FORMAT = replace(FORMAT, name="csv", reader=CSVReader, endings=(".csv",))
TSV_FORMAT = replace(FORMAT, name="tsv", reader=TSVReader, endings=(".tsv",))
