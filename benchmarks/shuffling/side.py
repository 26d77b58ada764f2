"""One shuffle in one process: seconds and peak memory of all of it, or of what comes first."""

import json
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")


def sizes_of(samples: int, shard: int) -> Any:
    """Shards of a size, the last one of what is left."""
    whole, rest = divmod(samples, shard)
    return np.array([shard] * whole + [rest] * (rest > 0), np.int64)


def whole(algo: str, sizes: Any, nodes: int, seed: int, epoch: int, block: int) -> None:
    """The order of either library's function, as an array."""
    try:
        from streaming.base.shuffle import get_shuffle
    except ImportError:
        from streaming.shuffle import get_shuffle
    get_shuffle(algo, sizes, nodes, seed, epoch, block)


def first(algo: str, sizes: Any, nodes: int, seed: int, epoch: int, block: int) -> None:
    """The first ids of the last canonical node, with files as a dataset has them: ours only."""
    from streaming.shared.ids import Materialised
    from streaming.shuffle import ShuffleSpec, shuffles

    directory = Path(tempfile.mkdtemp())
    hold = Materialised([directory])
    spec = ShuffleSpec(sizes, nodes, seed, epoch, block, (nodes - 1,))
    order = shuffles.get(algo).open(spec, hold)
    start = (nodes - 1) * spec.num_samples // nodes
    order(np.arange(start, min(start + 4096 * 64, spec.num_samples), 64))
    clock = time.process_time()
    hold.close()
    shutil.rmtree(directory)
    first.after = time.process_time() - clock  # type: ignore[attr-defined]


def main() -> None:
    """Answer a request: `algo`, `samples`, `shard`, `nodes`, `seed`, `epoch`, `block`, `first`."""
    request = json.loads(sys.argv[1])
    function = first if request.get("first") else whole
    rest = [request[name] for name in ("nodes", "seed", "epoch", "block")]
    function(request["algo"], sizes_of(64 * rest[0], 64), *rest)  # Imports are outside the clock.
    sizes = sizes_of(request["samples"], request["shard"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    function(request["algo"], sizes, *rest)
    seconds = time.process_time() - start - getattr(function, "after", 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": seconds, "mb": peak / 1024}))


if __name__ == "__main__":
    main()
