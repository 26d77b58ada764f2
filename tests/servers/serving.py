"""What the servers of our own have in common: loopback, threads, and an end without remains."""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["Handler", "LoopbackServer"]


class LoopbackServer:
    """An HTTP server on a free port of loopback. Use it in a `with` block.

    At its end all connections are closed, whatever their clients wait for, and all threads joined.

    Args:
        handler: What answers; its `owner` is this object.
    """

    def __init__(self, handler: "type[Handler]") -> None:
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        bound = type(handler.__name__, (handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):  # It is gone already.
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # Waits for the threads.
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers requests that come over one connection."""

    owner: Any
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def setup(self) -> None:
        """Make the connection known."""
        super().setup()
        with self.owner.lock:
            self.owner.connections.add(self.connection)

    def finish(self) -> None:
        """Forget the connection."""
        with self.owner.lock:
            self.owner.connections.discard(self.connection)
        with contextlib.suppress(OSError):  # The other side went first.
            super().finish()

    def handle_one_request(self) -> None:
        """Answer, unless the other side goes first."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Answer with a body that is at hand."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
