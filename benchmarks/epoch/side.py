"""One epoch in one process: CPU seconds and memory until a worker has its first ids, and so on."""

import json
import resource
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")


def megabytes() -> float:
    """Most memory of this process up to now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sizes_of(request: dict[str, Any]) -> Any:
    """Samples of each shard."""
    shards = request["shards"]
    return np.full(shards, request["samples"] // shards, np.int64)


def peer_plan(request: dict[str, Any]) -> dict[str, float]:
    """The whole epoch as an array, by the predecessor's functions or our old ones."""
    try:
        from streaming.base.partition import get_partitions
        from streaming.base.shuffle import get_shuffle
    except ImportError:
        from streaming.partition import get_partitions
        from streaming.shuffle import get_shuffle
    canonical, nodes = request["canonical"], request["nodes"]
    samples, block = request["samples"], request["block"]
    before, start = megabytes(), time.process_time()
    parts = get_partitions("relaxed", samples, canonical, nodes, 8, 8, 32, 0, None)
    dealt = time.process_time()
    order = get_shuffle(request["algo"], sizes_of(request), canonical, 9176, 1, block)
    shuffled = time.process_time()
    parts = np.where(parts == -1, -1, order[parts])
    done = time.process_time()
    return {
        "seconds": done - start,
        "partition": dealt - start,
        "shuffle": shuffled - dealt,
        "map": done - shuffled,
        "mb": megabytes() - before,
    }


def make_plan(request: dict[str, Any], hold: Any) -> Any:
    """The plan of one worker."""
    from streaming.plan import OrderSpec, Position, build_plan
    from streaming.sampling import Weight, weigh
    from streaming.table import ShardTable
    from streaming.world import World

    streams = request.get("streams", 1)
    sizes = sizes_of(request)
    stream = np.repeat(np.arange(streams, dtype=np.int32), len(sizes) // streams)
    none = np.zeros_like(sizes)
    table = ShardTable(sizes, none, none, stream)
    draw = np.random.default_rng(0)
    weights = [Weight()] * streams
    if streams > 1:
        weights = [Weight(proportion=float(p)) for p in draw.random(streams) + 0.5]
    per_stream = [int(sizes.sum()) // streams] * streams
    before, start = megabytes(), time.process_time()
    shares, _ = weigh(weights, per_stream, None, 9176)
    spec = OrderSpec(
        batch_size=32,
        shuffle=True,
        shuffle_algo=request["algo"],
        num_canonical_nodes=request["canonical"],
        shuffle_block_size=request["block"],
        batching_method=request.get("batching", "random"),
    )
    world = World(request["nodes"], 8, 8, request["worker"])
    return build_plan(spec, table, shares, world, Position(1), hold), before, start


def our_plan(request: dict[str, Any]) -> dict[str, float]:
    """Until a worker has its first ids; with `whole` also until the table is made."""
    from streaming.shared.ids import Materialised

    hold = Materialised([Path(request["directory"])])
    plan, before, start = make_plan(request, hold)
    ids = plan.ids(0, min(4096, len(plan)))
    seconds = time.process_time() - start
    assert (ids >= 0).any()
    answer = {"seconds": seconds, "mb": megabytes() - before}
    if request.get("whole") and plan.recipe is not None:
        table = hold(plan.recipe)
        while not table.file.is_complete:  # type: ignore[attr-defined]  # It is one of our own.
            time.sleep(0.01)
        answer |= {"whole": time.process_time() - start, "whole_mb": megabytes() - before}
    hold.close()
    return answer


def our_reader(request: dict[str, Any]) -> dict[str, float]:
    """A process that finds the table made: all ids of a worker."""
    from streaming.shared.ids import Materialised

    hold = Materialised([Path(request["directory"])])
    plan, before, start = make_plan(request, hold)
    for at in range(0, len(plan), 4096):
        plan.ids(at, min(at + 4096, len(plan)))
    return {"seconds": time.process_time() - start, "mb": megabytes() - before, "ids": len(plan)}


def our_rate(request: dict[str, Any]) -> dict[str, float]:
    """Ids a CPU second, as a worker asks for them: whole plan, and the shuffle alone."""
    from streaming.idmap import in_memory
    from streaming.shuffle import ShuffleSpec, shuffles

    plan, _, _ = make_plan(request, in_memory)
    size = request["piece"]
    count = min(len(plan) // size, max(request["ids"] // size, 1))
    plan.ids(0, size)
    start = time.process_time()
    for at in range(count):
        plan.ids(at * size, (at + 1) * size)
    planned = count * size / (time.process_time() - start)
    spec = ShuffleSpec(sizes_of(request), request["canonical"], 9176, 1, request["block"])
    order = shuffles.get(request["algo"]).open(spec, in_memory)
    positions = np.arange(size) * 64
    start = time.process_time()
    for at in range(count):
        order(positions + at % 8 * size * 64)
    return {"plan": planned / 1e6, "shuffle": count * size / (time.process_time() - start) / 1e6}


def main() -> None:
    """Answer a request; `what` is the name of a function above."""
    request = json.loads(sys.argv[1])
    functions = {
        "peer_plan": peer_plan,
        "our_plan": our_plan,
        "our_reader": our_reader,
        "our_rate": our_rate,
    }
    if request["library"] == "ours":  # Imports are outside the clock, and not counted as memory.
        import_module("streaming.plan")
        import_module("streaming.shared.ids")
        from streaming.batching import batchings
        from streaming.partition import partitions
        from streaming.shuffle import shuffles

        shuffles.get(request["algo"])
        batchings.get(request.get("batching", "random"))
        partitions.get("relaxed")
    print(json.dumps(functions[request["what"]](request)))


if __name__ == "__main__":
    main()
