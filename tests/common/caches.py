"""A fixture that opens shard caches and closes them."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pytest

from streaming.cache import CachePart, ShardCache
from tests.common.shards import sample

__all__ = ["OpenCache", "expected", "open_cache", "values"]


class OpenCache(Protocol):
    """The type of the fixture `open_cache`."""

    def __call__(
        self, *parts: CachePart, limit: int | None = None, **options: Any
    ) -> ShardCache: ...


@pytest.fixture
def open_cache() -> Iterator[OpenCache]:
    caches: list[ShardCache] = []

    def open_(*parts: CachePart, limit: int | None = None, **options: Any) -> ShardCache:
        caches.append(ShardCache(parts, limit, **options))
        return caches[-1]

    yield open_
    for cache in caches:
        cache.close()


def values(cache: ShardCache, shard: int) -> list[bytes]:
    """Column "x" of a whole shard, read through the cache."""
    reader = cache.open(shard)
    try:
        return [row["x"] for row in reader.take(np.arange(len(reader)))]
    finally:
        reader.close()


def expected(shard: int, samples: int = 5, padding: int = 0) -> list[bytes]:
    """What `values` must give for a shard of `write_dataset`."""
    return [sample(shard, place, padding) for place in range(samples)]
