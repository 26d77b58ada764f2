"""Ranks from the environment, and collectives for those who ask."""

from pathlib import Path

import pytest
import torch

from streaming import distributed
from streaming.errors import ConfigError
from tests.conftest import RunPython


def test_without_an_environment_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.get_rank() == distributed.get_local_rank() == 0
    assert distributed.get_world_size() == distributed.get_local_world_size() == 1
    assert distributed.maybe_init_dist() is False


def test_the_environment_says_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (distributed.get_rank(), distributed.get_local_rank()) == (5, 1)
    assert (distributed.get_world_size(), distributed.get_local_world_size()) == (8, 4)
    monkeypatch.setenv("RANK", "five")
    with pytest.raises(ConfigError, match="RANK must be a number"):
        distributed.get_rank()


def test_without_a_group_a_collective_is_of_one() -> None:
    distributed.barrier()
    tensor, gathered = torch.tensor([3]), [torch.tensor([0])]
    distributed.broadcast(tensor, 0)
    distributed.all_gather(gathered, tensor)
    assert gathered == [tensor]
    assert distributed.all_gather_object("x") == ["x"]
    assert distributed.agree("key", "value") is None


def test_two_ranks_exchange_what_they_have(tmp_path: Path, run_python: RunPython) -> None:
    script = """
import multiprocessing, os, sys

def rank(number, folder):
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    import torch
    from streaming import distributed
    where = f"file://{folder}/group"
    torch.distributed.init_process_group("gloo", init_method=where, rank=number, world_size=2)
    assert distributed.maybe_init_dist() is False
    assert distributed.all_gather_object(number) == [0, 1]
    tensor = torch.tensor([number])
    gathered = [torch.tensor([9]), torch.tensor([9])]
    distributed.all_gather(gathered, tensor)
    assert [each.item() for each in gathered] == [0, 1]
    distributed.broadcast(tensor, 1)
    assert tensor.item() == 1
    distributed.barrier()
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(i, sys.argv[1])) for i in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(any(each.exitcode for each in ranks))
"""
    run_python(script, tmp_path)
