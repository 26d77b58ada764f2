import json
import math
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import (
    characters,
    dictionaries,
    floats,
    integers,
    lists,
    sampled_from,
    text,
)

from streaming.errors import ConfigError
from streaming.util.pretty import (
    bytes_to_int,
    get_list_arg,
    normalize_bin_bytes,
    normalize_bytes,
    normalize_count,
    normalize_dec_bytes,
    normalize_duration,
    number_abbrev_to_int,
    pack_str2str,
    pack_strs,
    prettify_bin_bytes,
    prettify_bytes,
    prettify_count,
    prettify_dec_bytes,
    prettify_duration,
    unpack_str2str,
    unpack_strs,
)

Normalize = Callable[[Any], float]
ALL: list[Normalize] = [
    normalize_dec_bytes,
    normalize_bin_bytes,
    normalize_bytes,
    normalize_count,
    normalize_duration,
]


@pytest.mark.parametrize("fn", [bytes_to_int, number_abbrev_to_int])
def test_old_functions_read_as_the_predecessor(fn: Callable[[str], int], golden: Path) -> None:
    table: dict[str, dict[str, Any]] = json.loads((golden / "misc.json").read_text())[fn.__name__]
    for argument, outcome in table.items():
        if "out" in outcome:
            assert fn(argument) == outcome["out"], argument
        else:
            with pytest.raises(ValueError, match="should be digits"):
                fn(argument)


def test_old_lists_are_cut_as_by_the_predecessor(golden: Path) -> None:
    table = json.loads((golden / "misc.json").read_text())["get_list_arg"]
    assert {argument: get_list_arg(argument) for argument in table} == table


def test_old_functions_take_numbers() -> None:
    assert [bytes_to_int(5), bytes_to_int(5.9), number_abbrev_to_int(-2)] == [5, 5, -2]


@pytest.mark.parametrize(
    "argument", ["9" * 10_000, "1e999999kb", "1e9999k", "nankb", "infk", "\u0661kb"]
)
def test_old_functions_refuse_what_is_huge_or_no_number(argument: str) -> None:
    for fn in (bytes_to_int, number_abbrev_to_int):
        with pytest.raises(ConfigError):
            fn(argument)


@pytest.mark.parametrize(
    ("fn", "argument", "value"),
    [
        (normalize_dec_bytes, "0b", 0),
        (normalize_dec_bytes, "64mb", 64 * 1000**2),
        (normalize_dec_bytes, "1.5kb", 1500),
        (normalize_dec_bytes, "1kb24b", 1024),
        (normalize_dec_bytes, "1_000,000b", 1000000),
        (normalize_dec_bytes, "1QB", 1000**10),
        (normalize_bin_bytes, "64mib", 64 * 1024**2),
        (normalize_bin_bytes, "0.1kib", 102),
        (normalize_bin_bytes, "3ib", 3),
        (normalize_bin_bytes, "1qib", 1024**10),
        (normalize_bytes, "1kb", 1000),
        (normalize_bytes, "1KiB", 1024),
        (normalize_bytes, "1mib1ib", 1024**2 + 1),
        (normalize_bytes, 17, 17),
        (normalize_bytes, 17.0, 17),
        (normalize_count, "100", 100),
        (normalize_count, "1.5k", 1500),
        (normalize_count, "2m500k", 2_500_000),
        (normalize_count, "1k500", 1500),
        (normalize_count, "1b2m3k4", 1_002_003_004),
        (normalize_count, "1k1k", None),
        (normalize_count, "1t", 10**12),
        (normalize_count, "0.0015k", 1),
        (normalize_count, "9007199254740993", 2**53 + 1),
        (normalize_count, np.int64(5), 5),
        (normalize_duration, "90s", 90),
        (normalize_duration, "1h30m", 5400),
        (normalize_duration, "1m23.5s", 83.5),
        (normalize_duration, "1.5s", 1.5),
        (normalize_duration, "1d2h3m4s", 93784),
        (normalize_duration, "1h60m", 7200),
        (normalize_duration, "0.1s", 0.1),
        (normalize_duration, 2, 2.0),
        (normalize_duration, 0.25, 0.25),
    ],
)
def test_a_quantity_is_read(fn: Normalize, argument: Any, value: float | None) -> None:
    if value is None:
        with pytest.raises(ConfigError, match="must become smaller"):
            fn(argument)
    else:
        assert fn(argument) == value


