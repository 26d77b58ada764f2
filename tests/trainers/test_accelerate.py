"""Accelerate: its checkpoints take the loader; `prepare`, which would shard twice, is refused."""

import json
from pathlib import Path

import pytest

from tests.common.trainers import PRELUDE, drive, needs, write_numbers
from tests.conftest import RunPython

pytestmark = [needs("accelerate"), pytest.mark.slow]

CHECKPOINT = """
from accelerate import Accelerator

root, folder = sys.argv[1], tempfile.mkdtemp()

def ids(loader, stop=None):
    found = []
    for batch in loader:
        found.append(batch["labels"].tolist())
        if len(found) == stop:
            break
    return found

accelerator = Accelerator(cpu=True)
loader = make_loader(root)
accelerator.register_for_checkpointing(loader)
first = ids(loader, 4)
accelerator.save_state(folder)

accelerator = Accelerator(cpu=True)
loader = make_loader(root, num_workers=0)
accelerator.register_for_checkpointing(loader)
accelerator.load_state(folder)
say([ids(make_loader(root)), first, ids(loader), len(ids(loader))])
"""

PREPARED = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

root, folder = sys.argv[1:]
errors = []
for dispatch in (None, False, True):
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = make_loader(root, num_workers=0)
    for workers in (None, 0, 1):
        plain = torch.utils.data.DataLoader(loader.dataset, batch_size=4, num_workers=workers or 0)
        try:
            if workers is None:
                accelerator.prepare(loader)
            elif dispatch is False or accelerator.is_main_process:
                # With dispatching only rank 0 reads, and the others would wait for it.
                next(iter(accelerator.prepare(plain)))
            else:
                raise ValueError("Do not `prepare` the loader")
        except Exception as error:
            errors.append(str(error))
with open(f"{folder}/{accelerator.process_index}", "w") as file:
    json.dump(errors, file)
torch.distributed.destroy_process_group()
"""


def test_a_registered_loader_is_saved_and_goes_on(tmp_path: Path, run_python: RunPython) -> None:
    root = write_numbers(tmp_path / "data")
    whole, first, rest, next_epoch = drive(run_python, CHECKPOINT, root)
    assert (first, rest, next_epoch) == (whole[:4], whole[4:], 10)


def test_a_prepared_loader_of_several_ranks_is_refused(
    tmp_path: Path, run_python: RunPython
) -> None:
    root, folder = write_numbers(tmp_path / "data"), tmp_path / "errors"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + PREPARED)
    launch = """
import runpy, sys
sys.argv = ["torchrun", "--standalone", "--nproc-per-node", "2", *sys.argv[1:]]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
    run_python(launch, script, root, folder, timeout=100)
    for rank in "01":
        errors = json.loads((folder / rank).read_text())
        assert len(errors) == 9
        assert all("Do not `prepare` the loader" in error for error in errors), (rank, errors)


def test_one_rank_may_be_prepared(tmp_path: Path, run_python: RunPython) -> None:
    script = """
from accelerate import Accelerator
loader = Accelerator(cpu=True).prepare(make_loader(sys.argv[1]))
say(sorted(sum((batch["labels"].tolist() for batch in loader), [])))
"""
    assert drive(run_python, script, write_numbers(tmp_path / "data")) == list(range(40))
