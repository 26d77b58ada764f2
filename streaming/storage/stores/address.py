"""Addresses of objects: which service, which bucket, which key."""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from streaming.errors import ConfigError, StoreError
from streaming.storage.store import check_key

__all__ = ["Place", "Service", "parse_object_url"]

Service = Literal["s3", "gs", "az", "http"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects are.

    Attributes:
        service: Kind of the service.
        bucket: Bucket, container, or scheme and host of an HTTP server.
        root: How URLs of it begin, for messages.
        account: Of Azure, where the address names it.
    """

    service: Service
    bucket: str
    root: str
    account: str | None = None


def parse_object_url(url: str) -> tuple[Place, str]:
    """Where a URL points: the place, and the key in it.

    Keys are written as they are, but for http URLs, which are percent-encoded as everywhere.
    Slashes at the end do not count.

    Raises:
        ConfigError: The URL has no bucket, or a part of its key can't be one.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    host, _, path = rest.partition("/")
    path = path.strip("/")
    if not host:
        raise ConfigError(f"{url!r} has no {'host' if scheme.startswith('http') else 'bucket'}.")
    if scheme in ("http", "https"):
        if re.search(r"[?#]", path):
            raise ConfigError(
                f"{url.partition('?')[0]!r} with a query can't be the address of a dataset: files "
                f"are added to its path."
            )
        base = f"{scheme}://{host}"
        return Place("http", base, base), _checked(unquote(path), url)
    if scheme in ("s3", "gs"):
        service: Service = "s3" if scheme == "s3" else "gs"
        return Place(service, host, f"{scheme}://{host}"), _checked(path, url)
    return _parse_azure(url, scheme, host, path)


def _parse_azure(url: str, scheme: str, host: str, path: str) -> tuple[Place, str]:
    container, at, server = host.partition("@")
    root = f"{scheme}://{host}"
    if at:  # abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH
        return Place("az", container, root, server.partition(".")[0]), _checked(path, url)
    if "." not in host:  # azure://CONTAINER/PATH
        return Place("az", host, root), _checked(path, url)
    container, _, path = path.partition("/")  # azure://ACCOUNT.blob.core.windows.net/CONTAINER/PATH
    if not container:
        raise ConfigError(f"{url!r} has no container: it is the first part of the path.")
    place = Place("az", container, f"{root}/{container}", host.partition(".")[0])
    return place, _checked(path, url)


def _checked(key: str, url: str) -> str:
    try:
        return check_key(key) if key else ""
    except StoreError as error:
        raise ConfigError(f"{url!r} can't be used: {error}") from error
