"""Items of several distributors in one stream, by weighted draw."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from streaming.dataflow.base import (
    MAX_AGAIN,
    Cursor,
    DataDistributor,
    Json,
    RawItem,
    StreamPlan,
    Token,
    open_cursor,
)
from streaming.dataflow.seeding import hashed_fraction
from streaming.dataflow.state import Count, parse_part
from streaming.errors import ConfigError, EmptyDatasetError, StateError

__all__ = ["MixtureDistributor"]

_DRAWS = 1 << 16  # that are made again at a time


class MixtureDistributor(DataDistributor):
    """Draws the source of each item by weight; each logical stream draws for itself.

    A source that ends is begun again. Tokens are (source name, token there). The draws need no
    state but their number, so ratios may change when a run goes on: places stay valid.

    Args:
        sources: Name to (distributor, ratio). A ratio of 0 is never drawn.
        seed: Seed of the draws.
        draws: "python" draws as NVIDIA's cosmos-framework does, from Python's generator seeded for
            the rank and the worker; going on after n draws makes n draws. "hash" computes draw n
            from the seed, the logical stream and n alone.

    Raises:
        ConfigError: No source can be drawn, or an argument can't be meant as it is.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[DataDistributor, float]],
        seed: int = 0,
        *,
        draws: Literal["python", "hash"] = "python",
    ) -> None:
        if draws not in ("python", "hash"):
            raise ConfigError(f'`draws` must be "python" or "hash", but is {draws!r}.')
        negative = [name for name, (_, ratio) in sources.items() if not ratio >= 0]
        if negative:
            raise ConfigError(f"A ratio must not be negative; these are: {', '.join(negative)}.")
        if not any(ratio for _, ratio in sources.values()):
            raise ConfigError(
                f"At least one source needs a ratio above 0; there are {len(sources)} sources and "
                f"none has."
            )
        self.sources = dict(sources)
        self.seed = seed
        self.draws = draws

    def stream(
        self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int
    ) -> Iterator[RawItem]:
        """Give the part of one worker of one rank: the items of the sources' own `stream`."""
        at = (dp_rank, dp_world_size, worker_id, num_workers)
        plan = StreamPlan.of(dp_world_size, num_workers)
        draw = self._draw(plan.stream(dp_rank * num_workers + worker_id), plan)
        streams: dict[str, Iterator[RawItem]] = {}
        number = 0
        while True:
            name, number = draw(number), number + 1
            for _ in range(2):
                if name not in streams:
                    streams[name] = iter(self.sources[name][0].stream(*at))
                try:
                    item = next(streams[name])
                    break
                except StopIteration:
                    del streams[name]
            else:
                raise _nothing_in(name)
            yield item

    def open(self, stream: int, plan: StreamPlan) -> Cursor:
        cursors = {
            name: open_cursor(source, stream, plan) for name, (source, _) in self.sources.items()
        }
        return _MixtureCursor(cursors, self._draw(stream, plan))

    def fingerprint(self) -> dict[str, Json]:
        sources = {name: source.fingerprint() for name, (source, _) in self.sources.items()}
        return {"seed": self.seed, "draws": self.draws, "sources": sources}

    def _draw(self, stream: int, plan: StreamPlan) -> Callable[[int], str]:
        """What gives the name of draw n of a stream; asked for rising numbers."""
        names = list(self.sources)
        weights = [ratio for _, ratio in self.sources.values()]
        if self.draws == "hash":
            return _HashDraws(names, weights, self.seed, stream)
        rank, _, worker, _ = plan.coordinates(stream)
        # The predecessor's seed for a rank and a worker.
        return _PythonDraws(names, weights, random.Random(self.seed + rank * 100003 + worker))


class _PythonDraws:
    """Draws of Python's generator, one after another."""

    def __init__(self, names: list[str], weights: list[float], draw: random.Random) -> None:
        self._names = names
        self._weights = weights
        self._random = draw
        self._number = 0

    def __call__(self, number: int) -> str:
        for first in range(self._number, number, _DRAWS):
            # One of `choices` takes 64 bits.
            self._random.getrandbits(64 * min(_DRAWS, number - first))
        self._number = number + 1
        return self._random.choices(self._names, weights=self._weights)[0]


class _HashDraws:
    """Draws that each follow from their number."""

    def __init__(self, names: list[str], weights: list[float], seed: int, stream: int) -> None:
        self._names = names
        self._weights = weights
        self._key = ("mixture", seed, stream)

    def __call__(self, number: int) -> str:
        left = hashed_fraction(*self._key, number) * sum(self._weights)
        drawable = [pair for pair in zip(self._names, self._weights, strict=True) if pair[1]]
        for name, weight in drawable[:-1]:
            left -= weight
            if left < 0:
                return name
        return drawable[-1][0]


class _Place(msgspec.Struct):
    draws: Count
    sources: dict[str, Any]


class _MixtureCursor(Cursor):
    """One logical stream of a mixture."""

    def __init__(self, cursors: dict[str, Cursor], draw: Callable[[int], str]) -> None:
        self._cursors = cursors
        self._draw = draw
        self._number = 0
        self.can_fetch = all(cursor.can_fetch for cursor in cursors.values())

    def __next__(self) -> tuple[Token, RawItem]:
        name = self._draw(self._number)
        self._number += 1
        for _ in range(2):  # The end of a source is the beginning of its next round.
            for token, item in self._cursors[name]:
                return (name, token), item
        raise _nothing_in(name)

    def state_dict(self) -> Json:
        sources = {name: cursor.state_dict() for name, cursor in self._cursors.items()}
        return {"draws": self._number, "sources": sources}

    def load_state_dict(self, state: Json) -> None:
        found = parse_part(state, _Place, "The place in a mixture")
        sources = found.sources
        if sources.keys() != self._cursors.keys():
            raise StateError(
                f"The state is of a mixture of {', '.join(sorted(sources))}; this one is of "
                f"{', '.join(sorted(self._cursors))}."
            )
        if isinstance(self._draw, _PythonDraws) and found.draws > MAX_AGAIN:
            raise StateError(
                f"The state is of a mixture after {found.draws} draws, which would have to be made "
                f"again; {MAX_AGAIN} are the most. It is damaged, or `draws` must be 'hash'."
            )
        self._number = found.draws
        for name, cursor in self._cursors.items():
            cursor.load_state_dict(sources[name])

    def fetch(self, token: Token) -> RawItem:
        name, inner = parse_part(token, tuple[str, Any], "The token of an item of a mixture")
        if name not in self._cursors:
            raise StateError(
                f"The state has an item of source {name!r}; this mixture is of "
                f"{', '.join(sorted(self._cursors))}."
            )
        return self._cursors[name].fetch(inner)

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()


def _nothing_in(name: str) -> EmptyDatasetError:
    return EmptyDatasetError(
        f"The source {name!r} of a mixture ended twice in a row without an item. Give it a ratio "
        f"of 0, or see that each logical stream has some of its items."
    )
