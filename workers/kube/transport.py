"""One HTTP exchange over a kept connection: a quarter of urllib3's CPU per request.

A claim takes four requests, and with urllib3 and http.client most of a worker's CPU went into
building and parsing their headers. urllib3 opens the connections, for it knows TLS and proxies, and
llhttp parses the answers. Watches stay urllib3's: they are few and last.

Invariants: a connection is used by one thread at a time, and dropped after a failure.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from urllib3.exceptions import HTTPError

from workers.kube.kept import Kept
from workers.syscalls import is_silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_TIMEOUT_SECONDS: Final = 5.0
_UNSAFE: Final = "\r\n\x00"
_URL: Final = re.compile(r"[!-~]*")
_MOST_HEAD_BYTES: Final = 64 * 1024
# What TLS takes and hands out at once.
_PART_BYTES: Final = 16 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_HAS_LENGTH: Final = re.compile(rb"\r\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)
_RETRY_AFTER: Final = re.compile(
    rb"\r\nretry-after[ \t]*:[ \t]*(\d{1,9})[ \t]*(?:\r|$)", re.IGNORECASE
)
# How Python tells that the kernel's time is over, or that a signal came.
_NOT_READY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BrokenConnectionError(OSError):
    """The connection ended before the answer did; the request may have arrived."""


_BROKEN: Final = (
    ConnectionError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    BrokenConnectionError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Attributes:
        retry_after_seconds: as the server asked for, 0 when it did not.
    """

    status: int
    data: bytes
    retry_after_seconds: float = 0.0


class _Reader:
    """What came of the present answer; told by llhttp, which goes on to the next one by itself.

    Attributes:
        is_kept: the connection may be used again.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """For the next answer."""
        self._status, self._head = 0, b""
        self._parts: list[bytes] = []
        self.is_over = self.is_kept = False

    def feed(self, data: bytes) -> None:
        """Take what came; `b""` is the end of the connection.

        Raises:
            BrokenConnectionError: it ended before the answer did.
            OSError: this is no HTTP.
        """
        if not self._status:
            self._head += data
            if len(self._head) > _MOST_HEAD_BYTES:
                raise OSError("the head of the answer has no end")
        if not data:
            if not self._status or _HAS_LENGTH.search(self._head.partition(_END_OF_HEAD)[0]):
                raise BrokenConnectionError("the connection ended before the answer did")
            self.is_over = True  # an answer that lasts as long as its connection
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.is_kept = False
            if not self.is_over:  # else it is more than was announced
                raise OSError(f"the answer is no HTTP: {error}") from error

    def answer(self) -> Answer:
        """The complete one; nothing stays in memory of what may be a Secret or a page of a list."""
        status, head, data = self._status, self._head, b"".join(self._parts)
        self._parts, self._head = [], b""
        found = _RETRY_AFTER.search(head.partition(_END_OF_HEAD)[0]) if status >= 429 else None
        return Answer(status, data, float(found[1]) if found else 0.0)

    # Called by llhttp.

    def on_message_begin(self) -> None:
        """One more, that nobody asked for, says that the connection is not in step."""
        self.is_kept = False

    def on_headers_complete(self) -> None:
        """Of an interim answer (1xx) too, after which the real one comes."""
        status = self._parser.get_status_code()
        if not self.is_over and status >= 200:
            self._status = status

    def on_body(self, data: bytes) -> None:
        """A part."""
        if not self.is_over:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        """The last byte."""
        if self._status and not self.is_over:
            self.is_over = True
            self.is_kept = self._parser.should_keep_alive()


class _Connection:
    """One connection, of which the kernel keeps the time.

    With a time-out of its own Python asks the socket before each call whether it is ready: a call
    to the system more, at which every other thread may run. It takes this one for one that never
    blocks, while for the kernel it blocks as long as `SO_RCVTIMEO` says.

    The kernel's time is of each call. So who sends one TLS record byte by byte is waited for.

    Args:
        owner: urllib3's connection, open.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._sock: Any = owner.sock
        # urllib3's own kind, for TLS within the TLS of a proxy, knows no time of the kernel.
        self._is_kernels = isinstance(self._sock, socket.socket)
        if self._is_kernels:
            self._sock.settimeout(0)
            os.set_blocking(self._sock.fileno(), True)
        self._wait_seconds = 0.0
        self.opened_at = time.monotonic()
        self.heard_at = 0.0
        self.reader = _Reader()

    @property
    def is_fit(self) -> bool:
        """Kept, and neither ended nor told anything since its last answer."""
        return self.reader.is_kept and is_silent(self._sock)

    def exchange(self, request: bytes, seconds: float) -> Answer:
        """Send a request and read its answer; raises as `Transport.send`."""
        end, reader, broken = time.monotonic() + seconds, self.reader, None
        reader.begin()
        self._wait_at_most(seconds)
        try:
            try:
                self._send(request, end)
            except _BROKEN as error:
                broken = error  # a server that refuses a large request may have said why
            reader.feed(self._receive(end))
            while not reader.is_over:
                self._wait_until(end)
                reader.feed(self._receive(end))
        except _BROKEN as error:
            raise BrokenConnectionError(str(broken or error)) from error
        reader.is_kept = reader.is_kept and broken is None
        self.heard_at = time.monotonic()
        return reader.answer()

    def close(self) -> None:
        """Drop it."""
        self._owner.close()

    def _send(self, request: bytes, end: float) -> None:
        """By parts, for the kernel's time is that of each."""
        at = 0
        while at < len(request):
            try:
                at += self._sock.send(request[at : at + _PART_BYTES])
            except _NOT_READY:
                self._wait_until(end)
                continue
            if at < len(request):
                self._wait_until(end)

    def _receive(self, end: float) -> bytes:
        while True:
            try:
                data: bytes = self._sock.recv(_PART_BYTES)
            except _NOT_READY:  # the time is over, or a signal came
                self._wait_until(end)
                continue
            return data

    def _wait_until(self, end: float) -> None:
        self._wait_at_most(end - time.monotonic())

    def _wait_at_most(self, seconds: float) -> None:
        """For the next call to the kernel.

        Raises:
            TimeoutError: no time is left.
        """
        if seconds == self._wait_seconds:
            return
        if seconds <= 0:
            raise TimeoutError
        self._wait_seconds = seconds
        if not self._is_kernels:
            self._sock.settimeout(seconds)
            return
        whole = int(seconds)
        # A `timeval`, in which 0 would mean for ever.
        wait = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)


