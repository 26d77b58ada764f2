"""Concatenate and cut."""

from typing import Any, cast

import numpy as np
import pytest

from streaming.dataflow import ConcatBatcher, Group
from streaming.errors import ConfigError


def documents(*lengths: int) -> list[dict[str, Any]]:
    return [
        {"i": i, "input_ids": np.arange(n) + 100 * i, "labels": list(range(n))}
        for i, n in enumerate(lengths)
    ]


def test_all_rows_are_full_and_hold_the_documents_in_order() -> None:
    texts = documents(3, 9, 1, 7)
    groups = list(ConcatBatcher(5).batches(iter(texts)))
    rows = [np.concatenate([piece["input_ids"] for piece in group]) for group in groups]
    assert [len(row) for row in rows] == [5, 5, 5, 5]
    assert np.array_equal(np.concatenate(rows), np.concatenate([t["input_ids"] for t in texts]))


def test_pieces_tell_where_they_begin_and_keep_what_is_no_sequence() -> None:
    group = cast(Group, list(ConcatBatcher(4).batches(iter(documents(3, 9))))[1])
    assert [piece["i"] for piece in group] == [1]
    assert group.offsets == [1]
    assert group.sizes == [4]
    assert group[0]["labels"] == [1, 2, 3, 4]


def test_a_last_short_row_may_be_dropped() -> None:
    assert len(list(ConcatBatcher(4).batches(iter(documents(3, 3))))) == 2
    assert len(list(ConcatBatcher(4, drop_last=True).batches(iter(documents(3, 3))))) == 1


def test_an_empty_document_is_no_piece() -> None:
    groups = list(ConcatBatcher(4).batches(iter(documents(0, 4, 0, 0))))
    assert [[piece["i"] for piece in group] for group in groups] == [[1]]


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        ConcatBatcher(0)
    with pytest.raises(ConfigError, match="keys"):
        ConcatBatcher(4, keys="input_ids")
