"""Sends one JSON request to the Kubernetes API server, with timeouts and client-go's retries.

Invariants: every call has a timeout; every exception belongs to a class of workers.kube.errors; a
401 reloads the credentials once. Paths are built in paths.py, and HTTP is in transport.py.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from workers.kube.connection import connect
from workers.kube.errors import Unreachable, error_from_response
from workers.kube.kubeconfig import UnusableError
from workers.kube.transport import Answer, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from workers.kube.connection import Connection
    from workers.kube.objects import JsonObject

    Observer = Callable[[str, str, int, float], None]
    Guard = Callable[[], Callable[[], None] | None]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

READ_TIMEOUT_SECONDS: Final = 30.0
# client-go retries a refused request (429, 5xx with Retry-After) up to 10 times. A worker gives up
# earlier, because its thread can reconcile other keys meanwhile, and the queue retries this key
# with back-off.
_MAX_REPEATS: Final = 3
_MAX_RETRY_AFTER_SECONDS: Final = 5.0
_MIN_RELOAD_INTERVAL_SECONDS: Final = 5.0


class Throttle:
    """The request rate of `--kube-api-qps` and `--kube-api-burst` (client-go: flowcontrol).

    After a first `burst`, `qps` requests per second are allowed. A request reserves its token at
    once and sleeps until the token is due, so threads keep their order and none of them polls.
    Thread-safe.

    Args:
        qps: the number of tokens per second, more than 0.
        burst: the largest number of tokens that can be saved, at least 1.
        clock: returns monotonic seconds.
        sleep: sleeps for the given number of seconds.
    """

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = float(self._burst)
        self._at = clock()

    def wait(self) -> None:
        """Block until the next request is allowed."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - 1
            self._at = now
            delay = -self._tokens / self._qps
        if delay > 0:
            self._sleep(delay)


A = TypeVar("A", Answer, Answer | Stream)


