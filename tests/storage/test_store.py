import errno
import os

import pytest

from streaming.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
)
from streaming.storage.store import translated


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, ObjectNotFoundError),
        (errno.ENOTDIR, ObjectNotFoundError),
        (errno.EACCES, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.ETIMEDOUT, StoreTimeoutError),
        (errno.ESTALE, TransientStoreError),
        (errno.EIO, TransientStoreError),
        (errno.EMFILE, StoreError),
        (errno.ENOSPC, StoreError),
        (errno.EDQUOT, StoreError),
    ],
)
def test_an_error_of_the_system_becomes_ours(number: int, kind: type[StoreError]) -> None:
    with pytest.raises(StoreError, match=r"^Can't read x: ") as caught, translated("Can't read x"):
        raise OSError(number, os.strerror(number), "x")
    assert type(caught.value) is kind
    assert caught.value.errno == number
    assert isinstance(caught.value.__cause__, OSError)
    full = number in (errno.ENOSPC, errno.EDQUOT)
    assert ("no space left on device" in str(caught.value)) == full


def test_an_error_of_ours_stays() -> None:
    error = TransientStoreError("503")
    with pytest.raises(TransientStoreError) as caught, translated("Can't read x"):
        raise error
    assert caught.value is error
