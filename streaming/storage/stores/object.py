"""Objects in S3 and what speaks it, Google Cloud Storage, Azure, and below HTTP URLs: by obstore.

A store here is plain data, an address and how to reach it. Its client is made by the process that
uses it, and kept there; a process that may not have one asks a helper (`streaming.storage.guard`).
"""

import functools
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from streaming.errors import (
    AccessDeniedError,
    ConfigError,
    MissingExtraError,
    ObjectNotFoundError,
    StoreError,
    TransientStoreError,
)
from streaming.storage.guard import FetchHelper, drop_kept, helper, kept
from streaming.storage.options import SETTINGS, StoreOptions
from streaming.storage.store import (
    Buffer,
    ObjectInfo,
    check_key,
    check_prefix,
    translated,
    write_pieces,
)
from streaming.storage.stores.address import Place, parse_object_url
from streaming.storage.stores.credentials import AwsProfile, StaticKeys
from streaming.storage.stores.failures import (
    EXPIRED,
    SLOW_DOWN,
    from_obstore,
    summary,
    with_retry_after,
)

__all__ = ["ObjectStore", "open_object_url"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Bytes that pass through Python at a time: enough that it does not slow them down, and no more, as
# those of a piece that is not complete when the connection breaks are lost.
PIECE = 256 << 10
# Bytes of a part of an upload, and how many are on their way at a time: 32 MiB for each file.
PART = 8 << 20
PARTS_AT_A_TIME = 4
MAX_PARTS = 9_000  # S3 takes 10,000.
# The client tries a single request again so often, after 0.1 s and more; `fetch` and `publish`
# count attempts above that.
QUICK_RETRIES = 2
MAX_CONNECT = 10.0  # seconds
ASK_SECONDS = 5.0  # for the question when to come again


def _guarded(
    method: "Callable[Concatenate[ObjectStore, P], T]",
) -> "Callable[Concatenate[ObjectStore, P], T]":
    """Let a helper make the call where this process must not."""

    def call(self: "ObjectStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        other = helper()
        if other is None:
            return method(self, *args, **kwargs)
        bound: Callable[P, T] = getattr(self, method.__name__)
        return other.call(bound, *args, **kwargs)

    return functools.update_wrapper(call, method)


class ObjectStore:
    """The objects of one bucket. Plain data: pickles, and may cross a fork.

    Args:
        place: Where they are.
        options: How to reach it.
    """

    def __init__(self, place: Place, options: StoreOptions) -> None:
        self.place = place
        self.options = options

    def __repr__(self) -> str:
        return f"ObjectStore({self.place.root!r})"

    @_guarded
    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        if stop is not None and stop <= start:
            self.stat(key)
            return b""
        try:
            _, pieces = self.stream(key, start, stop)
            return b"".join(pieces)
        except _BeyondError:
            return b""

    @_guarded
    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        write_pieces(self.stream(key)[1], path)

    def stream(
        self, key: str, start: int = 0, stop: int | None = None
    ) -> tuple[ObjectInfo, Iterator[Buffer]]:
        """Ask for the bytes [start, stop) of an object. Only where `guard.helper` gives None."""
        check_key(key)
        options: dict[str, Any] = {}
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        try:
            result = self._request("read", key, lambda c: _obstore().get(c, key, options=options))
        except _NoRangesError:
            return self._cut(key, start, stop)
        chunks = result.stream(min_chunk_size=PIECE)
        return _describe(result.meta, key), self._pieces(chunks, f"Can't read {self._url(key)}")

    def helper(self) -> FetchHelper | None:
        """Who must read it; None if this process may."""
        return helper()

    @_guarded
    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        self._check_writable("write", key)
        with translated(f"Can't read {path}"):
            size = path.stat().st_size
        settings = {
            "chunk_size": max(PART, math.ceil(size / MAX_PARTS)),
            "max_concurrency": PARTS_AT_A_TIME,
        }
        self._request("write", key, lambda c: _obstore().put(c, key, path, **settings))

    @_guarded
    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        check_key(key)
        return _describe(self._request("look at", key, lambda c: _obstore().head(c, key)), key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        return iter(self._list(check_prefix(prefix)))

    @_guarded
    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        self._check_writable("delete", key)
        with suppress(ObjectNotFoundError):
            self._request("delete", key, lambda c: _obstore().delete(c, key))

    def close(self) -> None:
        """Nothing: connections are the process's, which keeps them for the next store like this."""

    @_guarded
    def _list(self, prefix: str) -> Sequence[ObjectInfo]:
        directory = prefix.rpartition("/")[0]

        def ask(client: Any) -> Sequence[ObjectInfo]:
            chunks = _obstore().list(client, directory or None, chunk_size=1000)
            return [_describe(item, item["path"]) for chunk in chunks for item in chunk]

        found = self._request("list", directory, ask)
        matching = (item for item in found if item.key.startswith(prefix))
        return sorted(matching, key=attrgetter("key"))  # Most services keep this order themselves.

    def _url(self, key: str) -> str:
        is_http = self.place.service == "http"
        return f"{self.place.root}/{quote(key) if is_http else key}" if key else self.place.root

    def _check_writable(self, verb: str, key: str) -> None:
        check_key(key)
        if self.place.service == "http":
            raise StoreError(
                f"Can't {verb} {self._url(key)}: HTTP servers are for reading. Use the scheme of "
                f"the service behind it, such as s3://."
            )

    def _cut(self, key: str, start: int, stop: int | None) -> tuple[ObjectInfo, Iterator[Buffer]]:
        """A range of an object whose server gives only the whole."""
        info, pieces = self.stream(key)
        if start >= info.size:
            raise _BeyondError(f"{self._url(key)} ends before byte {start}.")

        def cut() -> Iterator[Buffer]:
            at = 0
            for piece in pieces:
                end = None if stop is None else max(stop - at, 0)
                yield memoryview(piece)[max(start - at, 0) : end]
                at += len(piece)

        return info, cut()

    def _pieces(self, chunks: Iterator[Buffer], what: str) -> Iterator[Buffer]:
        try:
            yield from chunks
        except Exception as error:
            if _has_no_ranges(error):  # The client's own attempt to go on, after a break.
                text = f"{what}: the connection broke, and the server gives no ranges."
                raise TransientStoreError(text) from error
            raise from_obstore(error, what) from error

    def _request(self, verb: str, key: str, request: Callable[[Any], T]) -> T:
        """Make a request with the client of this process, and name what goes wrong.

        Credentials that have expired are asked for anew, once. Where there are none, the request is
        made unsigned, as public buckets allow; this is remembered if it helps.
        """
        known = ("options", self.place, self.options)
        options = kept(known, lambda: self.options)
        client = self._client(options)
        try:
            return request(client)
        except Exception as error:
            ours = self._named(error, verb, key, options)
            others = self._others(ours, error, options)
            if others is None:
                raise ours from error
        try:
            result = request(self._client(others))
        except Exception as error:
            if others is not options and not isinstance(error, FileNotFoundError):
                raise ours from error  # Being refused unsigned is not the news.
            raise self._named(error, verb, key, others) from error
        drop_kept(known)
        kept(known, lambda: others)
        return result

    def _client(self, options: StoreOptions) -> Any:
        return kept(("client", self.place, options), lambda: _make_client(self.place, options))

    def _others(
        self, ours: StoreError, error: Exception, options: StoreOptions
    ) -> StoreOptions | None:
        """Options to make a failed request with once more; None if that would not help."""
        if isinstance(ours, AccessDeniedError) and EXPIRED in str(ours):
            if options.credentials is None:
                return None
            drop_kept(("client", self.place, options))
            drop_kept(options.credentials)
            return options
        if self.place.service != "s3" or options.anonymous:
            return None
        if _lacks_credentials(error) or "with status 400" in str(ours):
            return replace(options, anonymous=True, credentials=None, origin="nothing")
        return None

    def _named(self, error: Exception, verb: str, key: str, options: StoreOptions) -> StoreError:
        """The error of ours that one of obstore stands for."""
        what, text = f"Can't {verb} {self._url(key)}", str(error)
        if "status code: 416" in text or "Wanted range starting at" in text:
            return _BeyondError(f"{what}: it ends before the range that was asked for.")
        if _has_no_ranges(error):
            return _NoRangesError(f"{what}: the server gives no ranges.")
        ours = from_obstore(error, what)
        if isinstance(ours, AccessDeniedError):
            is_signed = self.place.service != "http" and not options.anonymous
            hint = f" Credentials came from {options.origin}." if is_signed else ""
            if self.place.service == "s3":
                hint += " Without the right to list, S3 says so of missing objects, too."
            return AccessDeniedError(f"{ours}{hint}")
        if "without LOCATION" in text or "PermanentRedirect" in text:
            return StoreError(f"{ours} The bucket is in another region: set AWS_REGION.")
        if isinstance(ours, TransientStoreError) and SLOW_DOWN in str(ours):
            return with_retry_after(ours, self._ask_when(key, options))
        return ours

    def _ask_when(self, key: str, options: StoreOptions) -> str | None:
        """When to come again: the client does not tell what the server said, so ask it once."""
        import urllib.error
        import urllib.request

        try:
            url = self._url(key)
            if self.place.service != "http":
                life = timedelta(seconds=60)
                url = _obstore().sign(self._client(options), "HEAD", key, life)
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=min(options.timeout, ASK_SECONDS)):
                return None
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.headers.get("Retry-After")
        except Exception as error:  # noqa: BLE001  # Then nobody knows: the usual pause.
            logger.debug("Asking %r when to come again failed: %s", self, error)
            return None


class _BeyondError(StoreError):
    """A range begins at or after the end of the object."""


class _NoRangesError(StoreError):
    """The server does not do ranges."""


def _obstore(module: str = "obstore") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "URLs of object stores need the package 'obstore', which comes with this one but can't "
            "be imported. Install it with: pip install obstore"
        ) from error


def _describe(meta: Mapping[str, Any], key: str) -> ObjectInfo:
    mark = meta["e_tag"]
    if mark is not None:  # Some services leave out the quotes here and there.
        mark = mark.removeprefix("W/").strip('"')
    elif meta["last_modified"].timestamp() > 0:  # 0 stands for a header that is not there.
        mark = meta["last_modified"].isoformat()
    return ObjectInfo(key, meta["size"], mark)


def _has_no_ranges(error: Exception) -> bool:
    """Whether the server gave the whole of an object when it was asked for a range."""
    pattern = r"NotPartial|RangeNotSupported|Content-Range header not present"
    return re.search(pattern, str(error)) is not None


def _lacks_credentials(error: Exception) -> bool:
    """Whether the request was not made because the cloud's metadata service gave no credentials."""
    return re.search(r"latest/(api/token|meta-data)|CredentialsNotLoaded", str(error)) is not None


def _make_client(place: Place, options: StoreOptions) -> Any:
    """The client of obstore for a place.

    Raises:
        ConfigError: An option is not one of the client's, or one is missing.
    """
    module = _obstore("obstore.store")
    name, settings = {"http": _http, "az": _azure, "gs": _google, "s3": _s3}[place.service](
        place, options
    )
    seconds = timedelta(seconds=options.timeout)
    client = {
        "allow_http": (options.endpoint or place.bucket).startswith("http://"),
        "connect_timeout": timedelta(seconds=min(options.timeout, MAX_CONNECT)),
        "read_timeout": seconds,
        "timeout": timedelta(days=1),  # A large object may take its time, as long as it comes.
    }
    retries = {
        "max_retries": QUICK_RETRIES,
        "retry_timeout": seconds,
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=1),
            "base": 2,
        },
    }
    try:
        kind = getattr(module, name)
        return kind(place.bucket, **settings, client_options=client, retry_config=retries)
    except Exception as error:
        raise ConfigError(
            f"The options for {place.root} can't be used: {summary(str(error))}."
        ) from error


