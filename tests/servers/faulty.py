"""An HTTP server on loopback that misbehaves by script: objects with ranges, as S3 and others do.

Buckets are the first part of the path. Faults are tried in order for each request; those that match
and are not used up happen. The server ends with its `with` block, whatever its clients wait for.
"""

import re
import socket
import struct
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import xxhash

from tests.servers.serving import Handler, LoopbackServer

__all__ = [
    "Corrupt",
    "Cut",
    "Fault",
    "FaultyServer",
    "Replace",
    "Reset",
    "Stall",
    "Status",
    "Trickle",
    "WrongLength",
]

CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to some requests: of those that match, `skip` are spared first."""

    method: str = "*"
    key: str = "*"
    times: int | None = None
    skip: int = 0
    every: int = 1


@dataclass(frozen=True)
class Status(Fault):
    """The answer is a status, and nothing else."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True)
class Cut(Fault):
    """The connection is closed in an orderly way after so many bytes of the body."""

    at: int


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset after so many bytes of the body."""

    at: int


@dataclass(frozen=True)
class Stall(Fault):
    """After so many bytes of the body nothing comes any more. -1: not even an answer."""

    at: int


@dataclass(frozen=True)
class Trickle(Fault):
    """The body comes at so many bytes a second."""

    rate: float


@dataclass(frozen=True)
class Corrupt(Fault):
    """A byte of the object is another one."""

    at: int


@dataclass(frozen=True)
class WrongLength(Fault):
    """The object pretends to be so many bytes longer, or shorter, and is padded or cut to it."""

    by: int


@dataclass(frozen=True)
class Replace(Fault):
    """While this request is answered, the object becomes another one."""

    content: bytes


class FaultyServer(LoopbackServer):
    """See the module. Use it in a `with` block.

    Args:
        objects: Path of each object ("bucket/key", as it is, without escapes) and its bytes.
        faults: What goes wrong.
        lists: Whether it may be listed. If not, what is not there is forbidden, as with S3.
        ranges: Whether it does ranges.
    """

    def __init__(
        self,
        objects: dict[str, bytes] | None = None,
        faults: Sequence[Fault] = (),
        *,
        lists: bool = True,
        ranges: bool = True,
    ) -> None:
        self.objects = dict(objects or {})
        self.faults = list(faults)
        self.lists = lists
        self.ranges = ranges
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        self.headers: list[dict[str, str]] = []
        self.matches: Counter[int] = Counter()
        self.on_request: Callable[[str, str], None] = lambda method, path: None
        super().__init__(_Handler)

    def count(self, method: str = "*", key: str = "*") -> int:
        """Requests up to now."""
        return sum(fnmatchcase(m, method) and fnmatchcase(k, key) for m, k, _ in self.requests)

    def meant(self, method: str, path: str) -> list[Fault]:
        """The faults of a request, which is noted."""
        with self.lock:
            return [fault for i, fault in enumerate(self.faults) if self._is_hit(i, method, path)]

    def _is_hit(self, i: int, method: str, path: str) -> bool:
        fault = self.faults[i]
        if not (fnmatchcase(method, fault.method) and fnmatchcase(path, fault.key)):
            return False
        nth = self.matches[i] - fault.skip
        self.matches[i] += 1
        meant, rest = divmod(nth, fault.every)
        return nth >= 0 and not rest and (fault.times is None or meant < fault.times)


class _Handler(Handler):
    owner: FaultyServer

    def _serve(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.key = urllib.parse.unquote(parts.path.lstrip("/"))
        self.query = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
        self.owner.requests.append((self.command, self.key, self.headers.get("Range")))
        self.owner.headers.append(dict(self.headers))
        self.owner.on_request(self.command, self.key)
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        faults = self.owner.meant(self.command, self.key)
        for fault in faults:
            if isinstance(fault, Status):
                return self.answer(fault.code, fault.body.encode(), fault.headers)
            if isinstance(fault, Stall) and fault.at < 0:
                self.owner.closing.wait(60)
                self.close_connection = True
                return None
        return getattr(self, f"_{self.command.lower()}")(faults)  # type: ignore[no-any-return]

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve

    def _error(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _put(self, faults: list[Fault]) -> None:
        self.owner.objects[self.key] = self.body
        self.answer(200, headers={"ETag": _etag(self.body)})

    def _delete(self, faults: list[Fault]) -> None:
        self.owner.objects.pop(self.key, None)
        self.answer(204)

    def _post(self, faults: list[Fault]) -> None:
        self._error(501, "NotImplemented")

    def _get(self, faults: list[Fault]) -> None:
        if "list-type" in self.query:
            return self._list()
        content = self.owner.objects.get(self.key)
        if content is None:
            return self._error(404, "NoSuchKey") if self.owner.lists else self._error(403, "Denied")
        etag = _etag(content)
        if self.headers.get("If-Match", etag) not in (etag, "*"):
            return self._error(412, "PreconditionFailed")
        for fault in faults:
            if isinstance(fault, Replace):
                self.owner.objects[self.key] = fault.content
            if isinstance(fault, Corrupt):
                flipped = bytes([content[fault.at] ^ 0xFF])
                content = content[: fault.at] + flipped + content[fault.at + 1 :]
            if isinstance(fault, WrongLength):
                length = len(content) + fault.by
                content = content.ljust(length, b"\0")[:length]
        start, stop, status = 0, len(content), 200
        headers = {"ETag": etag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if found and self.owner.ranges:
            start = int(found[1])
            stop = min(int(found[2]) + 1 if found[2] else stop, stop)
            if start >= len(content):
                return self._error(416, "InvalidRange")
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self.send_response(status)
        for name, value in {"Content-Length": str(stop - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._send(content[start:stop], start, faults)
        return None

    def _head(self, faults: list[Fault]) -> None:
        self._get(faults)

    def _list(self) -> None:
        if not self.owner.lists:
            return self._error(403, "AccessDenied")
        prefix = self.query.get("prefix", [""])[0]
        bucket = self.key.rstrip("/") + "/"
        keys = sorted(path[len(bucket) :] for path in self.owner.objects if path.startswith(bucket))
        found = {key: self.owner.objects[bucket + key] for key in keys if key.startswith(prefix)}
        items = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_etag(content)}</ETag><Size>{len(content)}</Size></Contents>"
            for key, content in found.items()
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        return self.answer(200, body.encode())

    def _send(self, body: bytes, start: int, faults: list[Fault]) -> None:
        ends = [
            (max(fault.at - start, 0), fault)
            for fault in faults
            if isinstance(fault, Cut | Reset | Stall) and fault.at < start + len(body)
        ]
        end, last = min(ends, key=lambda item: item[0], default=(len(body), None))
        rate = min((fault.rate for fault in faults if isinstance(fault, Trickle)), default=0.0)
        step = max(1, int(rate / 50)) if rate else CHUNK
        for at in range(0, end, step):
            self.wfile.write(body[at : min(at + step, end)])
            if rate and self.owner.closing.wait(step / rate):
                return
        if last is None:
            return
        self.close_connection = True
        if isinstance(last, Stall):
            self.owner.closing.wait(60)
        elif isinstance(last, Reset):
            time.sleep(0.02)  # So that what was sent is read before the reset discards it.
            option = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            self.connection.close()


def _etag(content: bytes) -> str:
    return f'"{xxhash.xxh3_64_hexdigest(content)}"'
