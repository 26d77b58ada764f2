"""What users ask a dataset about its shards and its settings, and tell it, beside reading it."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from streaming.cache import CachePart
from streaming.config import DatasetConfig
from streaming.errors import ConfigError
from streaming.format.lazy import Reader
from streaming.overriding import warn_of_gone_overrides
from streaming.plan import OrderSpec, open_draws
from streaming.runtime import PerProcess, Runtime
from streaming.sampling import Share
from streaming.shared.epoch import EpochRecord
from streaming.stream import Stream
from streaming.table import ShardTable
from streaming.util.migration import warn_user

__all__ = ["Setting", "ShardAccess", "ShardList"]

_ORDER = "it is computed, not iterated: see docs/design/architecture.md, section 5"
_CACHE = "iterating brings and drops shards without it: override the steps of `Stream`"
_THREADS = (
    "shards are brought by a pool that asks the plan; to do something with each sample override "
    "`get_item`, with each file `Stream._download_file`"
)
_GONE = {
    **dict.fromkeys(("_prepare_thread", "_ready_thread", "_download_thread"), _THREADS),
    **dict.fromkeys(
        ("_each_sample_id", "_get_work", "_share_work", "_attach_work", "resample_streams"), _ORDER
    ),
    **dict.fromkeys(
        ("_evict_shard", "_evict_coldest_shard", "evict_shard", "evict_coldest_shard"), _CACHE
    ),
    **dict.fromkeys(("_resume", "_resume_incr_epoch"), "override `load_state_dict`"),
    "_set_shuffle_block_size": "give `shuffle_block_size`",
    "prepare_shard": _CACHE,
    "on_exception": "what fails in a thread is raised where the sample is asked for",
}


class Setting:
    """An attribute that tells what a dataset was told; what it is set to holds from then on.

    Subclasses set such attributes in their constructors, before or after the one of the base class
    has run. Before, there is nothing to change yet, and they are only kept.

    Args:
        fixed: Whether only the constructor can set it.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self._fixed = fixed

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        if dataset is None:
            return self
        config: DatasetConfig | None = dataset.__dict__.get("_config")
        if config is not None:
            return self._of(config)
        try:
            return dataset.__dict__["_early"][self._name]
        except KeyError:
            raise AttributeError(f"{type(dataset).__name__!r} has no {self._name!r} yet") from None

    def __set__(self, dataset: Any, value: Any) -> None:
        config: DatasetConfig | None = dataset.__dict__.get("_config")
        if config is None:
            dataset.__dict__.setdefault("_early", {})[self._name] = value
        elif self._of(config) != value:
            if self._fixed:
                raise ConfigError(
                    f"`{self._name}` is {self._of(config)!r} for good. Give {value!r} to the "
                    f"constructor."
                )
            dataset._config = self._changed(config, value)
            dataset.__dict__.pop("_identity", None)

    def _of(self, config: DatasetConfig) -> Any:
        if hasattr(config, self._name):
            return getattr(config, self._name)
        value = getattr(config.order, self._name)
        return None if self._name == "replication" and value == 1 else value

    def _changed(self, config: DatasetConfig, value: Any) -> DatasetConfig:
        if self._name == "predownload":
            return dataclasses.replace(config, predownload=value)
        change: dict[str, Any] = {self._name: 1 if value is None else value}
        order = dataclasses.replace(config.order, **change)
        if self._name == "batch_size":
            return dataclasses.replace(config, order=order, batch_size=value)
        return dataclasses.replace(config, order=order)


class OrderSetting(Setting):
    """A setting that is read as it holds in this run: a loaded state's, or with its default."""

    def __init__(self, resolved: str) -> None:
        super().__init__()
        self._resolved = resolved

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        if dataset is None or "_record" not in dataset.__dict__:
            return super().__get__(dataset, owner)
        return getattr(dataset._current_order(), self._resolved)

    def __set__(self, dataset: Any, value: Any) -> None:
        if "_record" in dataset.__dict__ and self._of(dataset._config) != value:
            dataset._own_record().amend(**{self._name: value})
        super().__set__(dataset, value)

    def _changed(self, config: DatasetConfig, value: Any) -> DatasetConfig:
        order = dataclasses.replace(config.order, **{self._name: value})
        return dataclasses.replace(config, order=order)


