from typing import Any

import numpy as np
import pytest

from streaming.format import BytesColumn
from streaming.format.text.columns import as_column, encoding_of, join_kinds, kind_of, kind_of_text


@pytest.mark.parametrize(
    ("texts", "encoding"),
    [
        ("0 -1 9007199254740993 123456789012345678901234567890", "int"),
        ("1 2.5 -1e9 nan inf", "float"),
        ("1.0", "float"),
        ("nan inf -inf", "str"),  # Names, for all that is known.
        ("9007199254740993 0.5", "str"),  # As a float the first would be another number.
        ("007 1", "str"),
        ("+1", "str"),
        ("1_000", "str"),
        ("0x10", "str"),
        ("1e999", "str"),
        ("1. .5", "str"),
        ("1 true", "str"),
        ("-0", "str"),
        ("\N{ARABIC-INDIC DIGIT ONE}", "str"),
        ("9" * 5000, "str"),
    ],
)
def test_fields_are_numbers_if_they_are_written_just_so(texts: str, encoding: str) -> None:
    kind = None
    for text in texts.split():
        kind = join_kinds(kind, kind_of_text(text), "str")
    assert encoding_of(str(kind)) == encoding


def test_an_empty_field_is_a_text() -> None:
    assert kind_of_text("") == "str"
    assert join_kinds("int", "str", "str") == "str"


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([1, -(2**70)], "int"),
        ([1, 2.0], "float"),
        ([2**60, 2.0], "json"),
        ([True, False], "bool"),
        ([True, 1], "json"),
        (["a", ""], "str"),
        (["a", None], "json"),
        ([None], "json"),
        ([[1], [2]], "json"),
        ([{}], "json"),
    ],
)
def test_json_values_have_a_kind_in_common(values: list[Any], encoding: str) -> None:
    kind = None
    for value in values:
        kind = join_kinds(kind, kind_of(value), "json")
    assert encoding_of(str(kind)) == encoding


@pytest.mark.parametrize(
    ("encoding", "values", "dtype"),
    [
        ("int", [1, -(2**63)], np.int64),
        ("float", [1.5, float("nan")], np.float64),
        ("float", [1.5, 2], np.float64),
        ("bool", [True, False], np.bool_),
        ("int", [], np.int64),
    ],
)
def test_values_become_an_array(encoding: str, values: list[Any], dtype: type) -> None:
    column = as_column(encoding, values)
    assert isinstance(column, np.ndarray)
    assert column.dtype == dtype
    np.testing.assert_array_equal(column, np.array(values, dtype))


def test_texts_become_one_buffer() -> None:
    column = as_column("str", ["é", "", "x"])
    assert isinstance(column, BytesColumn)
    assert column.to_pylist() == ["é", "", "x"]


@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ("int", [1, 2**63]),
        ("int", [1, True]),
        ("int", [1, None]),
        ("float", [1.5, 2**60 + 1]),
        ("float", [1.5, 10**400]),
        ("str", ["a", "\ud800"]),
        ("json", [{}, 1]),
    ],
)
def test_what_an_array_would_change_stays_a_list(encoding: str, values: list[Any]) -> None:
    assert as_column(encoding, values) == values
