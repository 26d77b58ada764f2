"""The dataset object: its arguments, what it tells of itself, and how it is read."""

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from streaming.dataset import StreamingDataset
from streaming.direct import DirectDataset
from streaming.errors import (
    CacheError,
    ConfigError,
    EmptyDatasetError,
    IndexFormatError,
    MissingFileError,
    StateError,
    UnknownNameError,
    UnsafeTypeError,
)
from streaming.peek import Peek, columns_of
from streaming.stream import Stream
from streaming.world import World
from tests.common.shards import sample, write_dataset

ALL = [sample(shard, place) for shard in range(4) for place in range(5)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of 4 shards with 5 samples each."""
    return write_dataset(tmp_path / "data")


def values(samples: Any) -> list[bytes]:
    return [each["x"] for each in samples]


def test_an_epoch_has_every_sample_once_and_the_next_has_another_order(root: Path) -> None:
    dataset = StreamingDataset(local=str(root), batch_size=4, shuffle=True)
    first, second = values(dataset), values(dataset)
    assert sorted(first) == sorted(second) == ALL
    assert first != second
    assert first != ALL


def test_without_shuffle_samples_come_in_their_order(root: Path) -> None:
    assert values(StreamingDataset(local=str(root), batch_size=3)) == ALL


def test_two_objects_with_equal_arguments_give_equal_orders(root: Path) -> None:
    orders = [
        values(StreamingDataset(local=str(root), batch_size=4, shuffle=True, shuffle_seed=5))
        for _ in range(2)
    ]
    assert orders[0] == orders[1]


def test_ranks_share_an_epoch_among_them(root: Path) -> None:
    parts = [
        values(
            StreamingDataset(
                local=str(root), batch_size=2, shuffle=True, world=World(1, 2, 1, worker=rank)
            )
        )
        for rank in range(2)
    ]
    assert sorted(parts[0] + parts[1]) == ALL
    assert len(parts[0]) == len(parts[1]) == 10


def test_replicas_see_the_same(root: Path) -> None:
    parts = [
        values(
            StreamingDataset(
                local=str(root),
                batch_size=2,
                shuffle=True,
                replication=2,
                world=World(1, 4, 1, worker=rank),
            )
        )
        for rank in range(4)
    ]
    assert parts[0] == parts[1]
    assert parts[2] == parts[3]
    assert sorted(parts[0] + parts[2]) == ALL


def test_case_F8_indexing_is_that_of_a_list(root: Path) -> None:
    dataset = StreamingDataset(local=str(root))
    assert dataset[-1]["x"] == ALL[-1]
    assert values(dataset[2:5]) == ALL[2:5]
    assert values(dataset[::-7]) == ALL[::-7]
    assert values(dataset[[1, 3]]) == [ALL[1], ALL[3]]
    assert dataset[np.int64(2)]["x"] == ALL[2]
    assert values(dataset[np.array([4, -2])]) == [ALL[4], ALL[-2]]
    for index in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match=str(index)):
            dataset[index]


def test_case_F4_an_empty_or_half_written_index_is_one_clear_error(tmp_path: Path) -> None:
    for text, error in (
        ("", IndexFormatError),
        ('{"shards": [{"samp', IndexFormatError),
        ('{"shards": [], "version": 2}', EmptyDatasetError),
        ('{"shards": [], "version": 3}', IndexFormatError),
    ):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(error, match=str(tmp_path)):
            StreamingDataset(local=str(tmp_path), batch_size=1)


@pytest.mark.parametrize(
    ("writer", "changes", "message"),
    [
        (MDSWriter, {"column_sizes": [None, None]}, "'n' has size None in the index, but int has"),
        (MDSWriter, {"column_encodings": ["int", "nope"]}, "'nope'"),
        (MDSWriter, {"column_names": ["n", "n"]}, "one comes twice"),
        (MDSWriter, {"format": "nope"}, "no shard format 'nope'"),
        (MDSWriter, {"compression": "nope"}, "no compression 'nope'"),
        (MDSWriter, {"version": 1}, "has version 1"),
        (JSONWriter, {"columns": 3}, "columns.* of shard.00001.json"),
        (JSONWriter, {"offset_bytes": 3}, "`offset_bytes` of shard.00001.json"),
        (CSVWriter, {"column_encodings": ["int", "nope"]}, "no encoding 'nope'"),
        (CSVWriter, {"column_names": "ab"}, "should be lists"),
    ],
)
def test_what_is_wrong_with_an_index_is_told_with_its_place_and_the_shard(
    writer: type[Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    place = str(tmp_path / "data")
    with writer(out=place, columns={"n": "int", "text": "str"}, size_limit=256) as out:
        for number in range(50):
            out.write({"n": number, "text": f"text {number}"})
    path = tmp_path / "data" / "index.json"
    index = json.loads(path.read_text())
    index["shards"][1] |= changes
    path.write_text(json.dumps(index))

    def show(place: str) -> None:
        with Peek(place) as peek:
            peek.index.check(columns_of)
            list(peek.samples(50, peek.present()))

    readers = (lambda place: StreamingDataset(local=place), LocalDataset, DirectDataset, show)
    for read in readers:
        with pytest.raises((IndexFormatError, UnknownNameError), match=message) as caught:
            read(place)
        assert re.search(rf"shard 1 in {path}", str(caught.value), re.IGNORECASE)


def test_case_F4_a_shard_of_no_bytes_is_one_clear_error(root: Path) -> None:
    shard = root / "shard.00001.mds"
    shard.write_bytes(b"")
    dataset = StreamingDataset(local=str(root), batch_size=2)
    with pytest.raises(ValueError, match=rf"{shard} has 0 bytes"):
        list(dataset)


def test_case_F1_only_compressed_shards_are_read_and_kept(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data", compression="zstd")
    for keep_zip in (False, True):
        dataset = StreamingDataset(local=str(root), batch_size=2, keep_zip=keep_zip)
        assert values(dataset) == ALL
        assert len(list(root.glob("*.mds.zstd"))) == 4
    for path in root.glob("*.mds.zstd"):
        path.unlink()
    assert values(StreamingDataset(local=str(root), batch_size=2)) == ALL


def test_case_F1_from_a_remote(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote", compression="zstd")
    for keep_zip in (False, True):
        local = tmp_path / f"local-{keep_zip}"
        dataset = StreamingDataset(
            remote=str(remote), local=str(local), batch_size=2, keep_zip=keep_zip
        )
        assert values(dataset) == ALL
        assert len(list(local.glob("*.mds"))) == 4
        assert len(list(local.glob("*.mds.zstd"))) == 4 * keep_zip


def test_a_file_url_with_blanks_is_a_remote(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "re mote ü")
    dataset = StreamingDataset(remote=remote.as_uri(), local=str(tmp_path / "local"), batch_size=2)
    assert values(dataset) == ALL


def test_without_local_the_next_run_finds_what_the_last_one_downloaded(tmp_path: Path) -> None:
    remote = write_dataset(tmp_path / "remote")
    first = StreamingDataset(remote=str(remote), batch_size=2)
    assert values(first) == ALL
    for path in remote.glob("*.mds"):
        path.unlink()
    second = StreamingDataset(remote=str(remote), batch_size=2)
    assert second.streams[0].local == first.streams[0].local
    assert values(second) == ALL


def test_a_subclass_that_transforms_sees_each_sample_once(root: Path) -> None:
    class Upper(StreamingDataset):
        def get_item(self, sample_id: int, retry: int = 7) -> Any:
            seen.append(sample_id)
            return super().get_item(sample_id, retry)["x"].upper()

    seen: list[int] = []
    dataset = Upper(local=str(root), batch_size=3)
    got: list[Any] = list(dataset)
    assert got == [value.upper() for value in ALL]
    assert seen == list(range(20))
    assert dataset[4] == ALL[4].upper()


def test_weights_mix_streams_and_a_stream_may_serve_two_datasets(tmp_path: Path) -> None:
    names = ("a", "b")
    for name in names:
        write_dataset(tmp_path / name)
    streams = [
        Stream(local=str(tmp_path / name), proportion=share)
        for name, share in zip(names, (0.25, 0.75), strict=True)
    ]
    for _ in range(2):
        dataset = StreamingDataset(streams=streams, batch_size=4, epoch_size="1k", shuffle=True)
        assert len(dataset) == len(list(dataset)) == 1000
        assert [stream.choose for stream in streams] == [250, 750]
        assert [stream.repeat for stream in streams] == [12.5, 37.5]


def test_what_a_dataset_tells_of_itself(tmp_path: Path) -> None:
    for name, shards in (("a", 2), ("b", 3)):
        write_dataset(tmp_path / name, shards)
    dataset = StreamingDataset(
        streams=[Stream(local=str(tmp_path / name)) for name in ("a", "b")], batch_size=4
    )
    assert (dataset.num_streams, dataset.num_shards, dataset.num_samples) == (2, 5, 25)
    assert (dataset.size, dataset.epoch_size, dataset.length, len(dataset)) == (25, 25, 25, 25)
    assert dataset.shards_per_stream.tolist() == [2, 3]
    assert dataset.shard_offset_per_stream.tolist() == [0, 2]
    assert dataset.samples_per_stream.tolist() == [10, 15]
    assert dataset.sample_offset_per_stream.tolist() == [0, 10]
    assert dataset.stream_per_shard.tolist() == [0, 0, 1, 1, 1]
    assert dataset.samples_per_shard.tolist() == [5] * 5
    assert dataset.sample_offset_per_shard.tolist() == [0, 5, 10, 15, 20]
    assert dataset.spanner[12] == (2, 2)
    assert (dataset.num_canonical_nodes, dataset.shuffle_seed) == (1, 9176)
    assert (dataset.predownload, dataset.cache_limit) == (32, None)
    assert dataset.next_epoch == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ConfigError, "remote"),
        ({"streams": []}, ConfigError, "empty"),
        ({"streams": "one", "local": "there"}, ConfigError, "either"),
        ({"remote": "gopher://host/data"}, ConfigError, "gopher"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"batch_size": 2.5}, ConfigError, "batch_size"),
        ({"batch_size": True}, ConfigError, "batch_size"),
        ({"epoch_size": -1}, ConfigError, "epoch_size"),
        ({"epoch_size": "many"}, ConfigError, "epoch_size"),
        ({"predownload": -1}, ConfigError, "predownload"),
        ({"cache_limit": "1 parsec"}, ConfigError, "cache_limit"),
        ({"cache_limit": 0}, ConfigError, "cache_limit"),
        ({"sampling_method": "fair"}, ConfigError, "sampling_method"),
        ({"sampling_granularity": 0}, ConfigError, "sampling_granularity"),
        ({"shuffle_seed": -1}, ConfigError, "shuffle_seed"),
        ({"num_canonical_nodes": 0}, ConfigError, "num_canonical_nodes"),
        ({"shuffle_algo": "bogo"}, UnknownNameError, "bogo.*py1e"),
        ({"partition_algo": "bogo"}, UnknownNameError, "bogo.*orig"),
        ({"batching_method": "bogo"}, UnknownNameError, "bogo.*random"),
        ({"stream_name": "bogo"}, UnknownNameError, "bogo.*stream"),
        ({"stream_config": {"bogo": 1}}, TypeError, "bogo"),
        ({"replication": 2}, ConfigError, "replication"),
        ({"replication": 0}, ConfigError, "replication"),
        ({"validate_hash": "md4711"}, ConfigError, "md4711"),
        ({"download_retry": -1}, ConfigError, "download_retry"),
        ({"download_timeout": 0}, ConfigError, "download_timeout"),
        ({"split": "nowhere"}, MissingFileError, "nowhere"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], words: str, root: Path
) -> None:
    if arguments.get("streams") == "one":
        arguments = {**arguments, "streams": [Stream(local=str(root))]}
    elif arguments and not arguments.keys() & {"streams", "remote"}:
        arguments = {"local": str(root), **arguments}
    with pytest.raises(error, match=words):
        StreamingDataset(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "neither"),
        ({"local": "x", "proportion": 1, "repeat": 2}, "proportion.*repeat"),
        ({"local": "x", "proportion": -1}, "proportion"),
        ({"local": "x", "repeat": -0.5}, "repeat"),
        ({"local": "x", "choose": -3}, "choose"),
        ({"local": "x", "download_retry": -1}, "download_retry"),
        ({"local": "x", "download_timeout": -1}, "download_timeout"),
        ({"local": "x", "validate_hash": "md4711"}, "md4711"),
    ],
)
def test_a_wrong_argument_of_a_stream_is_refused_by_name(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Stream(**arguments)


def test_streams_in_one_directory_are_refused(root: Path) -> None:
    streams = [Stream(local=str(root)), Stream(local=f"{root}/.")]
    with pytest.raises(ConfigError, match="Streams 0 and 1 have the same directory"):
        StreamingDataset(streams=streams, batch_size=1)


def test_iterating_needs_a_batch_size(root: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        iter(StreamingDataset(local=str(root)))


def test_case_F7_pickled_columns_are_refused_until_allowed(golden: Path) -> None:
    local = str(golden / "datasets" / "formats" / "mds_pickle")
    with pytest.raises(UnsafeTypeError, match="allow_unsafe_types"):
        StreamingDataset(local=local)
    allowed = StreamingDataset(local=local, allow_unsafe_types=True)
    assert allowed[0]["x"] == {"a": (1, 2)}


def test_copies_go_their_own_ways(root: Path) -> None:
    dataset = StreamingDataset(local=str(root), batch_size=4, shuffle=True)
    first = values(dataset)
    twins = [copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]
    second = values(dataset)
    assert second != first
    for twin in twins:
        # A copy goes on where its original is when the copy is first used.
        assert twin.next_epoch == 2
        assert twin[3]["x"] == ALL[3]
        twin.next_epoch = 1
        assert values(twin) == second
    assert dataset.next_epoch == 2


def test_a_copy_outlives_its_original(root: Path) -> None:
    dataset = StreamingDataset(local=str(root), batch_size=4)
    data = pickle.dumps(dataset)
    del dataset
    assert values(pickle.loads(data)) == ALL


def test_a_state_of_other_data_or_another_order_is_refused_with_both_values(
    root: Path, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"local": str(root), "batch_size": 4, "shuffle": True}
    state = StreamingDataset(**arguments).state_dict(8, from_beginning=True) | {"epoch": 0}
    for change, words in (
        ({"shuffle": False}, "`shuffle` True; here it is False"),
        ({"shuffle_algo": "py1s"}, "`shuffle_algo` 'py1e'; here it is 'py1s'"),
        ({"epoch_size": 30}, "epoch_size was 20; here it is 30"),
        ({"local": str(write_dataset(tmp_path / "more", 5))}, "num_samples was 20; here it is 25"),
    ):
        other = StreamingDataset(**{**arguments, **change})
        with pytest.raises(StateError, match=words):
            other.load_state_dict(state)
        assert other.next_epoch == 0
    old_form = {key: state[key] for key in list(state)[:5]}
    other.load_state_dict(old_form)
    assert len(list(other)) == 17


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"epoch": 0},
        {"epoch": "0", "sample_in_epoch": 0},
        {"epoch": 0, "sample_in_epoch": -1},
        {"epoch": -2, "sample_in_epoch": 0},
        {"epoch": 0, "sample_in_epoch": 10**6},
        {"epoch": 0, "sample_in_epoch": 0, "num_canonical_nodes": 0},
        {"epoch": 0, "sample_in_epoch": 0, "shuffle_seed": -1},
        {"epoch": 0, "sample_in_epoch": 0, "version": 99},
    ],
)
def test_what_is_no_state_is_refused(state: Any, root: Path) -> None:
    dataset = StreamingDataset(local=str(root), batch_size=4)
    with pytest.raises(StateError):
        dataset.load_state_dict(state)
    assert values(dataset) == ALL


def spellings(root: Path) -> list[tuple[str, str]]:
    """One directory as `remote` and `local`, in other words."""
    link = root.with_name("link")
    link.symlink_to(root)
    return [
        (root.as_uri(), str(root)),
        (str(root), f"{root}/"),
        (str(root), str(link)),
        (f"{root}/../{root.name}", str(root)),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_remote_that_is_the_local_directory_loses_nothing(number: int, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "data", compression="zstd")
    remote, local = spellings(root)[number]
    zips = sorted(path.name for path in root.glob("*.zstd"))
    assert values(StreamingDataset(remote=remote, local=local, batch_size=2)) == ALL
    for path in root.glob("*.mds"):  # Damage that is found only when the shard is opened.
        data = bytearray(path.read_bytes())
        data[4:8] = b"\xff\xff\xff\xff"
        path.write_bytes(data)
    assert values(StreamingDataset(remote=remote, local=local, batch_size=2)) == ALL
    assert sorted(path.name for path in root.glob("*.zstd")) == zips


@pytest.mark.parametrize(
    "arguments",
    [
        {"local": ""},
        {"local": 1},
        {"local": b"data"},
        {"local": [b"data"]},
        {"local": "a\0b"},
        {"remote": " "},
        {"remote": 5, "local": "x"},
        {"local": "x", "columns": "id"},
        {"local": "x", "columns": [1]},
        {"local": "x", "columns": 3},
        {"local": "x", "format_options": "ab"},
        {"local": "x", "format_options": ["a"]},
        {"local": "x", "follow": "no"},
        {"local": "x", "allow_schema_mismatch": "no"},
        {"local": "x", "split": 3},
        {"local": "x", "split": "\0"},
        {"local": "x", "download_retry": "2"},
        {"local": "x", "download_retry": 1.5},
        {"local": "x", "download_timeout": "x"},
        {"local": "x", "predownload": "x"},
        {"local": "x", "predownload": 1.5},
        {"local": "x", "validate_hash": ["sha1"]},
        {"local": "x", "keep_zip": "no"},
        {"local": "x", "shuffle": "no"},
        {"local": "x", "world": 3},
        {"local": "x", "stream_config": 3},
        {"streams": 3},
        {"streams": "ab"},
        {"streams": [None]},
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_type_is_refused_in_a_sentence(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match="|".join(f"`{name}`" for name in arguments)):
        StreamingDataset(**arguments)


@pytest.mark.parametrize(
    "arguments", [{"proportion": "x"}, {"repeat": "x"}, {"choose": "x"}, {"choose": 1.5}]
)
def test_a_weight_of_the_wrong_type_is_refused_in_a_sentence(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        Stream(local="x", **arguments)


def test_a_batch_larger_than_anything_is_one_short_batch(root: Path) -> None:
    assert values(StreamingDataset(local=str(root), batch_size=10**15)) == ALL


def test_an_index_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.json").symlink_to("/dev/zero")
    with pytest.raises(IndexFormatError, match="not a file"):
        StreamingDataset(local=str(tmp_path))


def test_what_one_should_know_of_an_epoch_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_dataset(tmp_path / "data")
    dataset = StreamingDataset(
        local=str(root), batch_size=1, shuffle=True, shuffle_algo="py1e", shuffle_block_size=2
    )
    for epochs in (1, 2):
        list(dataset)
        notes = [text for text in caplog.messages if "shuffle_block_size (2) is small" in text]
        assert len(notes) == epochs


def test_a_subclass_with_a_smaller_size_ends_there(tmp_path: Path) -> None:
    class Half(StreamingDataset):
        @property
        def size(self) -> int:
            return self.num_samples // 2

    dataset = Half(local=str(write_dataset(tmp_path / "data")), batch_size=1)
    half = dataset.num_samples // 2
    assert dataset[half - 1] == dataset[-1]
    with pytest.raises(IndexError, match=str(half)):
        dataset[half]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_tilde_is_the_home_directory_for_whoever_writes_or_reads(
    kind: type[str] | type[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    with MDSWriter(out="~/data", columns={"value": "int"}) as out:
        out.write({"value": 7})
    place, cache = kind("~/data"), kind("~/cache")
    assert LocalDataset(place)[0] == {"value": 7}
    assert StreamingDataset(remote=str(place), local=str(cache))[0] == {"value": 7}
    assert (tmp_path / "home" / "cache" / "index.json").exists()
    (tmp_path / "home" / "rows.csv").write_text("value\n7\n")
    for files in ("~/rows.csv", "~/*.csv", ["~/rows.csv"]):
        dataset = StreamingDataset(streams=[Stream(local=files)])
        assert dataset[0] == {"value": 7}
    assert not list((tmp_path / "cwd").iterdir())


def test_an_index_given_for_its_directory_is_told_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"Name the directory that it is in: {root}"):
        StreamingDataset(remote=f"{root}/index.json", local=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=f"Name the directory that it is in: {root}"):
        LocalDataset(root / "index.json")


def test_options_of_a_store_that_are_no_dict_are_refused() -> None:
    with pytest.raises(ConfigError, match="`storage_options` must be a dict"):
        Stream(remote="x", storage_options="ab")  # type: ignore[arg-type]


@pytest.mark.parametrize("num_samples", [-5, "a", 1.5, None])
def test_a_state_after_no_number_of_samples_is_refused(num_samples: Any, root: Path) -> None:
    dataset = StreamingDataset(local=str(root), batch_size=1)
    with pytest.raises(ConfigError, match="`num_samples`"):
        dataset.state_dict(num_samples, True)
    assert dataset.state_dict(np.int64(3), True)["sample_in_epoch"] == 3  # type: ignore[arg-type]


def test_only_a_table_can_be_followed(root: Path) -> None:
    with pytest.raises(ConfigError, match=f"`follow` .* there is none at {root}"):
        StreamingDataset(local=str(root), follow=True)


def test_a_cache_where_no_directory_can_be_made_is_refused(root: Path) -> None:
    with pytest.raises(CacheError, match="/proc/nothing"):
        StreamingDataset(remote=str(root), local="/proc/nothing")


@pytest.mark.parametrize("weight", [{"choose": 0}, {"repeat": 0}, {"repeat": 0.01}])
def test_an_epoch_of_nothing_is_told(
    weight: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(write_dataset(tmp_path / "data"))
    dataset = StreamingDataset(streams=[Stream(local=root, **weight)], batch_size=2)
    assert list(dataset) == []
    (record,) = caplog.records
    assert "No stream gives a sample" in record.getMessage()


def test_an_epoch_size_of_0_is_none_as_with_the_predecessor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(write_dataset(tmp_path / "data"))
    for size in (0, "0"):
        assert StreamingDataset(local=root, epoch_size=size, batch_size=2).epoch_size == 20
    assert not caplog.records
