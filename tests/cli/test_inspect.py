"""`streaming inspect` on datasets whole, partial, hostile and missing."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from streaming import MDSWriter
from streaming.cli import main
from streaming.format.publishing import write_index
from tests.common.plain import PLAIN_KINDS, write_plain_files
from tests.common.tables import deltalake, make_delta, make_lance, table_of, write_delta
from tests.conftest import ROOT

FORMATS = ROOT / "tests" / "golden" / "datasets" / "formats"
MDS = sorted(path.name for path in FORMATS.glob("mds_*"))


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards, compressed only."""
    path = tmp_path / "data"
    columns = {"id": "int", "text": "str", "tokens": "ndarray:uint8"}
    with MDSWriter(out=str(path), columns=columns, compression="zstd", size_limit="2kb") as out:
        for i in range(30):
            tokens = np.arange(100, dtype=np.uint8)
            out.write({"id": i, "text": f"text {i} " + "x" * 100, "tokens": tokens})
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", MDS)
def test_every_recorded_dataset_can_be_looked_at(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(FORMATS / name)
    assert run(FORMATS / name) == 0
    index = json.loads((FORMATS / name / "index.json").read_text())
    count = sum(shard["samples"] for shard in index["shards"])
    assert f"{count} samples in {len(index['shards'])} shards" in capsys.readouterr().out
    assert files_of(FORMATS / name) == before


def test_columns_shards_and_samples_are_shown(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(dataset)
    assert run(dataset, "--samples", 2, "--shards", 1) == 0
    text = capsys.readouterr().out
    assert "30 samples in " in text
    assert "mds, compression zstd, hashes none" in text
    for part in ("ndarray:uint8", "shard.00000.mds", "zip", "shards more", "sample 1"):
        assert part in text
    assert "'text 1 xxx" in text
    assert "(107 characters)" in text
    assert "uint8 100 [0 1 2 3 4 5 6 7 8 9 10 11 ...]" in text
    assert "sample 2" not in text
    assert files_of(dataset) == before


def test_a_url_may_be_given(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(dataset.as_uri()) == 0
    assert "30 samples" in capsys.readouterr().out


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_pickles_stay_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"x": "pkl", "y": "int"}
    with MDSWriter(out=str(tmp_path / "data"), columns=columns) as out:
        out.write({"x": Bomb(tmp_path / "fired"), "y": 12345})
    assert run(tmp_path / "data") == 0
    text = capsys.readouterr().out
    assert "(pickled; opening it could run code)" in text
    assert "12345" in text
    assert not (tmp_path / "fired").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "fired")))
    assert (tmp_path / "fired").exists()


def test_texts_from_the_data_do_not_reach_the_terminal_as_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MDSWriter(out=str(tmp_path / "data"), columns={"\x1b[2J[red]": "str"}) as out:
        out.write({"\x1b[2J[red]": "\x1b[31m[bold]"})
    assert run(tmp_path / "data") == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"\x1b[2J[red]" in text
    assert r"'\x1b[31m[bold]'" in text


def test_samples_come_from_the_first_shard_that_is_here(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "shard.00000.mds.zstd").unlink()
    assert run(dataset) == 0
    text = capsys.readouterr().out
    assert "1 of the" in text
    assert "'text 0 " not in text
    assert "sample 0" in text


def test_without_any_shard_the_index_is_shown(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in dataset.glob("shard*"):
        path.unlink()
    assert run(dataset) == 0
    assert "None of the shards is here" in capsys.readouterr().out


def test_a_broken_shard_is_one_line(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dataset / "shard.00000.mds.zstd"
    path.write_bytes(path.read_bytes()[::-1])
    assert run(dataset) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("streaming: error: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", '{"version": 2}', '{"shards": [], "version": 3}'])
def test_a_broken_index_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "index.json").write_text(text)
    assert run(tmp_path) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("streaming: error: ")
    assert "index.json" in errors
    assert errors.count("\n") == 1


