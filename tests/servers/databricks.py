"""A stand-in for a Databricks workspace on loopback: the Files interface of volumes, and DBFS.

It answers as the documentation of both says. No emulator of the service is to be had.
"""

import base64
import itertools
import json
import urllib.parse
from typing import Any

from tests.servers.serving import Handler, LoopbackServer

__all__ = ["Workspace"]


class Workspace(LoopbackServer):
    """See the module. Use it in a `with` block."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, int] = {}
        self._clock = itertools.count(1_700_000_000_000, 1000)
        self.handles: dict[int, tuple[str, bytearray]] = {}
        super().__init__(_Handler)

    def put(self, path: str, content: bytes) -> None:
        """Write a file."""
        self.files[path] = content
        self.times[path] = next(self._clock)

    def is_directory(self, path: str) -> bool:
        """Whether there is something below a path."""
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)

    def entries(self, path: str) -> list[dict[str, Any]]:
        """What lies directly in a directory."""
        start = path.rstrip("/") + "/"
        names = {name[len(start) :].split("/")[0] for name in self.files if name.startswith(start)}
        return [self.entry(start + name) for name in sorted(names)]

    def entry(self, path: str) -> dict[str, Any]:
        """What is said of a path."""
        content = self.files.get(path)
        return {
            "path": path,
            "name": path.rpartition("/")[2],
            "is_dir": content is None,
            "is_directory": content is None,
            "file_size": len(content or b""),
            "modification_time": self.times.get(path, 0),
            "last_modified": self.times.get(path, 0),
        }


class _Handler(Handler):
    owner: Workspace

    def _json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.answer(status, body, {"Content-Type": "application/json"})

    def _missing(self) -> None:
        self._json({"error_code": "NOT_FOUND", "message": "There is none."}, 404)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        path = urllib.parse.unquote(parts.path)
        if path.startswith("/api/2.0/fs/files/"):
            self._file(path.removeprefix("/api/2.0/fs/files"), body)
        elif path.startswith("/api/2.0/fs/directories/"):
            self._directory(path.removeprefix("/api/2.0/fs/directories"))
        elif path.startswith("/api/2.0/dbfs/"):
            call = getattr(self, "_dbfs_" + path.rpartition("/")[2].replace("-", "_"))
            call({**query, **(json.loads(body) if body else {})})
        else:
            self._missing()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _file(self, path: str, body: bytes) -> None:
        if self.command == "PUT":
            self.owner.put(path, body)
            return self.answer(204)
        content = self.owner.files.get(path)
        if content is None:
            return self._missing()
        if self.command == "DELETE":
            del self.owner.files[path]
            return self.answer(204)
        mark = {"Last-Modified": str(self.owner.times[path])}
        if self.command == "HEAD":
            mark["Content-Length"] = str(len(content))
        return self.answer(200, content, mark)

    def _directory(self, path: str) -> None:
        if self.command == "PUT":
            return self.answer(204)
        if not self.owner.is_directory(path):
            return self._missing()
        if self.command == "HEAD":
            return self.answer(200)
        return self._json({"contents": self.owner.entries(path)})

    def _dbfs_get_status(self, call: dict[str, Any]) -> None:
        path = call["path"]
        if path not in self.owner.files and not self.owner.is_directory(path):
            return self._missing()
        return self._json(self.owner.entry(path))

    def _dbfs_list(self, call: dict[str, Any]) -> None:
        self._json({"files": self.owner.entries(call["path"])})

    def _dbfs_read(self, call: dict[str, Any]) -> None:
        content = self.owner.files.get(call["path"])
        if content is None:
            return self._missing()
        start = int(call.get("offset", 0))
        piece = content[start : start + int(call.get("length", 1 << 20))]
        text = base64.b64encode(piece).decode()
        return self._json({"bytes_read": len(piece), "data": text})

    def _dbfs_create(self, call: dict[str, Any]) -> None:
        handle = len(self.owner.handles)
        self.owner.handles[handle] = (call["path"], bytearray())
        self._json({"handle": handle})

    def _dbfs_add_block(self, call: dict[str, Any]) -> None:
        self.owner.handles[int(call["handle"])][1].extend(base64.b64decode(call["data"]))
        self._json({})

    def _dbfs_close(self, call: dict[str, Any]) -> None:
        path, content = self.owner.handles[int(call["handle"])]
        self.owner.put(path, bytes(content))
        self._json({})

    def _dbfs_delete(self, call: dict[str, Any]) -> None:
        self.owner.files.pop(call["path"], None)
        self._json({})

    def _dbfs_mkdirs(self, call: dict[str, Any]) -> None:
        self._json({})
