"""One row a group: its samples laid end to end, with what tells them apart."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import Batch, BatchCollator, Sample
from streaming.dataflow.collators.columns import as_array, stack
from streaming.errors import ConfigError, DataError

__all__ = ["PackedRowCollator"]

_PADDING: Mapping[str, Any] = {
    "input_ids": 0,
    "labels": -100,
    "attention_mask": 0,
    "token_mask": False,
}


class PackedRowCollator(BatchCollator):
    """Lays the samples of a group in one row, for attention that knows where each begins.

    The batch holds numpy arrays, of which a loader makes tensors:

    - each sequence key, and `position_ids` (from 0 in each sample) and `document_ids` (0, 1, ...;
      -1 for padding), of shape (1, row);
    - `cu_seqlens`, int32, of shape (sequences + 1,): where each begins, and the end of the row.
      Padding is a sequence of its own, the last;
    - `max_seqlen`: the longest sequence.

    Other keys have one entry a sample: stacked, where they are numbers or of one shape, else a
    list.

    Args:
        padding: Sequence keys, and what they are padded with. The first gives the length; others
            may be missing in a group, but not in a part of it.
        round_to: Rows are padded to a multiple of this.
        length: Rows are padded to this length; None: to what they need.
        labels: The key of the labels, whose first of each sample is not to be predicted: the token
            before it belongs to another sample, for a model that shifts labels by one. None if the
            labels are shifted already.
        continue_positions: Let the pieces of a sample that was cut count on where the last ended.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        padding: Mapping[str, Any] = _PADDING,
        *,
        round_to: int = 1,
        length: int | None = None,
        labels: str | None = "labels",
        continue_positions: bool = False,
    ) -> None:
        if not padding:
            raise ConfigError("`padding` must name at least one sequence key.")
        if round_to < 1 or (length is not None and length < 1):
            raise ConfigError(
                f"`round_to` and `length` must be at least 1, but are {round_to} and {length}."
            )
        self.padding = dict(padding)
        self.round_to = round_to
        self.length = length
        self.labels = labels
        self.continue_positions = continue_positions

    def collate(self, samples: list[Sample]) -> Batch:
        key = next(iter(self.padding))
        lengths = [len(sample[key]) for sample in samples]
        total = sum(lengths)
        row = -(-total // self.round_to) * self.round_to
        if self.length is not None:
            if row > self.length:
                raise DataError(
                    f"A group of {total} tokens ({row} with padding) is longer than the row of "
                    f"{self.length}. Give the batcher that budget."
                )
            row = self.length
        batch: dict[str, Any] = {}
        starts = np.cumsum([0, *lengths])[:-1]
        for name, value in self.padding.items():
            if name in samples[0]:
                batch[name] = self._row(samples, name, value, lengths, row)
                if name == self.labels:
                    batch[name][0, starts[np.array(lengths) > 0]] = value
        offsets = getattr(samples, "offsets", None) if self.continue_positions else None
        sizes = [*lengths, row - total] if row > total else lengths
        batch["position_ids"] = np.concatenate(
            [
                np.arange(size) + (offsets[i] if offsets and i < len(lengths) else 0)
                for i, size in enumerate(sizes)
            ]
        )[None]
        ids = np.arange(len(sizes))
        ids[len(lengths) :] = -1
        batch["document_ids"] = np.repeat(ids, sizes)[None]
        batch["cu_seqlens"] = np.cumsum([0, *sizes]).astype(np.int32)
        batch["max_seqlen"] = max(sizes)
        for name in samples[0]:
            if name not in batch:
                batch[name] = stack([sample.get(name) for sample in samples])
        return batch

    def _row(
        self, samples: list[Sample], name: str, value: Any, lengths: list[int], row: int
    ) -> NDArray[Any]:
        parts = [as_array(sample[name]) for sample in samples]
        for part, length in zip(parts, lengths, strict=True):
            if part.shape[:1] != (length,):
                raise DataError(
                    f"The key {name!r} of a sample has the shape {part.shape}, but the sample has "
                    f"{length} tokens."
                )
        missing = row - sum(lengths)
        if missing:
            parts.append(np.full((missing, *parts[0].shape[1:]), value, parts[0].dtype))
        return np.concatenate(parts)[None]
