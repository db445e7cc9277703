"""One JSON request to the Kubernetes API server, with time-outs and client-go's repeats.

Invariants: every call has a time-out; only classes of workers.kube.errors come out; a 401
reloads the credentials once. Paths live in resources.py, streams in watch.py.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError, ResponseError

from workers.cpuslots import waiting
from workers.kube.connection import connect
from workers.kube.errors import Unreachable, error_from_response
from workers.kube.throttle import Throttle
from workers.kube.transport import CONNECT_TIMEOUT_SECONDS, Answer, BrokenConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from workers.kube.connection import Connection
    from workers.kube.objects import JsonObject

    Observer = Callable[[str, str, int, float], None]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"

READ_TIMEOUT_SECONDS: Final = 30.0
# client-go repeats a refused request (429, 5xx with Retry-After) up to 10 times; a worker
# thread is better given back to the queue, which has its own back-off.
_MAX_REPEATS: Final = 3
_MAX_RETRY_AFTER_SECONDS: Final = 5.0
_MIN_RELOAD_INTERVAL_SECONDS: Final = 5.0
# The official client builds the header anew each time, environment and all.
_IDENTITY_SECONDS: Final = 1.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    url: str
    accept: str
    data: bytes | None
    timeout_seconds: float
    content_type: str = ""
    stream: bool = False

    def headers(self, identity: Mapping[str, str]) -> dict[str, str]:
        known = {"Accept": self.accept, **identity}
        return {**known, "Content-Type": self.content_type} if self.content_type else known


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who we say we are on one connection, for a moment.

    Attributes:
        headers: that say so.
        lines: all headers of a request as its transport takes them, by Accept and Content-Type.
    """

    connection: Connection
    until: float
    headers: dict[str, str] = field(repr=False)
    lines: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False)

    def lines_of(self, call: _Call) -> bytes:
        key = (call.accept, call.content_type)
        lines = self.lines.get(key)
        if lines is None:
            lines = self.connection.transport.lines(call.headers(self.headers))
            self.lines[key] = lines
        return lines


# What every caller may read, and costs the server nearly nothing.
_VERSION: Final = _Call("GET", "/version", JSON, None, CONNECT_TIMEOUT_SECONDS)


