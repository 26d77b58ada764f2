"""What docs/migrating.md shows works, and leads somewhere."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunPython
from tests.test_docs import FENCE

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")


def test_its_python_blocks_run(
    tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [code for language, code in FENCE.findall(PAGE) if language == "python"]
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        run_python(block)


def test_blocks_that_need_a_trainer_are_python_at_least() -> None:
    for language, code in FENCE.findall(PAGE):
        if language == "py":
            compile(code, "docs/migrating.md", "exec")


def test_its_links_within_the_page_lead_to_headings() -> None:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", PAGE), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {link for link in re.findall(r"\]\(#([^)]+)\)", PAGE) if link not in anchors} == set()