class RawStream:
    """The open response of a watch; it yields complete lines until the server ends the watch."""

    status = 200

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its newline; an incomplete last line is dropped.

        Raises:
            Unreachable: the connection broke, or no data arrived within the read timeout.
        """
        rest = b""
        try:
            while chunk := self._stream.read():
                *complete, rest = (rest + chunk).split(b"\n")
                yield from filter(None, complete)
        except (OSError, ValueError) as error:
            raise Unreachable(f"watch ended: {error}") from error

    def interrupt(self) -> None:
        """End a `lines()` call that is blocked in another thread."""
        self._stream.interrupt()

    def close(self) -> None:
        """Drop the connection; it could be reused only after reading the watch to its end."""
        self._stream.close()


class KubeClient:
    """Sends raw JSON requests; one instance per process, shared by all threads.

    Args:
        load: returns a fresh Connection; called again after a 401.
        rate: the number of requests per second (0: unlimited), and the burst: the number of
            requests that may exceed this rate at once.
        user_agent: the User-Agent header, which the API server's audit log shows.
        observer: called after each request with the method, the path, the HTTP status (0 if no
            response arrived) and the duration in seconds.
        sleep: sleeps for the given number of seconds, as Retry-After requires.
        timeout_seconds: the default timeout of a request.
        repeats: how often a request is retried after a response with Retry-After.
        guard: called before each write; returns a check or None. The check is called immediately
            before the write is sent, and again before each retry. If it raises an exception, the
            request ends.
    """

    def __init__(
        self,
        load: Callable[[], Connection],
        *,
        rate: tuple[float, int] = (0.0, 0),
        user_agent: str = "csi-fleet",
        observer: Observer | None = None,
        sleep: Callable[[float], None] = time.sleep,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
        repeats: int = _MAX_REPEATS,
        guard: Guard = lambda: None,
    ) -> None:
        self._load = load
        self._timeout_seconds = timeout_seconds
        self._repeats = repeats
        self._observer = observer
        self._connection = load()
        self._lock = threading.Lock()
        self._reloaded_at = float("-inf")
        self._throttle = Throttle(*rate) if rate[0] > 0 else None
        self._user_agent = f"User-Agent: {user_agent}"
        self._sleep = sleep
        self._guard = guard

    @classmethod
    def from_settings(cls, kubeconfig: str = "", master: str = "", **options: Any) -> KubeClient:
        """Build a client; `options` are the arguments of the class.

        Raises:
            ConfigError: there is no usable client configuration (F-010, F-014).
        """
        return cls(lambda: connect(kubeconfig, master), **options)

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> JsonObject:
        """Read one object or one page of a list."""
        return _decoded(self.request("GET", path, query=query))

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """Create an object with a POST; return the object as stored.

        Raises:
            AlreadyExistsError: the name is taken, perhaps by the same caller's earlier attempt.
        """
        return _decoded(self.request("POST", path, body=body))

    def update(self, path: str, body: JsonObject) -> JsonObject:
        """Replace the whole object with a PUT, conditional on its resourceVersion.

        Raises:
            ConflictError: the object changed since it was read.
        """
        return _decoded(self.request("PUT", path, body=body))

    def patch(self, path: str, body: Any, content_type: str = STRATEGIC_PATCH) -> JsonObject:
        """Apply a patch; return the patched object."""
        return _decoded(self.request("PATCH", path, body=body, content_type=content_type))

    def delete(
        self, path: str, *, uid: str | None = None, resource_version: str | None = None
    ) -> JsonObject:
        """Delete an object; return the object if finalizers keep it, otherwise a Status.

        Raises:
            ConflictError: the object does not have the given `uid` or `resource_version`.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        present = {name: value for name, value in preconditions.items() if value}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": present}
        return _decoded(self.request("DELETE", path, body=body))

    def list_raw(
        self,
        path: str,
        query: Mapping[str, Any],
        *,
        accept: str = JSON,
        timeout_seconds: float = 60.0,
    ) -> bytes:
        """Return one page of a list as bytes."""
        return self.request(
            "GET", path, query=query, accept=accept, timeout_seconds=timeout_seconds
        )

    def watch_raw(
        self,
        path: str,
        query: Mapping[str, Any],
        *,
        accept: str = JSON,
        read_timeout_seconds: float,
    ) -> RawStream:
        """Open a watch.

        If no data arrives for `read_timeout_seconds`, the watch ends: its connection may be half
        open.
        """
        url, headers = _url(path, query), [f"Accept: {accept}"]
        answer = self._send_authorized(
            "GET",
            url,
            lambda connection, identity: connection.transport.open(
                url, headers + identity, silence_seconds=read_timeout_seconds
            ),
        )
        if isinstance(answer, Answer):
            raise error_from_response(answer.status, answer.data, path=path)
        return RawStream(answer)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Send one request and return the body of the response.

        If the response has Retry-After (429, 5xx: the server did nothing), the request is retried
        up to 3 times whatever its method, as in client-go. All other retries are left to the queue.

        Raises:
            ApiError: one of the classes of workers.kube.errors.
        """
        url, headers = _url(path, query), [f"Accept: {accept}"]
        data, check = None, None
        if method != "GET":
            data = b"" if body is None else msgspec.json.encode(body)
            headers.append(f"Content-Type: {content_type}")
            check = self._guard()
        timeout = self._timeout_seconds if timeout_seconds is None else timeout_seconds

        def send(connection: Connection, identity: list[str]) -> Answer:
            return connection.transport.send(
                method, url, headers + identity, data, timeout_seconds=timeout, before_sent=check
            )

        for repeats_left in range(self._repeats, -1, -1):
            answer = self._send_authorized(method, url, send)
            if answer.status < 300:
                return answer.data
            wait_seconds = min(answer.retry_after_seconds, _MAX_RETRY_AFTER_SECONDS)
            if not wait_seconds or not repeats_left:
                break
            self._sleep(wait_seconds)
        raise error_from_response(answer.status, answer.data, method=method, path=path)

    def _send_authorized(
        self, method: str, url: str, send: Callable[[Connection, list[str]], A]
    ) -> A:
        if self._throttle:
            self._throttle.wait()
        started, status, is_open = time.monotonic(), 0, False
        try:
            connection = self._connection
            answer = self._send(connection, method, url, send)
            if answer.status == 401 and (renewed := self._reload(connection)):
                answer = self._send(renewed, method, url, send)
            status, is_open = answer.status, isinstance(answer, Stream)
            return answer
        finally:
            # The duration of an open watch means nothing; only a refused watch is reported as a
            # request.
            if self._observer is not None and not is_open:
                self._observer(method, url, status, time.monotonic() - started)

    def _send(
        self,
        connection: Connection,
        method: str,
        url: str,
        send: Callable[[Connection, list[str]], A],
    ) -> A:
        try:
            identity = [self._user_agent]
            if authorization := connection.authorization():
                identity.append(f"Authorization: {authorization}")
            return send(connection, identity)
        except (OSError, ValueError, UnusableError) as error:
            address = connection.base_url + url
            raise Unreachable(f'{method.capitalize()} "{address}": {error}') from error

    def _reload(self, refused: Connection) -> Connection | None:
        """Return a connection with fresh credentials; None if they have just been reloaded."""
        with self._lock:
            if self._connection is not refused:
                return self._connection
            now = time.monotonic()
            if now - self._reloaded_at < _MIN_RELOAD_INTERVAL_SECONDS:
                return None
            self._reloaded_at = now
            self._connection = self._load()
            refused.transport.close()
            return self._connection


def _url(path: str, query: Mapping[str, Any] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _decoded(data: bytes) -> JsonObject:
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise Unreachable("the answer is no JSON object")
    return decoded
