"""Weights that change as a run goes on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming.errors import ConfigError

__all__ = ["Course", "Schedule"]

_LIMIT = 2**53  # Samples are counted in float64 here.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A weight as a function of the samples that all ranks of a run together have seen.

    Epochs count on: with an epoch of 1,000 samples, the third begins at 2,000. Before the first
    point the weight is that of the first, behind the last it is that of the last.

    Attributes:
        points: Samples seen, and the weight from there on; ascending.
        kind: "steps" keeps a weight until the next point, "linear" goes straight to it.

    Raises:
        ConfigError: There are no points, or they aren't ascending, or a weight is negative.
    """

    points: tuple[tuple[int, float], ...]
    kind: Literal["steps", "linear"] = "steps"

    def __post_init__(self) -> None:
        try:
            points = tuple((int(seen), float(weight)) for seen, weight in self.points)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"A schedule is made of points (samples seen, weight), but was given "
                f"{self.points!r}."
            ) from error
        object.__setattr__(self, "points", points)
        if self.kind not in ("steps", "linear"):
            raise ConfigError(f"A schedule is 'steps' or 'linear', not {self.kind!r}.")
        if not points:
            raise ConfigError("A schedule needs at least one point.")
        places = [seen for seen, _ in points]
        if places[0] < 0 or places[-1] >= _LIMIT or sorted(set(places)) != places:
            raise ConfigError(
                f"The points of a schedule must ascend, from 0 or more to below 2^53 samples, but "
                f"are {places}."
            )
        for seen, weight in points:
            if not (weight >= 0 and math.isfinite(weight)):
                raise ConfigError(
                    f"A weight must be zero or a positive number, but is {weight} at {seen} "
                    f"samples."
                )

    @classmethod
    def steps(cls, points: Mapping[int, float]) -> "Schedule":
        """A weight that jumps at each of the points."""
        return cls(tuple(points.items()), "steps")

    @classmethod
    def linear(cls, points: Mapping[int, float]) -> "Schedule":
        """A weight that goes in straight lines from point to point."""
        return cls(tuple(points.items()), "linear")

    def to_json(self) -> dict[str, Any]:
        """The fields, as values that JSON has."""
        return {"kind": self.kind, "points": [list(point) for point in self.points]}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "Schedule":
        """Take what `to_json` gave.

        Raises:
            ConfigError: It is no schedule.
        """
        if not isinstance(obj, Mapping) or not obj.keys() <= {"kind", "points"}:
            raise ConfigError(f"A schedule in JSON has `kind` and `points`, but this is {obj!r}.")
        return cls(tuple(obj.get("points", ())), obj.get("kind", "steps"))

    def at(self, seen: int) -> tuple[float, float]:
        """The weight right before a place and right behind it."""
        places = [place for place, _ in self.points]
        after = int(np.searchsorted(places, seen, "right")) - 1
        before = int(np.searchsorted(places, seen, "left")) - 1
        if self.kind == "steps":
            return self.points[max(before, 0)][1], self.points[max(after, 0)][1]
        weight = float(np.interp(seen, places, [weight for _, weight in self.points]))
        return weight, weight


class Course:
    """How much of each stream has been given after any part of an epoch.

    At the points of any of their schedules, the streams' shares are their weights, divided by the
    sum of all; between, shares go in straight lines. What a stream has given is the area under its
    share, times the length: a number that need not be whole. Only additions, multiplications and
    divisions of float64 are used, whose results IEEE 754 fixes, and what has been given never gets
    less.

    Args:
        schedules: One for each stream.
        start: Samples seen at the beginning of the epoch.
        length: Samples of the epoch. Behind it the last shares go on.
        unit: Samples that are counted as one in what this is asked and answers.
        sizes: Samples of what a stream gives at a time, relative to the others, shape (streams,);
            then shares are of such pieces. None: all alike.

    Raises:
        ConfigError: Somewhere in the epoch all weights are zero.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        start: int,
        length: int,
        unit: int = 1,
        sizes: Floats | None = None,
    ) -> None:
        stop = start + length
        if stop >= _LIMIT:
            raise ConfigError(f"{stop} samples are over 2^53, to which schedules count.")
        places = {place for schedule in schedules for place, _ in schedule.points}
        knots = [start, *sorted(place for place in places if start < place < stop), stop]
        after = np.array([[s.at(place)[1] for s in schedules] for place in knots[:-1]])
        before = np.array([[s.at(place)[0] for s in schedules] for place in knots[1:]])
        if not length:
            before = after
        if sizes is not None:
            after, before = after / sizes, before / sizes
        for weights, at in ((after, knots[:-1]), (before, knots[1:])):
            if length and not weights.sum(axis=1).all():
                place = at[int(np.argmin(weights.sum(axis=1)))]
                raise ConfigError(
                    f"The weights of all streams are 0 at {place} samples: at least one must be "
                    f"above 0."
                )
        self._knots = (np.array(knots, np.float64) - start) / unit
        self._after = after / np.maximum(after.sum(axis=1, keepdims=True), 1e-300)
        self._before = before / np.maximum(before.sum(axis=1, keepdims=True), 1e-300)
        widths = np.diff(self._knots)[:, None]
        areas = 0.5 * (self._after + self._before) * widths
        self._given = np.concatenate([np.zeros((1, areas.shape[1])), np.cumsum(areas, axis=0)])

    @property
    def num_streams(self) -> int:
        """Streams."""
        return int(self._given.shape[1])

    def __call__(self, places: Floats) -> Floats:
        """What each stream has given at places of the epoch, shape (places, streams)."""
        last = len(self._knots) - 2
        piece = np.clip(np.searchsorted(self._knots, places, "right") - 1, 0, last)
        low, high = self._given[piece], self._given[piece + 1]
        first, final = self._after[piece], self._before[piece]
        width = (self._knots[piece + 1] - self._knots[piece])[:, None]
        done = np.minimum((places - self._knots[piece])[:, None], width)
        # The slope over the piece; from the end that makes both factors rise, so that the product
        # rises in float64 too.
        slope = (final - first) / np.where(width > 0, width, 1)
        left = width - done
        rising = low + done * (first + 0.5 * slope * done)
        falling = high - left * (final - 0.5 * slope * left)
        # At the start of a piece it is what is known there, free of rounding.
        inside = np.where(slope >= 0, rising, falling)
        given = np.where(done > 0, np.clip(inside, low, high), low)
        beyond = np.maximum(places - self._knots[-1], 0)[:, None] * self._before[-1]
        result: Floats = given + beyond
        return result
