import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.array import Array
from streaming.errors import ConfigError

RECORDED = json.loads((Path(__file__).parent / "golden" / "misc.json").read_text())["indexing"]

# Where we do as Python and numpy do, and the predecessor did not (quirk 37).
BETTER: dict[str, Any] = {
    "np.uint8(3)": 3,
    "np.array(3)": 3,
    "slice(None, None, -1)": [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
    "slice(9, None, -3)": [9, 6, 3, 0],
}


class Numbers(Array):
    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def get_item(self, idx: int) -> int:
        assert 0 <= idx < self._size
        assert type(idx) is int
        return idx


@pytest.mark.parametrize("index", RECORDED["cases"])
def test_indexing_is_as_recorded_or_better(index: str) -> None:
    wanted = RECORDED["cases"][index]
    array, at = Numbers(RECORDED["size"]), eval(index, {"np": np})
    if index in BETTER:
        assert array[at] == BETTER[index]
    elif "error" in wanted:
        with pytest.raises((ValueError, IndexError)):
            array[at]
    else:
        assert array[at] == wanted["out"]


def test_a_mask_picks_items() -> None:
    array = Numbers(4)
    assert array[np.array([True, False, False, True])] == [0, 3]
    with pytest.raises(IndexError, match=r"\(2,\)"):
        array[np.array([True, False])]


def test_what_is_no_index_is_refused() -> None:
    for at in (None, "a", 1.0, (1, 2), np.array([1.0])):
        with pytest.raises(ConfigError, match="whole number"):
            Numbers(4)[at]


def test_iterating_and_length_follow_the_size() -> None:
    assert list(Numbers(3)) == [0, 1, 2]
    assert len(Numbers(3)) == 3