class Transport:
    """Kept connections to one server; any number of threads, each exchange has its own connection.

    Args:
        base_url: scheme, address and path in front of every request's own.
        opened: makes a connection of urllib3's and opens it within so many seconds.
        most_kept: idle connections kept.
        proxy_headers: for a proxy that is told the whole address with each request (HTTP without
            TLS); None without such a one.
    """

    def __init__(
        self,
        base_url: str,
        opened: Callable[[float], Any],
        *,
        most_kept: int,
        proxy_headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        self._prefix = parts.path if proxy_headers is None else base_url
        self._fixed = {"Host": parts.netloc.rpartition("@")[2], **(proxy_headers or {})}
        self._kept = Kept(partial(_opened, opened), most_kept)
        # A client that nobody has any more leaves no connection open.
        weakref.finalize(self, self._kept.close)

    def lines(self, headers: Mapping[str, str]) -> bytes:
        """Checked lines for `send`; the same ones serve any number of requests.

        Raises:
            ValueError: a header holds what would end its line.
        """
        lines = [f"{name}: {value}" for name, value in {**self._fixed, **headers}.items()]
        for line in lines:
            if any(map(line.__contains__, _UNSAFE)):
                raise ValueError(f"a line break in {line.partition(':')[0]!r}")
        try:
            return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        except UnicodeEncodeError:  # which holds the headers, a token among them
            raise ValueError("a header holds a character that HTTP has not") from None

    def send(
        self, method: str, url: str, lines: bytes, body: bytes | None, *, timeout_seconds: float
    ) -> Answer:
        """One request and its answer, `timeout_seconds` for both together.

        Args:
            method: GET and so on.
            url: what follows the server's own.
            lines: from `lines`.
            body: None without.
            timeout_seconds: more than 0.

        Raises:
            BrokenConnectionError: the connection ended.
            TimeoutError: no complete answer in time, or no connection.
            OSError: not connected, not trusted, or no HTTP.
            ValueError: the path holds what no URL may.
        """
        if not _URL.fullmatch(url):
            raise ValueError(f"a character that no URL may have in {url!r}")
        target = f"{method} {self._prefix}{url} HTTP/1.1\r\n".encode()
        if body is None:
            request = b"%b%b\r\n" % (target, lines)
        else:
            request = b"%b%bContent-Length: %d\r\n\r\n%b" % (target, lines, len(body), body)
        began, connection = time.monotonic(), self._kept.at_once()
        left = timeout_seconds
        if connection is None:
            connection = self._kept.in_time(timeout_seconds, goes_first=method != "GET")
            left -= time.monotonic() - began
        try:
            answer = connection.exchange(request, left)
        except BaseException as error:
            self._kept.drop(connection)
            if isinstance(error, (BrokenConnectionError, TimeoutError)):
                # The way to the server may have changed: those that nobody used since are gone too.
                self._kept.drop_older(began)
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"no answer within {timeout_seconds:g} s") from error
            raise
        if connection.reader.is_kept:
            self._kept.give_back(connection)
        else:
            self._kept.drop(connection, has_served=True)
        return answer

    def keep(
        self,
        most: int,
        url: str,
        lines: Callable[[], bytes],
        told: Callable[[int, float], None] = lambda *_: None,
    ) -> None:
        """Have `most` connections open, for requests to come.

        Args:
            most: counting those in use.
            url: of a cheap read, over those of which nothing was heard lately.
            lines: returns those from `lines`; asked for when there is something to read.
            told: status and seconds of each answer.

        Raises:
            OSError: the server is away, or answers no such read.
        """

        def read(connection: _Connection) -> None:
            request = f"GET {self._prefix}{url} HTTP/1.1\r\n".encode() + lines() + b"\r\n"
            began = time.monotonic()
            with suppress(BrokenConnectionError):  # it had ended; the others may not have
                answer = connection.exchange(request, CONNECT_TIMEOUT_SECONDS)
                told(answer.status, time.monotonic() - began)

        self._kept.keep(most, read)

    def close(self) -> None:
        """Drops the idle connections."""
        self._kept.close()


def _opened(opened: Callable[[float], Any], seconds: float) -> _Connection:
    try:
        return _Connection(opened(min(seconds, CONNECT_TIMEOUT_SECONDS)))
    except (HTTPError, HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
