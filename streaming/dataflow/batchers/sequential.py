"""Groups nearly in order, under a budget by sum, chosen as NVIDIA's cosmos-framework does."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streaming.dataflow.base import Group, Sample, Token
from streaming.dataflow.batchers.packing import (
    Budget,
    Entry,
    OversizePolicy,
    PackingBatcher,
    SizeFunction,
    collect,
    tokens_of,
)
from streaming.dataflow.batchers.pooled import Pool, Size
from streaming.dataflow.batchers.sizes import VisionTokens
from streaming.errors import ConfigError

__all__ = ["SequentialPackingBatcher"]


class SequentialPackingBatcher(PackingBatcher):
    """Adds samples as they come while they fit; what doesn't fit is first in line for the next one.

    Exactly one of the two limits is set. The choices are the predecessor's, one by one: a group
    must stay BELOW the budget, and a sample that is not below it by itself is dropped when it is
    first in line. What joins a group is taken in its order; what is skipped keeps its own.

    Args:
        max_sequence_length: The budget of a group, by the sum of sizes.
        tokenizer_spatial_compression_factor: Of the default size; see VisionTokens.
        tokenizer_temporal_compression_factor: Of the default size.
        patch_spatial: Of the default size.
        max_samples_per_batch: Number of samples in a group.
        lookahead_limit: How many samples may be skipped in making one group. 0 closes each group
            after one sample.
        sound_latent_fps: Of the default size.
        audio_sample_rate: Of the default size.
        size: What a sample costs; None: what VisionTokens with these factors says.
        budgets: As for PackingBatcher, and so the rest.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    drops_late = True

    def __init__(
        self,
        max_sequence_length: Size | None = None,
        tokenizer_spatial_compression_factor: int = 16,
        tokenizer_temporal_compression_factor: int = 4,
        patch_spatial: int = 2,
        max_samples_per_batch: int | None = None,
        lookahead_limit: int = 10,
        sound_latent_fps: float = 0,
        audio_sample_rate: int = 48000,
        *,
        size: SizeFunction | None = None,
        budgets: Sequence[Budget] = (),
        modality: Callable[[Sample], Any] | None = None,
        round_to: int = 1,
        oversize: OversizePolicy = "drop",
        split: Callable[[Sample], Iterable[Sample]] | None = None,
    ) -> None:
        if (max_sequence_length is None) == (max_samples_per_batch is None):
            raise ConfigError(
                f"Exactly one of `max_sequence_length` (a budget of tokens) and "
                f"`max_samples_per_batch` (a number of samples) must be set, but they are "
                f"{max_sequence_length} and {max_samples_per_batch}."
            )
        if max_samples_per_batch is not None and max_samples_per_batch < 1:
            raise ConfigError(
                f"`max_samples_per_batch` must be at least 1, but is {max_samples_per_batch}."
            )
        super().__init__(
            float("inf") if max_sequence_length is None else max_sequence_length,
            size=size
            or VisionTokens(
                spatial=tokenizer_spatial_compression_factor,
                temporal=tokenizer_temporal_compression_factor,
                patch=patch_spatial,
                sound_latent_fps=sound_latent_fps,
                audio_sample_rate=audio_sample_rate,
            ),
            budgets=budgets,
            max_batch_size=max_samples_per_batch,
            modality=modality,
            round_to=round_to,
            oversize=oversize,
            split=split,
        )
        self.max_sequence_length = max_sequence_length
        self.max_samples_per_batch = max_samples_per_batch
        self.lookahead_limit = lookahead_limit

    def open(self) -> Pool:
        return _SequentialPool(self)

    def is_over(self, size: Size) -> bool:
        return self.row(size) >= self.max_tokens


class _SequentialPool(Pool):
    """Between groups: the carry queue. While a group is open: what was looked at for it, too."""

    def __init__(self, batcher: SequentialPackingBatcher) -> None:
        self._batcher = batcher
        self._queue: deque[Entry] = deque()
        self._group: list[Entry] = []
        self._skipped: list[Entry] = []
        self._seen: list[Entry] = []
        self._total: Size = 0
        self._extras: tuple[float, ...] = ()

    def want(self) -> int:
        return 0 if self._queue else 1

    def add(
        self,
        tokens: Iterable[Token],
        samples: Sequence[Sample],
        sizes: Sequence[Size] | None = None,
    ) -> None:
        self._queue.extend(self._batcher.enter(self, tokens, samples, sizes))

    def choose(self, ended: bool) -> Group | None:
        batcher, group, skipped = self._batcher, self._group, self._skipped
        cap = batcher.max_batch_size
        while len(group) != cap and not (group and len(skipped) >= batcher.lookahead_limit):
            if not self._queue:
                if not ended:
                    return None
                break
            entry = self._queue.popleft()
            if not group:
                if batcher.drops(self, entry):
                    continue
                self._begin(entry)
            elif self._fits(entry):
                self._join(entry)
            else:
                skipped.append(entry)
            self._seen.append(entry)
        self._queue.extendleft(reversed(skipped))
        self._group, self._skipped, self._seen, self._total = [], [], [], 0
        return collect(group) if group else None

    def pending(self) -> list[Token]:
        return tokens_of([*self._seen, *self._queue])

    def _begin(self, entry: Entry) -> None:
        self._group.append(entry)
        self._total, self._extras = entry.size, entry.extras

    def _join(self, entry: Entry) -> None:
        self._group.append(entry)
        self._total += entry.size
        self._extras = tuple(
            have + more for have, more in zip(self._extras, entry.extras, strict=True)
        )

    def _fits(self, entry: Entry) -> bool:
        batcher = self._batcher
        return (
            batcher.row(self._total + entry.size) < batcher.max_tokens
            and entry.modality == self._group[0].modality
            and batcher.fits(self._extras, entry)
        )
