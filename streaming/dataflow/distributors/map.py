"""Items of a map-style dataset, epoch after epoch."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import Cursor, DataDistributor, Json, RawItem, StreamPlan
from streaming.dataflow.callback import worker_variable
from streaming.dataflow.distributors.epochs import EpochCursor, check_epochs, cut
from streaming.dataflow.distributors.permutation import Scatter, torch_permutation
from streaming.errors import ConfigError, StateError

__all__ = ["MapDistributor"]

logger = logging.getLogger(__name__)


class MapDistributor(DataDistributor):
    """Deals out the items of anything with a length and integer indexing.

    Each epoch has a new order. With "stride" and `shuffle=True` it is bit for bit that of NVIDIA's
    cosmos-framework. Tokens are (epoch, place in the logical stream's part).

    Args:
        dataset: The items. `__getitems__`, where there is one, is asked for several at once.
        seed: Epoch e is shuffled with `seed + e`.
        shuffle: Whether to shuffle; "scatter" does so without a table of the epoch, in an order of
            its own, for datasets of many millions of items.
        name: Prefix of the environment variables that `stream` takes its start from.
        partition: How an epoch is dealt out: "stride" gives stream u the places u, u + S, ...,
            "block" a run of neighbours.
        epochs: How many epochs an iteration has; None goes on for ever.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int = 0,
        shuffle: bool | Literal["scatter"] = True,
        name: str = "",
        *,
        partition: Literal["stride", "block"] = "stride",
        epochs: int | None = None,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigError(
                f"MapDistributor needs a dataset with a length and indexing, but "
                f"{type(dataset).__name__} has not both. IterableDistributor takes what can only "
                f"be iterated."
            )
        if shuffle not in (True, False, "scatter"):
            raise ConfigError(f'`shuffle` must be True, False or "scatter", but is {shuffle!r}.')
        if partition not in ("stride", "block"):
            raise ConfigError(f'`partition` must be "stride" or "block", but is {partition!r}.')
        self.dataset = dataset
        self.seed = seed
        self.shuffle = shuffle
        self.name = name
        self.partition = partition
        self.epochs = check_epochs(epochs)
        self._num_open = 0
        self._newest: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_num_open": 0, "_newest": None}

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give the part of one worker of one rank, without end.

        A dict comes as a new dict that begins with its place, `_dp_epoch` and `_dp_stream_pos`; the
        item's own keys win. The first call takes its start from environment variables, as the
        predecessor's callback sets them, and removes them. A `DataflowLoader` uses neither.

        Raises:
            StateError: The variables name a place behind the end of the part.
        """
        plan = StreamPlan.of(dp_world_size, num_workers)
        cursor = _MapCursor(self, plan.stream(dp_rank * num_workers + worker_id), plan)
        epoch, place = self._start(worker_id)
        if len(cursor):
            cursor.load_state_dict([epoch, place])
        for token, item in cursor:
            if isinstance(item, dict):
                epoch, place = cast(tuple[int, int], token)
                yield {"_dp_epoch": epoch, "_dp_stream_pos": place, **item}
            else:
                yield item

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        self._num_open += 1
        return _MapCursor(self, stream, plan)

    def counts(self, plan: StreamPlan) -> Sequence[int]:
        return [
            len(self._places(plan.unit(stream), plan.num_streams))
            for stream in range(plan.num_streams)
        ]

    def fingerprint(self) -> dict[str, Json]:
        return {
            "items": len(self),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "partition": self.partition,
        }

    def _places(self, unit: int, num_streams: int) -> range:
        if self.partition == "block":
            return cut(len(self), unit, num_streams)
        return range(unit, len(self), num_streams)

    def _open_epoch(self, epoch: int, unit: int, num_streams: int) -> Callable[[slice], list[int]]:
        """What gives the items at places of one stream's part of an epoch."""
        places = self._places(unit, num_streams)
        if not self.shuffle:
            return lambda at: list(places[at])
        if self.shuffle == "scatter":
            scatter = Scatter(len(self), self.seed, epoch)
            return lambda at: scatter(np.array(places[at], np.int64)).tolist()
        if self._newest is None or self._newest[0] != epoch:
            self._newest = (epoch, torch_permutation(len(self), self.seed + epoch))
        # A copy, so that the whole order need not stay. It does while others want their part of it.
        part = self._newest[1][places.start : places.stop : places.step].copy()
        if self._num_open < 2:
            self._newest = None
        return lambda at: part[at].tolist()

    def _start(self, worker_id: int) -> tuple[int, int]:
        prefix = worker_variable(self.name, worker_id)
        epoch = os.environ.pop(f"{prefix}_EPOCH", "0")
        index = os.environ.pop(f"{prefix}_INDEX", "-1")
        try:
            return int(epoch), int(index) + 1
        except ValueError:
            raise StateError(
                f"{prefix}_EPOCH and {prefix}_INDEX must be numbers: {epoch!r}, {index!r}."
            ) from None


class _MapCursor(EpochCursor):
    """One logical stream of a map-style dataset."""

    def __init__(self, distributor: MapDistributor, stream: int, plan: StreamPlan) -> None:
        self._distributor = distributor
        self._unit = plan.unit(stream)
        self._num_streams = plan.num_streams
        self._opened = -1
        super().__init__(
            len(distributor._places(self._unit, self._num_streams)), distributor.epochs
        )

    def read(self, epoch: int, start: int, stop: int) -> list[RawItem]:
        dataset = self._distributor.dataset
        ids = self._ids(epoch, start, stop)
        if len(ids) > 1 and hasattr(dataset, "__getitems__"):
            try:
                return list(dataset.__getitems__(ids))
            except Exception:
                logger.debug("Items %s can't be read together.", ids, exc_info=True)
        items = []
        for i in ids:
            try:
                items.append(dataset[i])
            except Exception:
                if not items:
                    raise
                break  # It will be the first of the next call, and raise there.
        return items

    def _ids(self, epoch: int, start: int, stop: int) -> list[int]:
        if self._opened != epoch:
            self._find = self._distributor._open_epoch(epoch, self._unit, self._num_streams)
            self._opened = epoch
        return self._find(slice(start, stop))
