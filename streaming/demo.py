"""What `streaming demo` shows: real files, written, streamed, trained on, interrupted, resumed."""

import json
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from streaming.converters.folder import FIELDS, FolderSource, find_files
from streaming.converters.writing import Progress, Report, write_dataset
from streaming.dataloader import StreamingDataLoader
from streaming.dataset import StreamingDataset
from streaming.errors import ConfigError, DataError

__all__ = ["FIRST_WORKERS", "RESUMED_WORKERS", "Demo", "Speed", "Trained", "find_sources"]

FIRST_WORKERS: Final = 2
RESUMED_WORKERS: Final = 3
CONTEXT: Final = 256  # bytes of each file that a step trains on
MOST_BYTES: Final = 30_000_000

Batch = dict[str, Any]


def find_sources(num_files: int | None = None) -> tuple[Path, list[Path]]:
    """Find the source files of the running Python's standard library, a folder every machine has.

    Empty files are left out, installed packages too, and the library's own tests if all would be
    over 30 MB.

    Args:
        num_files: Take about so many, from all over; None takes all.

    Returns:
        The folder and its files.

    Raises:
        ConfigError: This Python has no source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in find_files(root, "*.py")
        if not {"site-packages", "dist-packages"} & set(path.parts) and path.stat().st_size
    ]
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        tests = {"test", "tests", "idle_test"}
        files = [path for path in files if not tests & set(path.relative_to(root).parts)]
    if not files:
        raise ConfigError(f"This Python has no source files in {root}, which the demo would read.")
    return root, files[:: max(1, len(files) // num_files)] if num_files else files


@dataclass(frozen=True, slots=True)
class Speed:
    """One pass over a dataset that was not cached: samples, their bytes, and seconds."""

    samples: int
    size: int
    seconds: float
    first_batch: float


@dataclass(frozen=True, slots=True)
class Trained:
    """How the training went.

    Attributes:
        steps: Steps in all.
        first_loss: Mean loss of the first steps, in nats per byte.
        last_loss: The same of the last ones.
        before: Samples of the interrupted epoch that came before the interruption.
        after: Those that came after it, from the new loader.
    """

    steps: int
    first_loss: float
    last_loss: float
    before: int
    after: int


class Demo:
    """The demo in a directory: `remote/` holds the dataset, `cache/` what was fetched of it.

    Args:
        place: The directory.
        root: Folder of the source files.
        files: The source files.
    """

    def __init__(self, place: Path, root: Path, files: Sequence[Path]) -> None:
        self.remote = place / "remote"
        self.cache = place / "cache"
        self.state = place / "state.json"
        self._root = root
        self._files = files
        self._ids = {path.relative_to(root).as_posix(): i for i, path in enumerate(files)}
        self.batch_size = max(1, min(8, len(files) // 16))
        self.steps_per_epoch = -(-len(files) // self.batch_size)

    @property
    def size(self) -> int:
        """Bytes of the source files."""
        return sum(path.stat().st_size for path in self._files)

    def write(self, progress: Progress) -> Report:
        """Write the files as a dataset."""
        return write_dataset(
            FolderSource(self._root, self._files, FIELDS),
            self.remote,
            compression="zstd",
            hashes=["sha1", "xxh64"],
            size_limit=max(self.size // 8, 1 << 16),  # Some 16 shards: each byte is there twice.
            progress=progress,
        )

    def make_loader(self, num_workers: int) -> StreamingDataLoader:
        """A loader over a new dataset object, as a new run would make it."""
        dataset = StreamingDataset(
            remote=str(self.remote),
            local=str(self.cache),
            validate_hash="xxh64",
            shuffle=True,
            batch_size=self.batch_size,
        )
        return StreamingDataLoader(
            dataset, batch_size=self.batch_size, num_workers=num_workers, collate_fn=collate
        )

    def stream(self, loader: StreamingDataLoader, progress: Progress) -> Speed:
        """Read one epoch and compare every sample with its file.

        Raises:
            DataError: A sample is lost, repeated, or not what its file is.
        """
        texts: dict[str, bytes] = {}
        ids: list[int] = []
        first_batch = 0.0
        started = time.perf_counter()
        for batch in loader:
            first_batch = first_batch or time.perf_counter() - started
            texts.update(zip(batch["path"], batch["text"], strict=True))
            ids += self._ids_of(batch)
            progress(len(batch["path"]))
        seconds = time.perf_counter() - started
        self.check_union(ids)
        for path, text in texts.items():
            if text != (self._root / path).read_bytes():
                raise DataError(f"The sample {path} differs from its file in {self._root}.")
        return Speed(len(ids), sum(map(len, texts.values())), seconds, first_batch)

    def train(self, loader: StreamingDataLoader, epochs: int, progress: Progress) -> Trained:
        """Train for some epochs, interrupted in the middle of one.

        Args:
            loader: Is used up to the interruption; after it a new one with other workers goes on.
            epochs: At least 1.
            progress: Is told of each step.

        Raises:
            DataError: The interrupted epoch lost or repeated a sample.
        """
        learner = Learner()

        def learn(batches: Iterable[Batch]) -> list[int]:
            ids = []
            for batch in batches:
                learner.step(batch["tokens"])
                ids += self._ids_of(batch)
                progress(1)
            return ids

        whole = epochs // 2
        for _ in range(whole):
            learn(loader)
        before = learn(islice(loader, self.steps_per_epoch // 2))
        self.state.write_text(json.dumps(loader.state_dict()))

        loader = self.make_loader(RESUMED_WORKERS)
        loader.load_state_dict(json.loads(self.state.read_text()))
        after = learn(loader)
        self.check_union([*before, *after])
        for _ in range(epochs - whole - 1):
            learn(loader)
        few = max(1, len(learner.losses) // 10)
        return Trained(
            steps=len(learner.losses),
            first_loss=float(np.mean(learner.losses[:few])),
            last_loss=float(np.mean(learner.losses[-few:])),
            before=len(before),
            after=len(after),
        )

    def check_union(self, ids: Sequence[int]) -> None:
        """Check that every sample came, and came once.

        Raises:
            DataError: One did not; the message says how many and names one.
        """
        counts = np.bincount(np.asarray(ids, np.int64), minlength=len(self._files))
        for what, wrong in (("lost", counts == 0), ("repeated", counts > 1)):
            if wrong.any():
                example = self._files[int(wrong.argmax())]
                raise DataError(f"{int(wrong.sum())} samples were {what}, such as {example}.")

    def _ids_of(self, batch: Batch) -> list[int]:
        return [self._ids[path] for path in batch["path"]]


def collate(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Put samples side by side, of the tokens of each a window at random."""
    windows = np.zeros((len(samples), CONTEXT + 1), np.int64)
    for window, sample in zip(windows, samples, strict=True):
        tokens = sample["tokens"]
        start = int(torch.randint(max(len(tokens) - CONTEXT, 1), ()))
        piece = tokens[start : start + CONTEXT + 1]
        window[: len(piece)] = piece
    return {
        "path": [sample["path"] for sample in samples],
        "text": [sample["text"] for sample in samples],
        "tokens": torch.from_numpy(windows),
    }


class ByteModel(nn.Module):
    """Guesses each byte from the twelve before it: as small as can be and still learn."""

    def __init__(self, reach: int = 12, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 32)
        self.mix = nn.Conv1d(32, width, reach)
        self.guess = nn.Conv1d(width, 256, 1)
        self.pad = nn.ConstantPad1d((reach - 1, 0), 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """From tokens, shape (batch, time), to scores of the next, shape (batch, 256, time)."""
        mixed = self.mix(self.pad(self.embed(tokens).transpose(1, 2)))
        scores: Tensor = self.guess(nn.functional.gelu(mixed))
        return scores


class Learner:
    """A model in training, and the loss of each step, in nats per byte."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = ByteModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.losses: list[float] = []

    def step(self, tokens: Tensor) -> None:
        """Learn from windows of tokens, shape (batch, time)."""
        loss = nn.functional.cross_entropy(self.model(tokens[:, :-1]), tokens[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())
