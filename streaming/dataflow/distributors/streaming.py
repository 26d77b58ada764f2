"""Samples of our own datasets, of any format in any store, in the order of their plan."""

import dataclasses
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from streaming.dataflow.base import Cursor, DataDistributor, Json, RawItem, StreamPlan, Token
from streaming.dataflow.distributors.epochs import EpochCursor, check_epochs, cut
from streaming.errors import ConfigError
from streaming.idmap import IdMap, Ids
from streaming.plan import OrderSpec, Position, arrange, open_order
from streaming.prefetch import Prefetcher
from streaming.spanner import Spanner
from streaming.world import World

if TYPE_CHECKING:
    from streaming.dataset import StreamingDataset

__all__ = ["StreamingDistributor"]

logger = logging.getLogger(__name__)

_SCAN = 1 << 16  # places that are looked through at a time for the next shards
_ALL = World(num_nodes=1, ranks_per_node=1, workers_per_rank=1, worker=0)


class StreamingDistributor(DataDistributor):
    """Deals out the epochs of a StreamingDataset to logical streams, in blocks.

    Each epoch is the dataset's: its streams by weight, its shuffle, its seed. Logical stream u of S
    reads the u-th of S runs of neighbours in it, so that a shard is read by few. Where the dataset
    names no canonical nodes, there is one for each logical stream, which then reads shards of its
    own. Shards are fetched ahead of each stream's place. Each sample of an epoch comes exactly
    once; tokens are (epoch, place in the stream's run).

    Args:
        dataset: The dataset. A `get_item` that a subclass overrides is called for each sample.
        epochs: How many epochs an iteration has; None goes on for ever.

    Raises:
        ConfigError: The dataset batches its streams in a way that needs a batch of fixed size.
    """

    def __init__(self, dataset: "StreamingDataset", *, epochs: int | None = None) -> None:
        if dataset.batching_method != "random":
            raise ConfigError(
                f"The dataset has `batching_method={dataset.batching_method!r}`, which decides "
                f"over batches of fixed size. Here a batcher makes the batches: leave it out, or "
                f"mix one StreamingDistributor for each stream with MixtureDistributor."
            )
        self.dataset = dataset
        self.epochs = check_epochs(epochs)
        self._orders: dict[tuple[int, int], IdMap] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_orders": {}}

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give the part of one worker of one rank, without end."""
        plan = StreamPlan.of(dp_world_size, num_workers)
        cursor = self.open(plan.stream(dp_rank * num_workers + worker_id), plan)
        try:
            for _, item in cursor:
                yield item
        finally:
            cursor.close()

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        places = cut(self.dataset.epoch_size, plan.unit(stream), plan.num_streams)
        return _StreamingCursor(self, places, plan.num_streams)

    def counts(self, plan: StreamPlan) -> Sequence[int]:
        size = self.dataset.epoch_size
        return [
            len(cut(size, plan.unit(stream), plan.num_streams))
            for stream in range(plan.num_streams)
        ]

    def fingerprint(self) -> dict[str, Json]:
        identity = self.dataset._identity
        order = self.dataset._config.order.to_json()
        for name in ("batch_size", "partition_algo", "replication"):
            del order[name]  # Here they decide nothing.
        return {
            **{name: value for name, value in identity.items() if name != "global_batch_size"},
            "order": order,
        }

    def order(self, epoch: int, num_streams: int) -> IdMap:
        """The samples at the places of an epoch. The newest two are kept, for streams to share."""
        found = self._orders.get((epoch, num_streams))
        if found is None:
            spec = self._spec(num_streams)
            dataset = self.dataset
            sources = arrange(spec, dataset._shares, _ALL, Position(epoch)).sources
            hold = dataset._orders.get()
            found = open_order(spec, dataset._table, dataset._shares, epoch, sources, hold)
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch, num_streams] = found
        return found

    def _spec(self, num_streams: int) -> OrderSpec:
        spec = self.dataset._config.order
        nodes = spec.num_canonical_nodes or num_streams
        return dataclasses.replace(spec, num_canonical_nodes=nodes).resolve(1)


class _StreamingCursor(EpochCursor):
    """One logical stream of a dataset."""

    def __init__(self, distributor: StreamingDistributor, places: range, num_streams: int) -> None:
        super().__init__(len(places), distributor.epochs)
        dataset = distributor.dataset
        self._ids = _Ids(distributor, places, num_streams, dataset.spanner)
        self._dataset = dataset
        self._runtime = dataset._runtime.get()
        self._transforms = dataset._transforms()
        self._most = dataset._most_in_block(self._runtime)
        self._next = 1  # samples of the next block, if no more are asked for
        self._block: list[RawItem] = []
        self._at = (0, 0)  # epoch and place of its first sample
        self._prefetcher: Prefetcher | None = None

    def read(self, epoch: int, start: int, stop: int) -> list[RawItem]:
        first = start - self._at[1]
        if epoch != self._at[0] or not 0 <= first < len(self._block):
            self._fill(epoch, start, stop)
            first = 0
        return self._block[first : first + stop - start]

    def fetch(self, token: Token) -> RawItem:
        epoch, place = cast(tuple[int, int], token)
        return self._take(self._ids.at(epoch, place, place + 1))[0]

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _fill(self, epoch: int, start: int, stop: int) -> None:
        """Decode the block that begins at a place."""
        size = max(min(self._next, self._most), stop - start)
        ids = self._ids.at(epoch, start, min(start + size, self._size))
        self._block, self._at = [], (epoch, start)
        try:
            self._wait(epoch * self._size + start, ids)
            self._block = self._take(ids)
            self._next = 2 * size
        except Exception:
            if len(ids) == 1:
                raise
            logger.debug("Samples %s can't be read together.", ids, exc_info=True)
            self._next = 1
            self._block = self._take(ids[:1])

    def _wait(self, slot: int, ids: Ids) -> None:
        """Wait for the shards of some samples, and look ahead from there."""
        if self._runtime.cache.is_inert():
            return
        if self._prefetcher is None or slot >= len(self._ids):
            self.close()
            if self._epochs is not None:
                iteration = self._epochs * self._size
                self._ids.end = min((slot // iteration + 1) * iteration, sys.maxsize)
            # Every epoch looked into costs an order, and one more than this and the next would
            # displace the order that is being read.
            self._prefetcher = self._dataset._look_ahead(self._ids, most=self._size)
        self._prefetcher.advance(slot)
        self._prefetcher.wait(self._dataset.spanner.shards(ids))

    def _take(self, ids: Ids) -> list[RawItem]:
        if self._transforms:
            return [self._dataset[i] for i in ids.tolist()]
        return self._runtime.take(ids)


class _Ids:
    """The sample ids of a logical stream; what a prefetcher may know of it.

    Its slots count on through all epochs, so that there is no gap in looking ahead between two.

    Attributes:
        end: The slot before which looking ahead ends.
    """

    def __init__(
        self, distributor: StreamingDistributor, places: range, num_streams: int, spanner: Spanner
    ) -> None:
        self.end = sys.maxsize
        self._distributor = distributor
        self._places = places
        self._num_streams = num_streams
        self._spanner = spanner

    def __len__(self) -> int:
        return self.end

    def at(self, epoch: int, start: int, stop: int) -> Ids:
        """Ids at places [start, stop) of an epoch."""
        order = self._distributor.order(epoch, self._num_streams)
        return order(np.arange(self._places.start + start, self._places.start + stop))

    def shards(self, start: int, limit: int, stop: int | None = None) -> list[int]:
        """At most `limit` distinct shards of the slots [start, stop), in order of first use."""
        stop = len(self) if stop is None else stop
        size = len(self._places)
        found: dict[int, None] = {}
        while start < stop and len(found) < limit:
            epoch, place = divmod(start, size)
            end = min(place + _SCAN, size, place + stop - start)
            found.update(dict.fromkeys(self._spanner.in_turn(self.at(epoch, place, end))))
            start += end - place
        return list(found)[: max(limit, 0)]
