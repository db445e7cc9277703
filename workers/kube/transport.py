"""One HTTP/1.1 exchange over a kept connection, at a small part of urllib3's CPU per request.

A claim takes four requests, and with urllib3 and http.client most of a worker's CPU went into
building and parsing their headers. Addresses, TLS, client certificates and tunnels stay urllib3's:
it opens the connections, and requests through a plain-HTTP proxy and watches stay there as well.

Invariants: a connection is used by one thread at a time and kept only after a complete answer that
allows it; nothing is sent twice.
"""

from __future__ import annotations

import re
import select
import ssl
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# A connection idle for longer is looked at before it is used: a server may have closed it.
TRUSTED_SECONDS: Final = 1.0
MAX_HEAD_BYTES: Final = 2**16
_READ_BYTES: Final = 2**16
_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f-\uffff]")
_UNSAFE_VALUE: Final = re.compile(r"[\r\n\x00]")
_NO_BODY: Final = frozenset({204, 304})


class BrokenConnectionError(OSError):
    """The connection ended before the answer did; the request may have arrived."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Wire:
    """One connection that urllib3 opened, and what was read beyond the answers so far."""

    def __init__(self, connection: Any, *, timeout_seconds: float) -> None:
        self._connection = connection
        connection.timeout = timeout_seconds
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        self._socket = connection.sock
        self._rest = b""
        self.used_at = time.monotonic()

    def is_usable(self) -> bool:
        """False if the server closed the connection while it was idle."""
        if time.monotonic() - self.used_at < TRUSTED_SECONDS:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)

    def close(self) -> None:
        """Drops the connection."""
        self._connection.close()

    def exchange(self, request: bytes, *, timeout_seconds: float) -> tuple[Answer, bool]:
        """Sends one request and reads its answer.

        Args:
            request: head and body.
            timeout_seconds: longest silence.

        Returns:
            The answer, and whether the connection may be used again.

        Raises:
            BrokenConnectionError: the connection ended before the answer did.
            OSError: any other failure of the transport; TimeoutError for silence.
        """
        self._socket.settimeout(timeout_seconds)
        try:
            self._socket.sendall(request)
            status, headers = self._head()
            while 100 <= status < 200:
                status, headers = self._head()
            data, has_end = self._body(status, headers)
        except (ConnectionError, EOFError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise BrokenConnectionError(str(error) or "EOF") from error
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {timeout_seconds:g} s") from error
        self.used_at = time.monotonic()
        is_kept = has_end and not self._rest and headers.get("connection", "").lower() != "close"
        return Answer(status, headers, data), is_kept

    def _read(self) -> bytes:
        data: bytes = self._socket.recv(_READ_BYTES)
        if not data:
            raise EOFError("the server closed the connection")
        return data

    def _head(self) -> tuple[int, dict[str, str]]:
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise OSError("the head of the answer does not end")
            self._rest += self._read()
        head, self._rest = self._rest[:end].decode("latin-1"), self._rest[end + 4 :]
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit():
            raise OSError(f"the answer is not HTTP/1: {first[:80]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(code), headers

    def _body(self, status: int, headers: Mapping[str, str]) -> tuple[bytes, bool]:
        """The body and whether it had an end of its own."""
        if status in _NO_BODY:
            return b"", True
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks(), True
        length = headers.get("content-length")
        if length is not None:
            if not length.isdigit():
                raise OSError(f"Content-Length {length[:40]!r}")
            return self._exactly(int(length)), True
        parts = [self._rest]
        self._rest = b""
        while data := self._socket.recv(_READ_BYTES):
            parts.append(data)
        return b"".join(parts), False

    def _chunks(self) -> bytes:
        parts = []
        while size := self._chunk_size():
            parts.append(self._exactly(size + 2)[:-2])
        while self._line():
            pass  # trailers
        return b"".join(parts)

    def _chunk_size(self) -> int:
        line = self._line().partition(b";")[0]
        try:
            return int(line, 16)
        except ValueError as error:
            raise OSError(f"chunk size {line[:40]!r}") from error

    def _line(self) -> bytes:
        while (end := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise OSError("a line of the answer does not end")
            self._rest += self._read()
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    def _exactly(self, size: int) -> bytes:
        rest, self._rest = self._rest, b""
        if len(rest) < size:
            parts, missing = [rest], size - len(rest)
            while missing > 0:
                data = self._read()
                parts.append(data)
                missing -= len(data)
            rest = b"".join(parts)
        self._rest = rest[size:]
        return rest[:size]


class Transport:
    """Kept connections to one server; any number of threads, each exchange has its own connection.

    Args:
        pool: urllib3's pool of that server; only opens connections here.
        prefix: path in front of every request's own, without a slash at its end.
        most_kept: idle connections kept.
        connect_timeout_seconds: bound of opening one.
    """

    def __init__(
        self, pool: Any, prefix: str, *, most_kept: int, connect_timeout_seconds: float
    ) -> None:
        self._pool = pool
        self._prefix = prefix
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle: deque[Wire] = deque()
        self._most_kept = most_kept
        weakref.finalize(self, _close_all, self._idle)
        name = f"[{pool.host}]" if ":" in pool.host else pool.host
        default = {"http": 80, "https": 443}.get(pool.scheme)
        self._host = name if pool.port in (None, default) else f"{name}:{pool.port}"

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout_seconds: float,
    ) -> Answer:
        """One request and its answer.

        Raises:
            BrokenConnectionError: the connection ended; a kept one may have done so before.
            OSError: not connected, no answer in time, or no HTTP.
            ValueError: a header or the path holds what would end the line.
        """
        request = self.encode(method, url, headers, body)
        wire = self._take()
        try:
            answer, is_kept = wire.exchange(request, timeout_seconds=timeout_seconds)
        except BaseException:
            wire.close()
            raise
        if is_kept and len(self._idle) < self._most_kept:
            self._idle.append(wire)
        else:
            wire.close()
        return answer

    def encode(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        """The bytes of one request.

        Raises:
            ValueError: as for `send`.
        """
        if _UNSAFE.search(url):
            raise ValueError(f"path {url!r} is not quoted")
        lines = [f"{method} {self._prefix}{url} HTTP/1.1", f"Host: {self._host}"]
        for name, value in headers.items():
            if _UNSAFE_VALUE.search(value):
                raise ValueError(f"header {name} has a line break in its value")
            lines.append(f"{name}: {value}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        elif method not in {"GET", "HEAD", "DELETE"}:
            lines.append("Content-Length: 0")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")

    def close(self) -> None:
        """Drops the idle connections."""
        _close_all(self._idle)

    def _take(self) -> Wire:
        """The connection used last, or a new one."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            if wire.is_usable():
                return wire
            wire.close()
        connection = self._pool._new_conn()  # noqa: SLF001 - no public name for 'one more'
        return Wire(connection, timeout_seconds=self._connect_timeout_seconds)


def _close_all(wires: deque[Wire]) -> None:
    while wires:
        wires.pop().close()