def _http(place: Place, options: StoreOptions) -> tuple[str, dict[str, Any]]:
    return "HTTPStore", {}


def _azure(place: Place, options: StoreOptions) -> tuple[str, dict[str, Any]]:
    settings = _signed(options)
    if options.endpoint:
        settings["endpoint"] = options.endpoint
    settings.setdefault("account_name", place.account)
    if settings["account_name"] is None:
        raise ConfigError(
            f"{place.root} names no storage account. Set AZURE_ACCOUNT_NAME, or write the URL as "
            f"azure://ACCOUNT.blob.core.windows.net/CONTAINER/PATH."
        )
    return "AzureStore", settings


def _google(place: Place, options: StoreOptions) -> tuple[str, dict[str, Any]]:
    settings = _signed(options)
    if "access_key_id" in settings:  # HMAC keys are for the interface that speaks S3.
        return _s3(place, options)
    if options.endpoint and options.anonymous:
        # The client's only way to write without a token.
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        key = {"gcs_base_url": options.endpoint, "disable_oauth": True, **empty}
        return "GCSStore", {"service_account_key": json.dumps(key)}
    if options.endpoint:
        settings["base_url"] = options.endpoint
    return "GCSStore", settings


def _s3(place: Place, options: StoreOptions) -> tuple[str, dict[str, Any]]:
    settings = _signed(options)
    keys = {name: settings.pop(name, None) for name in _S3_KEYS}
    if not options.anonymous and keys["access_key_id"] and keys["secret_access_key"]:
        settings["credential_provider"] = StaticKeys(*keys.values())
    region = options.region
    if region is None and isinstance(options.credentials, AwsProfile):
        region = options.credentials.region()
    settings["region"] = region or "us-east-1"
    if options.endpoint:
        settings["aws_endpoint_url_s3"] = options.endpoint
    if place.bucket in options.requester_pays:
        settings["request_payer"] = True
    settings.setdefault("disable_bulk_delete", True)  # Not all that speak S3 know it.
    return "S3Store", settings


