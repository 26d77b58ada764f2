"""Small datasets on disk, and a source that counts what is taken from it."""

import json
import os
import shutil
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.cache import CachePart, obtain_index
from streaming.compression import compress, get_compression_extension
from streaming.format.index import FileInfo, dump_index
from streaming.hashing import get_hash
from streaming.shared.lock import FileLock


def sample(shard: int, place: int, padding: int = 0) -> bytes:
    """The value of column "x" of one sample."""
    pad = get_hash("sha512", b"").encode() * (padding // 128 + 1)
    return b"shard %03d sample %03d" % (shard, place) + pad[:padding]


def write_dataset(
    root: Path,
    shards: int = 4,
    samples: int = 5,
    *,
    compression: str | None = None,
    hashes: Sequence[str] = (),
    padding: int = 0,
) -> Path:
    """Write MDS shards with one column "x" of bytes, and their index.

    Args:
        root: Directory to make.
        shards: Number of shards.
        samples: Samples in each.
        compression: Keep only files compressed with this.
        hashes: Hashes to put into the index.
        padding: Bytes that each sample is longer.
    """
    root.mkdir(parents=True)
    entries = [_write_shard(root, i, samples, compression, hashes, padding) for i in range(shards)]
    (root / "index.json").write_bytes(dump_index(entries))
    return root


def _write_shard(
    root: Path, i: int, samples: int, compression: str | None, hashes: Sequence[str], padding: int
) -> dict[str, Any]:
    values = [sample(i, j, padding) for j in range(samples)]
    rows = [struct.pack("<I", len(value)) + value for value in values]
    head = struct.pack("<I", samples)
    config = b"{}"
    offsets = [4 + 4 * (samples + 1) + len(config)]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    raw = head + struct.pack(f"<{samples + 1}I", *offsets) + config + b"".join(rows)
    name = f"shard.{i:05}.mds"
    entry = {
        "column_encodings": ["bytes"],
        "column_names": ["x"],
        "column_sizes": [None],
        "compression": compression,
        "format": "mds",
        "hashes": sorted(hashes),
        "raw_data": _file(name, raw, hashes),
        "samples": samples,
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    if compression is None:
        (root / name).write_bytes(raw)
        return entry
    zipped = bytes(compress(compression, raw))
    zip_name = f"{name}.{get_compression_extension(compression)}"
    (root / zip_name).write_bytes(zipped)
    return {**entry, "zip_data": _file(zip_name, zipped, hashes)}


def _file(name: str, data: bytes, hashes: Sequence[str]) -> dict[str, Any]:
    return {
        "basename": name,
        "bytes": len(data),
        "hashes": {algo: get_hash(algo, data) for algo in hashes},
    }


@dataclass(frozen=True)
class FolderSource:
    """Copies files of a directory, and notes each in a file that processes share.

    Attributes:
        root: Where the files are.
        log: A file that gets a line per fetch; None for no notes.
        gate: A lock file: while somebody holds it, every fetch waits, after its note.
        address: What `url` gives in place of `root`.
    """

    root: Path
    log: Path | None = None
    gate: Path | None = None
    address: str | None = None

    def url(self, basename: str) -> str:
        return f"{self.address or self.root}/{basename}"

    def fetch(self, file: FileInfo, path: Path, digest: tuple[str, str] | None = None) -> int:
        if self.log is not None:
            fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, f"{file.basename}\n".encode())
            os.close(fd)
        if self.gate is not None:
            with FileLock(self.gate).shared():
                pass
        shutil.copyfile(self.root / file.basename, path)
        return path.stat().st_size


def fetches(log: Path) -> Counter[str]:
    """How often each file was fetched."""
    return Counter(log.read_text().split()) if log.exists() else Counter()


def open_part(local: Path, source: FolderSource | None, **options: Any) -> CachePart:
    """A dataset as a cache takes it."""
    index, directory = obtain_index(local, source)
    return CachePart(directory, index, source, **options)


def listing(root: Path) -> dict[str, bytes]:
    """All files below a directory but the shared state, with their bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".streaming" not in path.parts
    }


def sizes(root: Path) -> list[int]:
    """Raw bytes of each shard, by the index."""
    index = json.loads((root / "index.json").read_bytes())
    return [shard["raw_data"]["bytes"] for shard in index["shards"]]
