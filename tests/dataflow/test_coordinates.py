"""Where a process is among those that read different data."""

import logging
from typing import Any

import pytest

from streaming.dataflow import DataflowLoader, MapDistributor
from streaming.dataflow.coordinates import find_coordinates
from streaming.errors import ConfigError
from tests.conftest import RunPython


class Dims:
    def __init__(self, coord: Any) -> None:
        self.dp_coord = coord


class Mesh:
    """Stands for a DeviceMesh seen from one rank."""

    def __init__(self, shape: tuple[int, ...], names: Any, rank: int) -> None:
        self.shape = shape
        self.mesh_dim_names = names
        self.ndim = len(shape)
        self.rank = rank

    def size(self, dim: int | None = None) -> int:
        if dim is not None:
            return self.shape[dim]
        total = 1
        for size in self.shape:
            total *= size
        return total

    def get_local_rank(self, dim: int | None = None) -> int:
        rank = self.rank
        places: list[int] = []
        for size in reversed(self.shape):
            places.insert(0, rank % size)
            rank //= size
        return places[dim or 0]


def test_without_anything_there_is_one_rank() -> None:
    assert find_coordinates() == (0, 1)


def test_an_object_may_tell_by_dp_coord() -> None:
    assert find_coordinates(Dims((3, 8))) == (3, 8)
    assert find_coordinates(Dims(lambda: (1, 2))) == (1, 2)


def test_a_mesh_of_one_dimension_tells() -> None:
    assert find_coordinates(Mesh((4,), None, 2)) == (2, 4)
    assert find_coordinates(Mesh((4,), ("whatever",), 3)) == (3, 4)


def test_a_mesh_tells_by_the_names_of_its_dimensions() -> None:
    mesh = [Mesh((2, 3, 4), ("dp_replicate", "dp_shard", "tp"), rank) for rank in range(24)]
    assert [find_coordinates(each) for each in mesh] == [(rank // 4, 6) for rank in range(24)]
    assert find_coordinates(Mesh((2, 4), ("tp", "dp"), 7)) == (3, 4)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (Mesh((2, 2), ("tp", "pp"), 0), "None of the mesh's dimensions"),
        (Mesh((2, 2), None, 0), "without names"),
        (Dims((3, 3)), "no data-parallel rank 3 of 3"),
        (Dims(("a", 3)), "no data-parallel rank 'a'"),
        (object(), "dp_coord"),
    ],
    ids=["names", "no names", "rank", "type", "object"],
)
def test_what_does_not_tell_is_refused(dims: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_coordinates(dims)


def test_a_process_group_tells_and_says_what_that_means(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streaming.world.process_group", lambda: (1, 4))
    with caplog.at_level(logging.INFO):
        assert find_coordinates() == (1, 4)
    assert "give `parallel_dims`" in caplog.text


def test_case_H17_the_environment_tells_before_a_process_group_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataflowLoader(MapDistributor(range(40), epochs=1), batch_size=5)
        found += [number for batch in loader for number in batch.tolist()]
    assert sorted(found) == list(range(40))
    monkeypatch.setattr("streaming.world.process_group", lambda: (1, 2))
    with pytest.raises(ConfigError, match="process group says rank 1 of 2"):
        find_coordinates()


def test_torch_s_own_groups_and_meshes_tell(run_python: RunPython) -> None:
    pytest.importorskip("torch.distributed")
    code = """
import tempfile
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from streaming.dataflow import DataflowLoader, MapDistributor
from streaming.dataflow.coordinates import find_coordinates
with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    print(find_coordinates(), find_coordinates(mesh), find_coordinates(mesh["dp"]))
    dist.destroy_process_group()
"""
    assert run_python(code).stdout == "(0, 1) (0, 1) (0, 1)\n"
