"""Sources to distribute from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from streaming import MDSWriter


class Sharded:
    """Stands for a stream of Hugging Face: shards itself, by `shard` and by torch's worker."""

    def __init__(self, shards: Sequence[Sequence[int]]) -> None:
        self.shards = [list(shard) for shard in shards]
        self.epoch = 0
        self.read: list[int] = []
        self._start: list[int] | None = None  # Only the iteration after loading begins there.
        self._place: list[int] | None = None

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def shard(self, num_shards: int, index: int) -> "Sharded":
        assert num_shards <= len(self.shards)
        part = Sharded(self.shards[index::num_shards])
        part.read = self.read  # Shared, so that the reading of all can be counted.
        return part

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, int]]:
        shards = self.shards
        info = worker_info()
        if info is not None:
            shards = shards[info.id :: info.num_workers]
        first, begin = self._start or (0, 0)
        self._start = None
        for number in range(first, len(shards)):
            for place in range(begin if number == first else 0, len(shards[number])):
                self._place = [number, place + 1]
                self.read.append(shards[number][place])
                yield {"i": shards[number][place], "epoch": self.epoch}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = self._place = state["place"]


def worker_info() -> Any:
    import sys

    torch = sys.modules.get("torch.utils.data")
    return None if torch is None else torch.get_worker_info()


class Plain:
    """An iterable that can do nothing else, and counts what is read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for i in range(self.size):
            self.read.append(i)
            yield i


def write_numbers(out: Path, size: int, shard: int = 1 << 9) -> Path:
    """Write an MDS dataset with a column `i` that counts, some 30 samples a shard."""
    with MDSWriter(out=str(out), columns={"i": "int"}, size_limit=shard) as writer:
        for i in range(size):
            writer.write({"i": i})
    return out
