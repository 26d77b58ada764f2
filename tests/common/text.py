"""Files of lines without an index, and readers of them."""

import bz2
import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streaming.compression import compress
from streaming.format import Sample, ShardReader, open_reader
from streaming.format.listing import Place
from streaming.shared.plain import PlainData, obtain_plain_index

__all__ = ["PACK", "open_plain", "read_plain", "write"]

# How other programs compress, by the endings of their files.
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: compress("zstd", data[:100]) + compress("zstd", data[100:]),
}


def write(path: Path, data: bytes | str) -> Path:
    """Write a file, and make its folder; the ending says how it is compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(PACK.get(path.suffix, bytes)(raw))
    return path


def open_plain(
    place: Path | str | Sequence[str],
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    choose: Sequence[str] | None = None,
    **options: Any,
) -> list[ShardReader]:
    """Readers of files that are read where they are; none of them may be compressed.

    Args:
        place: As a stream takes it.
        format: Name of the format.
        columns: Declared ones.
        choose: Columns that samples shall have.
        options: Of the format.
    """
    data = PlainData(
        place=Place.parse(place), local=None, format=format, columns=columns, options=options
    )
    found = obtain_plain_index(data)
    assert found is not None
    return [open_reader(info, [Path(info.files[0][0].basename)], choose) for info in found.index]


def read_plain(place: Path | str | Sequence[str], **arguments: Any) -> list[Sample]:
    """All samples, and a check that every way to read them gives the same."""
    samples: list[Sample] = []
    for reader in open_plain(place, **arguments):
        places = np.arange(len(reader))
        mine = reader.take(places)
        assert [reader.get_item(i) for i in range(len(reader))] == mine
        assert [reader.decode_sample(reader.get_sample_data(i)) for i in range(len(reader))] == mine
        assert [reader.take(np.array([i]))[0] for i in range(len(reader))] == mine
        assert reader.take(places[::-1]) == mine[::-1]
        samples += mine
    return samples
