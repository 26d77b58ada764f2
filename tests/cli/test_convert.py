"""`streaming convert`, from the command line to the dataset."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset
from streaming.cli import main
from tests.conftest import ROOT, RunPython


def run(*arguments: object) -> int:
    """Run a command in this process and give its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def samples_of(path: Path) -> list[dict[str, Any]]:
    return list(LocalDataset(str(path)))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in range(100)))
    return path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    root = tmp_path / "notes"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"first")
    (root / "sub" / "b.bin").write_bytes(b"\xff\x00")
    return root


def test_a_jsonl_file_becomes_a_dataset(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("convert", rows, tmp_path / "out") == 0
    assert samples_of(tmp_path / "out") == [{"id": i, "text": f"row {i}"} for i in range(100)]
    assert "Wrote 100 samples" in capsys.readouterr().out


def test_a_folder_becomes_a_dataset(notes: Path, tmp_path: Path) -> None:
    assert run("convert", notes, tmp_path / "out") == 0
    assert samples_of(tmp_path / "out") == [
        {"path": "a.txt", "size": 5, "text": b"first"},
        {"path": "sub/b.bin", "size": 2, "text": b"\xff\x00"},
    ]


def test_the_options_reach_the_writer(rows: Path, tmp_path: Path) -> None:
    options = ["--compression", "gz:1", "--hashes", "xxh64,sha1", "--size-limit", "1kb"]
    assert run("convert", rows, tmp_path / "out", *options) == 0
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert len(index["shards"]) > 2
    assert index["shards"][0]["compression"] == "gz:1"
    assert index["shards"][0]["hashes"] == ["sha1", "xxh64"]
    assert index["shards"][0]["size_limit"] == 1024


def test_columns_override_what_is_inferred(rows: Path, tmp_path: Path) -> None:
    columns = ["--columns", "id=uint16,text=bytes"]
    assert run("convert", rows, tmp_path / "out", "--compression", "none", *columns) == 0
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert index["shards"][0]["column_encodings"] == ["uint16", "bytes"]
    assert (tmp_path / "out" / "shard.00000.mds").exists()


def test_a_comma_may_stand_within_an_encoding(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"x": [[1, 2, 3], [4, 5, 6]], "y": "z"}\n')
    columns = ["--columns", "x=ndarray:uint8:2,3,y=str"]
    assert run("convert", tmp_path / "rows.jsonl", tmp_path / "out", *columns) == 0
    [sample] = samples_of(tmp_path / "out")
    assert sample["x"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_file_url_is_written_to(rows: Path, tmp_path: Path) -> None:
    assert run("convert", rows, (tmp_path / "out").as_uri()) == 0
    assert len(samples_of(tmp_path / "out")) == 100


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("{", [], "rows.jsonl, line 101 is not JSON"),
        ('{"id": "x", "text": "y"}', ["--columns", "id=int"], "rows.jsonl, line 101: "),
        ("{}", ["--columns", "id=int"], "rows.jsonl, line 101: "),
        ('{"id": 300}', ["--columns", "id=uint8"], "rows.jsonl, line 101: "),
        ("", ["--columns", "id"], "--columns takes NAME=ENCODING, but got 'id'"),
        ("", ["--columns", "nix=int"], "No line of"),
        ("", ["--columns", "id=nix"], "nix"),
        ("", ["--compression", "nix"], "nix"),
        ("", ["--hashes", "nix"], "nix"),
        ("", ["--size-limit", "nix"], "nix"),
        ("", ["--pattern", "*"], "--pattern chooses among the files of a folder"),
    ],
)
def test_on_failure_one_line_says_why_and_nothing_is_left(
    rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    options: list[str],
    message: str,
) -> None:
    with open(rows, "a") as file:
        file.write(line)
    assert run("convert", rows, tmp_path / "out", *options) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("streaming: error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_an_output_that_is_not_empty_is_refused(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert run("convert", rows, tmp_path / "out") == 1
    assert run("convert", rows, tmp_path / "out", "--overwrite") == 1  # Not a dataset.
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_overwriting_replaces_a_dataset_by_a_whole_one_only(
    rows: Path, notes: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("convert", notes, out) == 0
    assert run("convert", rows, out) == 1
    assert run("convert", rows, out, "--overwrite", "--columns", "text=int") == 1
    assert len(samples_of(out)) == 2
    assert run("convert", rows, out, "--overwrite") == 0
    assert len(samples_of(out)) == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out", "rows.jsonl"]


def test_the_output_lies_outside_of_the_input(notes: Path) -> None:
    assert run("convert", notes, notes / "out") == 1
    assert run("convert", notes, notes) == 1
    assert run("convert", notes / "sub", notes, "--overwrite") == 1


def test_an_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run("convert", tmp_path / "empty", tmp_path / "out") == 1
    assert "the source has no samples" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_killed_conversion_leaves_no_dataset(tmp_path: Path) -> None:
    """Killed while it waits for more input, with shards already on disk."""
    pipe = tmp_path / "folder" / "more"
    (tmp_path / "folder").mkdir()
    for i in range(50):
        (tmp_path / "folder" / f"{i:03}").write_bytes(os.urandom(1000))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from streaming.converters import folder\n"
        "from streaming.cli import main\n"
        "read = folder.Path.read_bytes\n"
        "def wait_at_the_last(path):\n"
        "    if path.name == '049':\n"
        "        print('here', flush=True)\n"
        "        sys.stdin.read()\n"
        "    return read(path)\n"
        "folder.Path.read_bytes = wait_at_the_last\n"
        "main(sys.argv[1:])\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, str(script), "convert", str(pipe.parent), str(out)]
    with subprocess.Popen(
        [*command, "--size-limit", "2kb"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert list(tmp_path.rglob("index.json")) == []
    assert run("convert", pipe.parent, out) == 0


def test_a_missing_extra_is_named_in_one_line(run_python: RunPython) -> None:
    script = """
import sys
sys.modules["typer"] = None  # What an environment without typer looks like to `import`.
from streaming.cli import main
main(["convert"])
"""
    found = run_python(script, check=False)
    assert found.returncode == 1
    assert found.stderr == (
        "streaming: error: This needs the package 'typer', which is not installed. "
        'Install it with: pip install "goldenspike[cli]"\n'
    )
