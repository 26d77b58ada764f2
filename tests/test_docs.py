"""What the documentation shows works."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunPython

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [code for found, code in FENCE.findall(text) if found == language]


def test_the_python_blocks_of_the_readme_run_one_after_another(
    tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks("python")
    assert code
    for block in code:
        run_python(block)


def test_the_readme_names_the_make_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


GUIDES = sorted(ROOT.glob("docs/*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_python_blocks_of_the_guides_can_be_pasted(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, page.name, "exec")


@pytest.mark.parametrize("name", ["formats", "parquet", "tables", "text"])
def test_the_first_python_block_of_a_page_on_data_needs_no_other(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    code = next(code for language, code in FENCE.findall(text) if language == "python")
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {*dir(builtins)}
    known |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.alias)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    assert {node.id for node in names} <= known
