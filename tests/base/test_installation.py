"""Two distributions that install `streaming/` do not go together."""

import shutil
from pathlib import Path

import pytest

from streaming.util.installation import check_installation
from tests.conftest import ROOT, RunPython


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip fills it, with this package alone."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "streaming", tmp_path / "streaming", ignore=ignored)
    (tmp_path / "goldenspike-0.1.0.dist-info").mkdir()
    return tmp_path


@pytest.mark.parametrize("other", ["mosaicml_streaming-0.13.0", "streaming-1.2.3"])
def test_case_C10_another_distribution_beside_this_one_is_named(
    site: Path, run_python: RunPython, other: str
) -> None:
    (site / f"{other}.dist-info").mkdir()
    script = f"import sys; sys.path.insert(0, {str(site)!r}); import streaming"
    output = run_python(script, check=False)
    assert output.returncode == 1
    name = other.partition("-")[0].replace("_", "-")
    assert f"goldenspike, and {other}" in output.stderr
    assert f"pip uninstall --yes {name} goldenspike" in output.stderr


def test_files_that_another_left_behind_are_found(site: Path) -> None:
    (site / "streaming" / "base" / "dataset.py").touch()
    with pytest.raises(ImportError, match=r"a distribution that is not registered any more"):
        check_installation(site / "streaming")


def test_this_distribution_alone_imports(site: Path, run_python: RunPython) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import streaming as s; print(s.__file__)"
    )
    assert run_python(script).stdout.strip() == str(site / "streaming" / "__init__.py")


def test_case_C12_no_requirement_has_an_upper_bound_that_others_meet() -> None:
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    everything = project["dependencies"] + [each for extra in extras.values() for each in extra]
    shared = re.compile(r"(numpy|torch|transformers|pyarrow|pandas|fsspec|huggingface_hub)\b.*<")
    assert [each for each in everything if shared.match(each)] == []
    assert project["requires-python"] == ">=3.11"
