"""A small HTTP server for probes: one response per path, and at most 16 requests at a time.

The standard library's http.server is not used, because it loads 9 MiB of mail, HTML and TLS code
into each helper. The server handles only requests without a body, and closes the connection after
each request.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from workers.config.flagvalues import parse_listen_address
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answer = tuple[int, str]
    Handler = Callable[["Client"], Answer]

MAX_REQUESTS: Final = 16
_CLIENT_SECONDS: Final = 5.0
_MAX_HEAD_BYTES: Final = 8192
_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Client:
    """The client that sent a request, with the query string of the request."""

    def __init__(self, connection: socket.socket, query: str) -> None:
        self._connection = connection
        self.query = query

    def is_gone(self) -> bool:
        """Return True if the client has closed the connection."""
        try:
            readable, _, _ = select.select([self._connection], [], [], 0)
            return bool(readable) and not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True


class Server:
    """An HTTP server on one address.

    Args:
        address: `host:port`; `:port` for every address of the machine, including IPv6 (LPD-002).
        handlers: the handlers by exact path.
    """

    def __init__(self, address: str, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._seats = threading.BoundedSemaphore(MAX_REQUESTS)
        try:
            self._socket = _listen(*parse_listen_address(address))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {address}: {reason}", exit_code=1) from error

    @property
    def port(self) -> int:
        """The port in use; the kernel chose it if the address has port 0."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Serve requests in a new thread; return at once."""
        threading.Thread(target=self._serve, name="http", daemon=True).start()

    def stop(self) -> None:
        """Close the listening socket. Idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                continue
            if self._seats.acquire(blocking=False):
                threading.Thread(target=self._work, args=(connection,), daemon=True).start()
            else:
                connection.settimeout(_CLIENT_SECONDS)
                _reply(connection, (503, "too many requests"))
                connection.close()

    def _work(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_CLIENT_SECONDS)
                _reply(connection, self._answer(connection))
        finally:
            self._seats.release()

    def _answer(self, connection: socket.socket) -> Answer:
        target = _read_target(connection)
        if not target:
            return 400, "bad request"
        path, _, query = target.partition("?")
        handler = self._handlers.get(path)
        return handler(Client(connection, query)) if handler else (404, "404 page not found")


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the address; without a host, on both IPv6 and IPv4 if the machine has both."""
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True
            )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=64)


def _read_target(connection: socket.socket) -> str:
    """Return the target of the request line; "" if the request is invalid. Ignore the headers."""
    head = b""
    try:
        while b"\r\n\r\n" not in head:
            piece = connection.recv(_MAX_HEAD_BYTES)
            head += piece
            if not piece or len(head) > _MAX_HEAD_BYTES:
                return ""
    except OSError:
        return ""
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return parts[1] if len(parts) == 3 and parts[2].startswith("HTTP/") else ""


def _reply(connection: socket.socket, answer: Answer) -> None:
    code, text = answer
    body = text.encode()
    head = (
        f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        connection.sendall(head.encode() + body)
