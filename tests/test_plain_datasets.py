"""Whole datasets of text files without an index: streamed, shuffled, resumed, mixed, forked."""

import gc
import json
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streaming import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from streaming.direct import DirectDataset
from streaming.errors import (
    CacheConflictError,
    ConfigError,
    EmptyDatasetError,
    MissingFileError,
    ObjectNotFoundError,
    ShardCorruptError,
    StateError,
    StreamingError,
    UnknownNameError,
)
from streaming.format.publishing import write_index
from streaming.storage import guard
from tests.common.text import PACK, write
from tests.servers.faulty import FaultyServer
from tests.servers.hub import Hub
from tests.suites.resuming import check_resume, ids

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

BATCH = 4
ROWS: list[dict[str, Any]] = [{"id": i, "text": f'row "{i}", é\n' * (i % 3)} for i in range(90)]


def as_json(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> str:
    lines = [f'{row["id"]},"{row["text"].replace(chr(34), chr(34) * 2)}"\r\n' for row in rows]
    return "id,text\r\n" + "".join(lines)


@pytest.fixture(params=["jsonl", "csv"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Six files, half of them compressed."""
    dump = as_json if request.param == "jsonl" else as_csv
    for number, packing in enumerate(["", ".gz", "", ".zst", "", ".bz2"]):
        rows = ROWS[number * 15 : (number + 1) * 15]
        write(tmp_path / "data" / f"part-{number}.{request.param}{packing}", dump(rows))
    return tmp_path / "data"


@pytest.fixture
def no_clients() -> Iterator[None]:
    """Let go of connections with the test, and of the process that makes requests for this one."""
    yield
    guard.drop_kept()
    guard.end_helper()


def make(folder: Path, local: Path | None, **arguments: Any) -> StreamingDataset:
    """A dataset of files that are read where they are, or that are copied to `local`."""
    place = {"remote": str(folder), "local": str(local)}
    if local is None:
        place = {"local": str(folder)}
    return StreamingDataset(**{"batch_size": BATCH, **place, **arguments})


@pytest.mark.parametrize("is_copied", [False, True])
def test_case_F16_a_folder_is_read_in_file_order(
    is_copied: bool, folder: Path, tmp_path: Path
) -> None:
    before = sorted(os.listdir(folder))
    for _ in range(2):
        dataset = make(folder, tmp_path / "cache" if is_copied else None)
        assert list(dataset) == ROWS
        assert len(dataset) == dataset.size == 90
        assert [dataset[0], dataset[-1], dataset[44]] == [ROWS[0], ROWS[-1], ROWS[44]]
    assert sorted(os.listdir(folder)) == before


def test_case_F16_a_local_dataset_reads_a_folder(folder: Path) -> None:
    dataset = LocalDataset(folder)
    assert dataset[:] == ROWS
    assert dataset.__getitems__([3, -1]) == [ROWS[3], ROWS[-1]]
    assert pickle.loads(pickle.dumps(dataset))[7] == ROWS[7]


def test_case_F16_a_remote_alone_is_enough(folder: Path) -> None:
    assert list(StreamingDataset(remote=str(folder), batch_size=BATCH)) == ROWS


@pytest.mark.parametrize("is_copied", [False, True])
def test_workers_read_every_sample_once_and_a_resume_goes_on_exactly(
    is_copied: bool, folder: Path, tmp_path: Path
) -> None:
    def load(workers: int) -> StreamingDataLoader:
        local = tmp_path / "cache" if is_copied else None
        dataset = make(folder, local, shuffle=True, shuffle_block_size=40)
        kind = {"multiprocessing_context": "fork"} if workers else {}
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, **kind)

    check_resume(load, range(90), (2, 0))


def test_a_resume_after_a_file_was_appended_to_is_refused(folder: Path) -> None:
    def load() -> StreamingDataLoader:
        return StreamingDataLoader(make(folder, None, shuffle=True), batch_size=BATCH)

    loader = load()
    ids(loader, 3)
    state = loader.state_dict() or {}
    path = sorted(folder.iterdir())[0]
    dump = as_json if path.suffix == ".jsonl" else as_csv
    write(path, dump([*ROWS[:15], ROWS[0]]))
    again = load()
    with pytest.raises(StateError, match="num_samples was 90; here it is 91"):
        again.load_state_dict(state)
        ids(again)


@pytest.mark.parametrize("folder", ["jsonl"], indirect=True)
def test_spawned_workers_read_every_sample_once(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache", shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=2, multiprocessing_context="spawn"
    )
    assert sorted(ids(loader)) == list(range(90))


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream"])
def test_streams_are_mixed_with_an_mds_stream(batching: str, folder: Path, tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "mds", columns={"id": "int", "text": "str"}) as writer:
        for i in range(60):
            writer.write({"id": 1000 + i, "text": "mds"})

    def load() -> StreamingDataLoader:
        streams = [
            Stream(remote=str(folder), local=str(tmp_path / "cache"), proportion=2),
            Stream(local=str(tmp_path / "mds"), proportion=1),
        ]
        dataset = StreamingDataset(
            streams=streams,
            batch_size=6,
            shuffle=True,
            epoch_size=120,
            batching_method=batching,
        )
        return StreamingDataLoader(dataset, batch_size=6)

    loader = load()
    whole = [batch["id"].tolist() for batch in loader]
    counts = [sum(number >= 1000 for number in batch) for batch in whole]
    assert sum(counts) in range(36, 41)
    if batching == "stratified":
        assert set(counts) <= {1, 2, 3}
    loader = load()
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    again = load()
    again.load_state_dict(loader.state_dict() or {})
    assert [batch["id"].tolist() for batch in again] == whole[5:]


def test_a_cache_limit_is_kept(folder: Path, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in folder.iterdir()]
    dataset = make(folder, tmp_path / "cache", shuffle=True, cache_limit=3 * max(sizes))
    assert sorted(row["id"] for row in dataset) == list(range(90))
    left = [path for path in (tmp_path / "cache").iterdir() if path.is_file()]
    assert len(left) < 6
    assert sorted(row["id"] for row in dataset) == list(range(90))


def test_files_that_changed_are_read_anew_by_the_next_run(folder: Path, tmp_path: Path) -> None:
    for local in (None, tmp_path / "cache"):
        assert len(list(make(folder, local))) == 90
    path = sorted(folder.iterdir())[0]
    row = {"id": 500, "text": ""}
    dump = as_json if path.suffix == ".jsonl" else as_csv
    write(path, dump([*ROWS[:14], row]))
    write(folder / f"part-6{path.suffix}", dump([row]))
    for local in (None, tmp_path / "cache"):
        assert list(make(folder, local)) == [*ROWS[:14], row, *ROWS[15:], row]


def test_a_compressed_local_file_that_changed_is_decompressed_anew(tmp_path: Path) -> None:
    """Its old contents, of as many bytes, would look whole."""
    path = write(tmp_path / "data" / "a.jsonl.gz", as_json([{"id": 1}]))
    assert list(make(path.parent, None)) == [{"id": 1}]
    before = make(path.parent, None)
    write(path, as_json([{"id": 2}]))
    assert list(make(path.parent, None)) == [{"id": 2}]
    assert LocalDataset(path.parent)[:] == [{"id": 2}]
    write(path, as_json([{"id": 3}]))
    make(path.parent, None)  # Drops what was decompressed.
    with pytest.raises(ShardCorruptError, match="a.jsonl.gz changed after it was indexed"):
        list(before)


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_file_that_changes_under_a_run_is_an_error(
    is_copied: bool, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make(folder, tmp_path / "cache" if is_copied else None)
    path = sorted(folder.iterdir())[0]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"row", b"ROW"))
    with pytest.raises(ShardCorruptError, match=r"part-0.* (changed|was replaced) after it was"):
        list(dataset)
    path.write_bytes(data + data)
    with pytest.raises(ShardCorruptError, match="part-0"):
        list(dataset)
    caplog.clear()  # Records have errors, and these have frames that hold the dataset.


@pytest.mark.parametrize("change", ["cut", "append", "replace", "remove"])
def test_an_open_file_that_changes_is_an_error(
    change: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a file was cut short, what is mapped of it would end the process."""
    dataset = make(folder, None)
    assert dataset[0] == ROWS[0]
    path = sorted(folder.iterdir())[0]
    if change == "cut":
        os.truncate(path, 0)
    elif change == "append":
        with path.open("ab") as file:
            file.write(b"\n")
    elif change == "replace":
        other = write(folder.parent / f"other{path.suffix}", path.read_bytes())
        other.replace(path)
    else:
        path.unlink()
    wanted = ObjectNotFoundError if change == "remove" else ShardCorruptError
    for read in (lambda: dataset[3], lambda: list(dataset), lambda: dataset.take_columns([3, 4])):
        with pytest.raises(wanted, match="part-0"):
            read()
    assert dataset[44] == ROWS[44]
    caplog.clear()


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    dataset = make(folder, None)
    path = sorted(folder.iterdir())[0]
    path.unlink()
    with pytest.raises(MissingFileError, match="part-0"):
        list(dataset)


def test_patterns_and_lists_choose_files(folder: Path, tmp_path: Path) -> None:
    for kind in ("local", "remote"):
        pattern = Stream(**{kind: f"{folder}/part-[01].*"})  # type: ignore[arg-type]
        assert list(StreamingDataset(streams=[pattern], batch_size=1)) == ROWS[:30]
        files = [str(path) for path in sorted(folder.iterdir())]
        several = Stream(**{kind: [files[3], files[0]]})  # type: ignore[arg-type]
        assert list(StreamingDataset(streams=[several], batch_size=1)) == ROWS[45:60] + ROWS[:15]
    first = Stream(local=files[:1])
    second = Stream(local=files[1:2])
    assert list(StreamingDataset(streams=[first, second], batch_size=1)) == ROWS[:30]


def test_a_split_is_a_folder(folder: Path) -> None:
    dataset = StreamingDataset(local=str(folder.parent), split=folder.name, batch_size=1)
    assert list(dataset) == ROWS
    with pytest.raises(ConfigError, match="`split` is 'x', but a list of files"):
        StreamingDataset(streams=[Stream(local=[str(folder)], split="x")], batch_size=1)


def test_columns_are_chosen_in_any_format(folder: Path, tmp_path: Path) -> None:
    with JSONWriter(out=tmp_path / "json", columns={"id": "int", "text": "str"}) as writer:
        for row in ROWS:
            writer.write(row)
    with MDSWriter(out=tmp_path / "mds", columns={"id": "int", "text": "str"}) as mds:
        for row in ROWS:
            mds.write(row)
    for place in (folder, tmp_path / "json", tmp_path / "mds"):
        stream = Stream(local=str(place), columns=["id"])
        dataset = StreamingDataset(streams=[stream], batch_size=BATCH)
        assert list(dataset) == [{"id": i} for i in range(90)]
        with pytest.raises(UnknownNameError, match="no column 'none'"):
            StreamingDataset(streams=[Stream(local=str(place), columns=["none"])])


def test_columns_may_be_declared(folder: Path) -> None:
    stream = Stream(local=str(folder), columns={"text": "str", "id": "float"})
    dataset = StreamingDataset(streams=[stream], batch_size=BATCH)
    assert dataset[3] == {"text": ROWS[3]["text"], "id": 3.0}


def test_what_is_said_of_plain_files_does_not_fit_a_dataset(tmp_path: Path) -> None:
    with JSONWriter(out=tmp_path / "json", columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    local = str(tmp_path / "json")
    assert StreamingDataset(streams=[Stream(local=local, format="jsonl")])[0] == {"id": 1}
    for wrong in ({"format": "csv"}, {"columns": {"id": "int"}}, {"format_options": {"header": 0}}):
        with pytest.raises(ConfigError, match="index"):
            StreamingDataset(streams=[Stream(local=local, **wrong)])


def test_a_folder_without_data_lacks_an_index(tmp_path: Path) -> None:
    write(tmp_path / "README.md", b"")
    with pytest.raises(MissingFileError, match=r"There is no index .*index.json"):
        StreamingDataset(local=str(tmp_path))
    with pytest.raises(ObjectNotFoundError, match=r"index.json"):
        StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "cache"))


@pytest.mark.parametrize("way", ["local", "remote"])
def test_a_missing_index_is_explained_by_what_there_is(way: str, tmp_path: Path) -> None:
    def message(folder: str, **arguments: Any) -> str:
        with pytest.raises(FileNotFoundError, match=r"index\.json") as caught:
            StreamingDataset(**{way: str(tmp_path / folder), **arguments})
        return str(caught.value)

    assert f"no folder or file {tmp_path / 'gone'}." in message("gone")
    write(tmp_path / "data" / "README.md", b"")
    known = "has an ending that is read without an index: "
    assert f"{known}.jsonl, .ndjson, .csv, .tsv, .parquet" in message("data")
    assert message("data", format="parquet").endswith(f"{known}.parquet, .pq, .parq.")
    write(tmp_path / "data" / "train" / "index.json", b"{}")
    assert "have an index: choose one, as by `split`" in message("data")


def test_files_without_samples_are_an_empty_dataset(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b"\n\n")
    write(tmp_path / "b.jsonl.gz", b"")
    with pytest.raises(EmptyDatasetError, match=f"{tmp_path} holds no samples"):
        StreamingDataset(local=str(tmp_path))


@pytest.mark.usefixtures("no_clients")
@pytest.mark.parametrize("place", ["logs", "logs/*/*.jsonl*", "logs/a/0.jsonl"])
def test_an_object_store_is_read(place: str, tmp_path: Path) -> None:
    objects = {
        "bkt/logs/a/0.jsonl": as_json(ROWS[:30]).encode(),
        "bkt/logs/b/1.jsonl.gz": PACK[".gz"](as_json(ROWS[30:]).encode()),
        "bkt/logs/_SUCCESS": b"",
    }
    with FaultyServer(objects) as server:
        stream = Stream(
            remote=f"s3://bkt/{place}",
            storage_options={
                "endpoint": server.url,
                "access_key_id": "k",
                "secret_access_key": "s",
            },
        )
        dataset = StreamingDataset(streams=[stream], batch_size=BATCH)
        loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2)
        assert sorted(ids(loader)) == list(range(30 if "0" in place else 90))


@pytest.mark.usefixtures("no_clients")
def test_a_file_is_read_over_http(tmp_path: Path) -> None:
    objects = {"web/a.csv.gz": PACK[".gz"](as_csv(ROWS).encode())}
    with FaultyServer(objects) as server:
        dataset = StreamingDataset(remote=f"{server.url}/web/a.csv.gz", batch_size=BATCH)
        assert list(dataset) == ROWS
        stream = Stream(remote=[f"{server.url}/web/a.csv.gz"], local=str(tmp_path / "list"))
        assert list(StreamingDataset(streams=[stream], batch_size=BATCH)) == ROWS
        with pytest.raises(ObjectNotFoundError, match="none.csv"):  # And not: it can't be listed.
            StreamingDataset(remote=f"{server.url}/web/none.csv", batch_size=BATCH)


@pytest.mark.usefixtures("no_clients")
def test_the_hugging_face_hub_is_read() -> None:
    pytest.importorskip("huggingface_hub")
    files = {"README.md": b"# data", "en/0.jsonl.gz": PACK[".gz"](as_json(ROWS).encode())}
    with Hub("org/data", files) as hub:
        options = {"endpoint": hub.url, "token": "t"}
        for place in ("hf://datasets/org/data", "hf://datasets/org/data/en/*.gz"):
            stream = Stream(remote=place, storage_options=options)
            assert list(StreamingDataset(streams=[stream], batch_size=BATCH)) == ROWS


@pytest.mark.parametrize("kind", ["json", "csv", "quoted", "plain"])
def test_single_samples_are_read_by_ranges(kind: str, folder: Path, tmp_path: Path) -> None:
    columns = {"id": "int", "text": "str"}
    root, rows = tmp_path / "out", [{**row, "text": row["text"].strip()} for row in ROWS]
    if kind == "plain":
        root, rows = folder, ROWS
        write_index(folder)
    else:
        if kind == "csv":
            rows = [{**row, "text": row["text"].translate({10: 32, 44: 32})} for row in rows]
        make_writer: Any = JSONWriter if kind == "json" else CSVWriter
        if kind == "quoted":
            make_writer = partial(CSVWriter, quoting=True)
        with make_writer(out=root, columns=columns) as writer:
            for row in rows:
                writer.write(row)
    dataset = DirectDataset(str(root))
    assert [dataset[i] for i in (0, 44, -1)] == [rows[0], rows[44], rows[-1]]
    dataset.close()


def test_without_cache_samples_of_plain_files_are_read_by_ranges(
    folder: Path, tmp_path: Path
) -> None:
    def load() -> StreamingDataset:
        return make(folder, tmp_path / "cache", cache="none", shuffle=True)

    dataset = load()
    assert [dataset[i] for i in (0, 44, -1)] == [ROWS[0], ROWS[44], ROWS[-1]]
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2)
    assert sorted(ids(loader)) == list(range(90))
    assert os.listdir(tmp_path / "cache") == [".streaming"]


