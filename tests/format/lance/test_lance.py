"""Fragments of Lance datasets: indexed, read, filtered, projected, broken."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset, Stream, StreamingDataset
from streaming.errors import (
    ConfigError,
    DataError,
    EmptyDatasetError,
    MissingFileError,
    ObjectNotFoundError,
    StateError,
    StreamingError,
    UnknownNameError,
)
from streaming.format.column import BytesColumn
from streaming.format.lance import rows
from streaming.format.lance.blobs import LanceBlob
from streaming.storage import guard
from tests.common.tables import lance, make_lance, plain, read_lance, table_of

pytestmark = pytest.mark.usefixtures("opens_tables")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lance(tmp_path_factory.mktemp("lance") / "table")


def open_table(place: Path, way: str, tmp_path: Path, **arguments: Any) -> StreamingDataset:
    """A dataset that is read where it is, by way of a cache, from afar, or by the helper."""
    names = ("format", "version", "columns", "format_options", "follow")
    said = {name: arguments.pop(name) for name in names if name in arguments}
    where: dict[str, Any] = {"local": str(place)}
    if way in ("cached", "remote"):
        where = {"remote": str(place), "local": str(tmp_path / "cache")}
    if way == "remote":
        arguments["cache"] = "none"
    return StreamingDataset(streams=[Stream(**where, **said)], **{"batch_size": 4, **arguments})


@pytest.fixture(autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process read by itself, but for the way that says otherwise."""
    way = getattr(request.node, "callspec", None)
    is_helped = way is not None and way.params.get("way") == "helped"
    monkeypatch.setattr(rows, "LOOKS", 1 << 40 if is_helped else 0)


WAYS = pytest.mark.parametrize("way", ["local", "cached", "remote", "helped"])


@WAYS
@pytest.mark.parametrize("version", [1, 3, 5, 8, "good"])
def test_every_version_is_read_as_pylance_reads_it(
    way: str, version: int | str, table: Path, tmp_path: Path
) -> None:
    dataset = open_table(table, way, tmp_path, version=version)
    expected = read_lance(table, version)
    assert plain(list(dataset)) == expected
    assert dataset.versions == [7 if version == "good" else version]
    order = np.random.default_rng(0).integers(0, len(expected), 50)
    assert plain(dataset[order]) == [expected[i] for i in order]


def test_a_fragment_is_a_shard(table: Path) -> None:
    dataset = StreamingDataset(local=str(table), batch_size=4)
    fragments = [f.count_rows() for f in lance().dataset(str(table)).get_fragments()]
    assert dataset.samples_per_shard.tolist() == [count for count in fragments if count]


@WAYS
def test_a_filter_leaves_the_rows_for_which_it_holds(way: str, table: Path, tmp_path: Path) -> None:
    condition = "id > 20 and text != 'new' and share is not null"
    dataset = open_table(table, way, tmp_path, format_options={"filter": condition})
    expected = read_lance(table, filter=condition)
    assert 0 < len(expected) < len(read_lance(table))
    assert plain(list(dataset)) == expected
    assert plain([dataset[5], dataset[-1]]) == [expected[5], expected[-1]]


def test_only_the_columns_that_are_wanted_come(table: Path, tmp_path: Path) -> None:
    dataset = open_table(table, "local", tmp_path, columns=["text", "id"])
    assert list(dataset) == read_lance(table, columns=["text", "id"])
    with pytest.raises(UnknownNameError, match="no column 'nope'. Known: id, text"):
        open_table(table, "local", tmp_path, columns=["nope"])


def test_vectors_are_arrays_and_numbers_columns(table: Path) -> None:
    dataset = StreamingDataset(local=str(table), batch_size=4)
    sample = dataset[3]
    assert isinstance(sample["vector"], np.ndarray)
    assert sample["vector"].dtype == np.float32
    assert sample["vector"].flags.writeable
    columns = dataset.take_columns([5, 90, 3])
    rows = [dataset[i] for i in (5, 90, 3)]
    assert isinstance(columns["vector"], np.ndarray)
    assert columns["vector"].shape == (3, 3)
    assert isinstance(columns["text"], BytesColumn)
    assert [row["id"] for row in rows] == list(columns["id"])
    assert [row["text"] for row in rows] == list(columns["text"])
    assert [row["tags"] for row in rows] == list(columns["tags"])
    assert [row["share"] for row in rows] == list(columns["share"])


