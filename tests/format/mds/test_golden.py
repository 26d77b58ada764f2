"""Recorded datasets are read equal, and written byte for byte."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.format import Sample, dump_index
from streaming.format.mds import MDSWriter
from tests.common.golden import (
    describe,
    encoded_values,
    load_expected,
    load_index,
    open_shards,
    raw_file,
    short,
)

FORMATS = Path(__file__).parents[2] / "golden" / "datasets" / "formats"
ALL = [
    *sorted(path.name for path in FORMATS.glob("mds_*")),
    *("splits/train", "splits/val", "merged", "merged/0", "merged/1", "merged/part-x"),
]
# The predecessor begins these with an empty shard, as the first sample alone is over the limit.
EMPTY_FIRST = ("mds_limit_200", "mds_limit_first_too_big")
IMAGES = ("pil", "jpeg", "png", "list[pil]", "list[jpeg]", "list[png]", "jpegarray", "jpeg_array")
UNCOMPRESSED = [
    name
    for name in ALL
    if name != "merged" and not any(info.compression for info in load_index(FORMATS / name))
]


def comparable(value: dict[str, Any], kind: str) -> dict[str, Any]:
    """Pixels of a JPEG depend on the library that decodes it; the rest does not."""
    if "jpeg" not in kind:
        return value
    if value["t"] == "list":
        return {"t": "list", "v": [comparable(item, kind) for item in value["v"]]}
    return {key: item for key, item in value.items() if key != "sha256"}


# All but those without a recorded value for each sample.
DESCRIBED = [
    name
    for name in ALL
    if (FORMATS / name / "expected.json").exists()
    and name not in ("mds_pickle", "mds_limit_first_too_big")
]


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_recorded_dataset_is_read_equal(name: str, tmp_path: Path) -> None:
    root = FORMATS / name
    expected = load_expected(root)
    index = load_index(root)
    assert index.table.samples.tolist() == expected["samples_per_shard"]
    readers = open_shards(root, tmp_path)
    blocks = [reader.take(np.arange(len(reader))) for reader in readers]
    kinds = {
        column: kind
        for info in index
        for column, kind in zip(
            info.extra["column_names"], info.extra["column_encodings"], strict=True
        )
    }
    got = [
        {column: comparable(describe(value), kinds[column]) for column, value in sample.items()}
        for block in blocks
        for sample in block
    ]
    wanted = [
        {column: comparable(value, kinds[column]) for column, value in sample.items()}
        for sample in expected["samples"]
    ]
    assert got == wanted
    if "encoded" in expected:
        stored = [row for info in index for row in encoded_values(root, info, tmp_path)]
        rows = [{column: short(value) for column, value in row.items()} for row in stored]
        assert rows == expected["encoded"]


def test_the_empty_first_shard_of_the_predecessor_is_read(tmp_path: Path) -> None:
    readers = open_shards(FORMATS / "mds_limit_first_too_big", tmp_path)
    assert [len(sample["b"]) for reader in readers for sample in reader] == [
        500, 10, 10, 500, 500, 10,
    ]  # fmt: skip
    assert len(readers[0]) == 0


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_a_recorded_dataset_is_written_byte_for_byte(name: str, tmp_path: Path) -> None:
    root = FORMATS / name
    document = json.loads((root / "index.json").read_bytes())
    if not document["shards"]:
        write(tmp_path / "out", {"id": "int", "text": "str", "val": "float64"}, [], {})
        assert listing(tmp_path / "out") == listing(root)
        return
    entry = document["shards"][0]
    columns = dict(zip(entry["column_names"], entry["column_encodings"], strict=True))
    options = {key: entry[key] for key in ("hashes", "size_limit")}
    write(tmp_path / "out", columns, samples_to_write(root, columns, tmp_path), options)
    if name not in EMPTY_FIRST:
        assert listing(tmp_path / "out") == listing(root)
        return
    # All but the first, whose name the second has now.
    ours, theirs = (
        [path.read_bytes() for path in sorted(where.glob("*.mds"))]
        for where in (tmp_path / "out", root)
    )
    assert ours == theirs[1:]
    assert [shard["samples"] for shard in document["shards"]][1:] == load_index(
        tmp_path / "out"
    ).table.samples.tolist()


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith(("mds_comp", "mds_h"))])
def test_a_compressed_dataset_has_the_recorded_content(name: str, tmp_path: Path) -> None:
    root = FORMATS / name
    theirs = json.loads((root / "index.json").read_bytes())["shards"]
    entry = theirs[0]
    columns = dict(zip(entry["column_names"], entry["column_encodings"], strict=True))
    options = {key: entry[key] for key in ("compression", "hashes", "size_limit")}
    write(tmp_path / "out", columns, samples_to_write(root, columns, tmp_path), options)
    ours = json.loads((tmp_path / "out" / "index.json").read_bytes())["shards"]
    for mine, recorded in zip(ours, theirs, strict=True):
        # Compressed bytes depend on the version of the compressor; all else is equal.
        for zipped in (mine.pop("zip_data"), recorded.pop("zip_data")):
            assert zipped["basename"] == f"{mine['raw_data']['basename']}.{extension(entry)}"
            assert set(zipped["hashes"]) == set(entry["hashes"])
        assert mine == recorded
    for info in load_index(tmp_path / "out"):
        raw = raw_file(tmp_path / "out", info, tmp_path).read_bytes()
        assert len(raw) == info.raw_bytes


@pytest.mark.parametrize("name", [name for name in ALL if name != "merged"])
def test_a_recorded_index_is_dumped_byte_for_byte(name: str) -> None:
    data = (FORMATS / name / "index.json").read_bytes()
    assert dump_index(json.loads(data)["shards"]) == data


def extension(entry: dict[str, Any]) -> str:
    return str(entry["compression"]).partition(":")[0]


def samples_to_write(root: Path, columns: dict[str, str], scratch: Path) -> list[Sample]:
    """Samples as they were given to the predecessor; images as their stored bytes."""
    samples: list[Sample] = []
    for info, reader in zip(
        load_index(root), open_shards(root, scratch, allow_unsafe_types=True), strict=True
    ):
        for values, stored in zip(reader, encoded_values(root, info, scratch), strict=True):
            samples.append(
                {
                    name: stored[name] if kind in IMAGES else values[name]
                    for name, kind in columns.items()
                }
            )
    return samples


def write(out: Path, columns: dict[str, str], samples: list[Sample], options: Any) -> None:
    with MDSWriter(columns=columns, out=out, **options) as writer:
        for sample in samples:
            writer.write(sample)


def listing(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.name != "expected.json"}
