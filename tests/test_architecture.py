"""Who may import whom, and what `import streaming` may cost. Reads the source; runs little of it.

The layers are those of docs/design/architecture.md, section 2. A module that stands in no line of
the table fails: put it where it belongs, here and there.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunPython

PACKAGE = ROOT / "streaming"

# Layer to modules; a name ending in ".*" is a package with all in it.
LAYERS = {
    0: """
        streaming streaming.errors streaming.constant streaming.hashing streaming.compression
        streaming.array streaming.table streaming.world streaming.util streaming.util.importing
        streaming.util.pretty streaming.util.retrying streaming.util.migration
        streaming.util.checking streaming.util.installation streaming.util.registries
        streaming.util.waiting
    """,
    1: "streaming.storage.*",
    2: "streaming.format.*",
    3: """
        streaming.spanner streaming.sampling streaming.resampling streaming.idmap
        streaming.schedule streaming.mixing streaming.partition.*
        streaming.shuffle.* streaming.batching.* streaming.plan
    """,
    4: """
        streaming.distributed streaming.shared.* streaming.cache streaming.prefetch
        streaming.pace streaming.runtime
    """,
    5: """
        streaming.config streaming.source streaming.stream streaming.overriding
        streaming.access streaming.direct streaming.iteration streaming.dataset streaming.state
        streaming.local streaming.dataloader streaming.foreign
    """,
    6: "streaming.dataflow.*",
    7: """
        streaming.__main__ streaming.cli.* streaming.converters.* streaming.demo
        streaming.explain.*
        streaming.peek streaming.surveying streaming.metrics streaming.vision
        streaming.example streaming.multimodal streaming.text streaming.trainers.*
        streaming.util.merging streaming.util.shared streaming.base.*
    """,
}

# Below layer 5 these import torch, inside functions.
TORCH_IN_FUNCTIONS = ("streaming.world", "streaming.distributed", "streaming.format.mds.encodings")

# Clients of object stores and other heavy packages; only the modules named import them.
CLOUD = {"obstore", "fsspec", "boto3", "botocore", "google", "azure", "oci", "paramiko"}
CLOUD_HOMES = ("streaming.storage.stores", "streaming.storage.guard")
HEAVY = CLOUD | {"torch", "PIL", "pyarrow", "deltalake", "lance", "typer", "rich", "nicegui"}


@dataclass(frozen=True)
class Import:
    """One import statement: `target` is a module, or a name in one."""

    target: str
    line: int
    in_function: bool

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def imports(self) -> Iterator[Import]:
        return _imports(self.tree, in_function=False)


def _imports(node: ast.AST, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, in_function)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield Import(f"{child.module}.{alias.name}", child.lineno, in_function)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, in_function or is_function)


def _read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


MODULES = {module.name: module for module in map(_read, sorted(PACKAGE.rglob("*.py")))}


def layer_of(module: str) -> int | None:
    for layer, text in LAYERS.items():
        for name in text.split():
            package = name.removesuffix(".*")
            if module == package or (name != package and module.startswith(package + ".")):
                return layer
    return None


def is_in(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


def module_of(target: str) -> str:
    """The module an import statement loads: ``a.b.Name`` is in ``a.b`` if ``a.b.Name`` is none."""
    return target if target in MODULES else target.rpartition(".")[0]


def where(module: Module, found: Import) -> str:
    return f"{module.path.relative_to(ROOT)}:{found.line} imports {found.target}"


def test_every_module_has_a_layer() -> None:
    assert [name for name in MODULES if layer_of(name) is None] == []


def test_every_name_in_a_layer_is_a_module() -> None:
    names = " ".join(LAYERS.values()).split()
    assert [name for name in names if name.removesuffix(".*") not in MODULES] == []


def test_no_module_imports_from_a_higher_layer() -> None:
    wrong = []
    for module in MODULES.values():
        # The names of these load on first use, from everywhere.
        if module.name in ("streaming", "streaming.util"):
            continue
        own = layer_of(module.name)
        for found in module.imports:
            if found.top != "streaming":
                continue
            other = layer_of(module_of(found.target))
            if own is not None and (other is None or other > own):
                wrong.append(f"{where(module, found)} (layer {own} from {other})")
    assert wrong == []


def test_ordering_knows_only_numpy_and_the_ground() -> None:
    wrong = []
    for module in MODULES.values():
        if layer_of(module.name) != 3:
            continue
        for found in module.imports:
            ours = found.top == "streaming" and layer_of(module_of(found.target)) in (0, 3)
            if not ours and found.top != "numpy" and found.top not in sys.stdlib_module_names:
                wrong.append(where(module, found))
    assert wrong == []


def test_torch_is_imported_by_the_upper_layers_only() -> None:
    wrong = []
    for module in MODULES.values():
        layer = layer_of(module.name)
        for found in module.imports:
            if found.top != "torch" or layer is None or layer >= 5:
                continue
            if not (found.in_function and is_in(module.name, TORCH_IN_FUNCTIONS)):
                wrong.append(where(module, found))
    assert wrong == []


def test_clients_of_stores_are_imported_by_stores_only() -> None:
    wrong = [
        where(module, found)
        for module in MODULES.values()
        for found in module.imports
        if found.top in CLOUD and not is_in(module.name, CLOUD_HOMES)
    ]
    assert wrong == []


def test_every_public_module_has_a_docstring_and_all() -> None:
    wrong = []
    for module in MODULES.values():
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        if not ast.get_docstring(module.tree):
            wrong.append(f"{module.name} has no docstring")
        names = [
            target.id
            for node in module.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        if "__all__" not in names:
            wrong.append(f"{module.name} has no __all__")
    assert wrong == []


def test_every_name_in_all_is_there() -> None:
    wrong = []
    for module in MODULES.values():
        offered: list[str] = next(
            (
                ast.literal_eval(node.value)
                for node in module.tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ),
            [],
        )
        wrong += [f"{module.name}.{name}" for name in offered if not _binds(module.tree, name)]
    assert wrong == []


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether the top level defines, assigns or imports a name (under TYPE_CHECKING too)."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                return True
            case ast.Name(id=bound, ctx=ast.Store()) if bound == name:
                return True
            case ast.alias() if (node.asname or node.name) == name:
                return True
    return False


def test_import_streaming_loads_nothing_heavy(run_python: RunPython) -> None:
    script = (
        "import sys, streaming; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = set(run_python(script).stdout.split())
    assert "streaming" in loaded
    assert loaded & HEAVY == set()


def test_reading_and_writing_without_torch_loads_no_torch(run_python: RunPython) -> None:
    script = "import sys; from streaming import MDSWriter, World; print('torch' in sys.modules)"
    assert run_python(script).stdout == "False\n"


def test_a_name_that_needs_torch_says_so_in_one_sentence(run_python: RunPython) -> None:
    script = """
import sys
sys.modules["torch"] = None  # What an environment without torch looks like to `import`.
import streaming
try:
    streaming.StreamingDataset
except ImportError as error:
    print(type(error).__name__, error)
"""
    output = run_python(script).stdout
    assert output.startswith("MissingExtraError `streaming.StreamingDataset` needs the package")
    assert 'pip install "goldenspike[torch]"' in output


def test_every_public_name_resolves(run_python: RunPython) -> None:
    script = """
import streaming
for name in streaming.__all__:
    assert getattr(streaming, name) is getattr(streaming, name), name
    assert name in dir(streaming), name
print(streaming.__version__)
"""
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run_python(script).stdout)


def _text_files() -> list[Path]:
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the git checkout, to know which files belong to the repository")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_holds_a_path_of_one_machine() -> None:
    # Put together here, so that this file does not hold what it looks for.
    private = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + "home/", "/" + "Users/"]))
    hosts = re.compile("--" + "(extra-)?index-url|--" + "find-links")
    wrong = []
    for path in _text_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # Recorded data.
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if private.search(line) or hosts.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert wrong == []
