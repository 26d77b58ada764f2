"""Arguments of a writer that can't be meant as they are."""

import os
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ConfigError
from streaming.format.mds.writer import MDSWriter


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", None),
        ("out", 3),
        ("out", b"data"),
        ("out", "a\0b"),
        ("out", (None, None)),
        ("out", (3, "data")),
        ("columns", ["a"]),
        ("columns", {}),
        ("columns", {"a": 3}),
        ("compression", 3),
        ("hashes", 3),
        ("hashes", "sha1"),
        ("hashes", [1]),
        ("size_limit", float("nan")),
        ("size_limit", "much"),
        ("sample_limit", "x"),
        ("sample_limit", True),
        ("max_workers", 0),
        ("retry", -1),
        ("keep_local", "no"),
        ("exist_ok", "no"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"out": str(tmp_path / "out"), "columns": {"a": "int"}}
    with pytest.raises(ConfigError, match=name):
        MDSWriter(**{**arguments, name: value})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["", " "])
def test_an_empty_out_is_not_the_current_directory(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("x")
    monkeypatch.chdir(tmp_path)
    for place in (out, ("local", out), (out, "remote")):
        with pytest.raises(ConfigError, match="names no directory"):
            MDSWriter(out=place, columns={"a": "int"}, exist_ok=True)
    assert os.listdir(tmp_path) == ["precious"]
