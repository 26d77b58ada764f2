"""`streaming plan` on real indexes, as text and as JSON."""

import json
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from streaming import StreamingDataset
from streaming.cli import main
from streaming.format.index import dump_index
from streaming.format.publishing import write_index
from tests.common.plain import PLAIN_KINDS, write_plain_files
from tests.common.shards import write_dataset
from tests.common.tables import make_delta, make_lance


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """12 shards of 50 samples."""
    return write_dataset(tmp_path / "data", 12, 50)


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_epoch_is_told_in_words(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = ("--nodes", 2, "--ranks", 2, "--workers", 2, "--batch-size", 8)
    extra = ("--shuffle", "--bandwidth", "10kb", "--step-time", "0.1s", "--step", 3, "--rank", 1)
    assert run(root, *world, *extra, "--sample", 7) == 0
    text = capsys.readouterr().out
    assert "Epoch: 600 samples" in text
    assert "in 19 steps of 4 ranks (32 samples a step; 1 steps not full)" in text
    assert "Batches of each rank: 19." in text
    assert "Least useful cache limit" in text
    assert "full permutation" in text
    assert "Step 3 on rank 1: 8 samples" in text
    assert "Sample 7 comes 1 times" in text


def test_one_document_has_all_of_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, root, "--batch-size", 10, "--shuffle-algo", "block1", "--sample", 5)
    assert found["order"]["shuffle"] is True
    assert found["order"]["shuffle_algo"] == "block1"
    (stream,) = found["epoch"]["streams"]
    assert stream["name"] == str(root)
    assert (stream["samples"], stream["shards"], stream["drawn"]) == (600, 12, 600)
    assert found["epoch"]["steps"] == 60
    assert found["downloads"]["shards"] == [12]
    assert len(found["sample"]["occurrences"]) == 1
    (place,) = found["sample"]["occurrences"]
    batch = answer(
        capsys,
        *(root, "--batch-size", 10, "--shuffle-algo", "block1", "--no-quality"),
        *("--step", place["step"], "--rank", place["rank"]),
    )["batch"]
    assert batch["samples"][place["place"]]["sample"] == 5


