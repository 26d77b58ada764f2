"""The predecessor's public names, all of them, under the paths and with the signatures they had."""

import importlib
import inspect
import json
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "api.json").read_text(encoding="utf-8")
)["modules"]

# Modules without one in their place; importing the public ones among them says what to do.
GONE = {
    r"streaming\._version": "`streaming.__version__` has it",
    r"streaming\.\w+\.convert\b.*": "scripts that wrote the example datasets",
    r"simulation\b.*": "a program of its own, not a library",
}


def is_gone(module: str) -> bool:
    return any(re.fullmatch(pattern, module) for pattern in GONE)


# What only Spark can bring to life; see the test at the end.
SPARK = "streaming.base.converters"
HAS_SPARK = find_spec("pyspark") is not None and find_spec("pandas") is not None

MODULES = {
    name: found
    for name, found in RECORDED.items()
    if not is_gone(name) and (HAS_SPARK or not name.startswith(SPARK))
}
PACKAGES = {name for name in RECORDED if any(other.startswith(name + ".") for other in RECORDED)}


def load(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module)


def names(recorded: dict[str, Any], module: str) -> set[str]:
    """What a user may import from a module. What a plain module imports for itself is its own."""
    found = {*recorded.get("functions", {}), *recorded.get("classes", {})}
    found |= {name for name in recorded.get("all", ()) if name != "__version__"}
    found |= {name for name in recorded.get("constants", ()) if name != "logger"}
    if module in PACKAGES:
        found |= recorded.get("imports", {}).keys()
    return found


# Names that are no part of the interface: type variables.
NOT_PUBLIC = {"CallableBoundT", "S", "TCallable", "TObj", "TypeBoundT"}

# Signatures that differ, by the start of "module.Class.method" or "module.function", and why.
OTHER = {
    "streaming.base.dataloader.StreamingDataLoader.__init__": "it had to be given `dataset`",
    "streaming.base.storage.upload.AlipanUploader.check_token": "the store checks at first use",
    "streaming.base.storage.upload.DBFSUploader.check_folder_exists": "the store checks",
    "streaming.base.format.base.reader.Reader.__init__": "made of what the index says, "
    "by `reader_from_json` or `get_shards`; nobody has all these arguments at hand",
    "streaming.base.format.base.writer.": "the same arguments, but not each by its name; threads "
    "and uploads are private",
    "streaming.base.format.json.reader.": "as Reader",
    "streaming.base.format.mds.reader.": "as Reader",
    "streaming.base.format.xsv.reader.": "as Reader",
    "streaming.base.format.mds.encodings.List.underlying_encoder": "given to the constructor",
    "streaming.base.format.mds.encodings.JPEGList.underlying_encoder": "given to the constructor",
    "streaming.base.format.mds.encodings.PILList.underlying_encoder": "given to the constructor",
    "streaming.base.format.mds.encodings.PNGList.underlying_encoder": "given to the constructor",
    "streaming.base.format.mds.encodings.Scalar.__init__": "the type says its dtype",
}


def _names_of_modules() -> Iterator[tuple[str, str]]:
    for module, recorded in MODULES.items():
        for name in sorted(names(recorded, module) - NOT_PUBLIC):
            yield module, name


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_old_module_is_there(module: str) -> None:
    assert load(module) is not None


