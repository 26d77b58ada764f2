"""What the page shows works."""

import re

import pytest

import streaming.dataflow
from tests.conftest import ROOT, RunPython

PAGE = (ROOT / "docs" / "dataflow.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_block_runs_by_itself(run_python: RunPython) -> None:
    pytest.importorskip("PIL")
    assert len(BLOCKS) >= 7
    # In one process, each with names of its own: torch is imported once.
    code = "\n".join(
        f"exec(compile({block!r}, 'block {number}', 'exec'), {{'__name__': '__main__'}})"
        for number, block in enumerate(BLOCKS)
    )
    run_python(code, timeout=110)


def test_every_built_in_role_is_on_the_page() -> None:
    ends = ("Distributor", "Processor", "Batcher", "Collator", "Loader")
    for name in streaming.dataflow.__all__:
        if (
            name.endswith(ends)
            and "Cosmos" not in name
            and name not in ("PoolBatcher", "PackingBatcher")
        ):
            assert f"`{name}" in PAGE, name
