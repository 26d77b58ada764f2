"""What a failed request means: one answer for all clients, so that a fault has one name."""

import errno
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from streaming.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StoreError,
    StoreTimeoutError,
    TransientStoreError,
    from_os_error,
)

__all__ = [
    "EXPIRED",
    "SLOW_DOWN",
    "from_any",
    "from_obstore",
    "from_status",
    "retry_after",
    "summary",
    "with_retry_after",
]

# Of the answers that a server gives, those that a later attempt may not get: too many requests, and
# faults on its side, but for what it will never do.
_PASSING = {408, 425, 429, 500, 502, 503, 504, 507, 509, 529, 599}
_THROTTLED = {429, 503}

# What messages say, for those who do something about it.
EXPIRED = "the credentials have expired"
SLOW_DOWN = "the server asks to slow down"

# Codes in the text of an answer that say more than its status.
_EXPIRED = re.compile(
    r"ExpiredToken|TokenRefreshRequired|InvalidToken|token (is|has) expired", re.I
)
_SLOW = re.compile(r"\b(SlowDown|RequestTimeout|Throttling|ServerBusy|InternalError)\b")

_STATUS = re.compile(r"status code: (\d{3})[^:\n]*:? ?(.*)", re.DOTALL)
_CODE = re.compile(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?", re.DOTALL)
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode|Unknown)")
_CAUSES = (
    (re.compile(r"dns error", re.IGNORECASE), "the name of the host is not known"),
    (re.compile(r"ConnectionRefused"), "the connection was refused"),
    (re.compile(r"ConnectionReset|BrokenPipe"), "the connection was reset"),
    (re.compile(r"IncompleteBody|UnexpectedEof|IncompleteMessage"), "the connection was closed"),
    (re.compile(r"TimedOut|Elapsed"), "nothing came in time"),
)
# What rustls says of a server that it can't trust, or that does not speak TLS at all.
_TLS = re.compile(r"InvalidCertificate|UnknownIssuer|InvalidMessage|AlertReceived|HandshakeFailure")


# Exceptions of SDKs that stand for a status without saying so, by their names.
_NAMED = {
    "NotFound": 404,
    "PermissionDenied": 403,
    "Unauthenticated": 401,
    "TooManyRequests": 429,
    "TemporarilyUnavailable": 503,
    "InternalError": 500,
    "DeadlineExceeded": 504,
}


def from_status(status: int, what: str, detail: str = "") -> StoreError:
    """The error that an HTTP answer stands for.

    Args:
        status: Its code.
        what: What failed, as the beginning of a sentence.
        detail: What the server said.
    """
    detail = f" ({detail})" if detail else ""
    if status in (401, 403, 407) or _EXPIRED.search(detail):
        why = EXPIRED if _EXPIRED.search(detail) else "access was denied"
        return AccessDeniedError(f"{what}: {why}, with status {status}{detail}.")
    if status in (404, 410):
        return ObjectNotFoundError(f"{what}: there is none, says the server{detail}.")
    if status in _THROTTLED or "SlowDown" in detail:
        return TransientStoreError(f"{what}: {SLOW_DOWN}, with status {status}{detail}.")
    if status in _PASSING or _SLOW.search(detail):
        return TransientStoreError(f"{what}: the server failed, with status {status}{detail}.")
    return StoreError(f"{what}: the server answered with status {status}{detail}.")


def from_obstore(error: BaseException, what: str) -> StoreError:
    """The error that one of obstore stands for; its kind is only in its text.

    Args:
        error: What obstore raised.
        what: What failed, as the beginning of a sentence.
    """
    text = str(error)
    if found := _STATUS.search(text):
        return from_status(int(found[1]), what, summary(found[2]))
    name = type(error).__name__
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(f"{what}: there is none.")
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return AccessDeniedError(f"{what}: access was denied ({summary(text)}).")
    if _TLS.search(text):  # It will not mend itself.
        return StoreError(f"{what}: TLS failed ({_TLS.findall(text)[0]}: {summary(text)}).")
    why = next((reason for pattern, reason in _CAUSES if pattern.search(text)), "")
    why = f"{why}: {summary(text)}" if why else summary(text)
    kind = _KIND.search(text)
    if kind is None:
        return StoreError(f"{what}: {why}.")
    passing = StoreTimeoutError if kind[1] == "Timeout" else TransientStoreError
    # A scheme that is not allowed, or a broken URL, will not mend itself.
    return (StoreError if "kind: Builder" in text else passing)(f"{what}: {why}.")


def from_any(error: BaseException, what: str) -> StoreError:
    """The error that one of any library stands for, judged by what such libraries have in common.

    Args:
        error: What the library raised.
        what: What failed, as the beginning of a sentence.
    """
    if isinstance(error, StoreError):
        return error
    for each in _chain(error):  # A library may have wrapped the one that says what it is.
        found = _recognized(each, what)
        if found is not None:
            return found
    if isinstance(error, OSError) and error.errno is not None:
        return from_os_error(error, what)
    return StoreError(f"{what}: {type(error).__name__}: {_why(error)}.")


def _recognized(error: BaseException, what: str) -> StoreError | None:
    """The error that an exception stands for by itself; None if it does not say."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int) and status >= 300:
        ours = from_status(status, what, _why(error))
        headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
        return with_retry_after(ours, headers.get("Retry-After"))
    names = {kind.__name__ for kind in type(error).__mro__}
    status = next((code for name, code in _NAMED.items() if name in names), None)
    if status is not None:
        ours = from_status(status, what, _why(error))
        return with_retry_after(ours, getattr(error, "retry_after_secs", None))
    why = _why(error)
    if names & {"AuthenticationException", "BadHostKeyException", "PasswordRequiredException"}:
        return AccessDeniedError(f"{what}: access was denied ({why}).")
    if isinstance(error, TimeoutError) or any("Timeout" in name for name in names):
        return StoreTimeoutError(f"{what}: nothing came in time ({why}).")
    passing = {"ConnectionError", "EOFError", "SSHException", "TransportError", "ProtocolError"}
    if names & passing:
        return TransientStoreError(f"{what}: the connection failed ({why}).")
    if isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE):
        return TransientStoreError(f"{what}: the connection was closed ({why}).")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(f"{what}: there is none ({why}).")
    return None


def _why(error: BaseException) -> str:
    """What an exception says, in one line."""
    return summary(str(getattr(error, "message", None) or error)) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was raised from or in the handling of."""
    each: BaseException | None = error
    for _ in range(5):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def with_retry_after(error: StoreError, value: str | float | None) -> StoreError:
    """Note in an error when the server wants to be asked again; see `Retry`."""
    seconds = retry_after(value) if isinstance(error, TransientStoreError) else None
    if seconds is not None:
        error.retry_after = seconds  # type: ignore[attr-defined]
    return error


def retry_after(value: str | float | None) -> float | None:
    """Seconds that a Retry-After header asks for; None if it asks for nothing.

    Args:
        value: The header: seconds, or a date.
    """
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(str(value)) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def summary(text: str) -> str:
    """What an answer says, in one line: code and message of XML, or the beginning of the text."""
    if found := _CODE.search(text):
        return ": ".join(part.strip() for part in found.groups() if part)
    first = text.partition("Debug source:")[0]
    return re.sub(r"<[^>]*>|\s+", " ", first).strip()[:300].rstrip(". ")