def test_every_old_name_is_there() -> None:
    missing = []
    for module, name in _names_of_modules():
        found = load(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if not hasattr(found, name):
                missing.append(f"{module}.{name}")
    assert missing == []


@pytest.mark.parametrize("module", sorted(name for name in RECORDED if is_gone(name)))
def test_what_is_gone_says_so(module: str) -> None:
    if module.startswith("streaming.") and "convert" in module:
        with pytest.raises(ModuleNotFoundError, match=r"is gone: .*MDSWriter"):
            load(module)
    else:
        with pytest.raises(ModuleNotFoundError):
            load(module)


def _callables() -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Path, what it is now, and the recorded parameters, of every function and method."""
    for module, recorded in MODULES.items():
        home = load(module)
        for name, function in recorded.get("functions", {}).items():
            yield f"{module}.{name}", getattr(home, name), function["params"]
        for name, cls in recorded.get("classes", {}).items():
            found = getattr(home, name)
            if is_stub(found):
                continue
            for method, about in cls["methods"].items():
                is_dunder = method.startswith("__") and method != "__init__"
                if not is_dunder and not method.endswith("(setter)"):
                    yield f"{module}.{name}.{method}", _method(found, method), about["params"]


def _method(cls: Any, name: str) -> Any:
    found = inspect.getattr_static(cls, name, None)
    return getattr(found, "__func__", found)


def is_stub(value: Any) -> bool:
    return isinstance(value, type) and type(value).__name__ == "_Removed"


def test_signatures_take_what_they_took() -> None:
    wrong = {}
    for path, found, recorded in _callables():
        if any(path.startswith(start) for start in OTHER):
            continue
        if isinstance(found, property) or is_stub(found):
            continue
        problem = "missing" if found is None else differs(inspect.signature(found), recorded)
        if problem:
            wrong[path] = problem
    assert wrong == {}


def test_every_exception_from_the_signatures_is_still_needed() -> None:
    wrong = {
        path
        for path, found, recorded in _callables()
        if not isinstance(found, property)
        and (found is None or is_stub(found) or differs(inspect.signature(found), recorded))
    }
    assert [start for start in OTHER if not any(path.startswith(start) for path in wrong)] == []


def differs(signature: inspect.Signature, recorded: list[dict[str, Any]]) -> str | None:
    """Why a call that was right could fail now; None if none can."""
    now = signature.parameters
    kinds = [each.kind for each in now.values()]
    positional = [
        each.name
        for each in now.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    named = {each["name"] for each in recorded}
    for place, old in enumerate(recorded):
        name, kind = old["name"], old["kind"]
        if kind == "var_keyword":
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                return "takes no **kwargs"
            continue
        if kind == "var_positional":
            if inspect.Parameter.VAR_POSITIONAL not in kinds:
                return "takes no *args"
            continue
        if name not in now:
            return f"has no {name!r}"
        if kind == "positional" and positional[place : place + 1] != [name]:
            return f"{name!r} is not its parameter {place}"
        if "default" in old and now[name].default is inspect.Parameter.empty:
            return f"{name!r} must be given now"
        if "default" in old and now[name].default != default(old["default"]):
            return f"{name!r} is {now[name].default!r} by default, and was {old['default']}"
    added = [
        each.name
        for each in now.values()
        if each.name not in named
        and each.default is inspect.Parameter.empty
        and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return f"{added} must be given now" if added else None


def default(text: str) -> Any:
    """The value of a recorded default."""
    return eval(text, {"DEFAULT_TIMEOUT": 60.0, "tuple": tuple})


def test_every_name_of_the_table_in_the_specification_is_found_at_once(run_python: Any) -> None:
    script = """
import warnings
warnings.simplefilter("ignore")
import streaming
from streaming.base.dataset import NEVER, TICK, StreamingDataset, _IterState, _Iterator, _ShardState
from streaming.base.constant import BARRIER, DEFAULT_TIMEOUT, LOCALS, SHM_TO_CLEAN
from streaming.base.shared import SharedArray, SharedMemory, _get_path, get_shm_prefix
assert (LOCALS, BARRIER, len(SHM_TO_CLEAN), TICK) == ("locals", "barrier", 9, 0.007)
assert NEVER == 2**64 - 1 and _ShardState.LOCAL == 3 and _IterState.EXITED == 2
assert streaming.base.util.merge_index.__name__ == "merge_index"
assert streaming.vision.StreamingImageNet is streaming.vision.imagenet.StreamingImageNet
assert streaming.text.StreamingC4 and streaming.multimodal.StreamingInsideWebVid
"""
    run_python(script)


@pytest.mark.skipif(HAS_SPARK, reason="Spark is here")
def test_what_needs_spark_names_the_extra_when_it_is_imported() -> None:
    with pytest.raises(ImportError, match=r"goldenspike\[spark\]"):
        load(f"{SPARK}.dataframe_to_mds")
    for name in RECORDED[SPARK]["all"]:
        with pytest.raises(ImportError, match=r"goldenspike\[spark\]"):
            getattr(load(SPARK), name)
