"""HTTP to the API server using libcurl: a small pool of persistent connections, and open watches.

A pool holds at most `CONNECTIONS` handles, each with one connection. A request takes the handle
that was used most recently; if all are in use, it waits for one within its own timeout. So a
stalled server blocks only these handles, and a burst causes few TLS handshakes.

Invariants: every request ends within its timeout; a write is sent once, even if its connection
breaks (libcurl itself repeats a read if a persistent connection turns out to be closed); redirects
are not followed; a handle that failed is closed.
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
# Servers close idle connections later than this: after 90 s for an API server, 60 s for some load
# balancers.
_IDLE_SECONDS: Final = 50
# Connections are replaced at this age, so that a restarted API server gets its share of them again.
_AGE_SECONDS: Final = 600
_KEEPALIVE_SECONDS: Final = 30
_ERROR_BODY_BYTES: Final = 2**16
_UNSAFE: Final = re.compile(r"[\r\n\x00]")
_MAY_GO_OUT: Final = 0  # PREREQFUNC_OK
_VERIFY_HOST: Final = 2  # the certificate must name the host
# libcurl's events in terms of poll(2). This table is for the events that libcurl is waiting for;
# the next one is for the events that have happened.
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
    """Trusted authorities and the client certificate; each is the path of a file or PEM bytes.

    Attributes:
        authorities: the CA certificates; None means the system's CA certificates.
        certificate: the client certificate; None if there is none.
        server_name: the name that the server's certificate must have; "" means the host in the
            address.
        is_verified: False to trust every server.
    """

    authorities: str | bytes | None = None
    certificate: str | bytes | None = None
    key: str | bytes | None = None
    server_name: str = ""
    is_verified: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response.

    Attributes:
        retry_after_seconds: the value of the Retry-After header; 0 without this header.
    """

    status: int
    data: bytes
    retry_after_seconds: float = 0.0


class Transport:
    """Sends requests to one server; thread-safe, but not usable across a fork.

    Args:
        base_url: the scheme, address and path prefix of each request.
        tls: the settings for `https`.
        proxy: the URL of a proxy for all requests; "" leaves the choice to HTTPS_PROXY and
            NO_PROXY.
    """

    def __init__(self, base_url: str, tls: Tls | None = None, proxy: str = "") -> None:
        parts = urlsplit(base_url)
        place = parts.netloc.rpartition("@")[2]
        self._tls = tls or Tls()
        self._proxy = proxy
        self._host = f"Host: {place}"
        self._connect_to = ""
        if self._tls.server_name:
            # libcurl checks the certificate against the name in the URL, but connects to this host.
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
        """Send one request and return its response.

        Args:
            method: the HTTP method.
            url: the path and query, which are appended to the base URL.
            headers: the header lines, without line ends.
            body: the body of a write. Every write needs a body, because libcurl then does not
                repeat it.
            timeout_seconds: the limit for waiting, sending and receiving together; more than 0.
            before_sent: called after the connection is established, right before the request is
                sent. If it raises an exception, nothing is sent and the exception is passed on.

        Raises:
            TimeoutError: there was no complete response in time, or no connection was free.
            ConnectionError: the server was unreachable or not trusted, cut the connection, or
                did not speak HTTP. The request may have arrived.
            ValueError: a header or the URL contains a character that HTTP does not allow.
        """
        lines = self._checked(headers)
        end = time.monotonic() + timeout_seconds
        with self._taken(timeout_seconds) as handle:
            parts: list[bytes] = []
            _set_request(handle, method, self._base_url + url, lines, body)
            handle.setopt(pycurl.WRITEFUNCTION, parts.append)
            handle.setopt(pycurl.TIMEOUT_MS, max(1, int((end - time.monotonic()) * 1000)))
            # Python handles Ctrl-C in the main thread; libcurl's progress callback gives it a
            # chance to do so.
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
            parts.clear()  # the handle keeps a reference to the list, which may contain a Secret
            return answer

    def open(self, url: str, headers: Sequence[str], *, silence_seconds: float) -> Answer | Stream:
        """Open a watch: a GET with an endless response, on its own connection.

        Args:
            url: the path and query, which are appended to the base URL.
            headers: the header lines, without line ends.
            silence_seconds: the longest wait for the response headers, and for more data.

        Returns:
            The open response, or a complete response if the server refuses.

        Raises:
            The same exceptions as `send`.
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
        # The empty "Expect:" keeps libcurl from waiting for "100 Continue" before it sends a large
        # body.
        lines = [self._host, "Expect:", *headers]
        for line in lines:
            if _UNSAFE.search(line):
                raise ValueError(f"the header {line.partition(':')[0]!r} contains a line break")
            if not line.isascii():  # the error must not show the line: it may be a token
                name = line.partition(":")[0]
                raise ValueError(f"the header {name!r} contains a character outside ASCII")
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
        """Return the libcurl options that are the same for all requests."""
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
    """The open response of a watch; one thread reads it, and any thread may interrupt it.

    Args:
        handle: a handle that no other request uses, with the request already set.
        silence_seconds: the longest wait for more data.
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
        self._poll = select.poll()  # select() cannot handle descriptors above 1023
        self._poll.register(self._interrupted, select.POLLIN)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._follow)
        self._multi.add_handle(handle)

    def read_head(self) -> None:
        """Wait for the status; raises the same exceptions as `Transport.send`."""
        is_over = False

        def header(line: bytes) -> None:
            nonlocal is_over
            is_over = line == b"\r\n"

        self._handle.setopt(pycurl.HEADERFUNCTION, header)
        self._advance_until(lambda: is_over and self._handle.getinfo(pycurl.RESPONSE_CODE) >= 200)
        self.status = self._handle.getinfo(pycurl.RESPONSE_CODE)

    def read(self) -> bytes:
        """Return the next data; b"" at the end of the response.

        Raises:
            TimeoutError: no data arrived for `silence_seconds`.
            ConnectionError: the stream was cut off or interrupted.
        """
        self._advance_until(lambda: bool(self._parts))
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def interrupt(self) -> None:
        """End a read that is blocked; do nothing if the stream is closed."""
        with self._lock:
            if self._interrupted >= 0:
                os.eventfd_write(self._interrupted, 1)

    def close(self) -> None:
        """Drop the connection, which cannot be reused before the watch is read to its end."""
        with self._lock:
            if self._interrupted < 0:
                return
            os.close(self._interrupted)
            self._interrupted = -1
        self._multi.remove_handle(self._handle)
        self._multi.close()
        self._handle.close()

    def _advance_until(self, is_enough: Callable[[], bool]) -> None:
        """Run libcurl until `is_enough` returns True or the response ends."""
        silent_at = time.monotonic() + self._silence_seconds
        while not is_enough() and self._is_running:
            left = silent_at - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no data arrived for {self._silence_seconds:g} s")
            self._advance(left)

    def _advance(self, seconds: float) -> None:
        """Wait for socket events for at most `seconds`, and let libcurl handle them."""
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
        """Register the socket events that libcurl is waiting for; libcurl calls this method."""
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
        raise ValueError(f"the URL {url!r} contains a character that is not allowed") from None
    handle.setopt(pycurl.HTTPHEADER, lines)
    if body is None:
        handle.setopt(pycurl.HTTPGET, 1)
    else:
        # libcurl cannot rewind the file that it reads the body from, so it cannot send the body
        # again (error 65).
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
        return ConnectionError("the connection was closed before the response arrived")
    return ConnectionError(message)
