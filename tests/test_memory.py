"""The memory of a process that reads does not grow with the dataset."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunPython

LIMIT = 150  # MB of anonymous memory beyond what is there after the imports

SCRIPT = """
import json, re, sys
from pathlib import Path
import numpy as np
from streaming import MDSWriter, StreamingDataset

def anonymous():
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", text)[1]) / 1024

out, options = sys.argv[1], json.loads(sys.argv[2])
before, most = anonymous(), 0
dataset = StreamingDataset(local=out, shuffle=True, **options)
for i, item in enumerate(dataset):
    if i % 500 == 0:
        most = max(most, anonymous())
order = np.random.default_rng(0).integers(0, dataset.size, 5000)
for i in order.tolist():
    dataset[i]
print(max(most, anonymous()) - before)
"""

# Samples, and values of a kind that take most: of many bytes, or of many objects.
CASES: dict[str, tuple[dict[str, str], int]] = {
    "small": ({"num": "int", "txt": "str"}, 100_000),
    "tokens": ({"tokens": "ndarray:int32:2048"}, 10_000),
    "large": ({"blob": "bytes"}, 200),
}


def write(out: Path, case: str) -> None:
    import numpy as np

    from streaming import MDSWriter

    columns, count = CASES[case]
    samples: dict[str, dict[str, Any]] = {
        "small": {"num": 1, "txt": "a line of some words that are all the same " * 2},
        "tokens": {"tokens": np.arange(2048, dtype=np.int32)},
        "large": {"blob": bytes(1 << 20)},
    }
    with MDSWriter(columns=columns, out=out, size_limit=1 << 24) as writer:
        for _ in range(count):
            writer.write(samples[case])


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_reader_stays_within_150_mb(
    case: str, batched: bool, tmp_path: Path, run_python: RunPython
) -> None:
    write(tmp_path, case)
    options = json.dumps({"batch_size": 64 if case != "large" else 4, "batched": batched})
    grown = float(run_python(SCRIPT, str(tmp_path), options).stdout)
    assert grown < LIMIT
