"""How full groups are and how fast they are made; what the four roles cost beside a plain loop.

Everything runs on one core. In each round all cases take their turn, so that a slow minute of the
machine hits all of them, and ratios are made within a round.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from benchmarks.turns import spread  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.dataflow import (  # noqa: E402
    BatchCollator,
    BestFitBatcher,
    BucketBatcher,
    ConcatBatcher,
    DataflowLoader,
    PlannedBatcher,
    PoolPackingBatcher,
    RawItemProcessor,
    SampleBatcher,
    SequentialPackingBatcher,
    StreamingDistributor,
    WindowBatcher,
)
from tests.dataflow.batchers import reference  # noqa: E402

__all__ = ["main"]

Sample = dict[str, Any]
LONGEST = 8192


def lengths(count: int) -> list[int]:
    """Log-normal lengths, mu 8, sigma 1; those over 8,192 are drawn again."""
    draw = np.random.default_rng(0)
    found: list[int] = []
    while len(found) < count:
        more = draw.lognormal(8, 1, count).astype(int) + 1
        found += more[more <= LONGEST].tolist()
    return found[:count]


def samples(count: int, kind: str) -> list[Sample]:
    """Samples of these lengths; their ids are views of one tensor, or ranges."""
    base: Any = torch.zeros(LONGEST, dtype=torch.int64) if kind == "tensor" else range(LONGEST)
    return [{"input_ids": base[:length]} for length in lengths(count)]


def length(sample: Sample) -> int:
    """The size that the predecessor takes."""
    return len(sample["input_ids"])


class Clock:
    """CPU seconds of this process."""

    def __enter__(self) -> "Clock":
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._start


def drain(groups: Iterable[list[Sample]]) -> None:
    """Take all groups, and keep none."""
    for _ in groups:
        pass


# --- Packing ----------------------------------------------------------------------------------

SUMMING: dict[str, Callable[[], SampleBatcher]] = {
    "best fit, pool 256": lambda: BestFitBatcher(LONGEST, 256),
    "planned, window 10,000": lambda: PlannedBatcher(LONGEST),
    "sequential, 10 skips": lambda: SequentialPackingBatcher(LONGEST + 1, size=length),
    "concatenate and cut": lambda: ConcatBatcher(LONGEST),
}
PADDING: dict[str, tuple[Callable[[], SampleBatcher], int]] = {
    f"{name}, budget {budget:,}": (lambda make=make, budget=budget: make(budget), budget)  # type: ignore[misc]
    for budget in (LONGEST, 2 * LONGEST, 8 * LONGEST)
    for name, make in (
        ("window, pool 256", lambda budget: WindowBatcher(budget, 256)),
        ("bucket, growth 1.2", lambda budget: BucketBatcher(budget)),
        ("pool packing, pool 256", lambda budget: PoolPackingBatcher(budget, 256, 0)),
    )
}


def pack(count: int, rounds: int) -> None:
    """How full, and how fast."""
    given = samples(count, "tensor")
    total = sum(lengths(count))
    print(f"\n{count:,} samples with tensors as `input_ids`\n")
    print(
        "| what | of the budget | of what is possible | of the padded | samples / CPU second |\n"
        "| --- | --- | --- | --- | --- |"
    )
    cases = {name: (make, LONGEST, False) for name, make in SUMMING.items()}
    cases |= {name: (make, budget, True) for name, (make, budget) in PADDING.items()}
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (make, _, _) in cases.items():
            with Clock() as clock:
                drain(make().batches(iter(given)))
            rates[name].append(count / clock.seconds)
    for name, (make, budget, pads) in cases.items():
        count_of_groups = padded = 0
        for group in make().batches(iter(given)):
            count_of_groups += 1
            padded += max(map(length, group)) * len(group)
        useful = f"{total / padded:.1%}" if pads else ""
        full = f"{total / (count_of_groups * budget):.1%}"
        least = fewest(lengths(count), budget) if pads else -(-total // budget)
        possible = f"{least / count_of_groups:.1%}"
        print(f"| {name} | {full} | {possible} | {useful} | {spread(rates[name], ',.0f')} |")


def fewest(sizes: Sequence[int], budget: int) -> int:
    """The fewest rectangles that can hold all samples, if all are known and may be put in order.

    The longest has to be in one of them, and that is best shared with the next longest: as many
    as its length allows. The same goes for what is left.
    """
    ordered = sorted(sizes, reverse=True)
    groups = place = 0
    while place < len(ordered):
        place += max(1, budget // ordered[place])
        groups += 1
    return groups


def beside_reference(count: int, rounds: int) -> None:
    """The pool's choices, made fast and made plainly."""
    print("\n| ids | budget | pool | ours / CPU second | plain / CPU second | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in ("tensor", "range"):
        given = samples(count, kind)
        for budget in (LONGEST, 2 * LONGEST, 8 * LONGEST):
            for pool in (16, 64, 256):
                few = given[: max(4000, 2 * count // pool)]
                row = compare(few, given, budget, pool, rounds)
                print(f"| {kind} | {budget:,} | {pool} | {row} |")


def compare(
    few: Sequence[Sample], many: Sequence[Sample], budget: int, pool: int, rounds: int
) -> str:
    """One row: the plain way gets fewer samples, as it takes so much longer."""
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(rounds):
        with Clock() as clock:
            drain(PoolPackingBatcher(budget, pool, 0).batches(iter(many)))
        ours.append(len(many) / clock.seconds)
        with Clock() as clock:
            drain(reference.pool_packing(iter(few), budget, pool, 0))
        plain.append(len(few) / clock.seconds)
    expected = reference.pool_packing(iter(few), budget, pool, 0)
    found = PoolPackingBatcher(budget, pool, 0).batches(iter(few))
    assert all(a == b for a, b in zip(found, expected, strict=True)), "The choices differ."
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return f"{spread(ours, ',.0f')} | {spread(plain, ',.0f')} | {spread(ratios, '.1f')}"


# --- Roles ------------------------------------------------------------------------------------


class Trivial(RawItemProcessor):
    """Does nothing, but is called for each item."""

    def process(self, item: Sample) -> Sample:
        """Give the item."""
        return item


class AsItIs(BatchCollator):
    """Gives the group."""

    def collate(self, samples: list[Sample]) -> list[Sample]:
        """Give the samples."""
        return samples


def write(out: Path, count: int) -> None:
    """Write the dataset: a number and a line of text, some 100 bytes a sample."""
    words = [f"word{i}" for i in range(1000)]
    draw = random.Random(0)
    columns = {"number": "int", "text": "str"}
    with MDSWriter(out=str(out), columns=columns, size_limit=1 << 22) as writer:
        for number in range(count):
            writer.write({"number": number, "text": " ".join(draw.choices(words, k=13))})


def plain_loop(dataset: StreamingDataset) -> int:
    """Samples one by one."""
    return sum(1 for _ in dataset)


def collating_loop(dataset: StreamingDataset) -> int:
    """Samples in torch's batches of 256."""
    count = 0
    iterator: Iterator[Sample] = iter(dataset)
    while some := list(islice(iterator, 256)):
        default_collate(some)
        count += len(some)
    return count


def roles(collator: BatchCollator | None) -> Callable[[StreamingDataset], int]:
    """The four roles, no workers, batches of 256."""

    def run(dataset: StreamingDataset) -> int:
        distributor = StreamingDistributor(dataset, epochs=1)
        loader = DataflowLoader(distributor, Trivial(), collator=collator, batch_size=256)
        return sum(
            len(batch) if isinstance(batch, list) else len(batch["number"]) for batch in loader
        )

    return run


LOOPS: dict[str, Callable[[StreamingDataset], int]] = {
    "plain loop": plain_loop,
    "plain loop, default_collate": collating_loop,
    "roles, groups as they are": roles(AsItIs()),
    "roles, default collator": roles(None),
}


def beside_loop(count: int, rounds: int) -> None:
    """Samples a second of the four roles and of a loop over the dataset."""
    print(f"\n{count:,} samples of some 100 bytes\n")
    print(
        "| order | what | samples / CPU second | beside the plain loop |\n| --- | --- | --- | --- |"
    )
    with tempfile.TemporaryDirectory() as out:
        write(Path(out), count)
        for shuffle in (False, True):
            rates: dict[str, list[float]] = {name: [] for name in LOOPS}
            for _ in range(rounds):
                for name, loop in LOOPS.items():
                    dataset = StreamingDataset(local=out, shuffle=shuffle, batch_size=256)
                    with Clock() as clock:
                        assert loop(dataset) == count
                    rates[name].append(count / clock.seconds)
            for name, found in rates.items():
                ratios = [a / b for a, b in zip(found, rates["plain loop"], strict=True)]
                order = "shuffled" if shuffle else "in sequence"
                print(f"| {order} | {name} | {spread(found, ',.0f')} | {spread(ratios, '.2f')} |")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("topic", choices=["all", "pack", "reference", "roles"], nargs="?")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case")
    parser.add_argument("--samples", type=int, default=100_000, help="samples in each")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, numpy {np.__version__}, one "
        f"of {os.cpu_count()} cores; {args.rounds} rounds: median (smallest - largest)"
    )
    if args.topic in (None, "all", "pack"):
        pack(args.samples, args.rounds)
    if args.topic in (None, "all", "reference"):
        beside_reference(args.samples, args.rounds)
    if args.topic in (None, "all", "roles"):
        beside_loop(args.samples, args.rounds)


if __name__ == "__main__":
    main()
