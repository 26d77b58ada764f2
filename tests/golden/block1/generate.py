"""Record orders of the arithmetic family. Adds cases that are not recorded yet, changes none."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
PATH = Path(__file__).with_name("block1.json")
LONG = 64

sys.path.insert(0, str(ROOT))

from streaming.plan import OrderSpec, Position, build_plan  # noqa: E402
from streaming.resampling import systematic  # noqa: E402
from streaming.sampling import Weight, weigh  # noqa: E402
from streaming.schedule import Schedule  # noqa: E402
from streaming.shuffle import ShuffleSpec, get_shuffle, shuffles  # noqa: E402
from streaming.shuffle.bijection import derive, mix, permute  # noqa: E402
from streaming.table import ShardTable  # noqa: E402
from streaming.world import World  # noqa: E402


def keys(seed, words):
    return [mix(seed) >> 1, derive(seed, words) >> 1]


def permutation(size, key, count=10**6):
    return permute(np.arange(min(size, count), dtype=np.uint32), size, key)


def draws_per_shard(sizes, choose, granularity, key):
    return systematic(np.array(sizes), choose, granularity, key)


def shuffle(sizes, nodes, seed, epoch, block_size):
    return get_shuffle("block1", np.array(sizes), nodes, seed, epoch, block_size)


def shuffle_at(samples, shards, nodes, seed, epoch, block_size, start, step, count):
    spec = ShuffleSpec(np.full(shards, samples // shards), nodes, seed, epoch, block_size)
    order = shuffles.get("block1").open(spec, None)
    return order(start + step * np.arange(count))


def shuffle_groups(sizes, groups, nodes, seed, epoch, block_size):
    spec = ShuffleSpec(
        np.array(sizes), nodes, seed, epoch, block_size, groups=np.array(groups)
    )
    return shuffles.get("block1").open(spec, None)(np.arange(spec.num_samples))


def plan(streams, weights, world, epoch, seen=0, epoch_size=None, **order):
    sizes = [size for stream in streams for size in stream]
    stream = np.repeat(np.arange(len(streams), dtype=np.int32), [len(each) for each in streams])
    none = np.zeros(len(sizes), np.int64)
    table = ShardTable(np.array(sizes, np.int64), none, none, stream)
    given = [
        Weight(**{k: Schedule.from_json(v) if isinstance(v, dict) else v for k, v in each.items()})
        for each in weights
    ]
    shares, _ = weigh(given, [sum(each) for each in streams], epoch_size, 9176)
    spec = OrderSpec(shuffle_algo="block1", **order)
    out = []
    for worker in range(World(*world).num_workers):
        # Before rows are dealt so that each rank has something of every row.
        found = build_plan(
            spec, table, shares, World(*world, worker), Position(epoch, seen), as_recorded=True
        )
        out.append(found.ids(0, len(found)))
    return np.concatenate(out)


def cases():
    for seed in (0, 1, 9176, 2**63 - 1):
        yield keys, dict(seed=seed, words=[1, 0])
        yield keys, dict(seed=seed, words=[3, 5, 2**40])
    for size in (1, 2, 3, 7, 16, 60, 64, 1000, 1 << 18, 200_000, (1 << 31) + 5, 1 << 32):
        for key in (0, 1, 0x9E3779B97F4A7C15, 2**64 - 1):
            yield permutation, dict(size=size, key=key, count=1000)
    for choose in (0, 5, 17, 60, 61, 155):
        for granularity in (1, 3, 100):
            yield draws_per_shard, dict(
                sizes=[10, 0, 20, 1, 29], choose=choose, granularity=granularity, key=12345678901
            )
    yield draws_per_shard, dict(sizes=[10**12, 3 * 10**12], choose=10**12 + 7, granularity=1, key=99)
    for nodes in (1, 3, 8):
        for epoch in (0, 1):
            for block_size in (1, 10, 64):
                yield shuffle, dict(
                    sizes=[10, 0, 20, 1, 29],
                    nodes=nodes,
                    seed=9176,
                    epoch=epoch,
                    block_size=block_size,
                )
    yield shuffle, dict(
        sizes=[100 + i % 7 for i in range(300)], nodes=4, seed=1, epoch=5, block_size=2000
    )
    for step in (1, 64, 10**9):
        yield shuffle_at, dict(
            samples=10**12,
            shards=10**4,
            nodes=64,
            seed=9176,
            epoch=2,
            block_size=1 << 18,
            start=3 * 10**10,
            step=step,
            count=5000 if step < 100 else 900,
        )
    yield shuffle_groups, dict(
        sizes=[7, 3, 11, 2, 9, 9, 1, 30],
        groups=[0, 0, 0, 1, 1, 1, 1, 2],
        nodes=3,
        seed=7,
        epoch=1,
        block_size=16,
    )
    steps = {"kind": "steps", "points": [[0, 1.0], [60, 0.25]]}
    linear = {"kind": "linear", "points": [[10, 0.0], [150, 1.0]]}
    mixtures = {
        "whole": ([{}] * 3, None),
        "repeats": ([{"repeat": 2.5}, {"choose": 9}, {"repeat": 1}], None),
        "proportions": ([{"proportion": p} for p in (0.5, 2, 1)], 97),
        "schedules": ([{"proportion": p} for p in (steps, linear, 0.5)], 120),
        "sizes": ([{"batch_size": 3}, {}, {"batch_size": 5}], None),
    }
    for method in ("random", "per_stream", "device_per_stream", "stratified"):
        for name, (weights, epoch_size) in mixtures.items():
            if name == "sizes" and method in ("random", "stratified"):
                continue
            for is_shuffled in (True, False):
                for epoch in (0, 1):
                    yield plan, dict(
                        streams=[[20, 11, 9], [30, 5], [40]],
                        weights=weights,
                        world=[2, 2, 2],
                        epoch=epoch,
                        epoch_size=epoch_size,
                        batch_size=4,
                        shuffle=is_shuffled,
                        shuffle_block_size=32,
                        num_canonical_nodes=4,
                        batching_method=method,
                    )


def run(name, arguments):
    result = np.asarray(globals()[name](**arguments), np.int64).ravel()
    if len(result) <= LONG:
        return result.tolist()
    digest = hashlib.sha256(result.astype("<i8").tobytes()).hexdigest()
    return {"length": len(result), "sha256": digest, "first": result[:8].tolist()}


def main():
    recorded = json.loads(PATH.read_text()) if PATH.exists() else []
    known = {json.dumps([case["function"], case["arguments"]]) for case in recorded}
    for function, arguments in cases():
        if json.dumps([function.__name__, arguments]) not in known:
            result = run(function.__name__, arguments)
            recorded.append(
                {"function": function.__name__, "arguments": arguments, "result": result}
            )
    lines = ",\n".join(json.dumps(case) for case in recorded)
    PATH.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
