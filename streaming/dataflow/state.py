"""The place of a run as a value that JSON has: made, joined, checked and taken in.

It belongs to the run, not to a rank: its unit is the logical stream. It names samples by their
tokens and never holds them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from streaming.dataflow.base import Json
from streaming.errors import StateError

__all__ = [
    "FORMAT",
    "MAX_STREAMS",
    "Count",
    "LoaderState",
    "StreamState",
    "differences",
    "merge_states",
    "parse_part",
    "parse_states",
]

FORMAT = 1
MAX_STREAMS = 2**20  # Far above any job; what is listed by logical stream stays small.

# Exact in any JSON, and far from where sums with a seed leave 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Streams = Annotated[int, msgspec.Meta(ge=1, le=MAX_STREAMS)]

_T = TypeVar("_T")


class StreamState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place of one logical stream after a batch that was given out.

    Attributes:
        source: The cursor's place; None: the beginning.
        replay: Items to read again from there, of which only those of the tokens below are kept.
            0 where the cursor can fetch items by their tokens.
        pending: Tokens of samples that wait in the batcher, in their order of arrival.
        held: Tokens of the groups that are decided and not given out.
        batcher: What else the batcher's pool must know.
        groups: Batches made.
        skipped: Items that a processor dropped.
        dropped: Samples that a batcher dropped.
        drained: Whether `source` is behind the end of its epochs while samples wait, so that no
            more items come to them.
        ended: Whether the stream has come to the end of its epochs while others have not.
    """

    source: Any = None
    replay: Count = 0
    pending: list[Any] = []
    held: list[list[Any]] = []
    batcher: Any = None
    groups: Count = 0
    skipped: Count = 0
    dropped: Count = 0
    drained: bool = False
    ended: bool = False


class LoaderState(msgspec.Struct, frozen=True, kw_only=True):
    """The places of some or all logical streams of a job.

    Attributes:
        format: Version of this form.
        streams: Number of a logical stream, as text, to its place.
        delivered: Micro-batches that all ranks together have given out, since the last common end.
        num_streams: Logical streams of the job.
        origin: Ranks, and workers of each, at the job's first start.
        fingerprint: What must be equal for the places to mean the same.
    """

    format: int
    streams: dict[str, StreamState]
    delivered: Count
    num_streams: _Streams
    origin: tuple[_Streams, _Streams]
    fingerprint: dict[str, Any]

    def to_json(self) -> dict[str, Json]:
        """All of it as dicts, lists, numbers and texts."""
        state: dict[str, Json] = msgspec.to_builtins(self)
        return state


def merge_states(states: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """Join the states that the ranks of a job have saved at the same step.

    Raises:
        StateError: They are not of one job and one step, or two hold the same logical stream.
    """
    return parse_states(list(states)).to_json()


def parse_states(states: Mapping[str, Json] | Sequence[Mapping[str, Json]]) -> LoaderState:
    """Read a state, or several that are then joined.

    Raises:
        StateError: They are no states, or don't belong together.
    """
    if not isinstance(states, Mapping | list | tuple):
        raise StateError(
            f"The state of a DataflowLoader is a dict, or a list of them, one of each rank, but "
            f"this is a {type(states).__name__}."
        )
    several = [states] if isinstance(states, Mapping) else list(states)
    if not several:
        raise StateError("There is no state in an empty list.")
    parsed = [_parse(state) for state in several]
    first = parsed[0]
    streams: dict[str, StreamState] = {}
    for state in parsed:
        for name in ("num_streams", "origin", "delivered", "fingerprint"):
            mine, other = getattr(first, name), getattr(state, name)
            if mine != other:
                raise StateError(
                    f"These states are not of one job at one step: `{name}` is {mine} in one and "
                    f"{other} in another. {_hint(name, parsed)}"
                )
        twice = sorted(streams.keys() & state.streams.keys())
        if twice:
            raise StateError(f"Logical stream {twice[0]} is in two of the states.")
        streams |= state.streams
    return msgspec.structs.replace(first, streams=streams)


def _hint(name: str, states: Iterable[LoaderState]) -> str:
    if name == "delivered" and any(s.ended for state in states for s in state.streams.values()):
        return (
            "Where logical streams of one rank have ended before another's, ranks are at different "
            "places after the same number of batches: load in each rank the state that it saved."
        )
    return "All ranks save after the same number of batches."


def _parse(state: Mapping[str, Json]) -> LoaderState:
    found = state.get("format") if isinstance(state, Mapping) else None
    if found != FORMAT:
        raise StateError(
            f"This is not a state of a DataflowLoader, or of a newer version: its format is "
            f"{found!r}, not {FORMAT}."
        )
    try:
        return msgspec.convert(dict(state), LoaderState)
    except msgspec.ValidationError as error:
        raise StateError(f"The state of the DataflowLoader is damaged: {error}") from error


def parse_part(value: Json, kind: type[_T], what: str) -> _T:
    """Check the part of a state that only its maker can read.

    Args:
        value: What the state holds there.
        kind: What it must be; msgspec says how.
        what: What it is, in the message.

    Raises:
        StateError: It is something else.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise StateError(
            f"{what} in the state of a DataflowLoader is damaged: it is {value!r:.100}. {error}."
        ) from error


def differences(mine: Json, other: Json, name: str = "") -> list[str]:
    """What differs between two fingerprints, one sentence each."""
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        return [
            line
            for key in sorted({*mine, *other})
            for line in differences(mine.get(key), other.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if mine == other else [f"{name} was {other!r} and is {mine!r}"]