def test_a_place_without_index_names_its_splits(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nothing") == 1
    assert "There is no" in capsys.readouterr().err
    shutil.copytree(dataset, tmp_path / "all" / "train")
    shutil.copytree(dataset, tmp_path / "all" / "val")
    assert run(tmp_path / "all") == 1
    assert "There are splits: train, val." in capsys.readouterr().err


# --- Tables ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("opens_tables")
@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_table_is_shown_with_its_versions_and_at_any_of_them(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = make_delta if kind == "delta" else make_lance
    path = maker(tmp_path / "table")
    before = files_of(path)
    assert run(path, "--samples", "1") == 0
    shown = capsys.readouterr().out
    newest = 7 if kind == "delta" else 8
    assert f"version {newest}: " in shown
    assert f"> {newest} " in shown
    assert "OPTIMIZE" in shown if kind == "delta" else "tag good" in shown
    assert "sample 0" in shown
    assert run(path, "--version", "1", "--history", "2", "--samples", "0") == 0
    shown = capsys.readouterr().out
    assert "version 1: " in shown
    assert f"{80 if kind == 'delta' else 120} samples" in shown
    assert "... and older versions" in shown
    assert files_of(path) == before


@pytest.mark.usefixtures("opens_tables")
def test_a_table_without_rows_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    deltalake().DeltaTable(str(path)).delete()
    assert run(path) == 0
    assert "version 1: 0 samples" in capsys.readouterr().out


# --- Data without an index ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_plain_files_are_shown_with_columns_files_and_samples(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plain_files(kind, tmp_path / "data")
    before = files_of(path)
    assert run(path, "--samples", 2, "--shards", 1) == 0
    text = capsys.readouterr().out
    assert "without an index: 30 samples in 3 shards" in text
    for part in ("number", f"0.{kind}", "... and 2 more", "sample 1", "'row 1'"):
        assert part in text
    assert "sample 2" not in text
    assert files_of(path) == before


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_plain_files_that_were_indexed_are_shown(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plain_files(kind, tmp_path / "data")
    write_index(str(path))
    assert run(path) == 0
    text = capsys.readouterr().out
    assert "30 samples in 3 shards" in text
    assert "'row 1'" in text


def test_a_file_or_a_pattern_may_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_plain_files("jsonl", tmp_path / "data")
    assert run(path / "1.jsonl") == 0
    assert "10 samples in 1 shards" in capsys.readouterr().out
    assert run(path / "[12].jsonl") == 0
    assert "20 samples in 2 shards" in capsys.readouterr().out
    assert run(path / "9.jsonl") == 1
    assert "9.jsonl" in capsys.readouterr().err


def test_a_place_where_nothing_is_says_what_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nothing") == 1
    assert f"There is no folder or file {tmp_path}/nothing." in capsys.readouterr().err
    assert run(tmp_path) == 1
    assert "No file in" in capsys.readouterr().err


def test_a_file_without_rows_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert run(tmp_path / "rows.jsonl") == 0
    assert "rows.jsonl: data without an index: 0 samples" in capsys.readouterr().out


def test_the_current_directory_may_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_plain_files("csv", tmp_path / "data"))
    assert run(".") == 0
    assert ".: csv without an index: 30 samples" in capsys.readouterr().out


def test_a_version_of_what_is_no_table_is_refused(dataset: Path) -> None:
    assert run(dataset, "--version", "3") == 1


def bars(path: Path) -> Path:
    """A file with an ending that says nothing, whose fields are separated by bars."""
    path.write_text("number|text\n1|one\n2|two\n")
    return path


BARS = ("--format", "xsv", "--format-options", '{"separator": "|"}')


def test_plain_files_are_shown_as_they_are_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bars(tmp_path / "data.txt")
    assert run(path) == 1
    assert run(path, *BARS, "--columns", "number=str,text=str") == 0
    text = capsys.readouterr().out
    assert "xsv without an index: 2 samples in 1 shards" in text
    assert "'1'" in text
    assert run(path, *BARS, "--columns", "text", "--samples", "1") == 0
    shown = capsys.readouterr().out.partition("sample 0")[2]
    assert "'one'" in shown
    assert "number" not in shown


def test_columns_of_a_dataset_with_an_index_may_be_chosen(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(dataset, "--columns", "id", "--samples", "1") == 0
    shown = capsys.readouterr().out.partition("sample 0")[2]
    assert "id" in shown
    assert "tokens" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "csv"), "`format` is 'csv', but by its index"),
        (("--format-options", '{"separator": "|"}'), "`format_options` and the encodings"),
        (("--columns", "id=int"), "`format_options` and the encodings"),
        (("--columns", "nothing"), "no column 'nothing'"),
        (("--format", "best"), "no shard format 'best'"),
        (("--format-options", "{"), "--format-options is not JSON"),
        (("--format-options", "[1]"), "--format-options must be a JSON object"),
        (("--version", "3"), "Only tables have versions"),
    ],
)
def test_what_does_not_suit_a_dataset_is_one_sentence(
    arguments: tuple[str, ...],
    message: str,
    dataset: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(dataset, *arguments) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("opens_tables")
def test_the_files_of_a_table_are_shown_past_its_log_if_so_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table"
    write_delta(path, table_of(0, 5).select(["id"]))
    deltalake().DeltaTable(str(path)).delete()
    assert run(path, "--format", "parquet") == 0
    assert "parquet without an index: 5 samples" in capsys.readouterr().out


@pytest.mark.usefixtures("opens_tables")
def test_rows_of_a_table_are_shown_through_a_filter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_lance(tmp_path / "table")
    told = ("--version", "1", "--format-options", '{"filter": "id < 7"}', "--columns", "id")
    assert run(path, *told) == 0
    assert "version 1: 7 samples" in capsys.readouterr().out