@pytest.mark.usefixtures("no_clients")
def test_without_cache_a_plain_object_is_not_read_whole(tmp_path: Path) -> None:
    rows = [{"id": i, "text": "x" * 10_000} for i in range(300)]
    with FaultyServer({"bkt/a.jsonl": as_json(rows).encode()}) as server:
        options = {"endpoint": server.url, "access_key_id": "k", "secret_access_key": "s"}
        stream = Stream(remote="s3://bkt/a.jsonl", storage_options=options)
        dataset = StreamingDataset(streams=[stream], batch_size=BATCH, cache="none")
        server.requests.clear()
        assert dataset[150] == rows[150]
        (span,) = [span for method, _, span in server.requests if method == "GET"]
        start, stop = map(int, str(span).removeprefix("bytes=").split("-"))
        assert stop - start < 11_000
        changed = [{**row, "text": "y" * 10_000} for row in rows]
        server.objects["bkt/a.jsonl"] = as_json(changed).encode()
        with pytest.raises(ShardCorruptError, match="a.jsonl was replaced after it was indexed"):
            dataset[0]
        server.objects["bkt/a.jsonl"] = as_json(changed[:9]).encode()
        with pytest.raises(StreamingError, match="a.jsonl"):
            dataset[299]


def test_an_index_that_comes_later_is_used(folder: Path, tmp_path: Path) -> None:
    assert list(make(folder, tmp_path / "cache")) == ROWS
    write_index(folder)
    assert list(make(folder, tmp_path / "cache")) == ROWS
    assert list(make(folder, None)) == ROWS


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("removed", [".", ".streaming", ".streaming/index"])
def test_a_cache_that_is_removed_under_a_run_is_made_anew(
    removed: str,
    is_running: bool,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = make(folder, tmp_path / "cache", predownload=BATCH)
    iterator = iter(dataset)
    found = [next(iterator)] if is_running else []
    shutil.rmtree(tmp_path / "cache" / removed)
    assert [*found, *iterator] == ROWS
    assert all("made anew" in record.getMessage() for record in caplog.records)
    caplog.clear()
    assert list(make(folder, tmp_path / "cache")) == ROWS
    assert not [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 16]


def test_a_cache_of_files_that_changed_is_not_made_anew(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make(folder, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    path = sorted(folder.iterdir())[0]
    path.write_bytes(path.read_bytes())
    with pytest.raises((CacheConflictError, ShardCorruptError), match="was replaced"):
        list(dataset)
    caplog.clear()


def test_an_index_of_files_that_are_read_in_place_is_made_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    dataset = make(folder, None)
    for place in (tmp_path / "tmp").glob("streaming-cache-*"):
        shutil.rmtree(place)
    assert list(dataset) == ROWS


def test_a_dataset_goes_with_its_last_name(folder: Path) -> None:
    """Its lease of the cache and its files would stay until the next collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        dataset = make(folder, None)
        assert dataset[0] == ROWS[0]
        assert next(iter(dataset)) == ROWS[0]
        gone = weakref.ref(dataset)
        del dataset
        assert gone() is None
    finally:
        gc.enable()
