"""Versions as users write them, places as libraries know them, and libraries that are not there."""

import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from streaming.errors import ConfigError, MissingExtraError
from streaming.format.lance.client import load_library
from streaming.format.tables import TablePlace, kind_of_failure, parse_version
from streaming.util.importing import lazy

ZONE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        (7, 7),
        ("7", 7),
        (" 12 ", 12),
        ("best", "best"),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 12, tzinfo=ZONE)),
        (datetime(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_version_is_a_number_a_time_or_a_tag(
    said: int | str | datetime | None, meant: int | str | datetime | None
) -> None:
    assert parse_version(said) == meant


@pytest.mark.parametrize("said", [-1, True, 1.0, "", "  ", b"1", [1]])
def test_nothing_else_is_a_version(said: object) -> None:
    with pytest.raises(ConfigError, match="version"):
        parse_version(said)  # type: ignore[arg-type]


def test_a_place_is_a_path_or_a_url_of_the_libraries() -> None:
    assert TablePlace.at("/data/a b").uri == "/data/a b"
    assert TablePlace.at("file:///data/x").uri == "/data/x"
    assert TablePlace.at("azure://box/x", {"account_name": "me"}).uri == "az://box/x"
    assert TablePlace.at("gs://box/x", {"anonymous": True}).uri == "gs://box/x"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Generic S3 error: status: 403 Forbidden", "AccessDeniedError"),
        ("operation timed out", "TransientStoreError"),
        ("response status: 503 Slow Down, after 10 retries", "TransientStoreError"),
        ("invalid magic", None),
        ("/data/pytest-500/connect/x.lance is broken", None),
    ],
)
def test_messages_of_libraries_tell_what_failed(text: str, kind: str | None) -> None:
    found = kind_of_failure(text)
    assert (found and found.__name__) == kind


def test_what_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtraError, match=r'pip install "goldenspike\[lance\]"'):
        load_library()
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r'pip install "goldenspike\[delta\]"'):
        lazy("deltalake", "delta")
