"""Serves metrics, probes and profiles over HTTP (`--http-endpoint`).

Each request has its own daemon thread and a time limit, so a slow client does not block others. If
there are too many connections, the oldest one is dropped. As in upstream, there is no login: the
port is for the cluster's own monitoring. With `--metrics-token-review`, the API server decides who
may read the metrics.

| Path | Response |
|---|---|
| `--metrics-path` | metrics, as OpenMetrics if asked for |
| `/healthz/leader-election` | 200, or 500 if the Lease is not being renewed; only with leader
election |
| `/healthz`, `/readyz` | 200 `ok`, or 503 and the reason |
| `/debug/pprof/` | profiles, with `--enable-pprof` |
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

from prometheus_client.exposition import choose_encoder, gzip_accepted

from workers.config.flagvalues import parse_listen_address
from workers.errors import ConfigError
from workers.observability import profiling
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.config.settings import HttpSettings
    from workers.observability.exposition import Exposition

    Check = Callable[[], str]

_log = get_logger(__name__)

# A client that neither sends nor reads anything for this long is disconnected.
_CLIENT_TIMEOUT_SECONDS: Final = 10.0

# The maximum number of connections, and therefore of threads. Probes and scrapes need few, and this
# limits how many threads slow clients can occupy.
_MAX_CONNECTIONS: Final = 32

_DEFAULT_PROFILE_SECONDS: Final = 30.0
_TEXT: Final = "text/plain; charset=utf-8"


def always_ok() -> str:
    """Always return "": this is a check that never fails."""
    return ""


@dataclass(frozen=True, slots=True)
class Checks:
    """The probes; each returns "" if all is well, or else one line that names the problem.

    Args:
        live: fails if only a restart can help (`Heartbeats.check`).
        ready: fails if no work can be done now.
        leader: the health of the Lease (`LeaderHealth.check`).
        may_read: returns True if a bearer token may read the metrics; None allows everybody.
    """

    live: Check = always_ok
    ready: Check = always_ok
    leader: Check = always_ok
    may_read: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    body: bytes
    content_type: str = _TEXT


class DiagnosticsServer:
    """The HTTP server of one process; call `start` once.

    Args:
        settings: the address and the paths.
        exposition: the metrics to serve.
        checks: the probes.
    """

    def __init__(
        self, settings: HttpSettings, exposition: Exposition, checks: Checks | None = None
    ) -> None:
        self._settings = settings
        self._exposition = exposition
        self._checks = checks or Checks()
        self._stopping = threading.Event()
        self._profiling = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use (chosen by the kernel if the setting is 0); 0 before `start`."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Listen on the address, and serve requests in a new thread.

        Raises:
            ConfigError: the address cannot be bound; the exit code is 255 (F-014).
        """
        endpoint = self._settings.endpoint
        try:
            host, port = parse_listen_address(endpoint)
            self._server = _listen(host, port, self)
        except (OSError, ValueError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(
                f"Failed to start HTTP server at specified address ({endpoint!r}) and metrics path "
                f"({self._settings.metrics_path!r}): {reason}",
                exit_code=255,
            ) from error
        self._thread = threading.Thread(
            target=self._serve, args=(self._server,), name="http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port; running requests are abandoned. Safe to call twice."""
        self._stopping.set()
        server, self._server = self._server, None
        if server is not None:
            # This wakes the thread that is waiting in `accept`.
            server.socket.shutdown(socket.SHUT_RDWR)
            if self._thread is not None:
                self._thread.join()
            server.server_close()

    def _serve(self, server: _Server) -> None:
        # `serve_forever` is not used, because it wakes twice a second to check whether it should
        # end.
        while not self._stopping.is_set():
            server.handle_request()

    def answer(self, target: str, accept: str, authorization: str = "") -> _Answer:
        """Return the response to one GET request.

        Args:
            target: the path and query of the request.
            accept: the Accept header.
            authorization: the Authorization header.
        """
        path, query = urlsplit(target)[2:4]
        if path == self._settings.metrics_path:
            may_read = self._checks.may_read
            if may_read is not None and not may_read(_bearer(authorization)):
                return _Answer(401, b"give a bearer token that may get this path\n")
            return self._metrics(accept)
        if path == "/healthz/leader-election" and self._settings.leader_health:
            complaint = self._checks.leader()
            text = f"internal server error: {complaint}\n" if complaint else "ok"
            return _Answer(500 if complaint else 200, text.encode())
        if path == "/healthz":
            return _probe(self._checks.live)
        if path == "/readyz":
            return _probe(self._checks.ready)
        if path.startswith("/debug/pprof/") and self._settings.pprof:
            return self._profile(path.removeprefix("/debug/pprof/"), query)
        return _Answer(404, b"404 page not found\n")

    def _metrics(self, accept: str) -> _Answer:
        encode, content_type = choose_encoder(accept)
        scrapes = self._exposition.scrapes
        scrapes.started()
        code = 500
        try:
            # The encoders call only `collect()`, the one method that every Collector has.
            body: bytes = encode(self._exposition)
            code = 200
        finally:
            scrapes.ended(code)
        return _Answer(code, body, content_type)

    def _profile(self, name: str, query: str) -> _Answer:
        if name == "profile":
            return self._sampled_profile(parse_qs(query).get("seconds", [""])[0])
        pages: dict[str, Callable[[], str]] = {
            "": lambda: profiling.INDEX,
            "cmdline": lambda: profiling.command_line(sys.argv),
            "goroutine": profiling.thread_stacks,
            "heap": profiling.heap,
        }
        page = pages.get(name)
        if page is None:
            return _Answer(404, b"there is no such profile of a Python program\n")
        return _Answer(200, page().encode())

    def _sampled_profile(self, seconds: str) -> _Answer:
        try:
            duration = float(seconds or _DEFAULT_PROFILE_SECONDS)
        except ValueError:
            return _Answer(400, b"seconds must be a number\n")
        if not 0 < duration <= profiling.MAX_PROFILE_SECONDS:
            return _Answer(400, b"seconds must be above 0 and at most 120\n")
        if not self._profiling.acquire(blocking=False):
            return _Answer(503, b"another profile is being taken\n")
        try:
            return _Answer(200, profiling.profile(duration, self._stopping).encode())
        finally:
            self._profiling.release()


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _probe(check: Check) -> _Answer:
    complaint = check()
    return _Answer(503, f"{complaint}\n".encode()) if complaint else _Answer(200, b"ok")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A restarted process must be able to bind its port again while old connections are closing.
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, family: int, address: Any, diagnostics: DiagnosticsServer) -> None:
        self.address_family = family
        self.diagnostics = diagnostics
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            # For `:8080`, Go listens on both address families.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's method is not used: it asks DNS for the host's name, which can take seconds.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        # If there are too many connections, the oldest is dropped, so that a new probe gets a
        # response.
        with self._lock:
            while len(self._open) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):
            _log.exception("HTTP request failed")


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float] = _CLIENT_TIMEOUT_SECONDS
    server: _Server
    server_version = "csi-fleet"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            answer = self.server.diagnostics.answer(
                self.path, self.headers.get("Accept", ""), self.headers.get("Authorization", "")
            )
        except Exception:  # noqa: BLE001  one failed request must not end the server
            _log.exception("HTTP request failed", path=self.path)
            answer = _Answer(500, b"internal server error\n")
        body, is_zipped = answer.body, False
        if gzip_accepted(self.headers.get("Accept-Encoding", "")):
            body, is_zipped = gzip.compress(body, compresslevel=1), True
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if is_zipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  named by the base class

    def log_message(self, *_: Any) -> None:
        """Log nothing, because there are too many probes and scrapes."""


def _listen(host: str, port: int, diagnostics: DiagnosticsServer) -> _Server:
    if host:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _Server(family, address, diagnostics)
    try:
        return _Server(socket.AF_INET6, ("::", port), diagnostics)
    except OSError:
        # Either this machine has no IPv6, or the port is taken. In the second case, listening on
        # IPv4 fails too, with the right error message.
        return _Server(socket.AF_INET, ("0.0.0.0", port), diagnostics)  # noqa: S104  Go's `:port`
