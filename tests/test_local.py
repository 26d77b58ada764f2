import pickle
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import (
    ConfigError,
    EmptyDatasetError,
    IndexFormatError,
    MissingFileError,
    ShardCorruptError,
    UnsafeTypeError,
)
from streaming.local import LocalDataset
from tests.common.shards import sample, write_dataset

ALL = [sample(shard, place) for shard in range(4) for place in range(5)]


def values(samples: Any) -> list[bytes]:
    return [each["x"] for each in samples]


def test_case_F11_it_has_items_a_length_and_a_size(tmp_path: Path) -> None:
    dataset = LocalDataset(str(write_dataset(tmp_path / "data")))
    assert dataset[0] == {"x": ALL[0]}
    assert len(dataset) == dataset.size == dataset.num_samples == 20
    assert values(dataset) == ALL


def test_a_batch_is_read_at_once_in_the_order_asked(tmp_path: Path) -> None:
    dataset = LocalDataset(write_dataset(tmp_path / "data"))
    ids = [19, 0, 7, 7, 3, -1]
    assert values(dataset.__getitems__(ids)) == [ALL[i] for i in ids]
    assert dataset.__getitems__([]) == []
    for ids in ([20], [0, -21]):
        with pytest.raises(IndexError):
            dataset.__getitems__(ids)


def test_a_subclass_that_overrides_get_item_sees_every_sample(tmp_path: Path) -> None:
    class Upper(LocalDataset):
        def get_item(self, sample_id: int) -> Any:
            return super().get_item(sample_id)["x"].upper()

    dataset = Upper(write_dataset(tmp_path / "data"))
    assert dataset.__getitems__([3, 1]) == [ALL[3].upper(), ALL[1].upper()]


@pytest.mark.parametrize("compression", ["br", "bz2", "gz", "snappy", "zstd"])
def test_case_F1_only_compressed_shards(compression: str, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data", compression=compression)
    for _ in range(2):
        assert values(LocalDataset(str(root))) == ALL
        assert len(list(root.glob(f"*.mds.{compression}"))) == 4


def test_it_pickles_and_reads_on(tmp_path: Path) -> None:
    dataset = LocalDataset(str(write_dataset(tmp_path / "data")))
    assert dataset[1]["x"] == ALL[1]
    assert pickle.loads(pickle.dumps(dataset))[2]["x"] == ALL[2]


def test_a_split_is_a_folder(golden: Path) -> None:
    root = str(golden / "datasets" / "formats" / "splits")
    assert len(LocalDataset(root, "train")) == 30
    assert len(LocalDataset(root, "val")) == 7


def test_case_F3_a_last_offset_past_the_end_names_the_shard(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data")
    path = root / "shard.00002.mds"
    data = bytearray(path.read_bytes())
    data[4 + 4 * 5 : 8 + 4 * 5] = (len(data) + 50).to_bytes(4, "little")
    path.write_bytes(data)
    dataset = LocalDataset(str(root))
    assert dataset[0]["x"] == ALL[0]
    with pytest.raises(ShardCorruptError, match=str(path)):
        dataset[14]


def test_wrong_directories_are_refused(tmp_path: Path, golden: Path) -> None:
    with pytest.raises(MissingFileError, match="index.json"):
        LocalDataset(str(tmp_path))
    with pytest.raises(UnsafeTypeError, match="allow_unsafe_types"):
        LocalDataset(str(golden / "datasets" / "formats" / "mds_pickle"))
    with pytest.raises(EmptyDatasetError):
        LocalDataset(str(golden / "datasets" / "formats" / "mds_empty"))
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(IndexFormatError):
        LocalDataset(str(tmp_path))


def test_nothing_is_written_beside_raw_shards(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data")
    before = sorted(root.rglob("*"))
    assert values(LocalDataset(str(root))) == ALL
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("local", [None, 3, b"data", "", "a\0b"])
def test_what_names_no_directory_is_refused(local: Any) -> None:
    with pytest.raises(ConfigError, match="`local`"):
        LocalDataset(local)


def test_data_without_an_index_are_read_as_one_says(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a|b\n1|x\n2|y\n")
    dataset = LocalDataset(
        tmp_path, format="csv", columns={"a": "int", "b": "str"}, format_options={"separator": "|"}
    )
    assert list(dataset) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(ConfigError, match="version"):
        LocalDataset(tmp_path, version=3)
