"""Shards in random order, then the samples of each block, all by arithmetic.

There is no table: a position is mapped to its draw by one keyed permutation within its block and
one search for the shard piece that lies there. So the order of 10^12 samples costs what their
shards cost, 16 bytes each, and any part of it can be had at once. The digit belongs to the name:
this order never changes, another one would be `block2`. What it is:

1. The shards of each source are put in an order that is fixed for the run, by `_spread`.
2. The draws, in that order, are cut at the borders of canonical nodes, and the pieces within each
   canonical node are put in an order that is new in each epoch, by `_spread` again. So all streams
   are spread over the epoch in proportion, but for about a shard of each.
3. Each canonical node is cut into blocks of `shuffle_block_size` positions, rounded up to a power
   of two; what is left over belongs to the last, so that the end is as well shuffled as the rest.
   In each block, `permute` of `bijection` says which of the block's draws comes at a position.

What is random follows from keys, `derive(seed, (use, ...))` with a number of `Use`, and the epoch
or the source.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError
from streaming.idmap import Hold, IdMap, Ids
from streaming.shuffle.bijection import MAX_SIZE, Use, derive, mix, mix_array, permute, permute_each
from streaming.shuffle.exact import ShuffleSpec, borders

__all__ = ["Block1Order", "block1"]

_MAX_BITS = 31  # of a block; the last may be twice as long, and the permutation has 32 bits
_FEW = 256  # ids of a block in a call below which blocks aren't worth a pass of their own
_CACHED = 1 << 15  # ids whose intermediate results stay in the processor's cache
_MAX_COMPARED = 64  # pieces of a block up to which comparing with each beats a binary search


class Block1Order:
    """Maps positions to draws, for one or more sources that stand side by side.

    Immutable, so threads may share it.

    Args:
        specs: What is to be shuffled: a spec for each source, with the same seed and epoch.
    """

    def __init__(self, specs: Sequence[ShuffleSpec]) -> None:
        seed, epoch = specs[0].seed, specs[0].epoch
        sizes = np.concatenate([np.asarray(spec.sizes, np.int64) for spec in specs])
        groups = _groups(specs)
        self._size = int(sizes.sum())
        ends = np.cumsum(sizes)
        order = _order_shards(specs, sizes, groups)
        starts = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes[order], out=starts[1:])
        self._lay_segments(specs, seed, epoch)

        cuts = np.unique(np.concatenate([starts, self._segment_starts]))
        cuts = cuts[cuts < self._size]
        shard = np.searchsorted(starts, cuts, "right") - 1
        first = (ends - sizes)[order[shard]] + cuts - starts[shard]
        length = np.diff(cuts, append=self._size)
        segment = np.searchsorted(self._segment_starts, cuts, "right") - 1
        key = np.uint64(derive(seed, (Use.PIECES, epoch)))
        words = mix_array(first.astype(np.uint64) ^ key)
        again = _spread(words, length, None if groups is None else groups[order[shard]], segment)
        self._starts = np.cumsum(length[again]) - length[again]  # first position of each piece
        self._base = first[again] - self._starts  # draw minus place, before blocks are shuffled

    def _lay_segments(self, specs: Sequence[ShuffleSpec], seed: int, epoch: int) -> None:
        """A segment is a canonical node of a source; empty ones are left out."""
        starts, shifts, keys = [], [], []
        done = 0
        for spec in specs:
            bounds = borders(spec.num_samples, spec.canonical_nodes)
            nodes = np.flatnonzero(np.diff(bounds))
            starts.append(bounds[nodes] + done)
            bits = min((max(spec.block_size, 1) - 1).bit_length(), _MAX_BITS)
            shifts.append(np.full(len(nodes), bits, np.int64))
            key = np.uint64(derive(seed, (Use.BLOCKS, epoch, spec.source)))
            keys.append(mix_array(nodes.astype(np.uint64) ^ key))
            done += spec.num_samples
        self._segment_starts = np.concatenate(starts)
        self._segment_sizes = np.diff(self._segment_starts, append=self._size)
        self._shifts = np.concatenate(shifts)
        self._last_blocks = np.maximum(self._segment_sizes >> self._shifts, 1) - 1
        self._keys = np.concatenate(keys)

    @property
    def size(self) -> int:
        return self._size

    def __call__(self, ids: Ids, /) -> Ids:
        flat = ids.ravel()
        if not len(flat):
            return np.empty(ids.shape, np.int64)
        low, high = int(flat.min()), int(flat.max())
        if low < 0:
            out = np.full(len(flat), -1, np.int64)
            real = flat >= 0
            if high >= 0:
                out[real] = self(flat[real])
            return out.reshape(ids.shape)
        first, last = np.searchsorted(self._segment_starts, (low, high), "right") - 1
        if first == last:
            return self._in_segment(int(first), flat).reshape(ids.shape)
        if _FEW * (last - first) <= len(flat) and (flat[1:] >= flat[:-1]).all():
            edges = np.searchsorted(flat, self._segment_starts[first + 1 : last + 1])
            parts = enumerate(np.split(flat, edges), int(first))
            found = [self._in_segment(segment, part) for segment, part in parts if len(part)]
            return np.concatenate(found).reshape(ids.shape)
        return self._anywhere(flat).reshape(ids.shape)

    def _in_segment(self, segment: int, ids: Ids) -> Ids:
        """The draws at positions of one segment: a pass for each block, if that pays."""
        start, shift = int(self._segment_starts[segment]), int(self._shifts[segment])
        size, key = int(self._segment_sizes[segment]), int(self._keys[segment])
        end = int(self._last_blocks[segment])
        blocks = np.minimum((ids - start) >> shift, end)
        low, high = int(blocks.min()), int(blocks.max())
        if low < high and _FEW * (high - low + 1) > len(ids):
            return self._anywhere(ids)
        out = np.empty(len(ids), np.int64)
        if low == high:
            order, parts = None, [(low, 0, len(ids))]
        else:
            order = None
            if (blocks[1:] < blocks[:-1]).any():
                order = np.argsort(blocks, kind="stable")
                ids, blocks = ids[order], blocks[order]
            edges = np.searchsorted(blocks, np.arange(low, high + 2)).tolist()
            parts = list(zip(range(low, high + 1), edges, edges[1:], strict=False))
        for block, first, last in parts:
            if first < last:
                lead = start + (block << shift)
                count = 1 << shift if block < end else start + size - lead
                self._in_block(ids[first:last], lead, count, mix(key ^ block), out[first:last])
        if order is None:
            return out
        unsorted = np.empty_like(out)
        unsorted[order] = out
        return unsorted

    def _in_block(self, ids: Ids, lead: int, size: int, key: int, out: Ids) -> None:
        """Write the draws at positions in [lead, lead + size), a block, to `out`."""
        places = permute((ids - lead).astype(np.uint32), size, key)
        first, last = np.searchsorted(self._starts, (lead, lead + size - 1), "right").tolist()
        # Places in the block where its pieces but the first begin.
        begins = (self._starts[first:last] - lead).astype(np.uint32)
        if not len(begins):
            np.add(places, lead + self._base[first - 1], out=out)
            return
        if len(begins) <= _MAX_COMPARED and len(ids) >= _FEW:
            piece = (begins[:, None] <= places).sum(0, dtype=np.uint8).astype(np.intp)
        else:
            piece = np.searchsorted(begins, places, "right")
        base = self._base[first - 1 : last] + lead
        np.add(base[piece], places, out=out)

    def _anywhere(self, ids: Ids) -> Ids:
        """The draws at any positions, in passes that treat each by itself."""
        if len(ids) > _CACHED:
            parts = range(0, len(ids), _CACHED)
            return np.concatenate([self._anywhere(ids[at : at + _CACHED]) for at in parts])
        segment = np.searchsorted(self._segment_starts, ids, "right") - 1
        start, shift = self._segment_starts[segment], self._shifts[segment]
        end = self._last_blocks[segment]
        block = np.minimum((ids - start) >> shift, end)
        lead = start + (block << shift)
        rest = start + self._segment_sizes[segment] - lead
        size = np.where(block < end, np.int64(1) << shift, rest)
        keys = mix_array(self._keys[segment] ^ block.astype(np.uint64))
        position = lead + permute_each(ids - lead, size, keys)
        draws: Ids = position + self._base[np.searchsorted(self._starts, position, "right") - 1]
        return draws


def _groups(specs: Sequence[ShuffleSpec]) -> NDArray[np.int64] | None:
    """The group of each shard; None if no source has more than one."""
    if all(spec.groups is None for spec in specs):
        return None
    return np.concatenate(
        [
            np.zeros(len(spec.sizes), np.int64) if spec.groups is None else spec.groups
            for spec in specs
        ]
    )


def _order_shards(
    specs: Sequence[ShuffleSpec], sizes: NDArray[np.int64], groups: NDArray[np.int64] | None
) -> NDArray[np.intp]:
    """The shards of each source in an order that is fixed for the run."""
    words = np.concatenate(
        [
            mix_array(
                np.arange(len(spec.sizes), dtype=np.uint64)
                + np.uint64(derive(spec.seed, (Use.SHARDS, spec.source)))
            )
            for spec in specs
        ]
    )
    source = None
    if len(specs) > 1:
        source = np.repeat(np.arange(len(specs)), [len(spec.sizes) for spec in specs])
    return _spread(words, sizes, groups, source)


def _spread(
    words: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    groups: NDArray[np.int64] | None,
    segments: NDArray[np.int64] | None,
) -> NDArray[np.intp]:
    """Put pieces in order: segment by segment, in each of them every group spread evenly.

    The pieces of a group are put in the order of their words. Then the samples of the group, one
    piece after the other, take up [0, 1] evenly, and each piece comes where a place within its own
    part falls that its word chooses. All of it is IEEE arithmetic and stable sorting.

    Args:
        words: Random-looking, shape (n,).
        sizes: Samples of each piece, shape (n,).
        groups: Group of each piece; None: all in one.
        segments: Segment of each piece; None: all in one.
    """
    if groups is None:
        if segments is None:
            return np.argsort(words, kind="stable")
        return np.lexsort((words, segments))
    segments = np.zeros(len(words), np.int64) if segments is None else segments
    order = np.lexsort((words, groups, segments))
    words, sizes, groups, segments = words[order], sizes[order], groups[order], segments[order]
    is_first = np.ones(len(words), np.bool_)
    is_first[1:] = (groups[1:] != groups[:-1]) | (segments[1:] != segments[:-1])
    run = np.cumsum(is_first) - 1
    before = np.cumsum(sizes) - sizes
    firsts = before[is_first]
    totals = np.diff(firsts, append=int(sizes.sum()))
    chosen = (mix_array(words) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # in [0, 1)
    places = ((before - firsts[run]) + chosen * sizes) / np.maximum(totals, 1)[run]
    return order[np.lexsort((words, places, segments))]


class _Block1:
    """The shuffle `block1`."""

    is_arithmetic = True

    def check(self, spec: ShuffleSpec) -> Sequence[str]:
        if spec.num_samples * spec.canonical_nodes >= 1 << 63:
            raise ConfigError(
                f"{spec.num_samples} samples times {spec.canonical_nodes} canonical nodes is over "
                f"2^63. Lower `num_canonical_nodes`."
            )
        longest = int(np.max(spec.sizes, initial=0))
        if longest <= max(0.75 * spec.block_size, 1):
            return ()
        return (
            f"shuffle_block_size ({spec.block_size}) is small for shards of {longest} samples: "
            f"samples aren't moved out of their block, so neighbours come from few shards. Raise "
            f"it to {2 * longest} or more.",
        )

    def open(self, spec: ShuffleSpec, hold: Hold) -> IdMap:
        return self.open_all([spec], hold)

    def open_all(self, specs: Sequence[ShuffleSpec], hold: Hold) -> IdMap:
        for spec in specs:
            self.check(spec)
        return Block1Order(specs)


block1 = _Block1()

assert 2 << _MAX_BITS == MAX_SIZE
