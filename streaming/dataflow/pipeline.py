"""One logical stream: pulls items, makes samples of them, groups them and collates the groups.

At each moment it knows which tokens are pending, so that its whole place is a small value. Every
fault is raised once, and the stream goes on behind it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from streaming.dataflow.base import (
    Batch,
    Group,
    Json,
    RawItem,
    Sample,
    SkipItem,
    StreamPlan,
    Token,
    as_token,
    open_cursor,
)
from streaming.dataflow.batchers.pooled import Size
from streaming.dataflow.grouping import open_grouping
from streaming.dataflow.roles import Roles
from streaming.dataflow.state import StreamState
from streaming.dataflow.work import Work
from streaming.errors import ConfigError, SampleError, StateError, StreamingError

__all__ = ["Pipeline"]

logger = logging.getLogger(__name__)

_PATIENCE = 10_000  # items without a sample until there is a warning
_AGAIN = 1 << 12  # items that are read again at a time
_MOST_AGAIN = 1 << 26  # in all: the tokens of so many take gigabytes when the state is saved


class Pipeline:
    """The batches of one logical stream. An iterator; StopIteration is the end of its epochs.

    Belongs to one thread of the process that iterates.

    Args:
        roles: What it is made of.
        stream: The logical stream.
        plan: How the data are dealt out to logical streams.
        state: Where to go on; None: at the beginning.
        worker: The number of this worker, for stamps.
    """

    def __init__(
        self,
        roles: Roles,
        stream: int,
        plan: StreamPlan,
        state: StreamState | None = None,
        worker: int = 0,
    ) -> None:
        self._roles = roles
        self._stream = stream
        self._worker = worker
        self._cursor = open_cursor(roles.distributor, stream, plan)
        self._work = Work(roles, stream)
        self._grouping = open_grouping(roles.batcher, self._read)
        self._raw: tuple[Sequence[Token], list[RawItem]] = ((), [])
        self._ready: deque[tuple[Token, Sample]] = deque()
        self._held: deque[Group] = deque()
        self._open: _OpenGroup | None = None
        # Where the cursor can't fetch: (its place, the tokens read from there), the oldest first.
        self._trail: deque[tuple[Json, Sequence[Token]]] = deque()
        self._trim_at = 64
        self._is_drained = False  # The source's epochs are over, and the last samples wait.
        self._groups = 0
        self._skipped = 0
        self._dropped = 0
        self._in_vain = 0  # items since the last sample
        self._patience = _PATIENCE
        if state is not None:
            self._restore(state)

    def __iter__(self) -> "Pipeline":
        return self

    def __next__(self) -> Batch:
        while True:
            group = self._next_group()
            if group:
                break
        try:
            batch = self._roles.collator.collate(group)
            if self._roles.stamp:
                batch = self._stamped(batch, group)
        except StreamingError:
            raise
        except Exception as error:
            raise SampleError(
                f"{type(self._roles.collator).__name__} failed for a group of {len(group)} samples"
                f"{self._where((group.tokens or (None,))[0], 'that begins with')}: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._groups += 1
        return batch

    def state(self) -> StreamState:
        """The place after the last batch. Only if the roles are resumable."""
        held = [list(group.tokens or ()) for group in self._held]
        if self._open is not None:
            held.insert(0, self._open.tokens)
        held += self._grouping.held()
        pending: list[Any] = self._grouping.pending()
        pending += [token for token, _ in self._ready]
        pending += map(self._work.whole, self._raw[0])
        if self._trail:
            self._trim(map(self._work.base, chain(pending, *held)))
        return StreamState(
            source=self._trail[0][0] if self._trail else self._cursor.state_dict(),
            replay=sum(len(tokens) for _, tokens in self._trail),
            pending=pending,
            held=held,
            batcher=self._grouping.state_dict(),
            groups=self._groups,
            skipped=self._skipped,
            dropped=self._dropped + self._grouping.dropped,
            # What is read again comes to the end by itself.
            drained=self._is_drained and not self._trail,
        )

    def close(self) -> None:
        """End what the source runs in the background."""
        self._cursor.close()

    # --- From items to groups -----------------------------------------------------------------

    def _next_group(self) -> Group:
        """The next group, processed; empty if all of it was dropped."""
        if self._open is None:
            group = self._held.popleft() if self._held else self._grouping.next_group()
            if group is None:
                self._is_drained = False
                raise StopIteration
            if not self._work.is_late:
                return group
            self._open = _OpenGroup(group)
        unfinished = self._open
        while unfinished.items:
            token, item, size = unfinished.items.popleft()
            made = self._make(token, item)
            unfinished.done += [(token, sample, size) for sample in made]
            self._skipped += not made
        self._open = None
        return unfinished.finish()

    def _read(self, want: int) -> tuple[Sequence[Token], list[Sample], list[Size] | None]:
        """The next samples and their tokens, at most `want`; none at the end."""
        while True:
            tokens: Sequence[Token]
            if self._ready:
                some = [self._ready.popleft() for _ in range(min(want, len(self._ready)))]
                tokens, samples = [token for token, _ in some], [sample for _, sample in some]
            else:
                tokens, items = self._pull(want)
                if not items:
                    self._is_drained = True
                    return (), [], None
                tokens, samples = self._process(tokens, items)
                self._note_emptiness(0 if samples else len(items))
            if len(samples) > want:
                self._ready.extend(zip(tokens[want:], samples[want:], strict=True))
                tokens, samples = tokens[:want], samples[:want]
            if samples:
                return tokens, samples, self._sizes(tokens, samples)

    def _note_emptiness(self, items: int) -> None:
        """Warn if item after item gives no sample: a source without end would go on for ever."""
        self._in_vain = self._in_vain + items if items else 0
        if self._in_vain >= self._patience:
            self._patience *= 2
            logger.warning(
                "%s dropped %d items in a row%s.",
                type(self._roles.processor).__name__,
                self._in_vain,
                self._where(),
            )

    def _pull(self, want: int) -> tuple[Sequence[Token], list[RawItem]]:
        """The next items: those that a fault left behind, else new ones."""
        if self._raw[1]:
            raw, self._raw = self._raw, ((), [])
            return raw
        if self._is_drained:
            return (), []
        cursor = self._cursor
        place = None if cursor.can_fetch else cursor.state_dict()
        try:
            tokens, items = cursor.take(want)
        except StreamingError as error:
            error.add_note(f"This came from {self._source()}{self._where()}.")
            raise
        except Exception as error:
            raise SampleError(
                f"{self._source()} could not give an item{self._where()}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if items and not cursor.can_fetch:
            self._trail.append((place, tokens))
            if len(self._trail) > self._trim_at:
                waiting = chain(self._grouping.pending(), *self._grouping.held())
                self._trim(chain(map(self._work.base, waiting), tokens))
                self._trim_at = 2 * len(self._trail) + 64
        return tokens, items

    def _process(
        self, tokens: Sequence[Token], items: list[RawItem]
    ) -> tuple[Sequence[Token], list[Sample]]:
        """Make the samples of some items, and name them.

        If that fails for one, the samples before it are ready for the next call, and the items
        behind it are to be processed then.
        """
        if self._work.is_trivial or self._work.is_late:
            return tokens, items
        if self._work.simple is not None:
            return self._process_simply(self._work.simple, tokens, items)
        named: list[tuple[Token, Sample]] = []
        for place, (token, item) in enumerate(zip(tokens, items, strict=True)):
            try:
                samples = self._work.make(token, item)
                named += self._work.named(token, samples)
                self._skipped += not samples
            except Exception as error:
                self._ready.extend(named)
                self._raw = (tokens[place + 1 :], items[place + 1 :])
                raise self._failed(token, error) from error
        return [token for token, _ in named], [sample for _, sample in named]

    def _process_simply(
        self,
        process: Callable[[RawItem], Sample | None],
        tokens: Sequence[Token],
        items: list[RawItem],
    ) -> tuple[Sequence[Token], list[Sample]]:
        """The same where each item gives a sample, or is dropped: without a look at each token."""
        made: list[Sample] = []
        dropped: list[int] = []
        try:
            for item in items:
                sample = process(item)
                if sample is None:
                    dropped.append(len(made) + len(dropped))
                else:
                    made.append(sample)
        except Exception as error:
            place = len(made) + len(dropped)
            self._raw = (tokens[place + 1 :], items[place + 1 :])
            if not isinstance(error, SkipItem):
                self._skipped += len(dropped)
                self._ready.extend(zip(_without(dropped, tokens[:place]), made, strict=True))
                raise self._failed(tokens[place], error) from error
            dropped.append(place)
            tokens = tokens[: place + 1]
        self._skipped += len(dropped)
        return _without(dropped, tokens), made

    def _sizes(self, tokens: Sequence[Token], samples: list[Sample]) -> list[Size] | None:
        """The sizes of items that are to be grouped before the work; None if that is not so."""
        if not self._work.is_late:
            return None
        sizes: list[Size] = []
        try:
            for sample in samples:
                sizes.append(self._work.size(sample))
        except Exception as error:
            pairs = list(zip(tokens, samples, strict=True))
            del pairs[len(sizes)]
            self._ready.extendleft(reversed(pairs))
            raise self._failed(tokens[len(sizes)], error) from error
        return sizes

    def _make(self, token: Token, item: RawItem) -> list[Sample]:
        """All samples of one item."""
        try:
            return self._work.make(token, item)
        except Exception as error:
            raise self._failed(token, error) from error

    # --- Places -------------------------------------------------------------------------------

    def _trim(self, tokens: Iterable[Token]) -> None:
        """Forget places from which none of these items would have to be read again."""
        waiting = set(tokens)
        while self._trail and waiting.isdisjoint(self._trail[0][1]):
            self._trail.popleft()

    def _restore(self, state: StreamState) -> None:
        work = self._work
        pending = list(map(self._token, state.pending))
        held = [list(map(self._token, group)) for group in state.held]
        wanted = [*(token for group in held for token in group), *pending]
        if state.source is not None:
            self._cursor.load_state_dict(state.source)
        items = self._recover(dict.fromkeys(map(work.base, wanted)), state.replay)
        samples: dict[Token, Sample] = {}
        for base, item in items.items():
            made = [item] if work.is_late else self._make(base, item)
            samples.update(work.named(base, made))
        self._ready.extend(self._find(pending, samples))
        for group in held:
            found = self._find(group, samples)
            self._held.append(Group([sample for _, sample in found]))
            self._held[-1].tokens = [token for token, _ in found]
            self._held[-1].sizes = work.measure([sample for _, sample in found])
        if state.batcher is not None:  # Else the stream has not begun.
            self._grouping.load_state_dict(state.batcher)
        self._groups, self._skipped = state.groups, state.skipped
        self._dropped, self._is_drained = state.dropped, state.drained

    def _token(self, value: Json) -> Token:
        token = as_token(value)
        try:
            hash(token)
        except TypeError:
            raise StateError(
                f"The state names a sample{self._where()} by {value!r:.100}, which is no token."
            ) from None
        return token

    def _recover(self, bases: dict[Token, None], replay: int) -> dict[Token, RawItem]:
        """The items of some tokens: fetched, or read again."""
        cursor = self._cursor
        if not replay:
            if bases and not cursor.can_fetch:
                raise StateError(
                    f"The state names {len(bases)} samples that wait{self._where()}, but no items "
                    f"to be read again, and {self._source()} can't fetch single ones."
                )
            return {base: cursor.fetch(base) for base in bases}
        if replay > _MOST_AGAIN:
            raise StateError(
                f"The state says that {replay} items are to be read again{self._where()}; "
                f"{_MOST_AGAIN} are the most that can wait."
            )
        items: dict[Token, RawItem] = {}
        while replay:
            place = cursor.state_dict()
            tokens, came = cursor.take(min(replay, _AGAIN))
            if not came:
                raise StateError(
                    f"{self._source()} ended{self._where()} while {replay} items were still to be "
                    f"read again. It is not the source that the state was saved with."
                )
            self._trail.append((place, tokens))
            items.update(
                (token, item) for token, item in zip(tokens, came, strict=True) if token in bases
            )
            replay -= len(came)
        return items

    def _find(
        self, tokens: Iterable[Token], samples: dict[Token, Sample]
    ) -> list[tuple[Token, Sample]]:
        """Samples by token; one that stands for all samples of an item gives all."""
        found: list[tuple[Token, Sample]] = []
        for token in tokens:
            base = self._work.base(token)
            if token in samples:
                found.append((token, samples[token]))
            elif token == self._work.whole(base):
                found += [pair for pair in samples.items() if self._work.base(pair[0]) == base]
            else:
                raise StateError(
                    f"The state names sample {token}{self._where()}, which {self._source()} and "
                    f"the processor no longer give. Were they changed?"
                )
        return found

    # --- Messages and stamps ------------------------------------------------------------------

    def _failed(self, token: Token, error: Exception) -> SampleError:
        return SampleError(
            f"{type(self._roles.processor).__name__} failed for an item{self._where(token)}: "
            f"{type(error).__name__}: {error}"
        )

    def _where(self, token: Token = None, how: str = "with") -> str:
        name = "" if token is None else f" {how} token {token}"
        return f"{name} of logical stream {self._stream}"

    def _source(self) -> str:
        return type(self._roles.distributor).__name__

    def _stamped(self, batch: Batch, group: Group) -> Batch:
        """The batch with the place of each sample in it, as arrays."""
        places = list(group.tokens or ())
        if not isinstance(batch, dict) or not places or not all(map(_is_place, places)):
            raise ConfigError(
                f"`stamp=True` needs batches that are dicts, and a source that knows its items by "
                f"epoch and place, such as MapDistributor; the first item here is "
                f"{places[:1] or 'not known'}."
            )
        return {
            **batch,
            "sample_worker_id": np.full(len(places), self._worker),
            "sample_epoch": np.array([place[0] for place in places]),  # type: ignore[index]
            "sample_index": np.array([place[1] for place in places]),  # type: ignore[index]
        }


class _OpenGroup:
    """A group of items that are being processed."""

    def __init__(self, group: Group) -> None:
        self.tokens: list[Any] = list(group.tokens or ())
        self.items = deque(zip(self.tokens, group, group.sizes or (), strict=True))
        self.done: list[tuple[Token, Sample, Size]] = []
        self._pad_to = group.pad_to

    def finish(self) -> Group:
        """The group of the samples that were made."""
        made = Group([sample for _, sample, _ in self.done])
        made.tokens = [token for token, _, _ in self.done]
        made.sizes = [size for _, _, size in self.done]
        made.pad_to = self._pad_to
        return made


def _without(places: list[int], tokens: Sequence[Token]) -> Sequence[Token]:
    """Tokens but for those at some places."""
    if not places:
        return tokens
    left_out = set(places)
    return [token for place, token in enumerate(tokens) if place not in left_out]


def _is_place(token: Token) -> bool:
    """Whether a token begins with an epoch and a place."""
    return isinstance(token, tuple) and len(token) > 1 and all(isinstance(t, int) for t in token)
