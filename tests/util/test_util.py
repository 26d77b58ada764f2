import pytest

import streaming.util
from streaming.util import pretty, retrying


def test_old_names_are_the_new_things() -> None:
    assert streaming.util.bytes_to_int is pretty.bytes_to_int
    assert streaming.util.retry is retrying.retry


def test_every_name_is_there() -> None:
    for name in streaming.util.__all__:
        assert callable(getattr(streaming.util, name))
        assert name in dir(streaming.util)


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        streaming.util.nothing  # noqa: B018
