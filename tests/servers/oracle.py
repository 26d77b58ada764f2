"""A stand-in for Oracle's Object Storage on loopback: one namespace, and buckets as named.

It answers as the documentation of the service says, to requests that are signed with an API key.
No emulator of the service is to be had.
"""

import hashlib
import json
import re
import urllib.parse
from itertools import count
from pathlib import Path
from typing import Any

from tests.servers.serving import Handler, LoopbackServer

__all__ = ["NAMESPACE", "Oracle", "write_config"]

NAMESPACE = "axaxnpcrorw5"
_TIME = "2026-01-01T00:00:00+00:00"
_KEY = "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/" + ":".join(["20"] * 16)


class Oracle(LoopbackServer):
    """See the module. Use it in a `with` block.

    Args:
        page: Objects that one answer to a listing has at most.
    """

    def __init__(self, page: int = 1000) -> None:
        self.page = page
        self.objects: dict[tuple[str, str], bytes] = {}  # bucket and name
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = count()
        self.faults: list[int] = []  # status of the next answers
        self.requests: list[tuple[str, str]] = []
        super().__init__(_Handler)


def write_config(folder: Path) -> Path:
    """Write the configuration file that the service's SDK reads, with a new key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(key)
    tenancy, user, fingerprint = _KEY.split("/")
    lines = ["[DEFAULT]", f"user={user}", f"tenancy={tenancy}", f"fingerprint={fingerprint}"]
    lines += ["region=us-ashburn-1", f"key_file={folder / 'key.pem'}"]
    config = folder / "config"
    config.write_text("\n".join(lines))
    for path in folder.iterdir():
        path.chmod(0o600)  # The SDK warns of others.
    return config


class _Handler(Handler):
    owner: Oracle

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        more = {"Content-Type": "application/json", "opc-request-id": "r", **(headers or {})}
        self.answer(200, json.dumps(value).encode(), more)

    def _error(self, status: int, code: str) -> None:
        body = json.dumps({"code": code, "message": f"What {code} says."}).encode()
        kind = {"Content-Type": "application/json", "opc-request-id": "r"}
        self.answer(status, body, kind)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        self.owner.requests.append((self.command, parts.path))
        if f'keyId="{_KEY}"' not in self.headers.get("Authorization", ""):
            return self._error(401, "NotAuthenticated")
        if self.owner.faults:
            return self._error(self.owner.faults.pop(0), "TooManyRequests")
        if parts.path.rstrip("/") == "/n":
            return self._json(NAMESPACE)
        found = re.fullmatch(r"/n/([^/]+)/b/([^/]+)/([ou])(?:/(.*))?", parts.path)
        if not found or found[1] != NAMESPACE:
            return self._error(404, "NotAuthorizedOrNotFound")
        bucket, name = found[2], urllib.parse.unquote(found[4] or "")
        call = getattr(self, f"_{'upload' if found[3] == 'u' else 'object'}_{self.command.lower()}")
        return call(bucket, name, body)  # type: ignore[no-any-return]

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _object_put(self, bucket: str, name: str, body: bytes) -> None:
        self.owner.objects[bucket, name] = body
        self.answer(200, headers={"etag": _etag(body), "opc-request-id": "r"})

    def _object_delete(self, bucket: str, name: str, body: bytes) -> None:
        if self.owner.objects.pop((bucket, name), None) is None:
            return self._error(404, "ObjectNotFound")
        return self.answer(204, headers={"opc-request-id": "r"})

    def _object_get(self, bucket: str, name: str, body: bytes) -> None:
        if not name:
            return self._list(bucket)
        content = self.owner.objects.get((bucket, name))
        if content is None:
            return self._error(404, "ObjectNotFound")
        headers = {
            "etag": _etag(content),
            "Content-Type": "application/octet-stream",
            "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "accept-ranges": "bytes",
            "version-id": "v",
            "storage-tier": "Standard",
            "opc-request-id": "r",
        }
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if not found:
            return self.answer(200, content, headers)
        start, stop = int(found[1]), min(int(found[2]) + 1, len(content))
        if start >= len(content):
            return self._error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.answer(206, content[start:stop], headers)

    _object_head = _object_get

    def _list(self, bucket: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        names = sorted(n for b, n in self.owner.objects if b == bucket and n.startswith(prefix))
        below: dict[str, None] = {}
        if delimiter:
            direct = [name for name in names if delimiter not in name[len(prefix) :]]
            for name in names:
                if name not in direct:
                    first = name[len(prefix) :].split(delimiter)[0]
                    below[prefix + first + delimiter] = None
            names = direct
        start = self.query.get("start", "")
        names = [name for name in names if name >= start]
        limit = min(self.owner.page, int(self.query.get("limit") or 1000))
        after = names[limit : limit + 1]
        objects = [self._described(bucket, name) for name in names[:limit]]
        found = {"objects": objects, "prefixes": list(below) if not start else []}
        self._json({**found, "nextStartWith": after[0] if after else None})

    def _described(self, bucket: str, name: str) -> dict[str, Any]:
        content = self.owner.objects[bucket, name]
        fields = {
            "size": len(content),
            "etag": _etag(content),
            "md5": hashlib.md5(content).hexdigest(),
            "timeCreated": _TIME,
            "timeModified": _TIME,
            "storageTier": "Standard",
            "archivalState": None,
        }
        asked = self.query.get("fields", "").split(",")
        return {"name": name, **{key: value for key, value in fields.items() if key in asked}}

    def _upload_post(self, bucket: str, name: str, body: bytes) -> None:
        call = json.loads(body)
        if not name:
            upload = f"u{next(self.owner.numbers)}"
            self.owner.uploads[upload] = {}
            about = {"namespace": NAMESPACE, "bucket": bucket, "object": call["object"]}
            return self._json({**about, "uploadId": upload, "timeCreated": _TIME})
        found = self.owner.uploads.pop(self.query["uploadId"])
        numbers = sorted(part["partNum"] for part in call["partsToCommit"])
        return self._object_put(bucket, name, b"".join(found[number] for number in numbers))

    def _upload_put(self, bucket: str, name: str, body: bytes) -> None:
        number = int(self.query["uploadPartNum"])
        self.owner.uploads[self.query["uploadId"]][number] = body
        self.answer(200, headers={"etag": _etag(body), "opc-request-id": "r"})

    def _upload_delete(self, bucket: str, name: str, body: bytes) -> None:
        self.owner.uploads.pop(self.query["uploadId"], None)
        self.answer(204, headers={"opc-request-id": "r"})


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
