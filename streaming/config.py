"""The arguments of a dataset as one frozen, checked value."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from streaming.errors import ConfigError
from streaming.plan import OrderSpec
from streaming.util.checking import check_flag, check_whole
from streaming.util.pretty import bytes_to_int, number_abbrev_to_int

__all__ = ["DatasetConfig", "default_predownload"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetConfig:
    """What a dataset was told, beside its streams.

    Attributes:
        order: All that decides the order; its batch size is 1 if `batch_size` is None.
        batch_size: Samples of one rank's batch; None if the dataset is not iterated.
        epoch_size: Samples of an epoch; None: what the streams' weights make.
        predownload: Samples that a worker looks ahead for shards.
        cache_limit: Bytes that downloaded shards may take; None for any.
        allow_unsafe_types: Whether decoding may run code that the data holds.
    """

    order: OrderSpec
    batch_size: int | None
    epoch_size: int | None
    predownload: int
    cache_limit: int | None
    allow_unsafe_types: bool

    @classmethod
    def check(
        cls,
        *,
        order: OrderSpec,
        batch_size: int | None,
        epoch_size: int | str | None,
        predownload: int | None,
        cache_limit: int | str | None,
        allow_unsafe_types: bool,
    ) -> "DatasetConfig":
        """Turn texts such as "100k" and "10gb" into numbers, and fill in defaults.

        Raises:
            ConfigError: An argument can't be meant as it is.
        """
        if predownload is None:
            predownload = default_predownload(batch_size)
        elif check_whole("predownload", predownload, 0) < (batch_size or 0):
            logger.warning(
                "predownload (%d) is below batch_size (%d): each batch will wait for its shards. "
                "Raise it to %d or leave it out.",
                predownload,
                batch_size,
                8 * (batch_size or 0),
            )
        limit = _size("cache_limit", cache_limit, bytes_to_int)
        if limit is not None and limit < 1:
            raise ConfigError(f"`cache_limit` must be positive, but is {limit}. None is no limit.")
        return cls(
            order=order,
            batch_size=batch_size,
            # The predecessor takes 0 as "not given" as well.
            epoch_size=_size("epoch_size", epoch_size, number_abbrev_to_int) or None,
            predownload=predownload,
            cache_limit=limit,
            allow_unsafe_types=check_flag("allow_unsafe_types", allow_unsafe_types),
        )


def _size(name: str, value: int | str | None, parse: Callable[[float | str], int]) -> int | None:
    if value is None:
        return None
    try:
        size = parse(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"`{name}`: {error}") from error
    if size < 0:
        raise ConfigError(f"`{name}` must not be negative, but is {value}.")
    return size


def default_predownload(batch_size: int | None) -> int:
    """Samples that a worker looks ahead for shards unless it is told."""
    return 8 * batch_size if batch_size else 64
