"""HTTP to the API server by libcurl: a small pool of kept connections, and open watches.

A pool holds at most `CONNECTIONS` handles, each with one connection. A request takes the handle
that was used last; when all are in use it waits in line, within its own time-out. So a server that
stalls holds these handles and one line, and a burst begins with few TLS handshakes.

Invariants: every request ends within its time-out; a write is sent once, whatever becomes of its
connection (libcurl itself repeats a read on a kept connection that had ended); redirects are not
followed; a handle that failed is closed.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from queue import Empty, LifoQueue
from ssl import get_default_verify_paths
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pycurl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CONNECTIONS: Final = 16
CONNECT_TIMEOUT_SECONDS: Final = 5.0
# An API server ends an idle connection after 90 s, some load balancers after 60.
_IDLE_SECONDS: Final = 50
# After a restart of one of several API servers, each gets its share again within this time.
_AGE_SECONDS: Final = 600
_KEEPALIVE_SECONDS: Final = 30
_ERROR_BODY_BYTES: Final = 2**16
_UNSAFE: Final = re.compile(r"[\r\n\x00]")
_MAY_GO_OUT: Final = 0  # PREREQFUNC_OK
_VERIFY_HOST: Final = 2  # the certificate must name the host
# What libcurl waits for, and what it is told, in the words of poll(2).
_WANTED: Final = {
    pycurl.POLL_NONE: 0,
    pycurl.POLL_IN: select.POLLIN,
    pycurl.POLL_OUT: select.POLLOUT,
    pycurl.POLL_INOUT: select.POLLIN | select.POLLOUT,
}
_HAPPENED: Final = (
    (select.POLLIN | select.POLLHUP, pycurl.CSELECT_IN),
    (select.POLLOUT, pycurl.CSELECT_OUT),
    (select.POLLERR | select.POLLNVAL, pycurl.CSELECT_ERR),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust, and the client certificate; each as the path of a file or as PEM bytes.

    Attributes:
        authorities: None: the system's.
        certificate: None: no client certificate.
        server_name: the name that the certificate must have, "" for the host of the address.
        is_verified: False trusts every server.
    """

    authorities: str | bytes | None = None
    certificate: str | bytes | None = None
    key: str | bytes | None = None
    server_name: str = ""
    is_verified: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Attributes:
        retry_after_seconds: as the server asked for, 0 when it did not.
    """

    status: int
    data: bytes
    retry_after_seconds: float = 0.0


class Transport:
    """Requests to one server; safe for any number of threads, not across a fork.

    Args:
        base_url: scheme, address and path in front of the path of each request.
        tls: for `https`.
        proxy: URL of a proxy for all requests; "" leaves the choice to HTTPS_PROXY and NO_PROXY.
    """

    def __init__(self, base_url: str, tls: Tls | None = None, proxy: str = "") -> None:
        parts = urlsplit(base_url)
        place = parts.netloc.rpartition("@")[2]
        self._tls = tls or Tls()
        self._proxy = proxy
        self._host = f"Host: {place}"
        self._connect_to = ""
        if self._tls.server_name:
            # libcurl checks the name of the URL, and connects to another host where it is told to.
            self._connect_to = f"::{parts.hostname}:{parts.port or 443}"
            place = self._tls.server_name
        self._base_url = f"{parts.scheme}://{place}{parts.path}"
        self._free: LifoQueue[pycurl.Curl | None] = LifoQueue()
        for _ in range(CONNECTIONS):
            self._free.put(None)

    def send(
        self,
        method: str,
        url: str,
        headers: Sequence[str],
        body: bytes | None = None,
        *,
        timeout_seconds: float,
        before_sent: Callable[[], None] | None = None,
    ) -> Answer:
        """Send one request and return its answer, `timeout_seconds` for both together.

        Args:
            method: GET and so on.
            url: what follows the base URL.
            headers: lines without their ends.
            body: of a write; every write needs one, for it is the body that libcurl cannot repeat.
            timeout_seconds: more than 0.
            before_sent: called with a connection in hand, when all waiting is over; what it raises
                comes out and nothing is sent.

        Raises:
            TimeoutError: no complete answer in time, or no free connection.
            ConnectionError: not connected, not trusted, cut off, or no HTTP. The request may have
                arrived.
            ValueError: a header or the URL holds a character that HTTP does not allow.
        """
        lines = self._checked(headers)
        end = time.monotonic() + timeout_seconds
        with self._taken(timeout_seconds) as handle:
            parts: list[bytes] = []
            _set_request(handle, method, self._base_url + url, lines, body)
            handle.setopt(pycurl.WRITEFUNCTION, parts.append)
            handle.setopt(pycurl.TIMEOUT_MS, max(1, int((end - time.monotonic()) * 1000)))
            # Python handles Ctrl-C in the main thread, where libcurl lets it run now and then.
            is_main = threading.current_thread() is threading.main_thread()
            handle.setopt(pycurl.NOPROGRESS, not is_main)
            if before_sent is not None:
                handle.setopt(pycurl.PREREQFUNCTION, _prerequisite(before_sent))
            else:
                handle.unsetopt(pycurl.PREREQFUNCTION)
            try:
                handle.perform()
            except pycurl.error as error:
                raise _error(error) from error
            answer = Answer(
                handle.getinfo(pycurl.RESPONSE_CODE),
                b"".join(parts),
                float(handle.getinfo(pycurl.RETRY_AFTER)),
            )
            parts.clear()  # the handle keeps the list, which may hold a Secret
            return answer

    def open(self, url: str, headers: Sequence[str], *, silence_seconds: float) -> Answer | Stream:
        """Send a GET whose answer goes on: a watch. It has a connection of its own.

        Args:
            url: what follows the base URL.
            headers: lines without their ends.
            silence_seconds: longest wait for the head and for each next byte.

        Returns:
            The open answer, or the complete one of a server that refuses.

        Raises:
            As `send`.
        """
        handle = self._new_handle()
        _set_request(handle, "GET", self._base_url + url, self._checked(headers), None)
        stream = Stream(handle, silence_seconds)
        try:
            stream.read_head()
            if stream.status < 300:
                return stream
            data = b""
            while (chunk := stream.read()) and len(data) < _ERROR_BODY_BYTES:
                data += chunk
        except BaseException:
            stream.close()
            raise
        stream.close()
        return Answer(stream.status, data)

    def close(self) -> None:
        """Close the idle connections."""
        idle = []
        with suppress(Empty):
            while True:
                idle.append(self._free.get_nowait())
        for handle in idle:
            if handle is not None:
                handle.close()
            self._free.put(None)

    def _checked(self, headers: Sequence[str]) -> list[str]:
        # Without "Expect:" libcurl announces large bodies and waits for the server's consent.
        lines = [self._host, "Expect:", *headers]
        for line in lines:
            if _UNSAFE.search(line):
                raise ValueError(f"a line break in {line.partition(':')[0]!r}")
            if not line.isascii():  # the message must not hold the line, which may be a token
                raise ValueError(f"a character outside ASCII in {line.partition(':')[0]!r}")
        return lines

    @contextmanager
    def _taken(self, seconds: float) -> Iterator[pycurl.Curl]:
        try:
            handle = self._free.get(timeout=seconds)
        except Empty:
            message = f"all {CONNECTIONS} connections were in use for {seconds:g} s"
            raise TimeoutError(message) from None
        kept = None
        try:
            handle = handle or self._new_handle()
            yield handle
            kept = handle
        finally:
            if kept is None and handle is not None:
                handle.close()
            self._free.put(kept)

    def _new_handle(self) -> pycurl.Curl:
        handle = pycurl.Curl()
        for option, value in self._options().items():
            handle.setopt(option, value)
        return handle

    def _options(self) -> dict[int, object]:
        """What is the same for all requests."""
        options: dict[int, object] = {
            pycurl.NOSIGNAL: 1,
            pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
            pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
            pycurl.PATH_AS_IS: 1,
            pycurl.CONNECTTIMEOUT_MS: int(CONNECT_TIMEOUT_SECONDS * 1000),
            pycurl.MAXAGE_CONN: _IDLE_SECONDS,
            pycurl.MAXLIFETIME_CONN: _AGE_SECONDS,
            pycurl.TCP_KEEPALIVE: 1,
            pycurl.TCP_KEEPIDLE: _KEEPALIVE_SECONDS,
            pycurl.TCP_KEEPINTVL: _KEEPALIVE_SECONDS,
            pycurl.BUFFERSIZE: 2**16,
            pycurl.XFERINFOFUNCTION: lambda *_: None,
        }
        if self._connect_to:
            options[pycurl.CONNECT_TO] = [self._connect_to]
        if self._proxy:
            options |= {pycurl.PROXY: self._proxy, pycurl.NOPROXY: ""}
        tls, system = self._tls, get_default_verify_paths()
        options |= {
            pycurl.SSL_VERIFYPEER: tls.is_verified,
            pycurl.SSL_VERIFYHOST: _VERIFY_HOST if tls.is_verified else 0,
        }
        for option, path in (
            (pycurl.CAINFO, system.cafile),
            (pycurl.CAPATH, system.capath),
            (pycurl.PROXY_CAINFO, system.cafile),
            (pycurl.PROXY_CAPATH, system.capath),
        ):
            if path:
                options[option] = path
        if tls.authorities is not None:
            options.pop(pycurl.CAPATH, None)
            options.pop(pycurl.CAINFO, None)
        for option, blob, value in (
            (pycurl.CAINFO, pycurl.CAINFO_BLOB, tls.authorities),
            (pycurl.SSLCERT, pycurl.SSLCERT_BLOB, tls.certificate),
            (pycurl.SSLKEY, pycurl.SSLKEY_BLOB, tls.key),
        ):
            if value is not None:
                options[blob if isinstance(value, bytes) else option] = value
        return options


class Stream:
    """The open answer of a watch; read by one thread, interrupted by any.

    Args:
        handle: of its own, with the request set.
        silence_seconds: longest wait for something new.
    """

    def __init__(self, handle: pycurl.Curl, silence_seconds: float) -> None:
        self.status = 0
        self._handle = handle
        self._silence_seconds = silence_seconds
        self._parts: list[bytes] = []
        self._is_running = True
        self._interrupted = os.eventfd(0)
        self._lock = threading.Lock()
        handle.setopt(pycurl.WRITEFUNCTION, self._parts.append)
        self._poll = select.poll()  # select() knows no descriptor above 1023
        self._poll.register(self._interrupted, select.POLLIN)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._follow)
        self._multi.add_handle(handle)

    def read_head(self) -> None:
        """Wait for the status; raises as `Transport.send`."""
        is_over = False

        def header(line: bytes) -> None:
            nonlocal is_over
            is_over = line == b"\r\n"

        self._handle.setopt(pycurl.HEADERFUNCTION, header)
        self._advance_until(lambda: is_over and self._handle.getinfo(pycurl.RESPONSE_CODE) >= 200)
        self.status = self._handle.getinfo(pycurl.RESPONSE_CODE)

    def read(self) -> bytes:
        """Return what came next, b"" at the end.

        Raises:
            TimeoutError: nothing came for so long.
            ConnectionError: it was cut off or interrupted.
        """
        self._advance_until(lambda: bool(self._parts))
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def interrupt(self) -> None:
        """End a blocked read; does nothing once the stream is closed."""
        with self._lock:
            if self._interrupted >= 0:
                os.eventfd_write(self._interrupted, 1)

    def close(self) -> None:
        """Drop the connection: an unread watch cannot be used again."""
        with self._lock:
            if self._interrupted < 0:
                return
            os.close(self._interrupted)
            self._interrupted = -1
        self._multi.remove_handle(self._handle)
        self._multi.close()
        self._handle.close()

    def _advance_until(self, is_enough: Callable[[], bool]) -> None:
        """Let libcurl work until that is so, or the answer is over."""
        silent_at = time.monotonic() + self._silence_seconds
        while not is_enough() and self._is_running:
            left = silent_at - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing came for {self._silence_seconds:g} s")
            self._advance(left)

    def _advance(self, seconds: float) -> None:
        """Wait that long at most for something to do, and let libcurl do it."""
        due_ms = self._multi.timeout()
        wait_ms = seconds * 1000
        ready = self._poll.poll(min(wait_ms, due_ms) if due_ms >= 0 else wait_ms)
        running = 1
        for descriptor, events in ready or [(pycurl.SOCKET_TIMEOUT, 0)]:
            if descriptor == self._interrupted:
                raise ConnectionError("interrupted")
            happened = sum(bit for mask, bit in _HAPPENED if events & mask)
            _, running = self._multi.socket_action(descriptor, happened)
        self._is_running = running > 0
        if not running:
            _, _, failed = self._multi.info_read()
            for _, code, message in failed:
                raise _error(pycurl.error(code, message))

    def _follow(self, wanted: int, descriptor: int, *_: object) -> None:
        """Called by libcurl: for what events of its sockets it waits now."""
        if wanted == pycurl.POLL_REMOVE:
            self._poll.unregister(descriptor)
        else:
            self._poll.register(descriptor, _WANTED[wanted])


def _prerequisite(check: Callable[[], None]) -> Callable[..., int]:
    def checked(*_: object) -> int:
        check()
        return _MAY_GO_OUT

    return checked


def _set_request(
    handle: pycurl.Curl, method: str, url: str, lines: list[str], body: bytes | None
) -> None:
    try:
        handle.setopt(pycurl.URL, url)
    except UnicodeEncodeError:
        raise ValueError(f"a character that no URL may have in {url!r}") from None
    handle.setopt(pycurl.HTTPHEADER, lines)
    if body is None:
        handle.setopt(pycurl.HTTPGET, 1)
    else:
        # Read from a file that cannot be rewound: libcurl repeats no such request (error 65).
        handle.setopt(pycurl.UPLOAD, 1)
        handle.setopt(pycurl.READDATA, BytesIO(body))
        handle.setopt(pycurl.INFILESIZE_LARGE, len(body))
    handle.setopt(pycurl.CUSTOMREQUEST, method)


def _error(error: pycurl.error) -> OSError | ValueError:
    code, message = error.args
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return TimeoutError(message)
    if code == pycurl.E_URL_MALFORMAT:
        return ValueError(message)
    if code == pycurl.E_SEND_FAIL_REWIND:
        return ConnectionError("the connection ended before the answer came")
    return ConnectionError(message)
