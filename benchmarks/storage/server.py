"""An HTTP server on loopback that is as far away as wanted: ``server.py PORT DELAY RATE FOLDER``.

It waits DELAY seconds after a connection and before each answer, and gives all connections together
at most RATE MB a second (0: any). It answers GET, HEAD and ranges for the files in FOLDER, whose
sub-folders are buckets to a client of S3. Bodies go by sendfile, so it costs little.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import unquote

__all__ = ["Server"]

PIECE = 1 << 18  # bytes that the line is paid for at a time
SLACK = 0.02  # seconds that the line may have been idle and still catch up


class Server:
    """See the module.

    Args:
        port: On loopback.
        delay: Seconds.
        rate: Bytes a second; 0 for any.
        folder: What is served.
    """

    def __init__(self, port: int, delay: float, rate: float, folder: Path) -> None:
        self._delay = delay
        self._rate = rate
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self._lock = threading.Lock()
        self._free = 0.0  # when the line is free again

    def run(self) -> None:
        """Serve until the process is ended."""
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._guard, args=(client,), daemon=True).start()

    def _guard(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):  # The reader left.
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        time.sleep(self._delay)  # Stands for the handshake's round trip.
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = client.recv(1 << 16)
                if not more:
                    return
                data += more
            head, data = data.split(b"\r\n\r\n", 1)
            time.sleep(self._delay)
            self._answer(client, head)

    def _answer(self, client: socket.socket, head: bytes) -> None:
        method, target, *_ = head.split()
        path = self._folder / unquote(target.decode().partition("?")[0]).lstrip("/")
        if not path.is_file():
            client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        size = path.stat().st_size
        begin, end, status, extra = 0, size, "200 OK", ""
        if found := re.search(rb"(?i)range: bytes=(\d+)-(\d*)", head):
            begin, end = int(found[1]), min(int(found[2] or size) + 1, size)
            status = "206 Partial Content"
            extra = f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n"
        client.sendall(
            f'HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\n{extra}ETag: "{size}"\r\n'
            "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n".encode()
        )
        with path.open("rb") as file:
            while begin < end and method == b"GET":
                count = min(PIECE, end - begin)
                self._pay(count)
                begin += os.sendfile(client.fileno(), file.fileno(), begin, count)

    def _pay(self, count: int) -> None:
        """Wait until so many bytes fit into the rate."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now - SLACK) + count / self._rate
            wait = self._free - now
        time.sleep(max(wait, 0))


if __name__ == "__main__":
    Server(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]) * 1e6, Path(sys.argv[4])).run()
