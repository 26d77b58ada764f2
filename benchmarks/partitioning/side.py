"""One partition in one process: seconds, peak memory and digest of the whole array; or a part."""

import hashlib
import json
import resource
import sys
import time
from typing import Any

import numpy as np


def whole(algo: str, arguments: list[Any]) -> Any:
    """The array of either library's function."""
    try:
        from streaming.base.partition import get_partitions
    except ImportError:
        from streaming.partition import get_partitions
    return get_partitions(algo, *arguments)


def part(algo: str, arguments: list[Any]) -> Any:
    """What one worker needs of it at first: ours only."""
    from streaming.partition import PartitionSpec, partitions
    from streaming.world import World

    samples, canonical, nodes, ranks, workers, batch_size, seen, initial = arguments
    world = World(nodes, ranks, workers)
    layout = partitions.get(algo)(
        PartitionSpec(samples, canonical, world, batch_size, seen, initial)
    )
    return layout.of_worker(world, np.arange(min(4096, layout.num_slots)))


def main() -> None:
    """Answer a request: `algo`, and `cases`, lists of the other arguments of `get_partitions`."""
    request = json.loads(sys.argv[1])
    function = part if request.get("part") else whole
    function(request["algo"], [4, 2, 2, 1, 1, 2, 0, None])  # Imports are outside the clock.
    seconds, digests = [], []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in request["cases"]:
        start = time.process_time()
        try:
            array = function(request["algo"], case)
        except ValueError:
            digests.append("error")
            continue
        seconds.append(time.process_time() - start)
        if request.get("digest"):
            digest = hashlib.blake2b(repr(array.shape).encode(), digest_size=16)
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
            digests.append(digest.hexdigest())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": sum(seconds), "digests": digests, "mb": peak / 1024}))


if __name__ == "__main__":
    main()