def test_streams_are_mixed_by_weights_of_any_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (write_dataset(tmp_path / name, 4, 50) for name in "ab")
    drawn = {}
    schedule = json.dumps([{"kind": "linear", "points": [[0, 0], [100, 2]]}, 1])
    for option, value in (
        ("--proportion", "1,3"),
        ("--repeat", "0.5,2"),
        ("--choose", "30,1k"),
        ("--schedule", schedule),
    ):
        more = ("--epoch-size", "100") if option in ("--proportion", "--schedule") else ()
        found = answer(capsys, a, b, option, value, *more, "--no-quality")
        drawn[option] = [stream["drawn"] for stream in found["epoch"]["streams"]]
    assert drawn == {
        "--proportion": [25, 75],
        "--repeat": [100, 400],
        "--choose": [30, 1000],
        # In this epoch, mixed sample by sample: 33.3 and 66.7.
        "--schedule": [34, 66],
    }
    sizes = ("--batching", "per_stream", "--stream-batch-size", "5,20", "--batch-size", 10)
    found = answer(capsys, a, b, *sizes, "--step", 0)
    assert len(found["batch"]["samples"]) in (5, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--proportion", "1,2"), "--proportion has 2 values for 1 streams"),
        (("--proportion", "x"), "--proportion needs numbers, but has 'x'"),
        (("--proportion", "1", "--repeat", "1"), "Give one of"),
        (("--schedule", "{"), "--schedule is not JSON"),
        (("--schedule", "[1, 2]"), "a weight for each of 1 streams"),
        (("--schedule", '[{"points": []}]'), "at least one point"),
        (("--bandwidth", "0b"), "above 0"),
        (("--step-time", "soon"), "--step-time: 'soon' is not a number of seconds"),
        (("--bandwidth", "10"), "--bandwidth: '10' is not a number of bytes"),
        (("--epoch-size", "x"), "--epoch-size: 'x' is not"),
        (("--choose", "x"), "--choose: 'x' is not"),
        (("--shuffle-algo", "best"), "no shuffle algorithm 'best'"),
        (("--batching", "best"), "no batching method 'best'"),
        (("--step", "600"), "There is no step 600"),
        (("--sample", "600"), "There is no sample 600"),
        (("--replication", "2"), "`replication` must be positive and divide"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(root, *arguments) == 1
    text = capsys.readouterr()
    assert message in text.err
    assert text.err.startswith("streaming: error: ")
    assert text.err.count("\n") == 1


def test_a_dataset_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 1
    assert "There is no" in capsys.readouterr().err


def test_an_epoch_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert run(tmp_path / "rows.jsonl") == 1
    assert "rows.jsonl holds no samples" in capsys.readouterr().err


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_an_epoch_of_plain_files_is_planned(
    kind: str, is_indexed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plain_files(kind, tmp_path / "data")
    if is_indexed:
        write_index(str(path))
    before = sorted(path.iterdir())
    found = answer(capsys, path, "--batch-size", 10)
    (stream,) = found["epoch"]["streams"]
    assert (stream["samples"], stream["shards"], found["epoch"]["steps"]) == (30, 3, 3)
    assert sorted(path.iterdir()) == before


@pytest.mark.usefixtures("opens_tables")
@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_an_epoch_of_a_table_and_a_dataset_is_planned(
    kind: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = (make_delta if kind == "delta" else make_lance)(tmp_path / "table")
    found = answer(capsys, root, path, "--batch-size", 10, "--shuffle")
    first, second = (stream["samples"] for stream in found["epoch"]["streams"])
    dataset = StreamingDataset(remote=str(path), local=str(tmp_path / "cache"), batch_size=1)
    assert (first, second) == (600, dataset.num_samples)


def test_streams_are_read_as_each_is_said_to_be(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = tmp_path / "bars.txt"
    bars.write_text("1|one\n2|two\n")
    told = '{"separator": "|", "header": false, "names": ["number", "text"]}'
    found = answer(
        capsys, root, bars, "--format", "", "--format", "xsv", "--format-options", "",
        "--format-options", told, "--columns", "id", "--columns", "number",
    )  # fmt: skip
    assert [stream["samples"] for stream in found["epoch"]["streams"]] == [600, 2]
    found = answer(capsys, bars, bars, "--format", "xsv", "--format-options", told)
    assert [stream["samples"] for stream in found["epoch"]["streams"]] == [2, 2]


def test_what_a_shard_of_parquet_is_is_told_by_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [secrets.token_hex(512 << 10) for _ in range(6)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, use_dictionary=False)
    shards = {}
    for cache in ("shards", "file", "row_group"):
        dataset = StreamingDataset(local=str(tmp_path), cache=cache, batch_size=1)
        (stream,) = answer(capsys, tmp_path, "--cache", cache)["epoch"]["streams"]
        shards[cache] = stream["shards"]
        assert stream["shards"] == dataset.num_shards
    assert shards == {"shards": 1, "file": 1, "row_group": 3}
    assert run(tmp_path, "--cache", "none") == 1
    assert "--cache must be one of shards, file, row_group" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "xsv", "--format", "csv"), "--format comes 2 times for 1 datasets"),
        (("--format", "csv"), "`format` is 'csv', but by its index"),
        (("--version", "1"), "only tables have versions"),
    ],
)
def test_what_does_not_suit_a_stream_is_one_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(root, *arguments) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("opens_tables")
@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_an_epoch_of_an_old_version_of_a_table_is_planned(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = (make_delta if kind == "delta" else make_lance)(tmp_path / "table")
    found = answer(capsys, path, "--version", 1)
    assert found["epoch"]["streams"][0]["samples"] == (80 if kind == "delta" else 120)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["py1e", "block1"])
def test_a_million_batches_take_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algo: str
) -> None:
    shard = {
        "format": "mds",
        "version": 2,
        "samples": 32_000,
        "compression": None,
        "hashes": [],
        "column_names": ["x"],
        "column_encodings": ["bytes"],
        "column_sizes": [None],
        "size_limit": None,
        "zip_data": None,
    }
    raw = [{"basename": f"shard.{i:05}.mds", "bytes": 10**7, "hashes": {}} for i in range(1000)]
    index = dump_index([{**shard, "raw_data": data} for data in raw])
    (tmp_path / "index.json").write_bytes(index)
    start = time.process_time()
    world = ("--nodes", 8, "--ranks", 8, "--workers", 8, "--batch-size", 32)
    found = answer(capsys, tmp_path, *world, "--shuffle-algo", algo, "--step", 9000)
    assert time.process_time() - start < 30
    assert sum(found["epoch"]["batches_per_rank"]) * 32 == 10**6
    assert found["downloads"]["steps"] == 15_632