_CLIENTS = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_S3_KEYS = ("access_key_id", "secret_access_key", "session_token")


def _signed(options: StoreOptions) -> dict[str, Any]:
    """The settings that are given, and how requests are signed."""
    settings: dict[str, Any] = dict(options.settings)
    if options.anonymous:
        settings["skip_signature"] = True
    elif options.credentials is not None:
        settings["credential_provider"] = options.credentials
    return settings


def open_object_url(
    url: str, changes: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[ObjectStore, str]:
    """Open what a URL of s3, gs, Azure or http names.

    Args:
        url: The URL.
        changes: Options that take the place of those from the environment; see `StoreOptions`.

    Raises:
        ConfigError: The URL or an option is broken.
    """
    place, prefix = parse_object_url(url)
    options = StoreOptions.from_env(place.service).updated(changes)
    hmac = place.service == "gs" and "access_key_id" in options.setting  # It speaks S3 then.
    service = "s3" if hmac else place.service
    options.checked(place.root, SETTINGS[place.service], functools.partial(_takes, service))
    return ObjectStore(place, options), prefix


def _takes(service: str, name: str) -> bool:
    """Whether the client of a service knows a setting, in any spelling. It begins no runtime."""
    if service == "http":
        return False
    unknown = _obstore("obstore.exceptions").UnknownConfigurationKeyError
    try:
        getattr(_obstore("obstore.store"), _CLIENTS[service])("bucket", **{name: ""})
    except unknown:
        return False
    except Exception as error:  # noqa: BLE001  # Of the value, or of what it needs beside.
        logger.debug("%s is a setting of %s: %s", name, service, error)
    return True
