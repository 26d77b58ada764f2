"""An index beside data that came without: what is read with it is what is read without."""

import json
from pathlib import Path
from typing import Any

import pytest

from streaming import LocalDataset, StreamingDataset
from streaming.errors import ConfigError, DataError, EmptyDatasetError, OutputExistsError
from streaming.format.publishing import Report, write_index
from streaming.format.text import indexing
from streaming.storage import open_store
from tests.common.text import read_plain, write

ROWS = [{"i": i, "t": f'é "{i}", x\n' * (i % 3)} for i in range(30)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in ROWS)
CSV = "i,t\r\n" + "".join(
    f'{row["i"]},"{str(row["t"]).replace(chr(34), chr(34) * 2)}"\r\n' for row in ROWS
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    dataset = LocalDataset(path)
    rows: list[dict[str, Any]] = dataset.__getitems__(range(len(dataset)))
    assert [dataset[i] for i in range(len(dataset))] == rows
    return rows


def names(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_lines_of_json_become_a_dataset_that_others_read(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", LINES)
    report = write_index(tmp_path)
    assert report == Report(str(tmp_path), "json", 1, 30, len(LINES.encode()))
    assert names(tmp_path) == ["a.jsonl", "a.jsonl.meta", "index.json"]
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert shard == {
        "columns": {"i": "int", "t": "str"},
        "compression": None,
        "format": "json",
        "hashes": [],
        "newline": "\n",
        "raw_data": {"basename": "a.jsonl", "bytes": len(LINES.encode()), "hashes": {}},
        "raw_meta": shard["raw_meta"],
        "samples": 30,
        "size_limit": None,
        "version": 2,
        "zip_data": None,
        "zip_meta": None,
    }
    meta = (tmp_path / "a.jsonl.meta").read_bytes()
    config = json.loads(meta[4 + 4 * 31 :])
    assert config["columns"] == {"i": "int", "t": "str"}
    assert rows_of(tmp_path) == ROWS


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2"])
@pytest.mark.parametrize(("name", "text"), [("a.jsonl", LINES), ("a.csv", CSV)])
def test_what_is_read_is_what_was_read_without(
    name: str, text: str, ending: str, tmp_path: Path
) -> None:
    write(tmp_path / "data" / "sub" / f"{name}{ending}", text)
    write(tmp_path / "data" / f"b{name}", text)
    assert write_index(tmp_path / "data").samples == 60
    assert rows_of(tmp_path / "data") == ROWS * 2
    dataset = StreamingDataset(
        remote=str(tmp_path / "data"), local=str(tmp_path / "cache"), batch_size=4, shuffle=True
    )
    wanted: list[Any] = [row["i"] for row in ROWS] * 2
    assert sorted(row["i"] for row in dataset) == sorted(wanted)


def test_separated_text_has_keys_that_others_do_not_know(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "i|t\n1|x\n")
    write_index(
        tmp_path / "a.txt",
        format="csv",
        columns={"t": "str"},
        options={"separator": "|", "quoting": False},
    )
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert shard["format"] == "xsv"
    assert shard["separator"] == "|"
    assert shard["quoting"] is False
    assert shard["newline"] is None
    assert shard["declared"] == ["t"]
    assert rows_of(tmp_path) == [{"t": "x"}]


def test_a_large_file_has_wider_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_U32", 10)
    write(tmp_path / "a.jsonl", LINES)
    write_index(tmp_path)
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert shard["offset_bytes"] == 8
    assert rows_of(tmp_path) == ROWS


def test_any_store_takes_an_index(tmp_path: Path) -> None:
    store, _ = open_store("memory://publishing")
    for name in ("d/a.jsonl", "d/b.jsonl.gz"):
        store.put_file(write(tmp_path / name, LINES), name)
    assert write_index("memory://publishing/d").samples == 60
    assert sorted(info.key for info in store.list("d/")) == [
        "d/a.jsonl",
        "d/a.jsonl.meta",
        "d/b.jsonl.gz",
        "d/b.jsonl.meta.gz",
        "d/index.json",
    ]
    dataset = StreamingDataset(remote="memory://publishing/d", batch_size=4)
    assert list(dataset) == ROWS * 2


def test_an_index_that_is_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", LINES)
    write_index(tmp_path)
    write(tmp_path / "a.jsonl", LINES * 2)
    with pytest.raises(OutputExistsError, match="has an index already"):
        write_index(tmp_path)
    assert write_index(tmp_path, overwrite=True).samples == 60
    assert rows_of(tmp_path) == ROWS * 2


def test_there_is_no_index_if_a_file_is_broken(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", CSV)
    write(tmp_path / "b.csv", CSV + '1,"2\n')
    with pytest.raises(DataError, match="b.csv.* never closed"):
        write_index(tmp_path)
    assert not (tmp_path / "index.json").exists()


def test_nothing_to_index_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing at .* that is read without an index"):
        write_index(tmp_path)
    write(tmp_path / "a.csv", "a,b\n")
    with pytest.raises(EmptyDatasetError, match="hold no samples"):
        write_index(tmp_path)
    write(tmp_path / "a.mds", "")
    with pytest.raises(ConfigError, match="mds data have an index of their own"):
        write_index(tmp_path, format="mds")


def test_what_was_indexed_is_left_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", LINES)
    before = read_plain(tmp_path)
    write_index(tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == LINES
    assert rows_of(tmp_path) == before
