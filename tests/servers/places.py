"""Empty places to write to, one for each kind of server: a URL, and what reaches it."""

import base64
import hashlib
import hmac
import json
import secrets
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from tests.servers.running import AZURE_ACCOUNT, AZURE_KEY, Running

__all__ = ["Opened", "azure", "azure_dl", "fake_gcs", "gs_hmac", "gs_on_s3", "s3", "sftp"]

KEYS = {"access_key_id": "testing", "secret_access_key": "testing-secret"}


@dataclass(frozen=True)
class Opened:
    """A place, as a user would name it.

    Attributes:
        url: Of a directory in which there is nothing.
        options: For `open_store`.
        env: The same as variables of the environment.
    """

    url: str
    options: Mapping[str, Any]
    env: Mapping[str, str]


def s3(server: Running) -> Opened:
    """A bucket of a server that speaks S3."""
    bucket = _bucket(server)
    env = {
        "S3_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": KEYS["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret_access_key"],
        "AWS_REGION": "us-east-1",
    }
    return Opened(f"s3://{bucket}/some data", {"endpoint": server.url, **KEYS}, env)


def gs_on_s3(server: Running) -> Opened:
    """Google's XML interface, unsigned, as a server of S3 understands it."""
    options = {"endpoint": server.url, "anonymous": True}
    env = {"STORAGE_EMULATOR_HOST": server.url}
    return Opened(f"gs://{_bucket(server)}/some data", options, env)


def gs_hmac(server: Running) -> Opened:
    """Google's interface that speaks S3, with HMAC keys."""
    env = {"GCS_KEY": "k", "GCS_SECRET": "s", "GCS_ENDPOINT_URL": server.url}
    return Opened(f"gs://{_bucket(server)}/some data", {"endpoint": server.url, **KEYS}, env)


def azure(server: Running) -> Opened:
    """A container of Azure Blob Storage, named as for writing."""
    container = f"c-{secrets.token_hex(6)}"
    _create_container(server, container)
    endpoint = f"{server.url}/{AZURE_ACCOUNT}"
    settings = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
    env = {
        "AZURE_STORAGE_ENDPOINT": endpoint,
        "AZURE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_ACCOUNT_ACCESS_KEY": AZURE_KEY,
    }
    return Opened(f"azure://{container}/some data", {"endpoint": endpoint, **settings}, env)


def azure_dl(server: Running) -> Opened:
    """The same by the address of the account, and the scheme of Data Lake Storage."""
    place = azure(server)
    _, _, rest = place.url.partition("://")
    host = f"{AZURE_ACCOUNT}.dfs.core.windows.net"
    return Opened(f"azure-dl://{host}/{rest}", place.options, place.env)


def fake_gcs(server: Running, objects: Mapping[str, bytes]) -> Opened:
    """A bucket of Google's JSON interface with objects; to be read."""
    bucket = f"b-{secrets.token_hex(6)}"
    kind = {"Content-Type": "application/json"}
    _send("POST", f"{server.url}/storage/v1/b?project=p", json.dumps({"name": bucket}), kind)
    for key, content in objects.items():
        name = urllib.request.quote(key, safe="")  # type: ignore[attr-defined]
        url = f"{server.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        _send("POST", url, content, {})
    options = {"endpoint": server.url, "anonymous": True}
    return Opened(f"gs://{bucket}", options, {"STORAGE_EMULATOR_HOST": server.url})


def sftp(server: Running) -> Opened:
    """A new directory of an SFTP server."""
    folder = server.folder / f"d {secrets.token_hex(6)}"
    folder.mkdir()
    env = {
        "COMPOSER_SFTP_KEY_FILE": str(server.folder / "user"),
        "COMPOSER_SFTP_KNOWN_HOSTS_FILE": str(server.folder / "known_hosts"),
    }
    options = {
        "key_filename": str(server.folder / "user"),
        "known_hosts": str(server.folder / "known_hosts"),
    }
    return Opened(f"sftp://root@127.0.0.1:{server.port}{folder}/some data", options, env)


def _bucket(server: Running) -> str:
    name = f"b-{secrets.token_hex(6)}"
    _send("PUT", f"{server.url}/{name}", b"", {})
    return name


def _create_container(server: Running, container: str) -> None:
    """Make a container, with the signature that Azure calls a shared key."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{headers}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    _send(
        "PUT",
        f"{server.url}/{AZURE_ACCOUNT}/{container}?restype=container",
        b"",
        {
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}",
        },
    )


def _send(method: str, url: str, body: str | bytes, headers: Mapping[str, str]) -> None:
    content = body.encode() if isinstance(body, str) else body
    request = urllib.request.Request(url, content or None, dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=20):
        pass
