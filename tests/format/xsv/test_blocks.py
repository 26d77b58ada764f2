"""Whatever is taken apart as one text is what lines give one by one."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streaming.errors import DataError
from streaming.format.text.columns import encoding_of, join_kinds, kind_of_text
from streaming.format.xsv.blocks import can_split, split_lines
from streaming.format.xsv.encodings import decode_inferred, decode_texts, xsv_decode
from streaming.format.xsv.grammar import split_fields

LINES = st.lists(st.text('a,|"\x01\x02\x03\x85\u2028é\x1c', max_size=8), min_size=1, max_size=6)


def one_by_one(lines: list[str], separator: str, quoting: bool) -> list[list[str]] | None:
    """The fields of each line; None if one is broken."""
    if not quoting:
        return [line.split(separator) for line in lines]
    try:
        return [split_fields(line, separator) for line in lines]
    except DataError as error:
        assume("not closed" not in str(error))  # Such a line would go on with the next.
        return None


@given(
    lines=LINES,
    separator=st.sampled_from([",", "|", "a|", "é"]),
    newline=st.sampled_from(["\n", "\r\n", None]),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"]), min_size=6),
    quoting=st.booleans(),
    is_ended=st.booleans(),
)
@settings(max_examples=500)
def test_a_block_gives_the_fields_of_its_lines(
    lines: list[str],
    separator: str,
    newline: str | None,
    ends: list[str],
    quoting: bool,
    is_ended: bool,
) -> None:
    if newline is None:
        lines = [line or "x" for line in lines]  # Blank ones are not among the records.
    ends = ends[: len(lines)] if newline is None else [newline] * len(lines)
    if newline is None and not is_ended:
        ends[-1] = ""
    texts = [(line + end).encode() for line, end in zip(lines, ends, strict=True)]
    starts = np.cumsum([0, *map(len, texts[:-1])])
    expected = one_by_one(lines, separator, quoting)
    found = split_lines(b"".join(texts), starts, separator, newline, quoting=quoting)
    if found is None:
        return  # Then lines are taken apart one by one, or say what is wrong with them.
    flat, width, step = found
    assert expected == [flat[at : at + width] for at in range(0, len(flat), step)]


@pytest.mark.parametrize("quoting", [False, True])
@pytest.mark.parametrize(
    ("data", "newline"),
    [
        (b"1,2\n3,4\n", "\n"),
        (b"1,2\r\n3,4\r\n", "\r\n"),
        (b"1,2\r\n3,4\r\n", None),
        (b"1,2\r\n3,4", None),
        (b"1,2\r\r\n\n3,4\n\n", None),
        ('"a",é\n"b""c",""\n'.encode(), None),
        (b'"a\n",\r\n"\r\n,","\x1c"\r\n', None),
    ],
)
def test_usual_blocks_are_taken_apart_at_once(
    data: bytes, newline: str | None, quoting: bool
) -> None:
    if b'"' in data and not quoting:
        pytest.skip("its newlines are between quotes")
    last = data.rstrip(b"\r\n").rfind(b"\n3,4") + 1 or data.index(b'\n"') + 1
    found = split_lines(data, np.array([0, last]), ",", newline, quoting=quoting)
    assert found is not None
    assert found[1] == 2


def test_unusual_separators_are_left_to_the_slow_way() -> None:
    assert not can_split("||", "\n")
    assert not can_split(",", ";\n")
    assert not can_split("\x02", "\n")  # Which stands for nothing meanwhile.
    assert can_split("|,", None)


NUMBERS = st.sampled_from(
    [
        *"0;-0;-0.0; 1;1 ;-1.5e3;nan;inf;1_0;007;+1;1,2;;[1;];1];1e999;true;-0\n;0x1".split(";"),
        *("9" * 25, "\N{ARABIC-INDIC DIGIT ONE}", '"1"'),
    ]
)


@given(
    texts=st.lists(NUMBERS, max_size=4),
    encoding=st.sampled_from(["int", "float", "str"]),
    is_inferred=st.booleans(),
)
@settings(max_examples=300)
def test_many_texts_are_decoded_as_each_is(
    texts: list[str], encoding: str, is_inferred: bool
) -> None:
    decode = decode_inferred if is_inferred else xsv_decode
    try:
        expected = [decode(encoding, text) for text in texts]
    except ValueError:
        with pytest.raises(ValueError):
            decode_texts(encoding, texts, is_inferred=is_inferred)
        return
    assert repr(decode_texts(encoding, texts, is_inferred=is_inferred)) == repr(expected)


@given(first=st.sampled_from(["0", "-1.5e3", "9" * 25]), late=NUMBERS)
@settings(max_examples=100)
def test_a_text_is_a_number_only_if_it_would_be_one_among_the_first(first: str, late: str) -> None:
    kind = kind_of_text(first)
    joined = encoding_of(join_kinds(kind, kind_of_text(late), "str"))
    try:
        value = decode_inferred(encoding_of(kind), late)
    except ValueError:
        assert joined != encoding_of(kind)
    else:
        assert joined == encoding_of(kind)
        assert repr(value) == repr(xsv_decode(joined, late))
