"""Old import paths lead to the modules of today, and say so once."""

import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

import streaming
import streaming.base
from streaming.errors import RemovedError
from tests.conftest import RunPython


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget which old paths were imported: each is imported, and warned of, once a process."""
    packages = ("streaming.base", "streaming.vision", "streaming.text")
    kept = dict(sys.modules)
    for name in list(sys.modules):
        if name.startswith("streaming.base.") and not name.startswith("streaming.base._"):
            del sys.modules[name]
    for name in streaming.base.__all__:
        vars(streaming.base).pop(name, None)
    yield
    sys.modules.update({name: kept[name] for name in kept if name.startswith(packages)})


def old(path: str) -> object:
    with pytest.warns(DeprecationWarning, match="The old path goes on working"):
        return importlib.import_module(path)


@pytest.mark.parametrize(
    ("path", "today"),
    [
        ("streaming.base.world", "streaming.world"),
        ("streaming.base.dataset", "streaming.dataset"),
        ("streaming.base.format.mds.encodings", "streaming.format.mds.encodings"),
        ("streaming.base.format.base.reader", "streaming.format.reader"),
        ("streaming.base.registry_utils", "streaming.util.registries"),
        ("streaming.base.storage.download", "streaming.storage.download"),
    ],
)
def test_an_old_module_is_the_same_object(path: str, today: str) -> None:
    found = old(path)
    assert found is importlib.import_module(today)
    assert isinstance(found, ModuleType)
    assert found.__spec__ is not None
    assert found.__spec__.name == found.__name__ == today


def test_an_old_module_can_be_loaded_anew(run_python: RunPython) -> None:
    script = """
import importlib, warnings
warnings.simplefilter("ignore")
import streaming.base.constant, streaming.constant
assert importlib.reload(streaming.base.constant) is streaming.constant
assert streaming.constant.__spec__.name == "streaming.constant"
assert streaming.base.constant.LOCALS == "locals"
"""
    run_python(script)


def test_one_warning_at_the_line_of_the_importer() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import streaming.base.format.mds.writer  # isort: skip
        from streaming.base.format.mds import writer as again  # isort: skip

        first = streaming.base.format.mds.writer
    assert first is again
    (warning,) = (each for each in caught if issubclass(each.category, DeprecationWarning))
    assert "`streaming.base.format.mds.writer` is `streaming.format.mds.writer`" in str(
        warning.message
    )
    assert Path(warning.filename) == Path(__file__)
    source = Path(__file__).read_text().splitlines()[warning.lineno - 1]
    assert source.strip().startswith("import streaming.base.format.mds.writer")


def test_a_name_of_the_old_package_warns_at_the_line_that_imports_it() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from streaming.base import MDSWriter  # isort: skip
    assert MDSWriter is streaming.MDSWriter
    (warning,) = caught
    assert (Path(warning.filename), warning.category) == (Path(__file__), DeprecationWarning)


def test_a_patch_by_the_old_path_hits() -> None:
    old("streaming.base.world")
    with mock.patch("streaming.base.world.detect_worker", return_value=(3, 1)):
        assert streaming.World.detect().workers_per_rank == 3


def test_a_pickle_that_names_the_old_path_loads() -> None:
    data = pickle.dumps(streaming.World(1, 2, 1, 0))
    assert b"streaming.world" in data
    # As protocol 0 has it: the name of a module is a line.
    data = pickle.dumps(streaming.World(1, 2, 1, 0), protocol=0)
    data = data.replace(b"cstreaming.world\n", b"cstreaming.base.world\n")
    with pytest.warns(DeprecationWarning):
        found = pickle.loads(data)
    assert type(found) is streaming.World
    assert found == streaming.World(1, 2, 1, 0)


def test_a_module_that_never_was_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match="streaming.base.nothing"):
        importlib.import_module("streaming.base.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = streaming.base.nothing


def test_names_without_a_meaning_say_what_took_their_place() -> None:
    shared = old("streaming.base.shared")
    with pytest.raises(RemovedError, match="files under kernel locks"):
        shared.SharedMemory(name="x", create=True, size=4)  # type: ignore[attr-defined]
    with pytest.raises(RemovedError, match="`get_shm_prefix` is gone"):
        shared.get_shm_prefix([], [], None)  # type: ignore[attr-defined]
    dataset = old("streaming.base.dataset")
    with pytest.raises(NotImplementedError, match="ordinary generator"):
        dataset._Iterator()  # type: ignore[attr-defined]


def test_a_stub_can_be_named_in_annotations_and_checks() -> None:
    shared = old("streaming.base.shared.barrier")
    stub = shared.SharedBarrier  # type: ignore[attr-defined]
    assert not isinstance(3, stub)
    assert stub.__name__ == "SharedBarrier"
    assert not hasattr(stub, "__wrapped__")


def test_old_modules_of_the_examples_are_one_module_now() -> None:
    import streaming.vision

    for name in ("streaming.vision.base", "streaming.vision.coco"):
        sys.modules.pop(name, None)
        assert old(name) is streaming.vision


def test_scripts_that_are_gone_say_what_to_do() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"is gone: .*streaming convert"):
        importlib.import_module("streaming.vision.convert.imagenet")


def test_importing_the_old_package_stays_light(run_python: RunPython) -> None:
    script = "import sys, streaming.base; print('torch' in sys.modules)"
    assert run_python(script).stdout == "False\n"


def test_old_functions_have_their_old_results() -> None:
    from streaming.partition import get_partitions
    from streaming.shuffle import get_shuffle

    partition, shuffle = old("streaming.base.partition"), old("streaming.base.shuffle")
    args = (10, 2, 1, 2, 1, 2)
    found = partition.get_partitions_orig(*args)  # type: ignore[attr-defined]
    assert (found == get_partitions("orig", *args)).all()
    found = shuffle.get_shuffle_py1s([5, 4, 11], 2, 7, 1)  # type: ignore[attr-defined]
    assert (found == get_shuffle("py1s", [5, 4, 11], 2, 7, 1)).all()  # type: ignore[arg-type]


def test_spans_are_divided_as_before() -> None:
    # As mosaicml-streaming 0.13.0 does it.
    module = old("streaming.base.shuffle.py1s")
    assert module.divide_spans([(0, 5), (5, 9), (9, 20)], 20, 4) == (  # type: ignore[attr-defined]
        [(0, 5), (5, 9), (9, 10), (10, 15), (15, 20)],
        [(0, 1), (1, 3), (3, 4), (4, 5)],
    )
