"""Lightning asks the loader for its state at each checkpoint, and gives it back."""

from itertools import chain
from pathlib import Path

import pytest

from tests.common.trainers import drive, needs, write_numbers
from tests.conftest import RunPython

pytestmark = [needs("lightning"), pytest.mark.slow]

SCRIPT = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

root, valid, resume_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = tempfile.mkdtemp()

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.checked = Model(), []

    def training_step(self, batch, number):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, number):
        self.checked += batch["labels"].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)

def fit(steps, checkpoint=None):
    module = Module()
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[saving],
        num_sanity_val_steps=0,
    )
    trainer.fit(
        module, make_loader(root), make_loader(valid, num_workers=0), ckpt_path=checkpoint
    )
    return module

whole = fit(16)
fit(resume_at + 1)
rest = fit(16, f"{folder}/step={resume_at}.ckpt")
say([whole.model.seen, rest.model.seen, whole.checked])
"""


@pytest.mark.parametrize("resume_at", [4, 12])
def test_case_R2_a_lightning_checkpoint_goes_on_exactly(
    tmp_path: Path, run_python: RunPython, resume_at: int
) -> None:
    root, valid = write_numbers(tmp_path / "train"), write_numbers(tmp_path / "valid", 8, 100)
    whole, rest, checked = drive(run_python, SCRIPT, root, valid, resume_at)
    assert sorted(chain.from_iterable(whole[:10])) == list(range(40))
    assert rest == whole[resume_at:]
    assert sorted(checked) == list(range(100, 108))  # After the one epoch that ended.
