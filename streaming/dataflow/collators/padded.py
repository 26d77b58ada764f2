"""One row a sample, padded to the longest."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming.dataflow.base import Batch, BatchCollator, Sample
from streaming.dataflow.collators.columns import as_array, stack
from streaming.errors import ConfigError, DataError

__all__ = ["PaddedRowsCollator"]

_PADDING: Mapping[str, Any] = {
    "input_ids": "pad_token_id",
    "labels": "ignore_index",
    "attention_mask": 0,
    "token_mask": False,
}
_DEFAULTS = {"pad_token_id": 0, "ignore_index": -100}


class PaddedRowsCollator(BatchCollator):
    """Pads the sequences of a group to one length and stacks them.

    The batch holds numpy arrays, of which a loader makes tensors: each sequence key as (samples,
    length). Without `attention_mask` in the samples, one is made. Other keys have one entry a
    sample: stacked, where they are numbers or of one shape, else a list.

    Args:
        padding: Sequence keys, and what they are padded with: a value, or the name of a key that
            each sample has it under (0 for a missing `pad_token_id`, -100 for `ignore_index`). The
            first gives the length; others may be missing in a group, but not in a part of it.
        round_to: The length is padded to a multiple of this.
        side: Where padding goes.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        padding: Mapping[str, Any] = _PADDING,
        *,
        round_to: int = 1,
        side: Literal["right", "left"] = "right",
    ) -> None:
        if not padding:
            raise ConfigError("`padding` must name at least one sequence key.")
        if round_to < 1:
            raise ConfigError(f"`round_to` must be at least 1, but is {round_to}.")
        if side not in ("right", "left"):
            raise ConfigError(f'`side` must be "right" or "left", but is {side!r}.')
        self.padding = dict(padding)
        self.round_to = round_to
        self.side = side

    def collate(self, samples: list[Sample]) -> Batch:
        key = next(iter(self.padding))
        lengths = np.array([len(sample[key]) for sample in samples])
        # A bucket has a length of its own, so that there are few shapes.
        longest = getattr(samples, "pad_to", None) or int(lengths.max())
        length = -(-max(longest, 1) // self.round_to) * self.round_to
        places = np.arange(length)
        if self.side == "left":
            real = places >= (length - lengths)[:, None]
        else:
            real = places < lengths[:, None]
        batch: dict[str, Any] = {
            name: self._rows(samples, name, value, lengths, real)
            for name, value in self.padding.items()
            if name in samples[0]
        }
        batch.setdefault("attention_mask", real.astype(np.int64))
        for name in samples[0]:
            if name not in batch:
                batch[name] = stack([sample.get(name) for sample in samples])
        return batch

    def _rows(
        self,
        samples: list[Sample],
        name: str,
        value: Any,
        lengths: NDArray[np.int64],
        real: NDArray[np.bool_],
    ) -> NDArray[Any]:
        parts = [as_array(sample[name]) for sample in samples]
        for part, length in zip(parts, lengths.tolist(), strict=True):
            if part.shape[:1] != (length,):
                raise DataError(
                    f"The key {name!r} of a sample has the shape {part.shape}, but the sample has "
                    f"{length} tokens."
                )
        rows = np.empty((*real.shape, *parts[0].shape[1:]), parts[0].dtype)
        for row, sample in zip(rows, samples, strict=True):
            is_name = isinstance(value, str)
            row[:] = sample.get(value, _DEFAULTS.get(value, 0)) if is_name else value
        rows[real] = np.concatenate(parts)
        return rows
