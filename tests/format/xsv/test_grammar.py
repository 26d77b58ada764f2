import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import DataError
from streaming.format.xsv.grammar import join_fields, split_fields

FIELDS = st.lists(st.text('ab",|→\n\r \0é'), min_size=1, max_size=5)
SEPARATORS = st.sampled_from([",", "\t", "|", "||", "ab", "→", "aba"])


@given(fields=FIELDS, separator=SEPARATORS, newline=st.sampled_from(["\n", "\r\n", ";", "¶b"]))
@settings(max_examples=400)
def test_fields_that_were_joined_are_split_again(
    fields: list[str], separator: str, newline: str
) -> None:
    record = join_fields(fields, separator, newline)
    assert split_fields(record, separator) == fields
    assert record


@given(fields=FIELDS, separator=st.sampled_from([",", "\t", "|", "→"]))
def test_what_is_joined_is_read_by_the_csv_module(fields: list[str], separator: str) -> None:
    record = join_fields(fields, separator, "\n")
    assert list(csv.reader([record + "\n"], delimiter=separator, strict=True)) == [fields]


@given(record=st.text('ab",'), separator=st.sampled_from([",", "a"]))
@settings(max_examples=400)
def test_a_record_is_split_as_the_csv_module_does(record: str, separator: str) -> None:
    try:
        (expected,) = csv.reader([record or '""'], delimiter=separator, strict=True)
    except csv.Error:
        with pytest.raises(DataError):
            split_fields(record, separator)
        return
    assert split_fields(record, separator) == expected


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('a,"b', "the quote at character 3 is not closed"),
        ('a,"b""', "the quote at character 3 is not closed"),
        ('a,"b"c,d', "at character 6 a field goes on after its closing quote"),
        ('"""a""",""b', "at character 11 a field goes on"),
    ],
)
def test_what_cannot_be_split_is_told(record: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_fields(record, ",")


def test_a_field_of_10_mb_is_split(tmp_path: object) -> None:
    field = 'x",' * 3_000_000
    record = join_fields(["a", field, "b"], ",", "\n")
    assert split_fields(record, ",") == ["a", field, "b"]
