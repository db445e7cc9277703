"""A scripted HTTP server in place of kube-apiserver, which sends exactly the bytes that a test
gives it.

The lists and the watches of a path are scripted separately, each as a sequence of replies. The last
list reply is repeated. If a path has no further watch reply, a watch stays silent until the server
stops. All other requests are answered by `other`.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.loopback import LoopbackServer


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the server received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None


@dataclass(slots=True)
class Reply:
    """A reply: a complete body, or `lines` one by one followed by the end or by silence.

    `wait` delays the reply; `is_dropped` closes the connection without a reply.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    lines: Iterable[bytes] | None = None
    stays_open: bool = False
    wait: threading.Event | None = None
    is_dropped: bool = False


def page(items: list[Any], version: str, token: str = "") -> Reply:
    """Return one page of a list; `token` announces another page."""
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return Reply(body=json.dumps({"metadata": metadata, "items": items}).encode())


def events(*pairs: tuple[str, Any], stays_open: bool = False) -> Reply:
    """Return a watch that sends these (type, object) pairs and then ends or stays silent."""
    lines = [json.dumps({"type": kind, "object": item}).encode() for kind, item in pairs]
    return Reply(lines=lines, stays_open=stays_open)


def status(code: int, reason: str, message: str, **headers: str) -> Reply:
    """Return an error with a Status body."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return Reply(
        code, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()}
    )


class FakeApi(LoopbackServer):
    """The server; use as a context manager."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.lists: defaultdict[str, deque[Reply]] = defaultdict(deque)
        self.watches: defaultdict[str, deque[Reply]] = defaultdict(deque)
        self.other: Callable[[Request], Reply] = lambda _request: status(404, "NotFound", "no")
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        super().__init__()

    def _end(self) -> None:
        self._stopped.set()

    def count(self, path: str, *, watch: bool) -> int:
        """Return how many lists or watches of a path were requested."""
        found = [request for request in self.requests if request.path == path]
        return sum(("watch" in request.query) == watch for request in found)

    def reply_to(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            if request.query.get("watch"):
                replies = self.watches[request.path]
                return replies.popleft() if replies else Reply(lines=[], stays_open=True)
            if request.method == "GET" and self.lists.get(request.path):
                replies = self.lists[request.path]
                return replies.popleft() if len(replies) > 1 else replies[0]
        return self.other(request)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def _answer(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                request = Request(
                    self.command,
                    url.path,
                    dict(parse_qsl(url.query)),
                    dict(self.headers),
                    json.loads(raw) if raw else None,
                )
                reply = api.reply_to(request)
                if reply.wait is not None:
                    reply.wait.wait(30)
                if reply.is_dropped:
                    self.close_connection = True
                    return
                try:
                    self._send_stream(reply) if reply.lines is not None else self._send(reply)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

            def _send(self, reply: Reply) -> None:
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def _send_stream(self, reply: Reply) -> None:
                self.send_response(reply.status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in reply.lines or ():
                    self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
                    self.wfile.flush()
                if reply.stays_open:
                    self._wait_for_the_end()
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

            def _wait_for_the_end(self) -> None:
                """Wait until the server stops or the client has disconnected."""
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and not api._stopped.is_set():
                    readable, _, _ = select.select([self.connection], [], [], 0.05)
                    if readable:
                        return

        return Handler