class RawStream:
    """The open answer of a watch: complete lines as bytes, until the server ends it."""

    status = 200

    def __init__(self, response: Any) -> None:
        self._response = response

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its end; a cut last line is dropped.

        Raises:
            Unreachable: the connection broke or nothing came within the read time-out.
        """
        rest = b""
        try:
            for chunk in self._chunks():
                *complete, rest = (rest + chunk).split(b"\n")
                yield from filter(None, complete)
        except (HTTPError, OSError, ValueError) as error:
            # ValueError: http.client on a stream closed by interrupt().
            raise Unreachable(f"watch ended: {error}") from error

    def _chunks(self) -> Iterator[bytes]:
        if not self._response.chunked:
            while chunk := self._response.read1(2**16):
                yield chunk
            return
        yield from self._response.stream(2**16)

    def interrupt(self) -> None:
        """End a blocked `lines()` from another thread."""
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            self._response.close()

    def close(self) -> None:
        """Drop the connection: an unread watch cannot be reused."""
        self._response.close()


R = TypeVar("R", Answer, Answer | RawStream)


class KubeClient:
    """Raw JSON requests; one per process, shared by all threads.

    Args:
        load: returns a fresh Connection; called again after a 401.
        rate: requests per second, 0 for no limit on this side, and burst: requests at once before
            that bites.
        user_agent: what the API server's audit log shows.
        observer: told method, path, HTTP status (0: no answer) and seconds of each request.
        sleep: waits that many seconds, for Retry-After.
        timeout_seconds: of each request that names no other.
        repeats: how often an answer with Retry-After is asked for again.
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
    ) -> None:
        self._load = load
        self._timeout_seconds = timeout_seconds
        self._repeats = repeats
        self._observer = observer
        self._connection = load()
        self._lock = threading.Lock()
        self._reloaded_at = float("-inf")
        self._identity: _Identity | None = None
        self._throttle = Throttle(*rate) if rate[0] > 0 else None
        self._user_agent = user_agent
        self._sleep = sleep

    @classmethod
    def from_settings(
        cls,
        kubeconfig: str = "",
        master: str = "",
        *,
        pool_size: int = 64,
        rate: tuple[float, int] = (0.0, 0),
        user_agent: str = "csi-fleet",
        observer: Observer | None = None,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
        repeats: int = _MAX_REPEATS,
    ) -> KubeClient:
        """Build a client; `pool_size` at least the number of threads that use it.

        Raises:
            ConfigError: no usable client configuration (F-010, F-014).
        """
        return cls(
            lambda: connect(kubeconfig, master, pool_size=pool_size),
            rate=rate,
            user_agent=user_agent,
            observer=observer,
            timeout_seconds=timeout_seconds,
            repeats=repeats,
        )

    def get(
        self, path: str, query: Mapping[str, Any] | None = None, *, final: Collection[int] = ()
    ) -> JsonObject:
        """Read one object or one list page; `final` as for `request`."""
        return _decoded(self.request("GET", path, query=query, final=final))

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """POST a new object; returns it as saved.

        Raises:
            AlreadyExistsError: the name is taken, perhaps by our own earlier call.
        """
        return _decoded(self.request("POST", path, body=body))

    def update(self, path: str, body: JsonObject) -> JsonObject:
        """PUT the whole object; its resourceVersion is the precondition.

        Raises:
            ConflictError: it changed since it was read.
        """
        return _decoded(self.request("PUT", path, body=body))

    def patch(self, path: str, body: Any, content_type: str = STRATEGIC_PATCH) -> JsonObject:
        """Apply a patch; returns the object as it is now."""
        return _decoded(self.request("PATCH", path, body=body, content_type=content_type))

    def delete(
        self, path: str, *, uid: str | None = None, resource_version: str | None = None
    ) -> JsonObject:
        """Delete; returns the object (if finalizers hold it) or a Status.

        Raises:
            ConflictError: another object has this name now (`uid`, `resource_version`).
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        present = {name: value for name, value in preconditions.items() if value}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": present}
        return _decoded(self.request("DELETE", path, body=body if present else None))

    def list_raw(
        self,
        path: str,
        query: Mapping[str, Any],
        *,
        accept: str = JSON,
        timeout_seconds: float = 60.0,
    ) -> bytes:
        """Return one list page as bytes."""
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
        """Open a watch; `read_timeout_seconds` of silence end it (half-open connections)."""
        call = _Call("GET", _url(path, query), accept, None, read_timeout_seconds, stream=True)
        opened = self._send_authorized(call, _open)
        if isinstance(opened, Answer):
            raise error_from_response(opened.status, opened.data, path=path)
        return opened

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
        final: Collection[int] = (),
    ) -> bytes:
        """Send one request and return the answer's body.

        An answer with Retry-After (429, 5xx: the server did nothing) is repeated up to 3
        times, for every method, as client-go does, unless its status is among the `final` ones; a
        read is repeated once when the connection broke. All other repeats belong to the caller's
        queue.

        Raises:
            ApiError: one of the classes of workers.kube.errors.
        """
        data = None if body is None else msgspec.json.encode(body)
        timeout = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        call = _Call(
            method, _url(path, query), accept, data, timeout, "" if data is None else content_type
        )
        for repeats_left in range(self._repeats, -1, -1):
            with waiting():
                answer = self._send_authorized(call, _exchange)
            if answer.status < 300:
                return answer.data
            wait_seconds = min(answer.retry_after_seconds, _MAX_RETRY_AFTER_SECONDS)
            if not wait_seconds or not repeats_left or answer.status in final:
                break
            with waiting():
                self._sleep(wait_seconds)
        raise error_from_response(answer.status, answer.data, method=method, path=path)

    def keep_connections(self, most: int) -> None:
        """Have up to `most` connections open, so that a burst begins without greetings.

        Nothing depends on it: a server that is away is noticed by whoever needs it.
        """
        connection = self._connection
        with suppress(OSError, ValueError):
            connection.transport.keep(
                most,
                _VERSION.url,
                lambda: self._identity_on(connection).lines_of(_VERSION),
                self._tell_version,
            )

    def _tell_version(self, status: int, seconds: float) -> None:
        if self._observer is not None:
            self._observer(_VERSION.method, _VERSION.url, status, seconds)

    def _send_authorized(self, call: _Call, send: Callable[[_Call, _Identity], R]) -> R:
        if self._throttle:
            self._throttle.wait()
        started, status = time.monotonic(), 0
        try:
            connection = self._connection
            answer = self._send(connection, call, send)
            if answer.status == 401 and (renewed := self._reload(connection)):
                answer = self._send(renewed, call, send)
            status = answer.status
            return answer
        finally:
            # A watch that opens lasts as long as it will; one that is refused is a request.
            if self._observer is not None and not (call.stream and status == _OK):
                self._observer(call.method, call.url, status, time.monotonic() - started)

    def _send(
        self, connection: Connection, call: _Call, send: Callable[[_Call, _Identity], R]
    ) -> R:
        identity = self._identity_on(connection)
        for attempt in range(2):
            try:
                return send(call, identity)
            except (HTTPError, OSError, ValueError) as error:
                if attempt == 0 and call.method == "GET" and _is_broken_connection(error):
                    continue
                verb = call.method.capitalize()
                address = connection.base_url + call.url
                raise Unreachable(f'{verb} "{address}": {error}') from error
        raise AssertionError("unreachable")

    def _identity_on(self, connection: Connection) -> _Identity:
        """Asked for once a second; a new connection has a new one at once."""
        known, now = self._identity, time.monotonic()
        if known is not None and known.connection is connection and now <= known.until:
            return known
        headers = {"User-Agent": self._user_agent}
        if authorization := connection.authorization():
            headers["Authorization"] = authorization
        self._identity = found = _Identity(
            connection, time.monotonic() + _IDENTITY_SECONDS, headers
        )
        return found

    def _reload(self, refused: Connection) -> Connection | None:
        """Return a connection other than the refused one, or None if it was just renewed."""
        with self._lock:
            if self._connection is not refused:
                return self._connection
            now = time.monotonic()
            if now - self._reloaded_at < _MIN_RELOAD_INTERVAL_SECONDS:
                return None
            self._reloaded_at = now
            self._connection = self._load()
            return self._connection


def _exchange(call: _Call, identity: _Identity) -> Answer:
    return identity.connection.transport.send(
        call.method,
        call.url,
        identity.lines_of(call),
        call.data,
        timeout_seconds=call.timeout_seconds,
    )


def _open(call: _Call, identity: _Identity) -> Answer | RawStream:
    connection = identity.connection
    response = connection.pool.request(
        call.method,
        connection.base_url + call.url,
        headers=call.headers(identity.headers),
        timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=call.timeout_seconds),
        preload_content=False,
        retries=False,
        redirect=False,
    )
    if response.status < 300:
        return RawStream(response)
    try:
        return Answer(response.status, response.read(2**16))
    finally:
        response.close()


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


def _is_broken_connection(error: Exception) -> bool:
    """Tell whether a kept connection was dropped (repeat at once), not slow or refused."""
    if isinstance(error, BrokenConnectionError):
        return True
    return isinstance(error, urllib3.exceptions.ProtocolError) and not isinstance(
        error, ReadTimeoutError | ResponseError
    )
