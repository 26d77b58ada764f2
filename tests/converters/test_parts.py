"""Datasets written in parts, as each process of a cluster writes one."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset
from streaming.converters.parts import Batches, Parts, as_json
from streaming.errors import ConfigError, EmptyDatasetError, EncodeError, OutputExistsError

pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")

COLUMNS = {"number": "int64", "about": "json"}
NAMES = list(COLUMNS)


def frame(start: int, stop: int) -> Any:
    return pandas.DataFrame(
        {
            "number": range(start, stop),
            "about": [{"half": np.array([i // 2])} for i in range(start, stop)],
        }
    )


def write(parts: Parts, name: str, *frames: Any, batches: Batches | None = None) -> Any:
    make = (batches or Batches(COLUMNS, NAMES)).make
    return pickle.loads(pickle.dumps(parts)).write(name, map(make, frames), True)


def open_parts(out: Any, **arguments: Any) -> Parts:
    return Parts.open(**{"out": out, "columns": COLUMNS, "size_limit": 200, **arguments})


def test_parts_are_one_dataset_in_the_order_in_which_they_are_merged(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "all")
    first = write(parts, "9", frame(0, 8), frame(8, 20))
    second = write(parts, "10", frame(20, 30))
    parts.merge([first, second])
    samples = list(LocalDataset(str(tmp_path / "all")))
    assert [sample["number"] for sample in samples] == list(range(30))
    assert samples[7]["about"] == {"half": [3]}
    assert first == (str(tmp_path / "all" / "9" / "index.json"), "")


def test_a_part_without_samples_leaves_no_folder(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "all")
    assert write(parts, "0", frame(0, 0)) is None
    assert write(parts, "1") is None
    assert list((tmp_path / "all").iterdir()) == []
    with pytest.raises(EmptyDatasetError, match="no part has samples"):
        parts.merge([])


def test_a_function_makes_samples_of_frames(tmp_path: Path) -> None:
    def halves(rows: Any, *, factor: int) -> Iterator[dict[str, Any]]:
        for number in rows["number"]:
            yield {"half": number / 2 * factor}

    parts = open_parts(tmp_path / "all", columns={"half": "float64"})
    batches = Batches({"half": "float64"}, NAMES, halves, {"factor": 10})
    parts.merge([write(parts, "0", frame(0, 3), frame(3, 5), batches=batches)])
    found = [sample["half"] for sample in LocalDataset(str(tmp_path / "all"))]
    assert found == [0, 5, 10, 15, 20]


def test_a_function_that_gives_no_samples_is_named(tmp_path: Path) -> None:
    def nothing(rows: Any) -> None:
        return None

    with pytest.raises(ConfigError, match="nothing gave NoneType"):
        write(open_parts(tmp_path), "0", frame(0, 3), batches=Batches(COLUMNS, NAMES, nothing))  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_local", [True, False])
def test_what_is_at_the_remote_need_not_stay(tmp_path: Path, keep_local: bool) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    parts = open_parts((here, there), keep_local=keep_local)
    part = write(parts, "0", frame(0, 5))
    assert part == (f"{here}/0/index.json", f"{there}/0/index.json")
    parts.merge([part])
    parts.clean()
    assert here.exists() is keep_local
    assert len(LocalDataset(str(there))) == 5


def test_a_broken_sample_leaves_a_part_without_index(tmp_path: Path) -> None:
    parts = open_parts(tmp_path / "all", columns={"number": "str"})
    with pytest.raises(EncodeError, match="Row 0"):
        write(parts, "0", frame(0, 5))
    assert not (tmp_path / "all" / "0" / "index.json").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(OutputExistsError, match="not empty"):
        open_parts(tmp_path)
    open_parts(tmp_path, exist_ok=True)
    assert list(tmp_path.iterdir()) == []


def test_rows_and_arrays_become_what_json_holds() -> None:
    row = SimpleNamespace(asDict=lambda: {"a": np.int32(1), 2: np.array([1.5])})
    assert as_json(row) == {"a": 1, "2": [1.5]}
    assert as_json([row, None, "x"]) == [{"a": 1, "2": [1.5]}, None, "x"]
