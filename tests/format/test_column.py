import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import DataError
from streaming.format import BytesColumn, Column
from streaming.format.column import merge_columns


@given(st.lists(st.binary(max_size=5)))
def test_a_column_of_bytes_is_a_list_of_them(values: list[bytes]) -> None:
    column = BytesColumn.join(values)
    assert len(column) == len(values)
    assert column.to_pylist() == list(column) == values
    assert [column[i] for i in range(len(values))] == values
    assert [column[i - len(values)] for i in range(len(values))] == values


@given(st.lists(st.text(max_size=5)))
def test_a_column_of_texts_gives_texts(values: list[str]) -> None:
    column = BytesColumn.join([value.encode() for value in values], is_text=True)
    assert column.to_pylist() == values
    assert [column[i] for i in range(len(values))] == values


def test_a_text_that_is_cut_in_a_character_is_found() -> None:
    halves = ["é".encode()[:1], "é".encode()[1:]]  # Together they are UTF-8.
    with pytest.raises(UnicodeDecodeError):
        BytesColumn.join(halves, is_text=True)


@given(st.lists(st.lists(st.binary(max_size=3), max_size=4), min_size=1, max_size=4), st.data())
def test_columns_are_joined_and_put_in_order(parts: list[list[bytes]], data: st.DataObject) -> None:
    values = [value for part in parts for value in part]
    column = BytesColumn.concatenate([BytesColumn.join(part) for part in parts])
    assert column.to_pylist() == values
    if values:
        places = data.draw(st.lists(st.integers(0, len(values) - 1)))
        taken = column.take(np.array(places, np.int64))
        assert taken.to_pylist() == [values[place] for place in places]


@pytest.mark.parametrize("index", [3, -4, 100])
def test_a_place_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        BytesColumn.join([b"a", b"b", b"c"])[index]


@pytest.mark.parametrize("is_text", [True, False])
def test_arrow_shares_the_memory(is_text: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    column = BytesColumn.join([b"a", b"", "é".encode()], is_text=is_text)
    array = arrow.array(column)
    assert array.to_pylist() == column.to_pylist()
    assert array.type == (arrow.large_string() if is_text else arrow.large_binary())
    assert array.buffers()[2].address == arrow.py_buffer(column.buffer).address
    assert array.buffers()[1].address == column.offsets.ctypes.data
    assert arrow.array(column, arrow.binary()).type == arrow.binary()


def test_it_shows_what_it_is() -> None:
    assert repr(BytesColumn.join([b"ab", b"c"])) == "<BytesColumn of 2 x bytes, 3 bytes>"


@pytest.fixture(params=["pyarrow", "without pyarrow"])
def arrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are gathered by pyarrow where a program has loaded it; here both ways are tried."""
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.usefixtures("arrow")
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.binary(max_size=9))), st.data())
def test_values_are_gathered_from_anywhere(
    parts: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    buffer = b"".join(gap + value for gap, value in parts)
    ends = np.cumsum([len(gap) + len(value) for gap, value in parts]).astype(np.int64)
    lengths = np.array([len(value) for _, value in parts], np.int64)
    picks = data.draw(st.lists(st.integers(0, len(parts) - 1))) if parts else []
    for places in (np.arange(len(parts)), np.array(picks, np.int64)):
        column = BytesColumn.gather(buffer, ends[places] - lengths[places], ends[places])
        assert column.to_pylist() == [parts[place][1] for place in places]
        assert column.is_sound(len(places))


@pytest.mark.usefixtures("arrow")
@given(st.lists(st.binary(max_size=4), min_size=1), st.data())
def test_any_part_of_a_column_is_a_column(values: list[bytes], data: st.DataObject) -> None:
    column = BytesColumn.join(values)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert column.slice(start, stop).to_pylist() == values[start:stop]
    assert column.slice(start, stop).is_sound(stop - start)
    places = data.draw(st.lists(st.integers(0, len(values) - 1)))
    assert column.take(np.array(places, np.int64)).to_pylist() == [values[i] for i in places]


@given(st.lists(st.text(max_size=3) | st.binary(max_size=3)))
def test_texts_are_valid_one_by_one_or_refused(values: list[str | bytes]) -> None:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    try:
        expected: list[str] | None = [value.decode() for value in encoded]
    except UnicodeDecodeError:
        expected = None
    if expected is None:
        with pytest.raises(UnicodeDecodeError):
            BytesColumn.join(encoded, is_text=True)
    else:
        assert BytesColumn.join(encoded, is_text=True).to_pylist() == expected


def test_parts_are_put_where_they_belong() -> None:
    one: dict[str, Column] = {
        "n": np.array([1, 2]),
        "s": BytesColumn.join([b"a", b"b"]),
        "x": [None, {}],
    }
    two: dict[str, Column] = {"n": np.array([3]), "s": BytesColumn.join([b"c"]), "x": [0]}
    found = merge_columns([one, two], np.array([2, 0, 1]))
    assert isinstance(found["n"], np.ndarray)
    assert found["n"].tolist() == [2, 3, 1]
    assert isinstance(found["s"], BytesColumn)
    assert list(found["s"]) == [b"b", b"c", b"a"]
    assert found["x"] == [{}, 0, None]


def test_parts_of_different_types_become_a_list() -> None:
    one: dict[str, Column] = {
        "n": np.array([1]),
        "s": BytesColumn.join([b"a"]),
        "t": BytesColumn.join([b"a"]),
    }
    two: dict[str, Column] = {
        "n": np.array([0.5]),
        "s": ["c"],
        "t": BytesColumn.join([b"b"], is_text=True),
    }
    assert merge_columns([one, two], np.array([1, 0])) == {
        "n": [0.5, 1],
        "s": ["c", b"a"],
        "t": ["b", b"a"],
    }
    with pytest.raises(DataError, match="must have the same"):
        merge_columns([one, {"n": np.array([1])}], np.array([0, 1]))
