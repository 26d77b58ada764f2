"""What every batcher that chooses from a pool must do. A subclass says how to make it."""

import pickle
import random
from collections import Counter
from typing import Any, cast

from streaming.dataflow.base import Group, Token
from streaming.dataflow.batchers.pooled import Pool, PoolBatcher

Sample = dict[str, Any]
Place = tuple[list[Token], list[list[Token]], Any, int]


def follow(pool: Pool, samples: list[Sample], start: int = 0) -> list[tuple[Group, Place]]:
    """Feed a pool from a place on; give each group with the place after it."""
    found = []
    ended = False
    read = start
    while True:
        wanted = 0 if ended else pool.want()
        if wanted:
            came = samples[read : read + wanted]
            read += len(came)
            ended = len(came) < wanted
            pool.add([sample["i"] for sample in came], came)
        group = pool.choose(ended)
        if group is not None:
            held = [list(tokens) for tokens in pool.held()]
            found.append((group, (pool.pending(), held, pool.state_dict(), read)))
        elif ended or not pool.want():
            return found


def content(group: Group) -> list[Any]:
    """What is in a group, as values that can be compared."""
    offsets = group.offsets or [0] * len(group)
    return [
        (sample["i"], len(sample["input_ids"]), offset)
        for sample, offset in zip(group, offsets, strict=True)
    ]


class BatcherSuite:
    """Inherit it, and give `make`."""

    cuts = False  # Whether samples come out in pieces.

    def make(self) -> PoolBatcher:
        raise NotImplementedError

    def samples(self, seed: int) -> list[Sample]:
        draw = random.Random(seed)
        count = draw.choice([0, 1, 7, 60, 150])
        sizes = [min(1 + int(draw.lognormvariate(3, 1)), 100) for _ in range(count)]
        return [{"i": i, "input_ids": list(range(size))} for i, size in enumerate(sizes)]

    def test_every_sample_comes_out_once(self) -> None:
        for seed in range(12):
            self.check_every_sample_comes_out_once(self.samples(seed))

    def check_every_sample_comes_out_once(self, samples: list[Sample]) -> None:
        groups = list(self.make().batches(iter(samples)))
        if self.cuts:
            tokens: Counter[int] = Counter()
            for group in groups:
                for piece in group:
                    tokens[piece["i"]] += len(piece["input_ids"])
            assert tokens == {sample["i"]: len(sample["input_ids"]) for sample in samples}
        else:
            came = sorted(sample["i"] for group in groups for sample in group)
            assert came == list(range(len(samples)))

    def test_begun_again_at_any_group_it_makes_the_same_rest(self) -> None:
        for seed in range(8):
            self.check_begun_again(self.samples(seed))

    def check_begun_again(self, samples: list[Sample]) -> None:
        whole = follow(self.make().open(), samples)
        for place, (_, (pending, held, state, read)) in list(enumerate(whole))[
            :: len(whole) // 40 + 1
        ]:
            pool = self.make().open()
            pool.load_state_dict(state)
            waiting = [samples[i] for i in pending]  # type: ignore[index]  # Tokens are numbers.
            rest = [content(group) for group, _ in follow(pool, waiting + samples[read:])]
            decided = [content(Group(samples[i] for i in tokens)) for tokens in held]  # type: ignore[index]
            assert decided + rest == [content(group) for group, _ in whole[place + 1 :]]

    def test_the_two_ways_to_use_it_agree(self) -> None:
        samples = self.samples(5)
        pooled = [content(group) for group, _ in follow(self.make().open(), samples)]
        groups = self.make().batches(iter(samples))
        assert [content(cast(Group, group)) for group in groups] == pooled

    def test_it_pickles_and_tells_its_settings(self) -> None:
        batcher = self.make()
        assert pickle.loads(pickle.dumps(batcher)).fingerprint() == batcher.fingerprint()
