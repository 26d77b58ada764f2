"""Shuffles: in which order an epoch's draws come."""

import logging

import numpy as np
from numpy.typing import NDArray

from streaming.idmap import Ids, in_memory
from streaming.shuffle.exact import ArithmeticShuffle, ExactShuffle, Shuffle, ShuffleSpec
from streaming.util.importing import Registry

__all__ = ["ArithmeticShuffle", "Shuffle", "ShuffleSpec", "algos", "get_shuffle", "shuffles"]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20  # ids that are mapped together

shuffles: Registry[Shuffle] = Registry(
    "shuffle algorithm",
    {
        "block1": "streaming.shuffle.block1:block1",
        "naive": "streaming.shuffle.naive:naive",
        "py1b": "streaming.shuffle.py1b:py1b",
        "py1br": "streaming.shuffle.py1br:py1br",
        "py1e": "streaming.shuffle.py1e:py1e",
        "py1s": "streaming.shuffle.py1s:py1s",
        "py2s": "streaming.shuffle.py2s:py2s",
    },
    group="streaming.shuffles",
)
algos = shuffles.table
"""The old name."""


def get_shuffle(
    algo: str,
    shard_sizes: NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Ids:
    """A whole epoch's shuffle as an array. Plans don't need it: this is for old code and tests.

    Args:
        algo: Name of the shuffle algorithm.
        shard_sizes: Draws of each shard piece, in order.
        num_canonical_nodes: Parts of the epoch that are shuffled each by itself.
        seed: Seed of the run.
        epoch: Number of the epoch.
        block_size: Draws over which a sample is spread.

    Returns:
        A permutation: draws by position, shape (sum of the sizes,).

    Raises:
        UnknownNameError: There is no such algorithm.
        ConfigError: It can't do this.
    """
    sizes = np.asarray(shard_sizes, np.int64)
    spec = ShuffleSpec(sizes, num_canonical_nodes, seed, epoch, block_size)
    shuffle = shuffles.get(algo)
    for note in shuffle.check(spec):
        logger.warning("%s", note)
    if isinstance(shuffle, ExactShuffle):
        return shuffle.whole(sizes, num_canonical_nodes, seed, epoch, block_size)
    order = shuffle.open(spec, in_memory)
    out = np.empty(spec.num_samples, np.int64)
    for start in range(0, len(out), _CHUNK):
        stop = min(start + _CHUNK, len(out))
        out[start:stop] = order(np.arange(start, stop))
    return out