class ShardList(Sequence[Reader]):
    """The shards of all streams, each made when it is asked for. Pickles without them."""

    def __init__(self, parts: Sequence[CachePart], *, allow_unsafe_types: bool) -> None:
        self._parts = parts
        self._firsts = np.cumsum([0, *(len(part.index) for part in parts)])
        self._allow_unsafe_types = allow_unsafe_types
        self._made: dict[int, Reader] = {}

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @overload
    def __getitem__(self, at: int) -> Reader: ...
    @overload
    def __getitem__(self, at: slice) -> list[Reader]: ...
    def __getitem__(self, at: int | slice) -> Reader | list[Reader]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        shard = range(len(self))[at]
        if shard not in self._made:
            number = int(np.searchsorted(self._firsts, shard, "right")) - 1
            part = self._parts[number]
            self._made[shard] = Reader(
                part.index.shard(shard - int(self._firsts[number])),
                str(part.directory.path),
                allow_unsafe_types=self._allow_unsafe_types,
            )
        return self._made[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}


class ShardAccess:
    """The part of `StreamingDataset` that tells of shards, brings and drops them when asked."""

    predownload = Setting()
    cache_limit = Setting(fixed=True)
    allow_unsafe_types = Setting(fixed=True)
    batch_size = Setting()
    sampling_method = Setting()
    sampling_granularity = Setting()
    partition_algo = Setting()
    shuffle = Setting()
    shuffle_algo = Setting()
    batching_method = Setting()
    replication = Setting(fixed=True)
    num_canonical_nodes = OrderSetting("canonical_nodes")
    shuffle_seed = OrderSetting("shuffle_seed")
    shuffle_block_size = OrderSetting("block_size")

    streams: list[Stream]
    _config: DatasetConfig
    _parts: list[CachePart]
    _table: ShardTable
    _shares: list[Share]
    _runtime: PerProcess[Runtime]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ != "streaming.dataset":
            warn_of_gone_overrides(cls, _GONE)

    @cached_property
    def shards(self) -> Sequence[Reader]:
        """The shards of all streams, in order."""
        return ShardList(self._parts, allow_unsafe_types=self._config.allow_unsafe_types)

    @property
    def epoch_seed_change(self) -> bool:
        """Whether what is sampled of a stream changes with the epoch."""
        return self._config.order.epoch_seed

    @property
    def cache_usage(self) -> int:
        """Bytes that indexes and cached shards take on this node now."""
        indexes = sum(stream.get_index_size() for stream in self.streams)
        return indexes + self._runtime.get().cache.usage()

    @cache_usage.setter
    def cache_usage(self, cache_usage: int) -> None:
        warn_user("`cache_usage` is counted, so it can't be set.", UserWarning)

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Bring a shard here.

        Args:
            shard_id: In [0, num_shards).
            blocking: Has no effect: it is here afterwards.

        Raises:
            StreamingError: It can't be had; see `ShardCache.prepare`.
        """
        self._runtime.get().cache.prepare(shard_id)

    def evict_shard(self, shard_id: int) -> None:
        """Remove the files of a shard, as far as they were fetched or made here.

        What nobody could bring back stays: without a remote, that is all but what was decompressed.
        """
        runtime = self._runtime.get()
        runtime.forget(shard_id)
        runtime.cache.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Remove the files of the shard that was not used for longest, as `evict_shard` does.

        Raises:
            ConfigError: There is none that could be removed.
        """
        shard = self._runtime.get().cache.coldest()
        if shard is None:
            raise ConfigError(
                "No shard can be evicted: none of those that are here was fetched or made here."
            )
        self.evict_shard(shard)

    def resample_streams(
        self, epoch: int, stream_id: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What an epoch draws from the shards.

        Args:
            epoch: Number of the epoch.
            stream_id: Only of this stream; None: of all.

        Returns:
            Samples of each piece of a shard, and the ids of all samples that are drawn, in order.
        """
        draws = open_draws(self._current_order(), self._table, self._shares, epoch, stream_id)
        return draws.units, draws(np.arange(draws.size))

    def on_exception(self, future: Future[Any]) -> None:
        """Raise what a thread raised."""
        future.result()

    def _current_order(self) -> OrderSpec:
        raise NotImplementedError

    def _own_record(self) -> EpochRecord:
        raise NotImplementedError
