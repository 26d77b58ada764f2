"""A small Hugging Face Hub on loopback: one dataset repository, read, listed and committed to.

Nothing on a package registry plays this part. HF_ENDPOINT, or the option `endpoint`, names its URL.
"""

import base64
import hashlib
import json
import re
import urllib.parse
from typing import Any

from tests.servers.serving import Handler, LoopbackServer

__all__ = ["Hub"]

SHA = "a" * 40


class Hub(LoopbackServer):
    """See the module. Use it in a `with` block.

    Args:
        repository: "ORGANISATION/NAME" of the dataset.
        files: Paths in it, and their bytes.
        token: What requests must carry, if anything.
    """

    def __init__(
        self, repository: str, files: dict[str, bytes] | None = None, token: str | None = None
    ) -> None:
        self.repository = repository
        self.files = dict(files or {})
        self.token = token
        self.requests: list[tuple[str, str, str | None]] = []
        super().__init__(_Handler)

    def entry(self, path: str) -> dict[str, Any] | None:
        """What the tree says of a path."""
        if path in self.files:
            oid = hashlib.sha1(self.files[path]).hexdigest()
            return {"type": "file", "oid": oid, "size": len(self.files[path]), "path": path}
        if any(name.startswith(path + "/") for name in self.files):
            return {"type": "directory", "oid": SHA, "size": 0, "path": path}
        return None

    def commit(self, lines: list[dict[str, Any]]) -> None:
        """Do what a commit says."""
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                self.files.pop(value["path"], None)


class _Handler(Handler):
    owner: Hub

    def _json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _is_refused(self) -> bool:
        self.owner.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.owner.token and self.headers.get("Authorization") != f"Bearer {self.owner.token}":
            self.answer(401, b'{"error": "Unauthorized"}')
            return True
        return False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._is_refused():
            return
        base = f"/api/datasets/{self.owner.repository}/"
        action = self.path.removeprefix(base).partition("/")[0]
        if action == "paths-info":
            if body[:1] == b"{":
                paths = json.loads(body)["paths"]
            else:
                paths = urllib.parse.parse_qs(body.decode()).get("paths", [])
            self._json([entry for path in paths if (entry := self.owner.entry(path))])
        elif action == "preupload":
            files = json.loads(body)["files"]
            self._json(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in files
                    ]
                }
            )
        elif action == "commit":
            self.owner.commit([json.loads(line) for line in body.splitlines() if line])
            url = f"{self.owner.url}/datasets/{self.owner.repository}/commit/{SHA}"
            self._json({"success": True, "commitOid": SHA, "commitUrl": url, "hookOutput": ""})
        else:
            self.answer(404, b"{}")

    def do_GET(self) -> None:
        if self._is_refused():
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        name = re.escape(self.owner.repository)
        if found := re.fullmatch(rf"/datasets/{name}/resolve/([^/]+)/(.*)", path):
            self._file(self.owner.files.get(found[2]))
        elif found := re.fullmatch(rf"/api/datasets/{name}/tree/([^/]+)/?(.*)", path):
            self._tree(found[2])
        elif re.fullmatch(rf"/api/datasets/{name}(/revision/.*)?", path):
            self._json({"_id": "x", "id": self.owner.repository, "sha": SHA, "siblings": []})
        elif re.fullmatch(rf"/api/datasets/{name}/refs", path):
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": SHA}
            self._json({"branches": [branch], "converts": [], "tags": []})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _tree(self, path: str) -> None:
        start = path + "/" if path else ""
        is_deep = "recursive=true" in self.path.lower()
        names: dict[str, None] = {}
        for file in sorted(self.owner.files):
            if file.startswith(start):
                names[file if is_deep else start + file[len(start) :].split("/")[0]] = None
        if path and not names:
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            self._json([self.owner.entry(name) for name in names])

    def _file(self, content: bytes | None) -> None:
        if content is None:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": SHA,
            "Accept-Ranges": "bytes",
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if found and self.command == "GET":
            start = int(found[1])
            stop = min(int(found[2] or len(content) - 1) + 1, len(content))
            if start >= len(content):
                return self.answer(416)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            return self.answer(206, content[start:stop], headers)
        return self.answer(200, content, {**headers, "Content-Length": str(len(content))})
