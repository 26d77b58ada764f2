import logging
import math
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from streaming.errors import (
    ConfigError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
)
from streaming.util.retrying import Retry, retry


def failing(*errors: Exception) -> Callable[[], str]:
    """Something that raises these one after another, and then succeeds."""
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


def waiting(seconds: float) -> TransientStoreError:
    error = TransientStoreError("429")
    error.retry_after = seconds  # type: ignore[attr-defined]  # As a store's adapter sets it.
    return error


@pytest.fixture
def pauses() -> list[float]:
    return []


def test_what_succeeds_is_called_once_with_its_arguments(pauses: list[float]) -> None:
    assert Retry(sleep=pauses.append).call(divmod, 7, 2) == (3, 1)
    assert Retry(sleep=pauses.append).call(int, "ff", base=16) == 255
    assert pauses == []


def test_pauses_double_up_to_the_cap(pauses: list[float]) -> None:
    errors = [TransientStoreError("x"), StoreTimeoutError("x")] * 3
    policy = Retry(7, base=0.5, cap=5, jitter=0, sleep=pauses.append)
    assert policy.call(failing(*errors)) == "done"
    assert pauses == [0.5, 1, 2, 4, 5, 5]


def test_jitter_adds_up_to_its_part(pauses: list[float]) -> None:
    policy = Retry(101, base=1, cap=1e300, jitter=0.5, sleep=pauses.append)
    assert policy.call(failing(*[TransientStoreError("x")] * 100)) == "done"
    parts = [pause / 2**i for i, pause in enumerate(pauses)]
    assert all(1 <= part <= 1.5 for part in parts)
    assert len(set(parts)) > 90


def test_very_many_attempts_are_no_overflow(pauses: list[float]) -> None:
    policy = Retry(2001, cap=3, jitter=0, sleep=pauses.append)
    assert policy.call(failing(*[TransientStoreError("x")] * 2000)) == "done"
    assert pauses[-1] == 3


def test_the_store_may_ask_for_a_longer_pause_up_to_the_cap(pauses: list[float]) -> None:
    policy = Retry(5, base=2, cap=60, jitter=0, sleep=pauses.append)
    assert policy.call(failing(waiting(30), waiting(1), waiting(1e9))) == "done"
    assert pauses == [30, 4, 60]


def test_the_last_error_is_raised(pauses: list[float]) -> None:
    errors = [TransientStoreError(str(i)) for i in range(3)]
    with pytest.raises(TransientStoreError) as caught:
        Retry(3, sleep=pauses.append).call(failing(*errors))
    assert caught.value is errors[2]
    assert len(pauses) == 2


@pytest.mark.parametrize("error", [StoreError("x"), ObjectNotFoundError("x"), ValueError("x")])
def test_other_errors_are_raised_at_once(error: Exception, pauses: list[float]) -> None:
    with pytest.raises(type(error)):
        Retry(sleep=pauses.append).call(failing(error))
    assert pauses == []


def test_other_errors_may_be_named(pauses: list[float]) -> None:
    policy = Retry(on=(ZeroDivisionError,), sleep=pauses.append)
    assert policy.call(failing(ZeroDivisionError())) == "done"
    with pytest.raises(TransientStoreError):
        policy.call(failing(TransientStoreError("x")))


def test_each_further_attempt_is_a_warning(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Retry(3, base=1, jitter=0, sleep=pauses.append)
    policy.call(failing(TransientStoreError("busy"), StoreTimeoutError("late")))
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "Attempt 1 of 3 failed, the next is in 1.0 s: busy"),
        (logging.WARNING, "Attempt 2 of 3 failed, the next is in 2.0 s: late"),
    ]


def test_a_wait_that_is_called_off_ends_the_attempts() -> None:
    called_off = threading.Event()
    called_off.set()
    error = TransientStoreError("busy")
    with pytest.raises(TransientStoreError) as caught:
        Retry(3, base=3600, cap=3600, sleep=called_off.wait).call(failing(error))
    assert caught.value is error


def test_a_policy_is_a_value() -> None:
    assert Retry(3) == Retry(attempts=3, sleep=print)
    assert pickle.loads(pickle.dumps(Retry(3))) == Retry(3)
    assert hash(Retry(3)) == hash(Retry(3))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("base", -1),
        ("cap", math.nan),
        ("cap", math.inf),
        ("jitter", -0.1),
    ],
)
def test_a_policy_without_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"`{field}`.*{value}"):
        Retry(**{field: value})  # type: ignore[arg-type]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_the_old_decorator_works_without_parentheses(slept: list[float]) -> None:
    call = retry(failing(KeyError(), OSError()))
    assert call() == "done"
    assert 1 <= slept[0] <= 1.5
    assert 2 <= slept[1] <= 2.5


def test_the_old_decorator_works_with_parentheses(slept: list[float]) -> None:
    assert retry()(failing(KeyError()))() == "done"
    assert len(slept) == 1


def test_the_old_decorator_cleans_up_after_each_failure(slept: list[float]) -> None:
    cleaned: list[int] = []

    @retry(
        ValueError,
        clean_up_fn=lambda: cleaned.append(len(slept)),
        num_attempts=3,
        initial_backoff=2,
        max_jitter=0,
    )
    def fail(argument: int, *, other: int) -> None:
        """Fail."""
        raise ValueError(f"{argument} {other}")

    with pytest.raises(ValueError, match="1 2"):
        fail(1, other=2)
    assert cleaned == [0, 1, 2]
    assert slept == [2, 4]
    assert (fail.__name__, fail.__doc__) == ("fail", "Fail.")


def test_the_old_decorator_takes_several_classes(slept: list[float]) -> None:
    call = retry([KeyError, OSError], num_attempts=5)(failing(KeyError(), OSError(), ValueError()))
    with pytest.raises(ValueError):
        call()
    assert len(slept) == 2


def test_the_old_decorator_needs_an_attempt() -> None:
    with pytest.raises(ValueError, match="num_attempts"):
        retry(num_attempts=0)
