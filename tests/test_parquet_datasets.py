"""Whole datasets of Parquet files: streamed, shuffled, resumed, mixed, forked, from afar."""

import os
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming import (  # noqa: E402
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from streaming.errors import (  # noqa: E402
    CacheLimitError,
    ConfigError,
    EmptyDatasetError,
    MissingFileError,
    ShardCorruptError,
    StoreError,
)
from streaming.format.parquet.decode import decode  # noqa: E402
from streaming.format.registry import formats  # noqa: E402
from streaming.shared.directory import measure  # noqa: E402
from streaming.storage import guard  # noqa: E402
from streaming.storage.stores.local import LocalStore  # noqa: E402
from tests.common.parquet import nested_table, number_table, obtain, same_values  # noqa: E402
from tests.servers.faulty import FaultyServer  # noqa: E402
from tests.servers.hub import Hub  # noqa: E402
from tests.suites.resuming import check_resume, ids  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

BATCH = 4
SIZES = [30, 1, 44, 15]


def write_files(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Files of several row groups; their rows."""
    folder.mkdir(parents=True)
    start = 0
    for number, size in enumerate(SIZES):
        table = number_table(start, start + size)
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=8, **options)
        start += size
    rows: list[dict[str, Any]] = number_table(0, start).to_pylist()
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "data")
    return tmp_path / "data"


ROWS = number_table(0, sum(SIZES)).to_pylist()


def make(folder: Path | str, home: Path, **arguments: Any) -> StreamingDataset:
    return StreamingDataset(
        **{"remote": str(folder), "local": str(home), "batch_size": BATCH, **arguments}
    )


def test_local_files_are_read_where_they_lie(folder: Path, tmp_path: Path) -> None:
    before = {path: LocalStore(folder).stat(path.name) for path in folder.iterdir()}
    there: list[dict[str, Any]] = [
        {"local": str(folder)},
        {"remote": str(folder), "local": str(tmp_path / "cache")},
    ]
    for place in there:
        dataset = StreamingDataset(batch_size=BATCH, **place)
        assert list(dataset) == ROWS
        assert [dataset[0], dataset[-1], dataset[44]] == [ROWS[0], ROWS[-1], ROWS[44]]
    assert {path: LocalStore(folder).stat(path.name) for path in folder.iterdir()} == before
    assert not list((tmp_path / "cache").rglob("*.parquet"))
    assert LocalDataset(folder)[:] == ROWS


@pytest.mark.parametrize(("unit", "shards"), [("shards", 4), ("file", 4), ("row_group", 4)])
def test_a_shard_is_a_run_of_row_groups(
    unit: str, shards: int, folder: Path, tmp_path: Path
) -> None:
    dataset = make(folder, tmp_path / "cache", cache=unit)
    assert dataset.num_shards == shards
    assert list(dataset) == ROWS


def test_large_row_groups_are_shards_of_their_own(tmp_path: Path) -> None:
    rows = 1 << 16
    table = pa.table(
        {
            "id": range(rows),
            "data": np.random.default_rng(0).bytes(rows * 64)
            and [os.urandom(64) for _ in range(rows)],
        }
    )
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "a.parquet", row_group_size=rows // 4)
    counts = {
        unit: make(tmp_path / "data", tmp_path / unit, cache=unit).num_shards
        for unit in ("shards", "file", "row_group")
    }
    assert counts == {"shards": 1, "file": 1, "row_group": 4}
    dataset = make(tmp_path / "data", tmp_path / "row_group", cache="row_group")
    assert dataset[rows // 2] == table.slice(rows // 2, 1).to_pylist()[0]
    assert len(list((tmp_path / "row_group" / "decoded").iterdir())) == 1


@pytest.mark.parametrize(
    ("context", "is_used"),
    [("fork", False), ("fork", True), pytest.param("spawn", True, marks=pytest.mark.slow)],
)
def test_workers_read_every_sample_once_and_a_resume_goes_on_exactly(
    context: str, is_used: bool, folder: Path, tmp_path: Path
) -> None:
    def load(workers: int) -> StreamingDataLoader:
        dataset = make(folder, tmp_path / "cache", shuffle=True, shuffle_block_size=40)
        if is_used:
            assert dataset[17]["id"] == 17
        kind = {"multiprocessing_context": context} if workers else {}
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, **kind)

    check_resume(load, range(90), (2, 0) if context == "fork" else (0,))


def test_the_order_does_not_depend_on_where_the_files_are(
    folder: Path, remote: FaultyServer, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "shuffle_block_size": 20}
    here = list(make(folder, tmp_path / "here", **arguments))
    assert list(make_remote(remote, tmp_path / "there", **arguments)) == here


@pytest.fixture
def remote(folder: Path) -> Iterator[FaultyServer]:
    with FaultyServer(
        {f"bkt/{path.name}": path.read_bytes() for path in folder.iterdir()}
    ) as server:
        yield server
    guard.end_helper()


def make_remote(server: FaultyServer, home: Path, **arguments: Any) -> StreamingDataset:
    stream = {
        "storage_options": {"endpoint": server.url, "access_key_id": "a", "secret_access_key": "b"}
    }
    return make("s3://bkt", home, stream_config=stream, **arguments)


def test_remote_files_are_fetched_once_and_their_footers_too(
    remote: FaultyServer, tmp_path: Path
) -> None:
    for _ in range(2):
        dataset = make_remote(remote, tmp_path / "cache")
        assert list(dataset) == ROWS
        assert list(dataset) == ROWS
    # One for the footer, one for the file.
    assert remote.count("GET", "bkt/part-0.parquet") == 2


def test_a_projection_of_a_remote_file_fetches_only_its_columns(
    remote: FaultyServer, tmp_path: Path
) -> None:
    rows = 4000
    table = pa.table({"id": range(rows), "data": [os.urandom(1000) for _ in range(rows)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    remote.objects = {"bkt/a.parquet": (tmp_path / "a.parquet").read_bytes()}
    dataset = make_remote(remote, tmp_path / "cache", columns=["id"])
    assert list(dataset) == [{"id": i} for i in range(rows)]
    spans = [span for method, _, span in remote.requests if method == "GET" and span]
    fetched = sum(int(b) - int(a) + 1 for a, b in (span[6:].split("-") for span in spans))
    assert fetched < 200_000
    whole = make_remote(remote, tmp_path / "cache", cache="row_group")
    assert whole[3999] == table.slice(3999).to_pylist()[0]


def test_what_one_process_reads_once_in_order_is_not_kept(
    remote: FaultyServer, tmp_path: Path
) -> None:
    dataset = make_remote(remote, tmp_path / "cache")
    assert list(dataset) == ROWS
    assert not (tmp_path / "cache" / "decoded").exists()
    assert len(list((tmp_path / "cache").glob("*.parquet"))) == len(SIZES)
    assert list(dataset) == ROWS  # And whoever reads on, does so from decoded files.
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == len(SIZES)
    assert remote.count("GET", "bkt/part-0.parquet") == 2
    assert dataset.stats().misses == 2 * len(SIZES)


@pytest.mark.parametrize(
    ("arguments", "workers"), [({"shuffle": True}, 0), ({}, 2), ({"shuffle": True}, 1)]
)
def test_what_is_read_in_another_way_is_decoded_for_all(
    arguments: dict[str, Any], workers: int, folder: Path, tmp_path: Path
) -> None:
    dataset = make(folder, tmp_path / "cache", **arguments)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
    assert sorted(ids(loader)) == list(range(90))
    assert len(list((tmp_path / "cache" / "decoded").iterdir())) == len(SIZES)


def test_a_sample_that_is_asked_for_meanwhile_is_there(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache")
    rows = []
    for row in dataset:
        rows.append(row)
        assert dataset[row["id"]] == row
        assert dataset[[89, row["id"], 3]] == [ROWS[89], row, ROWS[3]]
    assert rows == ROWS


def test_an_epoch_that_is_left_and_begun_again_is_whole(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache")
    for count in (1, 33, 70):
        assert [row for row, _ in zip(dataset, range(count), strict=False)] == ROWS[:count]
        dataset = make(folder, tmp_path / "cache")
    first, second = iter(dataset), iter(dataset)
    assert [next(first) for _ in range(40)] == ROWS[:40]
    assert list(second) == ROWS
    assert list(first) == ROWS[40:]


@pytest.mark.parametrize("seen", [1, 8, 29, 31, 50, 89])
def test_a_run_that_goes_on_reads_on_where_it_was(seen: int, folder: Path, tmp_path: Path) -> None:
    former, dataset = (make(folder, tmp_path / "cache") for _ in range(2))
    assert next(iter(former)) == ROWS[0]
    dataset.load_state_dict(former.state_dict(seen, from_beginning=True))
    assert list(dataset) == ROWS[seen:]
    assert not (tmp_path / "cache" / "decoded").exists()


@pytest.mark.parametrize("weight", [{"repeat": 3}, {"choose": 17}, {"repeat": 0.5}])
def test_weights_change_nothing_about_what_is_read_once(
    weight: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    found = []
    for is_decoded in (False, True):
        home = tmp_path / f"cache {is_decoded}"
        streams = [Stream(remote=str(folder), local=str(home), **weight)]
        dataset = StreamingDataset(streams=streams, batch_size=BATCH)
        if is_decoded:
            assert dataset[:] == ROWS
        found.append(list(dataset))
    assert found[0] == found[1]


def test_a_cache_limit_holds_for_what_is_read_once(remote: FaultyServer, tmp_path: Path) -> None:
    sizes = [len(data) for data in remote.objects.values()]
    dataset = make_remote(remote, tmp_path / "cache", cache_limit=20_000)
    for row in dataset:
        assert row == ROWS[row["id"]]
    assert sum(sizes) > 0
    assert not (tmp_path / "cache" / "decoded").exists()
    assert dataset.cache_usage <= 20_000


def test_a_damaged_file_in_the_cache_is_fetched_again(remote: FaultyServer, tmp_path: Path) -> None:
    assert list(make_remote(remote, tmp_path / "cache")) == ROWS
    for path in (tmp_path / "cache").glob("*.parquet"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert list(make_remote(remote, tmp_path / "cache")) == ROWS


def test_streams_are_mixed_with_an_mds_stream(tmp_path: Path) -> None:
    """A nested, partitioned table beside another format."""
    expected = {}
    for year in (2023, 2024):
        folder = tmp_path / "data" / f"year={year}" / "kind=a b%2Fc"
        folder.mkdir(parents=True)
        table = nested_table(100 * year, 100 * year + 20)
        pq.write_table(table, folder / "a.parquet", row_group_size=7)
        for row in table.to_pylist(maps_as_pydicts="strict"):
            expected[row["id"]] = {**row, "year": year, "kind": "a b/c"}
    with MDSWriter(out=str(tmp_path / "mds"), columns={"id": "int"}) as writer:
        for i in range(30):
            writer.write({"id": i})
    streams = [
        Stream(remote=str(tmp_path / "data"), local=str(tmp_path / "cache")),
        Stream(local=str(tmp_path / "mds")),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=BATCH, shuffle=True)
    samples = list(dataset)
    assert len(samples) == 40 + 30 or len({s["id"] for s in samples}) == 40 + 30
    found = {sample["id"]: sample for sample in samples}
    expected |= {i: {"id": i} for i in range(30)}
    assert found.keys() == expected.keys()
    assert all(same_values(found[key], expected[key]) for key in found)
    pickle.loads(pickle.dumps(dataset))


def test_what_was_decoded_keeps_within_its_limit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = 1 << 15
    table = pa.table({"id": range(rows), "data": [os.urandom(64) for _ in range(rows)]})
    for number in range(4):
        part = table.slice(number * rows // 4, rows // 4)
        pq.write_table(part, tmp_path / "data" / f"{number}.parquet")
    options = {"decoded_limit": 1_500_000}
    dataset = make(tmp_path / "data", tmp_path / "cache", format_options=options)
    list(dataset)
    for _ in range(2):
        assert [sample["id"] for sample in dataset] == list(range(rows))
        # Looking ahead to the next epoch goes on meanwhile, so a file may go under our eyes.
        size = measure((tmp_path / "cache" / "decoded").iterdir())
        assert size <= 2_300_000  # What is needed now may exceed it, by one.


def test_a_cache_limit_drops_decoded_files_before_fetched_ones(
    remote: FaultyServer, tmp_path: Path
) -> None:
    limit = 20_000
    dataset = make_remote(remote, tmp_path / "cache", cache_limit=limit)
    for _ in range(3):
        assert list(dataset) == ROWS
    assert remote.count("GET", "bkt/part-2.parquet") == 2
    size = sum(
        path.stat().st_size
        for path in (tmp_path / "cache").rglob("*.*")
        if ".streaming" not in path.parts and path.is_file()
    )
    assert size <= limit


def test_a_row_group_above_the_cache_limit_is_refused_with_its_size(
    remote: FaultyServer, tmp_path: Path
) -> None:
    dataset = make_remote(remote, tmp_path / "cache", cache_limit=1000)
    with pytest.raises(CacheLimitError, match=r"`cache_limit` is 1000 bytes, but shard .* takes"):
        dataset[0]


def test_a_full_disk_is_an_error_that_says_so(folder: Path, tmp_path: Path) -> None:
    (info, *_) = obtain(folder, tmp_path / "cache").index
    with pytest.raises(StoreError, match=r"Can't write /dev/full: no space left on device"):
        decode(info, folder / "part-0.parquet", Path("/dev/full"))


def test_processes_of_a_node_decode_a_shard_once(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "decoded.log"

    def note(info: Any, path: Path, target: Path) -> None:
        with log.open("a") as out:
            out.write(f"{info.extra['key']}\n")
        decode(info, path, target)

    counted = replace(formats.get("parquet"), decode=note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(formats._entries, "parquet", counted)
        dataset = make(folder, tmp_path / "cache", shuffle=True, shuffle_block_size=40)
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=3, multiprocessing_context="fork"
        )
        assert sorted(ids(loader)) == list(range(90))
    assert sorted(log.read_text().split()) == [f"part-{i}.parquet" for i in range(4)]


def test_a_damaged_decoded_file_is_made_again(folder: Path, tmp_path: Path) -> None:
    assert make(folder, tmp_path / "cache")[:] == ROWS
    for number, path in enumerate(sorted((tmp_path / "cache" / "decoded").iterdir())):
        data = path.read_bytes()
        path.write_bytes([data[: len(data) // 2], b"", b"x" * len(data), data[:-9]][number])
    assert list(make(folder, tmp_path / "cache")) == ROWS


def test_files_that_changed_are_read_anew_and_what_was_decoded_goes(
    folder: Path, tmp_path: Path
) -> None:
    assert make(folder, tmp_path / "cache")[:] == ROWS
    before = set(os.listdir(tmp_path / "cache" / "decoded"))
    pq.write_table(number_table(0, 5), folder / "part-0.parquet")
    (folder / "part-1.parquet").unlink()
    assert make(folder, tmp_path / "cache")[:] == ROWS[:5] + ROWS[31:]
    after = set(os.listdir(tmp_path / "cache" / "decoded"))
    assert len(after) == 3
    assert len(after & before) == 2


def test_a_file_that_is_rewritten_under_a_run_is_an_error(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache")
    pq.write_table(number_table(5, 35), folder / "part-0.parquet", row_group_size=8)
    with pytest.raises(
        ShardCorruptError, match=r"part-0\.parquet.* (changed|was replaced) after it was indexed"
    ):
        dataset[0]
    (folder / "part-2.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-2\.parquet"):
        dataset[40]


def test_batches_are_columns(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache", batched=True, shuffle=True, shuffle_block_size=30)
    rows = [
        {"id": int(i), "text": text}
        for batch in dataset
        for i, text in zip(batch["id"], batch["text"], strict=True)
    ]
    assert sorted(rows, key=lambda row: row["id"]) == ROWS
    columns = dataset.take_columns([50, 3, -1])
    assert list(columns["id"]) == [50, 3, 89]
    assert list(columns["text"]) == [ROWS[i]["text"] for i in (50, 3, 89)]


def test_nothing_is_kept_without_a_cache(remote: FaultyServer, tmp_path: Path) -> None:
    dataset = make_remote(remote, tmp_path / "cache", cache="none")
    assert [dataset[i]["id"] for i in (80, 2)] == [80, 2]
    assert not (tmp_path / "cache" / "decoded").exists()


def test_an_unknown_unit_and_settings_of_given_streams_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="`cache` is 'shards', 'file', 'row_group' or 'none'"):
        StreamingDataset(local=str(folder), batch_size=1, cache="rows")
    with pytest.raises(ConfigError, match="say format to each Stream"):
        StreamingDataset(streams=[Stream(local=str(folder))], format="parquet")


def test_files_without_rows_are_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(number_table(0, 0), tmp_path / "data" / "a.parquet")
    with pytest.raises(EmptyDatasetError, match="holds no samples"):
        make(tmp_path / "data", tmp_path / "cache")


def test_a_repository_of_the_hub_is_read_through_its_parquet_files(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra `hf`")
    parts = [path.read_bytes() for path in sorted(folder.iterdir())]
    files = {"README.md": b"# data", "data/train-0.parquet": parts[0]}
    files |= {"data/train-1.parquet": parts[1], "data/test-0.parquet": parts[3]}
    with Hub("org/name", files) as hub:

        def rows(place: str) -> list[int]:
            dataset = StreamingDataset(
                remote=f"hf://datasets/org/name{place}",
                local=str(tmp_path / place.replace("/", "-")),
                batch_size=BATCH,
                stream_config={"storage_options": {"endpoint": hub.url}},
            )
            return [sample["id"] for sample in dataset]

        assert rows("/data/train-*.parquet") == list(range(31))
        assert not caplog.messages
        assert sorted(rows("")) == [*range(31), *range(75, 90)]
        assert "has files of several splits (test, train), and all are read" in caplog.text
    guard.end_helper()


def test_workers_read_remote_files_whether_or_not_their_parent_did(
    remote: FaultyServer, tmp_path: Path
) -> None:
    for is_used in (False, True):
        dataset = make_remote(remote, tmp_path / str(is_used), shuffle=True, cache="row_group")
        if is_used:
            assert dataset[17] == ROWS[17]
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=2, multiprocessing_context="fork"
        )
        assert sorted(ids(loader)) == list(range(90))


def test_the_names_that_a_dataset_has_for_shards_work(folder: Path, tmp_path: Path) -> None:
    dataset = make(folder, tmp_path / "cache")
    assert dataset[:] == ROWS
    decoded = sum(path.stat().st_size for path in (tmp_path / "cache" / "decoded").iterdir())
    assert dataset.cache_usage >= decoded
    shard = dataset.shards[1]
    assert (shard.samples, len(shard)) == (1, 1)
    assert shard.get_item(0) == ROWS[30]


@pytest.mark.parametrize("place", ["", "/*.parquet"])
def test_without_cache_local_files_are_read_where_they_lie(
    place: str, folder: Path, tmp_path: Path
) -> None:
    dataset = StreamingDataset(remote=f"{folder}{place}", cache="none", batch_size=BATCH)
    assert same_values(list(dataset), ROWS)
    with MDSWriter(out=str(tmp_path / "mds"), columns={"id": "int"}) as out:
        out.write({"id": -1})
    streams = [Stream(remote=str(folder)), Stream(remote=str(tmp_path / "mds"))]
    mixture = StreamingDataset(streams=streams, cache="none", batch_size=BATCH)
    assert len(list(mixture)) == len(ROWS) + 1
    assert mixture[len(ROWS)] == {"id": -1}


@pytest.mark.parametrize("cache", ["shards", "none"])
def test_a_local_file_that_was_replaced_or_removed_is_told_as_such(
    cache: str, folder: Path
) -> None:
    dataset = StreamingDataset(remote=str(folder), batch_size=BATCH, cache=cache)
    pq.write_table(number_table(5, 6), folder / "part-0.parquet")
    with pytest.raises(ShardCorruptError, match=r"part-0.* was replaced .* Make the dataset anew"):
        dataset[0]
    (folder / "part-2.parquet").unlink()
    with pytest.raises(MissingFileError, match=r"part-2.* was removed .* Make the dataset anew"):
        dataset[40]


def test_what_was_decoded_of_a_replaced_file_gives_the_rows_that_were_indexed(
    folder: Path,
) -> None:
    dataset = StreamingDataset(remote=str(folder), batch_size=BATCH)
    assert same_values(dataset[:], ROWS)
    pq.write_table(number_table(5, 6), folder / "part-0.parquet")
    assert same_values(list(dataset), ROWS)
    assert len(StreamingDataset(remote=str(folder), batch_size=BATCH)) == len(ROWS) - SIZES[0] + 1


def test_an_empty_dataset_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(number_table(0, 0), path)
    with pytest.raises(EmptyDatasetError, match=re.escape(f"{path} holds no samples")):
        StreamingDataset(remote=str(path))


def test_parquet_files_of_a_delta_table_are_read_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StreamingDataset(local=str(folder), format="parquet")
    assert not caplog.records
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020}.json").touch()
    StreamingDataset(local=str(folder), format="parquet")
    assert "is a Delta table, and format='parquet' reads all its files past its log" in caplog.text
