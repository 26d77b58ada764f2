"""The process that `ChunkScanner` asks where columns lie: a script that needs no other module.

A question is a footer, an answer where its columns begin and their bytes, as int64; before each
stands its length in eight bytes.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["answer"]


def answer(footer: bytes) -> bytes:
    """Say where the columns lie; ends the process instead, if the footer is damaged."""
    metadata = pq.read_metadata(pa.BufferReader(footer))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(metadata.num_columns)]
    starts = []
    for chunk in chunks:
        data, words = chunk.data_page_offset, chunk.dictionary_page_offset
        # A dictionary lies before the pages that use it. Old writers give 0 where there is none.
        starts.append(min(data, words) if words else data)
    sizes = [chunk.total_compressed_size for chunk in chunks]
    return np.array([starts, sizes], np.int64).tobytes()


def _main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(8):
        found = answer(source.read(int.from_bytes(head, "little")))
        sink.write(len(found).to_bytes(8, "little") + found)
        sink.flush()


if __name__ == "__main__":
    _main()
