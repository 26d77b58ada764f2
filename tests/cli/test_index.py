from pathlib import Path

import pytest

from streaming import LocalDataset, MDSWriter
from streaming.cli import main
from tests.common.text import write


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, words)))
    return int(caught.value.code or 0)


def test_a_folder_gets_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.jsonl", '{"a": 1}\n')
    write(tmp_path / "b.jsonl.gz", '{"a": 2}\n')
    assert run("index", tmp_path) == 0
    assert "Indexed 2 samples in 2 json files" in capsys.readouterr().out
    assert LocalDataset(tmp_path)[:] == [{"a": 1}, {"a": 2}]


def test_options_say_how_separated_text_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "1\t'x'\t\"\n")
    words = ["--format", "xsv", "--separator", r"\t", "--no-header", "--no-quoting"]
    assert run("index", path, *words, "--names", "n,t,q", "--columns", "q=str,n=float") == 0
    assert LocalDataset(tmp_path)[:] == [{"q": '"', "n": 1.0}]


def test_options_may_come_as_json_as_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.txt", "1|x\n")
    told = '{"separator": "|", "header": false}'
    words = ["--format", "xsv", "--format-options", told]
    assert run("index", path, *words, "--separator", "|") == 1
    assert "--format-options says separator, and another option" in capsys.readouterr().err
    assert run("index", path, *words, "--names", "n,t") == 0
    assert LocalDataset(tmp_path)[:] == [{"n": 1, "t": "x"}]


def test_several_places_are_one_dataset(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", "a\n1\n")
    write(tmp_path / "a.csv", "a\n2\n")
    assert run("index", tmp_path / "b.csv", tmp_path / "a.csv") == 0
    assert LocalDataset(tmp_path)[:] == [{"a": 1}, {"a": 2}]


def test_an_index_is_replaced_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.csv", "a\n1\n")
    assert run("index", tmp_path) == 0
    assert run("index", tmp_path) == 1
    assert "has an index already" in capsys.readouterr().err
    assert run("index", tmp_path, "--overwrite") == 0


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.csv", "a,a\n1,2\n")
    assert run("index", tmp_path) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("streaming: error: The header of ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("marker", "kind"), [("_delta_log/0.json", "Delta table"), ("_versions/1", "Lance dataset")]
)
@pytest.mark.parametrize("name", ["", "*.csv", "a.csv"])
def test_a_table_is_refused(
    name: str, marker: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.csv", "a\n1\n")
    write(tmp_path / marker, "")
    before = sorted(tmp_path.rglob("*"))
    assert run("index", tmp_path / name) == 1
    errors = capsys.readouterr().err
    assert f"{tmp_path} is a {kind}, which has its own log and needs no index" in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dataset_that_a_writer_made_has_an_index_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MDSWriter(out=str(tmp_path), columns={"a": "int"}) as out:
        out.write({"a": 1})
    assert run("index", tmp_path) == 1
    assert "has an index already, index.json, and needs no other" in capsys.readouterr().err
