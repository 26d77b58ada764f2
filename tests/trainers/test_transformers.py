"""Hugging Face's Trainer keeps the state of callbacks; one of ours carries the loader's."""

from itertools import chain
from pathlib import Path

import pytest

from tests.common.trainers import drive, needs, write_numbers
from tests.conftest import RunPython

pytestmark = [needs("transformers"), pytest.mark.slow]

SCRIPT = """
from transformers import Trainer, TrainingArguments
from streaming.trainers.huggingface import LoaderState

root, resume_at, skips = sys.argv[1], sys.argv[2], sys.argv[3] == "skip"
folder = tempfile.mkdtemp()

class OurTrainer(Trainer):
    def get_train_dataloader(self):
        return make_loader(root)

def train(steps, checkpoint=None):
    args = TrainingArguments(
        output_dir=folder, max_steps=steps, save_steps=2, save_strategy="steps", report_to=[],
        per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, logging_steps=1000,
        remove_unused_columns=False, ignore_data_skip=not skips,
        restore_callback_states_from_checkpoint=True,
    )
    trainer = OurTrainer(model=Model(), args=args, callbacks=[LoaderState()])
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.model.seen

whole = train(16)
checkpoint = f"{folder}/checkpoint-{resume_at}"
try:
    say([whole, train(16, checkpoint)])
except ValueError as error:
    say([whole, str(error)])
"""


@pytest.mark.parametrize("resume_at", [4, 12])
def test_a_checkpoint_of_the_trainer_goes_on_exactly(
    tmp_path: Path, run_python: RunPython, resume_at: int
) -> None:
    root = write_numbers(tmp_path / "train")
    whole, rest = drive(run_python, SCRIPT, root, resume_at, "no skip")
    assert sorted(chain.from_iterable(whole[:10])) == list(range(40))
    assert rest == whole[resume_at:]


def test_a_trainer_that_would_skip_as_well_is_told(tmp_path: Path, run_python: RunPython) -> None:
    _, error = drive(run_python, SCRIPT, write_numbers(tmp_path / "train"), 4, "skip")
    assert "ignore_data_skip=True" in error


TOKENS = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from streaming import MDSWriter
from streaming.text import StreamingC4

root, folder = sys.argv[1], sys.argv[2]
words = {"[UNK]": 0, "the": 1, "golden": 2, "spike": 3, "</s>": 4}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
with MDSWriter(out=root, columns={"text": "str"}) as out:
    out.write({"text": "the golden spike"})
    out.write({"text": "the the the the the the"})
dataset = StreamingC4(
    local=root, tokenizer_name=folder, max_seq_len=5, group_method="truncate", batch_size=2,
    num_canonical_nodes=1,
)
(batch,) = StreamingDataLoader(dataset, batch_size=2, collate_fn=lambda samples: samples)
say([sample["input_ids"] for sample in batch])
"""


def test_the_example_datasets_of_text_tokenize(tmp_path: Path, run_python: RunPython) -> None:
    found = drive(run_python, TOKENS, tmp_path / "data", tmp_path / "tokenizer")
    assert found == [[1, 2, 3, 4, 4], [1, 1, 1, 1, 1]]
