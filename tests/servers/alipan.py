"""A stand-in for Alipan (Aliyun Drive) on loopback: the requests of its web application.

It answers as AliPCS-Py expects the service to. No emulator of the service is to be had.
"""

import hashlib
import json
import re
import urllib.parse
from itertools import count
from typing import Any

from tests.servers.serving import Handler, LoopbackServer

__all__ = ["TOKEN", "Alipan"]

TOKEN = "a refresh token"
_TIME = "2026-01-01T00:00:00.000Z"
_LATER = "x-oss-expires=9999999999"  # Links carry when they end, and the client looks.


class Alipan(LoopbackServer):
    """See the module. Use it in a `with` block.

    Args:
        page: Files that one answer to a listing has at most.
    """

    def __init__(self, page: int = 200) -> None:
        self.page = page
        self.items: dict[str, dict[str, Any]] = {}  # by id: name, parent, and bytes of a file
        self.parts: dict[str, dict[int, bytes]] = {}  # of uploads, by the id of the file
        self.numbers = count(1)
        self.faults: list[int] = []  # status of the next answers to reads
        super().__init__(_Handler)

    def add(self, parent: str, name: str, content: bytes | None) -> str:
        """Make a file, or a folder if there is no content; one of the name is replaced."""
        for key, item in list(self.items.items()):
            if (item["parent"], item["name"]) == (parent, name):
                del self.items[key]
        key = f"id{next(self.numbers)}"
        self.items[key] = {"name": name, "parent": parent, "content": content}
        return key

    def find(self, path: str) -> str | None:
        """The id of what a path names."""
        at = "root"
        for name in path.strip("/").split("/"):
            below = [
                key
                for key, item in self.items.items()
                if (item["parent"], item["name"]) == (at, name)
            ]
            if not below:
                return None
            at = below[0]
        return at

    def about(self, key: str) -> dict[str, Any]:
        """What is said of a file or folder."""
        item = self.items[key]
        content = item["content"]
        said = {
            "drive_id": "d",
            "file_id": key,
            "name": item["name"],
            "parent_file_id": item["parent"],
            "type": "folder" if content is None else "file",
            "created_at": _TIME,
            "updated_at": _TIME,
        }
        if content is None:
            return said
        return {
            **said,
            "size": len(content),
            "content_hash": hashlib.sha1(content).hexdigest().upper(),
            "content_hash_name": "sha1",
            "url": f"{self.url}/bytes/{key}?{_LATER}",
        }


class _Handler(Handler):
    owner: Alipan

    def _json(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self) -> None:
        self._json({"code": "NotFound.File", "message": "The resource file cannot be found."}, 404)

    def do_POST(self) -> None:
        call = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = urllib.parse.urlsplit(self.path).path
        if path == "/token/refresh":
            return self._refresh(call)
        if self.headers.get("Authorization") != "Bearer an access token":
            return self._json({"code": "AccessTokenInvalid", "message": "No."}, 401)
        name = {
            "/users/v1/users/device/create_session": "session",
            "/v2/file/get_by_path": "by_path",
            "/v2/file/get": "get",
            "/adrive/v3/file/list": "list",
            "/adrive/v2/file/createWithFolders": "create",
            "/v2/file/complete": "complete",
            "/v3/batch": "batch",
        }[path]
        return getattr(self, f"_{name}")(call)  # type: ignore[no-any-return]

    def _refresh(self, call: dict[str, Any]) -> None:
        if call["refresh_token"] != TOKEN:
            return self._json({"code": "InvalidParameter.RefreshToken", "message": "No."}, 400)
        names = "user_id user_name nick_name device_id default_drive_id role status".split()
        tokens = {"refresh_token": TOKEN, "access_token": "an access token", "token_type": "Bearer"}
        times = {"expire_time": "2099-01-01T00:00:00Z"}
        return self._json({**dict.fromkeys(names, "d"), **tokens, **times})

    def _session(self, call: dict[str, Any]) -> None:
        self._json({"result": True, "success": True})

    def _by_path(self, call: dict[str, Any]) -> None:
        key = self.owner.find(call["file_path"])
        return self._missing() if key is None else self._json(self.owner.about(key))

    def _get(self, call: dict[str, Any]) -> None:
        key = call["file_id"]
        return self._json(self.owner.about(key)) if key in self.owner.items else self._missing()

    def _list(self, call: dict[str, Any]) -> None:
        items = self.owner.items
        keys = [key for key, item in items.items() if item["parent"] == call["parent_file_id"]]
        keys.sort(key=lambda key: items[key]["name"])
        start = int(call.get("marker") or 0)
        stop = start + min(self.owner.page, call["limit"])
        marker = str(stop) if stop < len(keys) else ""
        self._json({"items": [self.owner.about(key) for key in keys[start:stop]],
                    "next_marker": marker})  # fmt: skip

    def _create(self, call: dict[str, Any]) -> None:
        parent, name = call["parent_file_id"], call["name"]
        said = {"parent_file_id": parent, "file_name": name, "type": call["type"], "drive_id": "d"}
        if call["type"] == "folder":
            return self._json({**said, "file_id": self.owner.add(parent, name, None)})
        key = f"up{next(self.owner.numbers)}"
        self.owner.parts[key] = {}
        self.owner.items[key] = {"name": name, "parent": f"nowhere {parent}", "content": b""}
        links = [
            {
                "part_number": part["part_number"],
                "upload_url": f"{self.owner.url}/part/{key}/{part['part_number']}?{_LATER}",
            }
            for part in call["part_info_list"]
        ]
        more = {"file_id": key, "upload_id": key, "rapid_upload": False, "part_info_list": links}
        return self._json({**said, **more})

    def _complete(self, call: dict[str, Any]) -> None:
        item = self.owner.items.pop(call["file_id"])
        parts = self.owner.parts.pop(call["upload_id"])
        content = b"".join(parts[number] for number in sorted(parts))
        parent = item["parent"].removeprefix("nowhere ")
        self._json(self.owner.about(self.owner.add(parent, item["name"], content)))

    def _batch(self, call: dict[str, Any]) -> None:
        for request in call["requests"]:
            self.owner.items.pop(request["body"]["file_id"], None)
        self._json({"responses": [{"id": each["id"], "status": 204} for each in call["requests"]]})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = re.match(r"/part/(\w+)/(\d+)", self.path)
        assert found is not None
        self.owner.parts[found[1]][int(found[2])] = body
        self.answer(200)

    def do_GET(self) -> None:
        if self.owner.faults:
            return self.answer(self.owner.faults.pop(0), b"<Error/>")
        found = re.match(r"/bytes/(\w+)", self.path)
        item = self.owner.items.get(found[1]) if found else None
        if item is None:
            return self.answer(404)
        content: bytes = item["content"]
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        assert span is not None
        start, stop = int(span[1]), min(int(span[2]) + 1, len(content))
        if start >= len(content):
            return self.answer(416)
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        return self.answer(206, content[start:stop], headers)