@pytest.mark.parametrize(
    ("fn", "argument", "why"),
    [
        (normalize_bytes, "64", "'' is no unit of it; 'b', 'kb'"),
        (normalize_bin_bytes, "64kb", "'kb' is no unit of it; 'ib', 'kib'"),
        (normalize_bytes, "1kib1b", "is no unit"),
        (normalize_bytes, "1k", "'k' is no unit"),
        (normalize_bytes, "1.5b", "can't be halved"),
        (normalize_bytes, "1kb0.5b", "can't be halved"),
        (normalize_count, "0.5", "can't be halved"),
        (normalize_count, "1.5k500", "only the last number"),
        (normalize_count, "1.0m5k", "only the last number"),
        (normalize_count, "1k1m", "must become smaller"),
        (normalize_count, "1m1001k", "'1001k' is more than one"),
        (normalize_duration, "1h60.5m", "'60.5m' is more than one"),
        (normalize_duration, "30", "is no unit"),
        (normalize_duration, "30x", "'x' is no unit"),
        (normalize_duration, "1e3s", "'e' is no unit"),
    ],
)
def test_a_quantity_that_is_not_of_the_grammar_is_refused(
    fn: Normalize, argument: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        fn(argument)


@pytest.mark.parametrize("fn", ALL)
@pytest.mark.parametrize(
    "argument",
    [
        *("", "b", "-1kb", "-1s", "+1k", " 1k", "1k ", "1 k", ".5k", "5.k", "1..5k", ",1k", "_1k"),
        *("k1", "1k-1", "\u0661k", "\uff11k", "1e", "0x1", "1\n", "9" * 401 + "k", b"1k", b"1"),
        *(-1, -0.5, math.nan, math.inf, -math.inf, -(10**99), True, False, None, []),
    ],
)
def test_what_is_no_quantity_is_refused(fn: Normalize, argument: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        fn(argument)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("fn", [normalize_bytes, normalize_count])
def test_halves_of_whole_things_are_refused(fn: Normalize) -> None:
    with pytest.raises(ConfigError, match=r"not 1\.5"):
        fn(1.5)


@given(text(sampled_from("0123456789.,_kmbtsihdgp -"), max_size=12))
def test_any_text_is_read_or_refused(argument: str) -> None:
    for fn in (*ALL, bytes_to_int, number_abbrev_to_int):
        with suppress(ConfigError):
            assert fn(argument) >= 0 or argument.strip().startswith("-")


@given(integers(0, 1000**11))
def test_a_number_becomes_the_text_that_gives_it_back(number: int) -> None:
    assert normalize_dec_bytes(prettify_dec_bytes(number)) == number
    assert normalize_bin_bytes(prettify_bin_bytes(number)) == number
    assert normalize_bytes(prettify_bytes(number)) == number
    assert normalize_count(prettify_count(number)) == number


@given(floats(0, allow_infinity=False, allow_nan=False))
def test_a_time_becomes_the_text_that_gives_it_back(seconds: float) -> None:
    assert normalize_duration(prettify_duration(seconds)) == seconds


@given(floats(1e-6, 1e12), integers(1, 6))
def test_a_rounded_time_is_near(seconds: float, digits: int) -> None:
    shown = normalize_duration(prettify_duration(seconds, digits=digits))
    assert abs(Fraction(shown) - Fraction(seconds)) <= Fraction(seconds) * Fraction(
        1, 10 ** (digits - 1)
    )


@pytest.mark.parametrize(
    ("fn", "argument", "digits", "shown"),
    [
        (prettify_bytes, 0, None, "0b"),
        (prettify_bytes, 1 << 26, None, "64mib"),
        (prettify_bytes, 1 << 26, 3, "67.1mb"),
        (prettify_bytes, 64_000, None, "64kb"),
        (prettify_bytes, 999_999, 3, "1mb"),
        (prettify_dec_bytes, 1024, None, "1kb24b"),
        (prettify_bin_bytes, 1 << 26, 3, "64mib"),
        (prettify_count, 0, None, "0"),
        (prettify_count, 2_500_000, None, "2m500k"),
        (prettify_count, 2_500_000, 3, "2.5m"),
        (prettify_count, 17, 3, "17"),
        (prettify_count, 10**16, 3, "10000t"),
        (prettify_duration, 0, None, "0s"),
        (prettify_duration, 5400, None, "1h30m"),
        (prettify_duration, 83.5, None, "1m23.5s"),
        (prettify_duration, 5400, 2, "1.5h"),
        (prettify_duration, 0.012345, 3, "0.0123s"),
    ],
)
def test_a_number_is_shown(
    fn: Callable[..., str], argument: float, digits: int | None, shown: str
) -> None:
    assert fn(argument, digits=digits) == shown


@pytest.mark.parametrize("fn", [prettify_bytes, prettify_count, prettify_duration])
@pytest.mark.parametrize("argument", [-1, math.nan, math.inf])
def test_what_is_no_number_is_not_shown(fn: Callable[..., str], argument: float) -> None:
    with pytest.raises(ConfigError):
        fn(argument)


def test_lists_are_cut() -> None:
    assert unpack_strs("") == []
    assert unpack_strs("a;b", ";") == ["a", "b"]
    assert unpack_strs("a, b") == ["a", " b"]


def test_maps_are_cut() -> None:
    assert unpack_str2str("") == {}
    assert unpack_str2str("a=1,b=x=y,c=") == {"a": "1", "b": "x=y", "c": ""}
    assert unpack_str2str("a:1;b:2", sep=";", eq=":") == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("argument", "why"), [("a=1,a=2", "'a' comes twice"), ("a=1,b", "'b' should be"), (",", "''")]
)
def test_a_map_that_is_none_is_refused(argument: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        unpack_str2str(argument)


WORDS = text(characters(categories=["L", "N"]) | sampled_from(",=; "), max_size=4)


@given(lists(WORDS, max_size=4))
def test_a_list_is_joined_so_that_it_can_be_cut_again(strs: list[str]) -> None:
    try:
        packed = pack_strs(strs)
    except ConfigError:
        assert strs == [""] or any("," in item for item in strs)
    else:
        assert unpack_strs(packed) == strs


@given(dictionaries(WORDS, WORDS, max_size=4))
def test_a_map_is_joined_so_that_it_can_be_cut_again(pairs: dict[str, str]) -> None:
    try:
        packed = pack_str2str(pairs)
    except ConfigError:
        assert any("," in key + value or "=" in key for key, value in pairs.items())
    else:
        assert unpack_str2str(packed) == pairs
