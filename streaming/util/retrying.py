"""One policy for trying again."""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from streaming.errors import ConfigError, StoreTimeoutError, TransientStoreError

__all__ = ["Retry", "retry"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Not the global generator, whose state belongs to the user, and which forked processes share: they
# would all come back at the same moment.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, after what pause and after which errors something is tried again.

    The pause after failed attempt ``i`` (from 0) is ``base * 2**i`` and at random up to the part
    `jitter` of it more, or what the error's `retry_after` (seconds) asks for if that is longer, and
    never over `cap`.
    """

    attempts: int = 3  # in all
    base: float = 1.0  # seconds
    cap: float = 60.0  # seconds
    jitter: float = 0.5
    on: tuple[type[BaseException], ...] = (StoreTimeoutError, TransientStoreError)
    # Takes seconds; a true answer means that the wait was called off: no further attempt. So the
    # `wait` of a threading.Event serves where someone may have to stop soon.
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"`attempts` must be at least 1, but is {self.attempts}.")
        for name in ("base", "cap", "jitter"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"`{name}` must be finite and not negative, but is {value}.")

    def call(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function until it succeeds.

        Returns:
            What the function returns.

        Raises:
            BaseException: Of the function: the first that is not one of `on`, or else the last.
        """
        for attempt in range(self.attempts - 1):
            try:
                return fn(*args, **kwargs)
            except self.on as error:
                pause = self._pause(attempt, error)
                logger.warning(
                    "Attempt %d of %d failed, the next is in %.1f s: %s",
                    attempt + 1,
                    self.attempts,
                    pause,
                    str(error),  # What keeps the record should not keep all frames.
                )
                if self.sleep(pause):
                    raise
        return fn(*args, **kwargs)

    def _pause(self, attempt: int, error: BaseException) -> float:
        pause = self.base * 2.0 ** min(attempt, 99) * (1 + self.jitter * _random.random())
        return min(self.cap, max(pause, getattr(error, "retry_after", None) or 0.0))


def retry(
    exc_class: type[BaseException] | Sequence[type[BaseException]] | Callable[..., Any] = Exception,
    clean_up_fn: Callable[[], object] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Callable[..., Any]:
    """Decorate a function to be tried again, with or without parentheses. New code uses `Retry`.

    Args:
        exc_class: The exception class, or classes, after which to try again.
        clean_up_fn: Called after each failed attempt, the last included.
        num_attempts: Attempts in all.
        initial_backoff: Seconds of the first pause; each further one is twice as long.
        max_jitter: Up to so many seconds are added to each pause at random.

    Raises:
        ConfigError: `num_attempts` is below 1.
    """
    if num_attempts < 1:
        raise ConfigError(f"`num_attempts` must be at least 1, but is {num_attempts}.")
    if callable(exc_class) and not isinstance(exc_class, type):
        return cast(Callable[..., Any], retry()(exc_class))
    errors: tuple[type[BaseException], ...] = (
        (exc_class,) if isinstance(exc_class, type) else tuple(exc_class)
    )

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            attempt = 0
            while True:
                try:
                    return fn(*args, **kwargs)
                except errors:
                    if clean_up_fn is not None:
                        clean_up_fn()
                    if attempt + 1 == num_attempts:
                        raise
                time.sleep(initial_backoff * 2**attempt + max_jitter * _random.random())
                attempt += 1

        return call

    return decorate
