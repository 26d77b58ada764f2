import json
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import ConfigError
from streaming.world import World

RECORDED = json.loads((Path(__file__).parent / "golden" / "misc.json").read_text())
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.mark.parametrize("case", RECORDED["worlds"], ids=lambda case: str(case["args"]))
def test_worlds_are_as_recorded(case: dict[str, Any]) -> None:
    world = World(*case["args"])
    assert world.to_json() == case["world"]
    assert world.copy() == world
    for replication, wanted in case["replicate"].items():
        if "error" in wanted:
            with pytest.raises(ValueError, match="replication"):
                world.replicate(int(replication))
        else:
            assert world.replicate(int(replication)).to_json() == wanted["out"]


@pytest.mark.parametrize("case", RECORDED["detect"], ids=lambda case: str(case["env"]))
def test_the_environment_is_read_as_recorded(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in case["env"].items():
        monkeypatch.setenv(name, value)
    if case["out"]["num_nodes"]:
        assert World.detect().to_json() == case["out"]
    else:
        # The predecessor made a world of no nodes of this.
        with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE=8"):
            World.detect()


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"},
        {"RANK": "zero"},
    ],
)
def test_an_impossible_environment_is_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="|".join(variables)):
        World.detect()


@pytest.mark.parametrize(
    "arguments", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 1), (1, 1, 1, -1)]
)
def test_an_impossible_world_is_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError):
        World(*arguments)


def test_a_rank_is_seen_from_each_of_its_workers() -> None:
    world = World(2, 2, 1, worker=3)
    assert [world.with_workers(3, worker).worker for worker in range(3)] == [9, 10, 11]
    assert world.with_workers(0, 0) == world
    assert {world.with_workers(3, worker).rank for worker in range(3)} == {3}
