"""MDS: one file a shard; a table of offsets, then samples of typed columns (docs/formats.md)."""

from streaming.format.mds.reader import MDSReader
from streaming.format.mds.writer import MDSEncoder, MDSWriter
from streaming.format.registry import Format

__all__ = ["FORMAT", "MDSEncoder", "MDSReader", "MDSWriter"]

FORMAT = Format("mds", MDSReader, least_bytes=lambda samples: 8 + 4 * samples)
