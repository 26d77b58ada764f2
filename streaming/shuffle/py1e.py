"""Shards in random order, then each sample moved by a random distance of up to half a block."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Ids
from streaming.shuffle.exact import ExactShuffle, Making, ShuffleSpec, borders
from streaming.shuffle.nodes import NodeMaking, generator_at, skip_doubles, skip_shuffles
from streaming.shuffle.spans import Spans, batches, shuffle_each

__all__ = ["get_shuffle_py1e", "py1e"]

_CHUNK = 1 << 17  # ids made together, at least: shards may be tiny
# Up to so many ids of a canonical node wait in memory from their shuffles to their moves, which the
# generator makes only after all shuffles. Those of a larger node are shuffled as they are moved.
_WAITING = 1 << 22


class _Making(NodeMaking):
    def __init__(self, spec: ShuffleSpec) -> None:
        super().__init__(spec)
        self._low, self._high = int(0.75 * spec.block_size), int(1.25 * spec.block_size)

    def make(self, rng: np.random.Generator, spans: Spans, node: int) -> Iterator[Ids]:
        lengths = spans[:, 1] - spans[:, 0]
        runs = batches(lengths, _CHUNK)
        if lengths.sum() <= _WAITING:
            shuffled = iter([shuffle_each(rng, spans[start:stop]) for start, stop in runs])
        else:
            again = generator_at(rng.bit_generator.state)
            skip_shuffles(rng, lengths)
            shuffled = (shuffle_each(again, spans[start:stop]) for start, stop in runs)
        moved = self._move(rng, [lengths[start:stop] for start, stop in runs])
        most = max((int(lengths[start:stop].sum()) for start, stop in runs), default=0)
        yield from self._give_settled(shuffled, moved, int(lengths.sum()), most)
        for _ in moved:  # Empty spans at the end use the generator, too.
            pass

    def skip(self, rng: np.random.Generator, spans: Spans, node: int) -> None:
        lengths = spans[:, 1] - spans[:, 0]
        skip_shuffles(rng, lengths)
        for length in lengths.tolist():
            rng.integers(self._low, self._high)
            skip_doubles(rng, length)

    def _move(
        self, rng: np.random.Generator, runs: Sequence[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.float64]]:
        """Draw where the ids go: for each run of spans the new places."""
        total = sum(int(lengths.sum()) for lengths in runs)
        at = 0
        for lengths in runs:
            places = np.empty(int(lengths.sum()))
            first, start = at, 0
            for length in lengths.tolist():
                reach = max((int(rng.integers(self._low, self._high)) - length) / 2, 0)
                low, high = max(-reach, -at), min(reach, total - at - length)
                places[start : start + length] = rng.uniform(low, high, length)
                start += length
                at += length
            places += np.arange(first, at)
            yield places

    def _give_settled(
        self, shuffled: Iterator[Ids], moved: Iterator[NDArray[np.float64]], total: int, most: int
    ) -> Iterator[Ids]:
        """Sort ids by place, and give out those that no later one can come before.

        Sorting what is settled, instead of the whole node at the end, keeps the work in the
        processor's cache, and the first ids come early. No id moves by `high` / 2 or more, so no
        more than `high` wait.

        Args:
            shuffled: The ids, run by run.
            moved: Their places, run by run.
            total: Ids of all runs.
            most: Ids of the longest.
        """
        step = max(self._high // 4, _CHUNK)
        enough = self._high // 2 + step
        room = min(self._high + step + most, total)
        ids, places = np.empty(room, np.int64), np.empty(room)
        at = held = 0  # ids that have come; of those, not yet given out
        for new_ids, new_places in zip(shuffled, moved, strict=False):
            ids[held : held + len(new_ids)] = new_ids
            places[held : held + len(new_ids)] = new_places
            at += len(new_ids)
            held += len(new_ids)
            if at == total:
                yield ids[:held][_order(places[:held])]
                return
            if held < enough:
                continue
            is_settled = places[:held] < at - self._high / 2
            some = places[:held][is_settled]
            yield ids[:held][is_settled][_order(some)]
            held -= len(some)
            ids[:held] = ids[: held + len(some)][~is_settled]
            places[:held] = places[: held + len(some)][~is_settled]
            enough = held + step
            del is_settled, some


def _order(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order of places, shape (n,), of which there is one; the first first among equal ones.

    Places and their numbers are packed into whole numbers, which numpy sorts in half of the time in
    which it finds out an order. Where packing makes two places equal, and they may not be, their
    order is found out.
    """
    bits = len(places).bit_length()
    low, high = places.min(), places.max()
    free = 63 - bits - int(high - low + 1).bit_length()
    if free >= bits:  # Else too many would be made equal.
        keys = ((places - low) * 2.0**free).astype(np.int64)
        keys <<= bits
        keys |= np.arange(len(keys))
        keys.sort()
        order: NDArray[np.int64] = keys & ((1 << bits) - 1)
        keys >>= bits
        if (keys[1:] != keys[:-1]).all():
            return order
    return np.argsort(places, kind="stable")


class _Py1e(ExactShuffle):
    name = "py1e"

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        if spec.block_size < 1:
            raise ConfigError("The shuffle `py1e` needs a `shuffle_block_size` of at least 1.")
        samples, nodes = spec.num_samples, spec.canonical_nodes
        if samples < nodes:
            empty = int(np.argmin(np.diff(borders(samples, nodes))))
            raise ConfigError(
                f"The shuffle `py1e` needs a sample for every canonical node, but {empty} of "
                f"{nodes} has none of the {samples}. Lower `num_canonical_nodes`."
            )
        longest = int(spec.sizes.max(initial=0))
        if longest <= int(0.75 * spec.block_size):
            return ()
        return (
            f"shuffle_block_size ({spec.block_size}) is small for shards of {longest} samples: "
            f"those of a shard piece that is longer than a block aren't moved out of it. Raise it "
            f"to {2 * longest} or more.",
        )

    def make(self, spec: ShuffleSpec) -> Making:
        return _Making(spec)


py1e = _Py1e()
get_shuffle_py1e = py1e.whole
