"""Who asks how we are? The HTTP server for metrics, probes and profiles (`--http-endpoint`).

Each request has its own daemon thread and a time limit, so a slow client holds up nothing; of too
many at once the oldest is dropped (SEC-9). There is no login, as upstream: the port is for the
cluster's own monitoring. `--metrics-token-review` asks the API server who reads the metrics.

| Path | Answer |
|---|---|
| `--metrics-path` | metrics, as OpenMetrics if asked for |
| `/healthz/leader-election` | 200, or 500 if the Lease is not renewed; only with leader election |
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

# A client that sends or takes nothing for so long is dropped.
_CLIENT_TIMEOUT_SECONDS: Final = 10.0

# Probes and scrapes are a few; a flood of slow clients gets no more threads than this.
_MAX_CONNECTIONS: Final = 32

_DEFAULT_PROFILE_SECONDS: Final = 30.0
_TEXT: Final = "text/plain; charset=utf-8"


def always_ok() -> str:
    """A check that never complains."""
    return ""


@dataclass(frozen=True, slots=True)
class Checks:
    """The probes; each returns "" for good, else one line saying what is wrong.

    Args:
        live: a failure means that only a restart helps (`Heartbeats.check`).
        ready: a failure means that work would not be done now.
        leader: health of the Lease (`LeaderHealth.check`).
        may_read: told a bearer token; whether it may read the metrics. None asks nobody.
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
    """The server of one process; `start` it once.

    Args:
        settings: address and paths.
        exposition: what the metrics path shows.
        checks: what the probes ask.
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
        """The port in use; it differs from the setting for port 0."""
        return int(self._server.server_address[1]) if self._server else 0

    def start(self) -> None:
        """Listen, and serve from a thread of its own.

        Raises:
            ConfigError: exit 255, nobody can listen there (F-014).
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
        """Close the port; requests under way are abandoned. Safe to call twice."""
        self._stopping.set()
        server, self._server = self._server, None
        if server is not None:
            # Wakes the thread that waits for a connection.
            server.socket.shutdown(socket.SHUT_RDWR)
            if self._thread is not None:
                self._thread.join()
            server.server_close()

    def _serve(self, server: _Server) -> None:
        # Not serve_forever: it wakes twice a second for ever, to look for its end.
        while not self._stopping.is_set():
            server.handle_request()

    def answer(self, target: str, accept: str, authorization: str = "") -> _Answer:
        """Route one GET.

        Args:
            target: path and query.
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
            # The encoders only call collect(), which is all that a Collector has.
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
    # A restarted process must get its port back while old connections linger.
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
            # Go listens on both families for `:8080`.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's: it asks DNS for the host's name, which may take seconds.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        # The oldest goes: it had its time, and a probe that comes now must be answered.
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
        except Exception:  # noqa: BLE001  the server's edge: one bad answer must not end it
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
        """Probes and scrapes are no news."""


def _listen(host: str, port: int, diagnostics: DiagnosticsServer) -> _Server:
    if host:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _Server(family, address, diagnostics)
    try:
        return _Server(socket.AF_INET6, ("::", port), diagnostics)
    except OSError:
        # No IPv6 here; a port that is taken fails again, with the right text.
        return _Server(socket.AF_INET, ("0.0.0.0", port), diagnostics)  # noqa: S104  Go's `:port`
