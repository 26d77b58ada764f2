"""Composer and llm-foundry, by a stand-in: Composer does not install beside today's torch.

It keeps the dataset's state, not the loader's: it counts samples itself, asks
`dataset.state_dict(num_samples, from_beginning)`, and gives it back to `load_state_dict` of a new
dataset. llm-foundry makes datasets of plain configuration, with a tokenizer, and an evaluation set
beside the training set.
"""

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils.data import DataLoader

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

CONFIG: dict[str, Any] = {
    "streams": {
        "books": {"proportion": 0.75, "split": "train"},
        "web": {"proportion": 0.25, "split": "train"},
    },
    "shuffle": True,
    "shuffle_algo": "py1e",
    "shuffle_seed": 17,
    "max_seq_len": 8,
    "predownload": None,
    "cache_limit": None,
    "partition_algo": "relaxed",
    "num_canonical_nodes": 2,
    "shuffle_block_size": None,
    "sampling_method": "balanced",
    "sampling_granularity": 1,
    "batching_method": "random",
    "allow_unsafe_types": False,
    "replication": None,
}


class Tokenizer:
    """A stand-in with the call that a dataset makes."""

    def __call__(self, text: str, truncation: bool, padding: str, max_length: int) -> list[int]:
        assert truncation
        assert padding == "max_length"
        return (list(text.encode()) + [0] * max_length)[:max_length]


class TextDataset(StreamingDataset):
    """Built as llm-foundry builds its own: every argument passed on by name."""

    def __init__(self, tokenizer: Tokenizer, max_seq_len: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tokenizer, self.max_seq_len = tokenizer, max_seq_len

    def __getitem__(self, idx: Any) -> Any:
        sample = super().__getitem__(idx)
        tokens = self.tokenizer(
            sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len
        )
        return {"id": sample["id"], "tokens": tokens}


def build(root: Path, run: str, split: str = "train", batch_size: int = 4) -> TextDataset:
    config = dict(CONFIG)
    streams = []
    for name, about in config.pop("streams").items():
        about = {**about, "split": split}
        streams.append(Stream(remote=str(root / name), local=str(root / run / name), **about))
    return TextDataset(tokenizer=Tokenizer(), streams=streams, batch_size=batch_size, **config)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sources with a training and an evaluation split each."""
    for number, name in enumerate(("books", "web")):
        for split, count in (("train", 40), ("eval", 9)):
            out = str(tmp_path / name / split)
            with MDSWriter(out=out, columns={"id": "int", "text": "str"}, sample_limit=7) as writer:
                for i in range(count):
                    writer.write({"id": 1000 * number + i, "text": f"{name} {i}"})
    return tmp_path


class Trainer:
    """What Composer does with a loader: counts samples of the epoch, keeps the dataset's state."""

    def __init__(self, loader: DataLoader[Any], evaluation: DataLoader[Any] | None = None) -> None:
        self.loader, self.evaluation = loader, evaluation
        self.seen: list[int] = []
        self.evaluated: list[int] = []
        self.sample_in_epoch = 0

    def fit(self, batches: int) -> None:
        while batches:
            for batch in self.loader:
                self.seen += batch["id"].tolist()
                self.sample_in_epoch += len(batch["id"])
                batches -= 1
                if not batches:
                    return
            self.sample_in_epoch = 0
            if self.evaluation is not None:
                self.evaluated += [
                    each for batch in self.evaluation for each in batch["id"].tolist()
                ]

    def state_dict(self) -> dict[str, Any]:
        dataset: Any = self.loader.dataset
        return {"dataset": dataset.state_dict(self.sample_in_epoch, True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        dataset: Any = self.loader.dataset
        dataset.load_state_dict(state["dataset"])
        self.sample_in_epoch = state["dataset"]["sample_in_epoch"]


@pytest.mark.parametrize("loader", [DataLoader, StreamingDataLoader])
@pytest.mark.parametrize("batches", [3, 27])
def test_the_state_of_the_dataset_goes_through_the_trainers_checkpoint(
    root: Path, loader: type[DataLoader[Any]], batches: int
) -> None:
    def trainer(run: str, workers: int) -> Trainer:
        evaluation = loader(build(root, f"{run}-eval", "eval"), batch_size=4)
        return Trainer(loader(build(root, run), batch_size=4, num_workers=workers), evaluation)

    whole, first, rest = trainer("a", 2), trainer("b", 2), trainer("c", 1)
    whole.fit(35)
    first.fit(batches)
    state = first.state_dict()
    assert state["dataset"]["epoch"] == batches // 20
    rest.load_state_dict(state)
    rest.fit(35 - batches)
    assert first.seen == whole.seen[: 4 * batches]
    assert rest.seen == whole.seen[4 * batches :]
    # An evaluation in between changes nothing, and sees its own samples.
    assert {each % 1000 for each in whole.evaluated} <= set(range(9))
    assert len(whole.evaluated) == 18


def test_samples_are_tokenized_however_they_are_read(root: Path) -> None:
    dataset = build(root, "a")
    expected = Tokenizer()("books 3", truncation=True, padding="max_length", max_length=8)
    assert dataset[3]["tokens"] == expected
    assert {len(sample["tokens"]) for sample in dataset} == {8}


class LoaderState:
    """A loader in a distributed checkpoint: stateful, under a key of its rank."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return {"rank0": self.loader.state_dict() or {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["rank0"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_takes_the_loader(root: Path, tmp_path: Path) -> None:
    def ids(batches: Any, count: int = -1) -> list[list[int]]:
        found = []
        for batch in batches:
            found.append(batch["id"].tolist())
            if len(found) == count:
                break
        return found

    whole = ids(StreamingDataLoader(build(root, "a"), batch_size=4))
    loader = StreamingDataLoader(build(root, "b"), batch_size=4)
    first = ids(loader, 5)
    save({"loader": LoaderState(loader)}, checkpoint_id=str(tmp_path / "ck"), no_dist=True)
    other = StreamingDataLoader(build(root, "c"), batch_size=4, num_workers=1)
    ids(other, 1)  # So that there is something to load into.
    load({"loader": LoaderState(other)}, checkpoint_id=str(tmp_path / "ck"), no_dist=True)
    assert (first, ids(other)) == (whole[:5], whole[5:])
