"""Scripts that drive a dataset as trainers do, each in an interpreter of its own."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming import MDSWriter
from tests.conftest import RunPython

__all__ = ["Drive", "needs", "write_numbers"]

Drive = Callable[..., Any]

# What every script begins with: a model whose training step keeps the ids it is given.
PRELUDE = """
import json, logging, os, sys, tempfile, warnings
warnings.simplefilter("ignore")  # Of the trainers, which have many.
logging.disable(logging.ERROR)
import torch
from streaming import Stream, StreamingDataLoader, StreamingDataset

def say(value):
    print("RESULT " + json.dumps(value), flush=True)

def make_loader(root, batch_size=4, num_workers=2, **kwargs):
    kwargs = {"shuffle": True, "num_canonical_nodes": 2, **kwargs}
    dataset = Vectors(local=root, batch_size=batch_size, **kwargs)
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=num_workers)

class Vectors(StreamingDataset):
    def get_item(self, sample_id):
        number = super().get_item(sample_id)["i"]
        return {"x": torch.full((3,), number / 100), "labels": torch.tensor(number)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def forward(self, x=None, labels=None):
        if self.training:
            self.seen.append(labels.tolist())
        found = self.layer(x)[:, 0]
        return {"loss": ((found - labels / 100) ** 2).mean(), "logits": found}
"""


def needs(module: str) -> pytest.MarkDecorator:
    """Skip where a trainer is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"needs {module}: pip install --group trainers, after torch",
    )


def write_numbers(root: Path, count: int = 40, first: int = 0) -> str:
    """A dataset of whole numbers, in shards of 7."""
    with MDSWriter(out=str(root), columns={"i": "int"}, sample_limit=7) as out:
        for i in range(first, first + count):
            out.write({"i": i})
    return str(root)


def drive(run_python: RunPython, script: str, *args: object) -> Any:
    """Run a script, and give what it says."""
    output = run_python(PRELUDE + script, *args, timeout=100).stdout
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))
