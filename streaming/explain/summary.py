"""What an epoch is made of, counted without shuffling it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.batching.dealing import DealtLayout
from streaming.explain.epoch import WholeEpoch
from streaming.idmap import Ids
from streaming.sampling import Share, has_own_sizes
from streaming.table import ShardTable

__all__ = ["EpochSummary", "StreamSummary", "summarise"]


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What a stream gives to an epoch.

    Attributes:
        name: What the user calls it.
        samples: Samples in it.
        shards: Shards of it.
        bytes: Bytes of its shards as they are read.
        drawn: Samples drawn from it in the epoch.
        repeat: How often its samples are drawn, on average.
        share: Its part of the epoch.
    """

    name: str
    samples: int
    shards: int
    bytes: int
    drawn: int
    repeat: float
    share: float


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """What an epoch is made of.

    Attributes:
        streams: Its streams.
        samples: Samples drawn from all streams.
        given: Samples that all ranks together are given.
        repeated: Of those, how many are given again, to even out nodes and ranks.
        left_out: Samples drawn that are not given, because they don't fill a batch.
        padding: Places of batches that stay empty.
        steps: Global batches with at least one sample.
        short: Of those, how many are not full for every rank.
        batches_per_rank: Batches of each rank with at least one sample: least and most.
        global_batch: Samples of a full step.
        notes: What else should be known, as sentences.
    """

    streams: tuple[StreamSummary, ...]
    samples: int
    given: int
    repeated: int
    left_out: int
    padding: int
    steps: int
    short: int
    batches_per_rank: tuple[int, int]
    global_batch: int
    notes: tuple[str, ...]


def summarise(
    epoch: WholeEpoch, table: ShardTable, shares: Sequence[Share], names: Sequence[str]
) -> EpochSummary:
    """Count what an epoch is made of.

    Args:
        epoch: The epoch.
        table: The shards of all streams.
        shares: What each stream gives.
        names: What the user calls the streams.
    """
    layout, sources = epoch.layout, epoch.arrangement.sources
    drawn = [share.choose for share in shares]
    if sources and sources[0].stream is not None:
        size_of = {source.stream: source.size for source in sources}
        drawn = [size_of.get(stream, 0) for stream in range(len(shares))]
    total = sum(source.size for source in sources)
    counts = _count(epoch)
    once = counts.given - (layout.refilled if isinstance(layout, DealtLayout) else 0)
    is_short = counts.least == 0 if has_own_sizes(shares) else counts.all < layout.global_batch
    return EpochSummary(
        streams=tuple(
            _summarise_stream(name, stream, table, count, total)
            for stream, (name, count) in enumerate(zip(names, drawn, strict=True))
        ),
        samples=total,
        given=counts.given,
        repeated=max(once - total, 0) + counts.given - once,
        left_out=max(total - once, 0),
        padding=layout.rows * layout.global_batch - counts.given,
        steps=layout.full + int((counts.all > 0).sum()),
        short=int((is_short & (counts.all > 0)).sum()),
        batches_per_rank=counts.batches,
        global_batch=epoch.world.num_ranks * epoch.spec.batch_size,
        notes=layout.notes,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Samples of the rows behind those that are known to be full.

    Attributes:
        all: Of all ranks together, shape (rows,).
        least: Of the rank that has the fewest, shape (rows,).
        given: Of all rows, the full ones too.
        batches: Batches with a sample: of the rank that has the fewest, of the one with the most.
    """

    all: Ids
    least: Ids
    given: int
    batches: tuple[int, int]


def _count(epoch: WholeEpoch) -> _Counts:
    world, layout = epoch.world, epoch.layout
    rows = np.arange(layout.full, layout.rows)
    together = np.zeros(len(rows), np.int64)
    least = np.full(len(rows), layout.batch_size, np.int64)
    batches = []
    for node in range(world.num_nodes):
        for rank in range(world.ranks_per_node):
            counts = layout.count(rows, node, rank)
            together += counts
            np.minimum(least, counts, out=least)
            batches.append(layout.full + int((counts > 0).sum()))
    given = layout.full * layout.global_batch + int(together.sum())
    return _Counts(together, least, given, (min(batches), max(batches)))


def _summarise_stream(
    name: str, stream: int, table: ShardTable, drawn: int, total: int
) -> StreamSummary:
    mine = table.stream == stream
    samples = int(table.samples[mine].sum())
    return StreamSummary(
        name=name,
        samples=samples,
        shards=int(mine.sum()),
        bytes=int(table.raw_bytes[mine].sum()),
        drawn=drawn,
        repeat=drawn / samples if samples else 0.0,
        share=drawn / total if total else 0.0,
    )
