"""Packed and padded rows."""

from typing import Any

import numpy as np
import pytest

from streaming.dataflow import (
    BestFitBatcher,
    BucketBatcher,
    ConcatBatcher,
    PackedRowCollator,
    PaddedRowsCollator,
)
from streaming.dataflow.base import BatchCollator
from streaming.errors import ConfigError, DataError


def sample(*ids: int, **more: Any) -> dict[str, Any]:
    return {"input_ids": np.array(ids), "labels": list(ids), **more}


def lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in batch.items()
    }


def test_a_packed_row_tells_its_documents_apart() -> None:
    batch = PackedRowCollator().collate([sample(5, 6, 7), sample(8), sample(9, 10)])
    assert lists(batch) == {
        "input_ids": [[5, 6, 7, 8, 9, 10]],
        "labels": [[-100, 6, 7, -100, -100, 10]],
        "position_ids": [[0, 1, 2, 0, 0, 1]],
        "document_ids": [[0, 0, 0, 1, 2, 2]],
        "cu_seqlens": [0, 3, 4, 6],
        "max_seqlen": 3,
    }
    assert batch["cu_seqlens"].dtype == np.int32


def test_padding_of_a_packed_row_is_a_document_of_its_own() -> None:
    batch = PackedRowCollator(round_to=4).collate([sample(5, 6, 7), sample(8, 9)])
    assert lists(batch) == {
        "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
        "labels": [[-100, 6, 7, -100, 9, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1, 2]],
        "document_ids": [[0, 0, 0, 1, 1, -1, -1, -1]],
        "cu_seqlens": [0, 3, 5, 8],
        "max_seqlen": 3,
    }


def test_a_packed_row_may_have_a_fixed_length() -> None:
    collator = PackedRowCollator(length=5)
    assert collator.collate([sample(1, 2)])["input_ids"].shape == (1, 5)
    with pytest.raises(DataError, match="6 tokens .* longer than the row of 5"):
        collator.collate([sample(1, 2, 3), sample(4, 5, 6)])


def test_labels_that_are_shifted_already_are_left_alone() -> None:
    batch = PackedRowCollator(labels=None).collate([sample(1, 2), sample(3)])
    assert batch["labels"].tolist() == [[1, 2, 3]]


def test_other_keys_have_one_entry_a_sample() -> None:
    for collator in (PackedRowCollator(), PaddedRowsCollator()):
        batch = collator.collate(
            [
                sample(1, n=1, t="a", v=np.ones(2), w=np.ones(1)),
                sample(2, 3, n=2, t="b", v=np.zeros(2), w=np.ones(3)),
            ]
        )
        assert batch["n"].tolist() == [1, 2]
        assert batch["t"] == ["a", "b"]
        assert batch["v"].shape == (2, 2)
        assert [len(w) for w in batch["w"]] == [1, 3]


def test_pieces_of_a_document_may_count_on() -> None:
    groups = list(ConcatBatcher(4).batches(iter([sample(*range(10, 16)), sample(20, 21)])))
    plain = [PackedRowCollator().collate(group) for group in groups]
    counting = [PackedRowCollator(continue_positions=True).collate(group) for group in groups]
    assert [b["position_ids"].tolist() for b in plain] == [[[0, 1, 2, 3]], [[0, 1, 0, 1]]]
    assert [b["position_ids"].tolist() for b in counting] == [[[0, 1, 2, 3]], [[4, 5, 0, 1]]]


def test_best_fit_and_packed_rows_go_together() -> None:
    samples = [sample(*range(n)) for n in (5, 3, 8, 2, 6, 1, 7)]
    rows = [
        PackedRowCollator(length=8).collate(group)
        for group in BestFitBatcher(8).batches(iter(samples))
    ]
    assert all(row["input_ids"].shape == (1, 8) for row in rows)
    assert sum(int((row["document_ids"] >= 0).sum()) for row in rows) == 32


def test_rows_are_padded_to_the_longest() -> None:
    batch = PaddedRowsCollator().collate(
        [sample(1, 2, 3, pad_token_id=9, ignore_index=-1), sample(4, pad_token_id=8)]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 8, 8]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_rows_may_be_padded_to_a_multiple_and_on_the_left() -> None:
    batch = PaddedRowsCollator(round_to=4, side="left").collate([sample(1, 2, 3), sample(4)])
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 4]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]


def test_a_mask_that_is_there_is_padded() -> None:
    samples = [
        sample(1, 2, attention_mask=np.array([1, 0]), token_mask=np.array([True, False])),
        sample(3, attention_mask=np.array([1]), token_mask=np.array([True])),
    ]
    batch = PaddedRowsCollator().collate(samples)
    assert batch["attention_mask"].tolist() == [[1, 0], [1, 0]]
    assert batch["token_mask"].tolist() == [[True, False], [True, False]]
    assert batch["token_mask"].dtype == np.bool_


def test_a_bucket_is_padded_to_its_edge() -> None:
    batcher = BucketBatcher(16, edges=[4, 8])
    shapes = {
        PaddedRowsCollator().collate(group)["input_ids"].shape
        for group in batcher.batches(iter([sample(*range(n)) for n in (3, 3, 2, 1, 5, 6)]))
    }
    assert shapes == {(4, 4), (2, 8)}


def test_tensors_are_taken_too() -> None:
    torch = pytest.importorskip("torch")
    samples = [{"input_ids": torch.arange(3)}, {"input_ids": torch.arange(2)}]
    assert PackedRowCollator().collate(samples)["input_ids"].tolist() == [[0, 1, 2, 0, 1]]
    padded = PaddedRowsCollator().collate(samples)["input_ids"]
    assert padded.tolist() == [[0, 1, 2], [0, 1, 0]]


@pytest.mark.parametrize(
    "collator", [PackedRowCollator(), PaddedRowsCollator()], ids=["pack", "pad"]
)
def test_sequences_of_one_sample_must_have_one_length(collator: BatchCollator) -> None:
    with pytest.raises(DataError, match=r"key 'labels' .* shape \(1,\), but the sample has 2"):
        collator.collate([{"input_ids": [1, 2], "labels": [1]}])


@pytest.mark.parametrize("make", [PackedRowCollator, PaddedRowsCollator])
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="padding"):
        make({})
    with pytest.raises(ConfigError, match="round_to"):
        make(round_to=0)
    with pytest.raises(ConfigError, match="side"):
        PaddedRowsCollator(side="top")  # type: ignore[arg-type]
