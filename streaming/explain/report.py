"""All that can be said of an epoch, put together for people and for programs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streaming.explain.downloads import Network, foresee_downloads
from streaming.explain.epoch import WholeEpoch
from streaming.explain.quality import Quality, measure_quality
from streaming.explain.summary import summarise
from streaming.sampling import Share

__all__ = ["Question", "explain"]

_LOOKED_AT = 1 << 25  # samples that are looked at for downloads, of all nodes together
_QUALITY = 1 << 22  # samples that are looked at for the quality of the shuffle
_PIECES = 16  # in which these lie in the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of an epoch.

    Attributes:
        names: What the user calls the streams.
        network: What time things take; None: downloads don't matter.
        steps: Steps to look at for downloads; None: as many as take seconds.
        quality: Whether to measure how well the epoch is shuffled.
        batch: A step and a rank whose samples are asked for.
        sample: A sample of which is asked where it comes.
    """

    names: Sequence[str]
    network: Network | None = None
    steps: int | None = None
    quality: bool = True
    batch: tuple[int, int] | None = None
    sample: int | None = None


def explain(epoch: WholeEpoch, shares: Sequence[Share], question: Question) -> dict[str, Any]:
    """Answer a question, as values that JSON has.

    Args:
        epoch: The epoch.
        shares: What each stream gives.
        question: The question.

    Raises:
        ConfigError: There is no such step, rank or sample.
    """
    world = epoch.world
    answer: dict[str, Any] = {
        "order": epoch.spec.to_json(),
        "world": {
            "nodes": world.num_nodes,
            "ranks_per_node": world.ranks_per_node,
            "workers_per_rank": world.workers_per_rank,
        },
        "epoch": asdict(summarise(epoch, epoch.table, shares, question.names)),
    }
    if question.network is not None:
        nodes, steps = _affordable(epoch, question.steps)
        answer["downloads"] = asdict(foresee_downloads(epoch, question.network, nodes, steps))
    if question.quality:
        answer["quality"] = asdict(_quality(epoch))
    if question.batch is not None:
        step, rank = question.batch
        samples = [asdict(drawn) for drawn in epoch.batch(step, rank)]
        answer["batch"] = {"step": step, "rank": rank, "samples": samples}
    if question.sample is not None:
        found = [asdict(occurrence) for occurrence in epoch.find(question.sample)]
        answer["sample"] = {"sample": question.sample, "occurrences": found}
    return answer


def _affordable(epoch: WholeEpoch, steps: int | None) -> tuple[list[int], int]:
    """Nodes and steps that can be looked through in seconds: all if possible, else some nodes."""
    world = epoch.world
    of_node = max(world.ranks_per_node * epoch.layout.batch_size, 1)
    wanted = epoch.num_steps if steps is None else min(steps, epoch.num_steps)
    count = max(min(_LOOKED_AT // max(wanted * of_node, 1), world.num_nodes), 1)
    nodes = np.unique(np.linspace(0, world.num_nodes - 1, count).astype(int)).tolist()
    if steps is None:
        wanted = min(wanted, max(_LOOKED_AT // of_node, 1))
    return nodes, wanted


def _quality(epoch: WholeEpoch) -> Quality:
    """Measure pieces of the epoch, evenly spread over it, that together are not too long."""
    places = max(epoch.layout.global_batch, 1)
    steps = epoch.num_steps
    length = max(min(_QUALITY // _PIECES // places, steps), 1)
    starts = np.unique(np.linspace(0, max(steps - length, 0), _PIECES).astype(int)).tolist()
    if length * _PIECES >= steps:
        starts, length = list(range(0, steps, max(length, 1))), length
    pieces = [epoch.ids(slice(start, min(start + length, steps))).ravel() for start in starts]
    ids = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
    ids = ids[ids >= 0]
    shards, _ = epoch.spanner(ids)
    streams = epoch.table.stream[shards] if len(ids) else shards
    return measure_quality(ids, shards, streams, epoch.spanner.size, places)
