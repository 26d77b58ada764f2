"""The predecessor's registries."""

from pathlib import Path
from typing import Any

import pytest

from streaming.errors import UnknownNameError
from streaming.util.registries import (
    TypedRegistry,
    construct_from_registry,
    create_registry,
    import_file,
    save_registry,
)


class Thing:
    def __init__(self, size: int = 1) -> None:
        self.size = size


def double(x: int) -> int:
    return 2 * x


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> TypedRegistry[Any]:
    found = create_registry("tests", request.node.name, generic_type=type, description="things")
    found.register("thing", func=Thing)
    found.register("double", func=double)
    return found


def test_names_are_registered_by_call_and_by_decorator(registry: TypedRegistry[Any]) -> None:
    @registry.register("other")
    class Other: ...

    @registry("third")
    class Third: ...

    assert registry.get("thing") is Thing
    assert registry.get_all().keys() == {"thing", "double", "other", "third"}
    assert registry.get("third") is Third
    assert "other" in registry
    assert registry.description == "things"


def test_a_name_may_be_registered_again(registry: TypedRegistry[Any]) -> None:
    registry.register("thing", func=double)
    assert registry.get("thing") is double


def test_an_unknown_name_is_a_value_error_that_lists_those_known(
    registry: TypedRegistry[Any],
) -> None:
    with pytest.raises(UnknownNameError, match="Known: double, thing") as caught:
        registry.get("nothing")
    assert isinstance(caught.value, ValueError)


def test_classes_are_made_and_functions_filled_in(registry: TypedRegistry[Any]) -> None:
    thing = construct_from_registry("thing", registry, kwargs={"size": 5})
    assert (type(thing), thing.size) == (Thing, 5)
    assert construct_from_registry("double", registry, kwargs={"x": 4})() == 8
    assert construct_from_registry("double", registry, False, kwargs={"x": 4}) == 8


def test_what_is_made_can_be_checked_before_and_after(registry: TypedRegistry[Any]) -> None:
    seen: list[Any] = []
    construct_from_registry(
        "thing", registry, pre_validation_function=seen.append, post_validation_function=seen.append
    )
    assert seen[0] is Thing
    assert type(seen[1]) is Thing
    construct_from_registry("thing", registry, pre_validation_function=Thing)
    with pytest.raises(ValueError, match="subclass of int"):
        construct_from_registry("thing", registry, pre_validation_function=int)
    registry.register("number", func=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a class or a function"):
        construct_from_registry("number", registry)


def test_a_file_is_run_for_what_it_registers(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("value = 5")
    assert import_file(tmp_path / "good.py").value == 5
    (tmp_path / "bad.py").write_text("raise KeyError('x')")
    with pytest.raises(RuntimeError, match="KeyError") as caught:
        import_file(str(tmp_path / "bad.py"))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(FileNotFoundError):
        import_file(tmp_path / "none.py")


def test_registrations_of_a_block_end_with_it_also_when_it_fails(
    registry: TypedRegistry[Any],
) -> None:
    with pytest.raises(ZeroDivisionError), save_registry():
        registry.register("for now", func=Thing)
        registry.register("thing", func=double)
        raise ZeroDivisionError
    assert registry.get_all() == {"thing": Thing, "double": double}