def test_a_vector_that_is_missing_is_none(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kind = arrow.list_(arrow.float32(), 2)
    lance().write_dataset(
        arrow.table({"v": arrow.array([[1, 2], None, [3, 4]], kind)}), str(tmp_path / "table")
    )
    found = [row["v"] for row in LocalDataset(tmp_path / "table")]
    assert found[1] is None
    assert [found[0].tolist(), found[2].tolist()] == [[1, 2], [3, 4]]


def test_columns_come_by_batches(table: Path) -> None:
    dataset = StreamingDataset(local=str(table), batch_size=16, batched=True)
    found = [list(batch["id"]) for batch in dataset]
    assert [len(batch) for batch in found[:-1]] == [16] * (len(found) - 1)
    assert [number for batch in found for number in batch] == [
        row["id"] for row in read_lance(table)
    ]


@pytest.mark.parametrize(
    "ids",
    [[7], [0, 1, 2, 3], [0, 2, 1, 3], [5, 9, 2, 8], [9, 8, 9, 9], list(range(20, 70)), [99, 0]],
)
def test_rows_come_in_the_order_asked_however_they_are_read(
    ids: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By scan, by one call, or from rows that were decoded before."""
    monkeypatch.setattr(rows, "CHUNK", 16)
    lance().write_dataset(table_of(0, 100), str(tmp_path / "table"), max_rows_per_file=40)
    dataset = StreamingDataset(local=str(tmp_path / "table"), batch_size=4)
    for _ in range(12):
        assert [row["id"] for row in dataset._runtime.get().take(np.array(ids))] == ids
        assert list(dataset.take_columns(ids)["id"]) == ids


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_texts_of_a_batch_are_the_same_if_they_come_in_several(
    kind: str, is_missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHUNK", 64)
    arrow = pytest.importorskip("pyarrow")
    texts: list[Any] = ["é" * (i % 5) + str(i) if i % 4 else "" for i in range(400)]
    if "binary" in kind:
        texts = [text.encode() for text in texts]
    if is_missing:
        texts[200] = None
    made = arrow.table({"txt": arrow.array(texts, getattr(arrow, kind)())})
    lance().write_dataset(made, str(tmp_path / "table"), max_rows_per_file=170)
    dataset = StreamingDataset(local=str(tmp_path / "table"), batch_size=150, batched=True)
    for _ in range(2):
        assert [text for batch in dataset for text in batch["txt"]] == texts


def test_what_is_decoded_and_kept_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LIMIT", 40_000)
    monkeypatch.setattr(rows, "CHUNK", 64)
    lance().write_dataset(table_of(0, 2000), str(tmp_path / "table"))
    dataset = StreamingDataset(local=str(tmp_path / "table"), batch_size=4)
    chunks = guard.kept("lance chunks", rows._Chunks)

    def read(start: int, stop: int) -> None:
        for seed in range(8):
            order = start + np.random.default_rng(seed).permutation(stop - start)
            assert [row["id"] for row in dataset._runtime.get().take(order)] == order.tolist()

    read(0, 2000)
    assert not chunks._chunks  # All of it is too much to keep.
    for start in range(0, 2000, 200):
        read(start, start + 200)
        assert 0 < sum(chunk.nbytes for chunk in chunks._chunks.values()) <= 40_000


# --- Blobs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("blobs") / "table"
    field = arrow.field("data", arrow.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = arrow.schema([arrow.field("id", arrow.int64()), field])
    values = [None if i == 4 else bytes([i]) * (i * 1000) for i in range(10)]
    table = arrow.table({"id": list(range(10)), "data": values}, schema=schema)
    dataset = lance().write_dataset(table, str(path), max_rows_per_file=3)
    dataset.delete("id = 1")
    return path


@WAYS
def test_blobs_are_files_that_are_read_when_asked(way: str, blobs: Path, tmp_path: Path) -> None:
    dataset = open_table(blobs, way, tmp_path)
    sample = dataset[5]
    blob = sample["data"]
    assert isinstance(blob, LanceBlob)
    assert (sample["id"], blob.size, blob._file) == (6, 6000, None)
    assert blob.read(4) == bytes([6]) * 4
    blob.seek(5990)
    assert (blob.tell(), blob.read()) == (5990, bytes([6]) * 10)
    assert pickle.loads(pickle.dumps(blob)).read() == bytes([6]) * 6000
    blob.close()
    with pytest.raises(ValueError, match="closed"):
        blob.read()
    assert dataset[3]["data"] is None
    assert [x and x.read(1) for x in dataset.take_columns([8, 3])["data"]] == [b"\x09", None]


# --- Bad input ------------------------------------------------------------------------------------


def test_there_is_a_way_out_of_a_version_that_is_not_there(table: Path) -> None:
    with pytest.raises(ConfigError, match="no version 99, or not any more: the newest is 8"):
        StreamingDataset(local=str(table), batch_size=4, version=99)
    with pytest.raises(ConfigError, match="no version or tag 'better'"):
        StreamingDataset(local=str(table), batch_size=4, version="better")
    with pytest.raises(ConfigError, match="no version of 2001-01-01 .* or before: the oldest"):
        StreamingDataset(local=str(table), batch_size=4, version="2001-01-01")


def test_a_time_means_the_newest_version_that_is_not_later(table: Path) -> None:
    versions = lance().dataset(str(table)).versions()
    third = next(item for item in versions if item["version"] == 3)
    dataset = StreamingDataset(
        local=str(table), batch_size=4, version=third["timestamp"].astimezone()
    )
    assert dataset.versions == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format_options": {"fliter": "x"}}, "option 'filter', but got"),
        ({"format_options": {"filter": ""}}, "a condition in SQL, but is ''"),
        ({"format_options": {"filter": "nope > 3"}}, "No field named nope"),
        ({"columns": {"id": "int"}}, "a list of names"),
        ({"version": -1}, "at least 0"),
        ({"version": 1.5}, "number of a version"),
        ({"version": 1, "follow": True}, "give one of them"),
    ],
)
def test_what_can_t_be_meant_is_refused(
    arguments: dict[str, Any], message: str, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_table(table, "local", tmp_path, **arguments)


def test_other_data_have_no_version(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="only tables have versions"):
        StreamingDataset(local=str(tmp_path), batch_size=4, version=3)


def test_a_filter_that_leaves_nothing_is_an_empty_dataset(table: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyDatasetError):
        open_table(table, "local", tmp_path, format_options={"filter": "id < 0"})


@pytest.mark.parametrize("way", ["local", "cached"])
def test_a_file_that_was_cleaned_up_is_named_with_its_version(way: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    library = lance()
    library.write_dataset(table_of(0, 10), str(path))
    library.write_dataset(table_of(0, 10), str(path), mode="append")
    gone = next(iter(sorted((path / "data").iterdir())))
    name = gone.name
    gone.unlink()
    error = MissingFileError if way == "local" else ObjectNotFoundError
    with pytest.raises(error, match=f"{name}.*version 2") as caught:
        list(open_table(path, way, tmp_path))
    assert "clean" in str(caught.value)


def test_a_version_that_was_cleaned_up_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table"
    library = lance()
    library.write_dataset(table_of(0, 10), str(path))
    dataset = StreamingDataset(local=str(path), batch_size=2)
    state = {**dataset.state_dict(0, True), "epoch": 0}
    library.write_dataset(table_of(0, 5), str(path), mode="overwrite")
    from datetime import timedelta

    library.dataset(str(path)).cleanup_old_versions(timedelta(0))
    with pytest.raises(ConfigError, match="no version 1, or not any more: the newest is 2"):
        StreamingDataset(local=str(path), batch_size=2).load_state_dict(state)


@pytest.mark.parametrize("damage", ["cut", "zeros", "empty"])
def test_broken_files_are_an_error_that_says_so(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    lance().write_dataset(table_of(0, 1000), str(path))
    (file,) = (path / "data").iterdir()
    data = file.read_bytes()
    file.write_bytes({"cut": data[:-100], "zeros": bytes(len(data)), "empty": b""}[damage])
    with pytest.raises((DataError, MissingFileError), match=r"version 1 of|data/"):
        list(StreamingDataset(local=str(path), batch_size=2))


@pytest.mark.parametrize("damage", [b"", b"no manifest" * 50])
def test_a_broken_manifest_is_an_error(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table"
    lance().write_dataset(table_of(0, 10), str(path))
    (manifest,) = (path / "_versions").glob("*.manifest")
    manifest.write_bytes(damage)
    with pytest.raises(StreamingError, match="table"):
        StreamingDataset(local=str(path), batch_size=2)


def test_a_state_of_another_version_than_asked_for_is_refused(table: Path) -> None:
    old = StreamingDataset(local=str(table), batch_size=2, version=1)
    state = {**old.state_dict(0, True), "epoch": 0}
    dataset = StreamingDataset(local=str(table), batch_size=2, version=2)
    with pytest.raises(StateError, match="is of version 1 of .*, but `version` is 2"):
        dataset.load_state_dict(state)
