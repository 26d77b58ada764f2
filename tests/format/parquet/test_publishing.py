"""Footers beside the data: written once, then nobody reads those of the files."""

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402

from streaming import Stream  # noqa: E402
from streaming.cli import main  # noqa: E402
from streaming.errors import ConfigError, OutputExistsError  # noqa: E402
from streaming.format.publishing import Report, write_index  # noqa: E402
from tests.common.parquet import number_table, obtain, read_files  # noqa: E402
from tests.common.text import write as write_text  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(3):
        table = number_table(10 * number, 10 * number + 10)
        pq.write_table(table, tmp_path / "data" / f"{number}.parquet", row_group_size=4)
    return tmp_path / "data"


def test_an_index_beside_the_data_is_found(folder: Path, parsed: list[str], tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert write_index(folder) == Report(str(folder), "parquet", 3, 30, size)
    assert (folder / "_streaming.arrow").exists()
    parsed.clear()
    rows = read_files(folder, tmp_path / "cache")
    assert rows == number_table(0, 30).to_pylist()
    assert parsed == []


def test_files_that_changed_since_are_looked_at(
    folder: Path, parsed: list[str], tmp_path: Path
) -> None:
    write_index(folder)
    pq.write_table(number_table(0, 5), folder / "1.parquet")
    pq.write_table(number_table(0, 6), folder / "4.parquet")
    parsed.clear()
    assert obtain(folder, tmp_path / "cache").index.table.samples.tolist() == [10, 5, 10, 6]
    assert sorted(parsed) == ["1.parquet", "4.parquet"]


def test_an_index_may_be_elsewhere(folder: Path, parsed: list[str], tmp_path: Path) -> None:
    place = tmp_path / "other" / "index.arrow"
    assert write_index(folder, out=place).where == str(place)
    assert sorted(path.suffix for path in folder.iterdir()) == [".parquet"] * 3
    parsed.clear()
    options = {"index": str(place)}
    assert obtain(folder, tmp_path / "cache", options=options).index.samples == 30
    assert parsed == []


@pytest.mark.parametrize("name", ["nowhere/index.arrow", "."])
@pytest.mark.parametrize("is_known", [False, True])
def test_an_index_that_is_not_where_the_user_says_is_told(
    name: str, is_known: bool, folder: Path, tmp_path: Path
) -> None:
    if is_known:  # All that an index says is in the cache.
        obtain(folder, tmp_path / "cache")
    stream = Stream(
        remote=str(folder),
        local=str(tmp_path / "cache"),
        format_options={"index": str(tmp_path / name)},
    )
    stream.apply_default({})
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"an index of {folder} that can't be read.*{name}"):
            stream.open()


def test_an_index_is_replaced_only_if_asked(folder: Path) -> None:
    write_index(folder)
    with pytest.raises(OutputExistsError, match="has an index already"):
        write_index(folder)
    write_index(folder, overwrite=True)


def test_an_index_of_text_lies_beside_it(tmp_path: Path) -> None:
    write_text(tmp_path / "a.csv", "a\n1\n")
    with pytest.raises(ConfigError, match="index of csv data lies beside them, and nowhere else"):
        write_index(tmp_path, out=tmp_path / "x")


def test_the_command_line_indexes_parquet(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": [1], "more": [2]}), folder / "9.parquet")
    words = ["index", str(folder), "--out", str(tmp_path / "index.arrow")]
    for more, code in (([], 1), (["--allow-schema-mismatch"], 0)):
        with pytest.raises(SystemExit) as caught:
            main([*words, *more])
        assert int(caught.value.code or 0) == code
    said = capsys.readouterr()
    assert "has 'more' more" in said.err
    assert "Indexed 31 samples in 4 parquet files" in said.out
