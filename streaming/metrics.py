"""Statistics of caches for Prometheus: a collector over `StreamingDataset.stats`."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from streaming.dataset import StreamingDataset
from streaming.shared.counts import WAIT_BOUNDS, Stats
from streaming.util.importing import lazy

__all__ = ["StatsCollector"]

_HELP = {
    "hits": "Openings of a shard that was here.",
    "misses": "Shards that were fetched or decompressed.",
    "fetched_bytes": "Bytes of files that were fetched.",
    "retries": "Attempts at a download after its first.",
    "evictions": "Shards that were removed to keep to the limit.",
    "evicted_bytes": "Bytes of their files.",
    "repairs": "Damaged shards that were made anew.",
}
_EVERY = 8  # ranges of waits in a bucket: each is about four times as long as the one before


class StatsCollector:
    """Gives the statistics of datasets when Prometheus asks for them.

    For the rank process, whose numbers include those of its workers::

        prometheus_client.REGISTRY.register(StatsCollector({"train": dataset}))

    Args:
        datasets: Datasets by the value of the label "dataset".

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, datasets: Mapping[str, StreamingDataset]) -> None:
        self._core = lazy("prometheus_client.core", "metrics")
        self._datasets = dict(datasets)

    def describe(self) -> Iterable[Any]:
        """Nothing: so the registry asks no dataset when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Any]:
        """The metrics, as they stand now."""
        found = {name: dataset.stats() for name, dataset in self._datasets.items()}
        for counter, text in _HELP.items():
            family = self._core.CounterMetricFamily(
                f"streaming_cache_{counter}", text, labels=["dataset"]
            )
            for name, stats in found.items():
                family.add_metric([name], getattr(stats, counter))
            yield family
        waits = self._core.HistogramMetricFamily(
            "streaming_cache_wait_seconds",
            "How long readers stood still for shards.",
            labels=["dataset"],
        )
        holders = self._core.GaugeMetricFamily(
            "streaming_cache_lock_holders", "Locks held or waited for now.", labels=["dataset"]
        )
        for name, stats in found.items():
            waits.add_metric([name], _buckets(stats), sum_value=stats.wait_seconds)
            holders.add_metric([name], len(stats.holders))
        yield from (waits, holders)


def _buckets(stats: Stats) -> list[tuple[str, int]]:
    """Upper ends, and how many waits were not longer."""
    sums = list(accumulate(stats.waits))
    stops = range(_EVERY, len(sums), _EVERY)
    return [(f"{WAIT_BOUNDS[stop]:.3g}", sums[stop - 1]) for stop in stops] + [("+Inf", sums[-1])]
