"""One HTTP exchange over a kept connection, by libcurl: a third of urllib3's CPU per request.

A claim takes four requests, and with urllib3 and http.client most of a worker's CPU went into
building and parsing their headers. Watches stay urllib3's: they are few and last.

Invariants: a handle (one connection) is used by one thread at a time, and dropped after a failure.
"""

from __future__ import annotations

import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pycurl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONNECT_TIMEOUT_SECONDS: Final = 5.0
_UNSAFE: Final = "\r\n\x00"
# The connection ended before the answer did; a kept one may have been closed meanwhile.
_BROKEN: Final = frozenset(
    {pycurl.E_GOT_NOTHING, pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR, pycurl.E_PARTIAL_FILE}
)


class BrokenConnectionError(OSError):
    """The connection ended before the answer did; the request may have arrived."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Attributes:
        retry_after_seconds: as the server asked for, 0 when it did not.
    """

    status: int
    data: bytes
    retry_after_seconds: float = 0.0


class _Handle:
    """One connection and the parts of the answer that it receives."""

    __slots__ = ("curl", "parts")

    def __init__(self, options: Mapping[int, Any]) -> None:
        self.curl = pycurl.Curl()
        self.parts: list[bytes] = []
        for option, value in options.items():
            self.curl.setopt(option, value)
        self.curl.setopt(pycurl.WRITEFUNCTION, self.parts.append)


class Transport:
    """Kept connections to one server; any number of threads, each exchange has its own connection.

    Args:
        base_url: scheme, address and path in front of every request's own.
        options: libcurl's options of TLS and proxy, see `options_of`.
        most_kept: idle connections kept.
        server_name: of the server's certificate, where it is not the address.
    """

    def __init__(
        self, base_url: str, options: Mapping[int, Any], *, most_kept: int, server_name: str = ""
    ) -> None:
        self._base_url = base_url
        self._options = dict(options)
        self._lines: list[str] = []
        if server_name:
            self._connect_as(server_name)
        self._idle: deque[_Handle] = deque()
        self._most_kept = most_kept

    def lines(self, headers: Mapping[str, str]) -> list[str]:
        """Checked lines for `send`; the same ones serve any number of requests.

        Raises:
            ValueError: a header holds what would end its line.
        """
        # No waiting for "100 Continue" before a large body.
        lines = [*self._lines, *(f"{name}: {value}" for name, value in headers.items()), "Expect:"]
        for line in lines:
            _check(line)
        return lines

    def send(
        self,
        method: str,
        url: str,
        lines: Sequence[str],
        body: bytes | None,
        *,
        timeout_seconds: float,
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
            TimeoutError: no complete answer in time.
            OSError: not connected, not trusted, or no HTTP.
            ValueError: the path holds what would end its line.
        """
        _check(url)
        handle = self._take()
        try:
            _prepare(handle.curl, method, self._base_url + url, lines, body)
            answer = _perform(handle, timeout_seconds)
        except BaseException:
            handle.curl.close()
            raise
        if len(self._idle) < self._most_kept:
            self._idle.append(handle)
        else:
            handle.curl.close()
        return answer

    def close(self) -> None:
        """Drops the idle connections."""
        while self._idle:
            self._idle.pop().curl.close()

    def _connect_as(self, server_name: str) -> None:
        """The name that libcurl checks is the URL's, so the address goes elsewhere."""
        parts = urlsplit(self._base_url)
        port = parts.port or 443
        address = parts.netloc.removesuffix(f":{port}")
        self._base_url = f"https://{server_name}:{port}{parts.path}"
        self._options[pycurl.CONNECT_TO] = [f"{server_name}:{port}:{address}:{port}"]
        self._lines = [f"Host: {parts.netloc}"]

    def _take(self) -> _Handle:
        """The handle used last, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Handle(self._options)


def options_of(configuration: Any, base_url: str, proxy: str) -> dict[int, Any]:
    """Options of libcurl for a loaded client configuration.

    Args:
        configuration: `kubernetes.client.Configuration`.
        base_url: the API server's.
        proxy: its address, empty for none.
    """
    options: dict[int, Any] = {
        pycurl.NOSIGNAL: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.PATH_AS_IS: 1,
        pycurl.TCP_KEEPALIVE: 1,
        pycurl.CONNECTTIMEOUT_MS: int(CONNECT_TIMEOUT_SECONDS * 1000),
        pycurl.PROXY: proxy,
        pycurl.NOPROXY: "",
    }
    if proxy and configuration.proxy_headers:
        lines = [f"{name}: {value}" for name, value in configuration.proxy_headers.items()]
        options[pycurl.PROXYHEADER] = lines
    if urlsplit(base_url).scheme == "https":
        options |= _tls_options(configuration)
    return options


def _tls_options(configuration: Any) -> dict[int, Any]:
    options: dict[int, Any] = {}
    if not configuration.verify_ssl:
        options[pycurl.SSL_VERIFYPEER] = 0
    if not configuration.verify_ssl or configuration.assert_hostname is False:
        options[pycurl.SSL_VERIFYHOST] = 0
    if configuration.ssl_ca_cert:
        options[pycurl.CAINFO] = configuration.ssl_ca_cert
    else:
        system = ssl.get_default_verify_paths()
        options |= {
            option: path
            for option, path in ((pycurl.CAINFO, system.cafile), (pycurl.CAPATH, system.capath))
            if path
        }
    if configuration.cert_file:
        options[pycurl.SSLCERT] = configuration.cert_file
    if configuration.key_file:
        options[pycurl.SSLKEY] = configuration.key_file
    return options


def _check(text: str) -> None:
    if any(map(text.__contains__, _UNSAFE)):
        raise ValueError(f"a line break in {text.partition(':')[0]!r}")


def _prepare(
    curl: pycurl.Curl, method: str, url: str, lines: Sequence[str], body: bytes | None
) -> None:
    curl.setopt(pycurl.URL, url)
    if body is None:
        curl.setopt(pycurl.HTTPGET, 1)
    else:
        curl.setopt(pycurl.POSTFIELDS, body)
    curl.setopt(pycurl.CUSTOMREQUEST, method)
    curl.setopt(pycurl.HTTPHEADER, lines)


def _perform(handle: _Handle, timeout_seconds: float) -> Answer:
    curl, parts = handle.curl, handle.parts
    curl.setopt(pycurl.TIMEOUT_MS, max(1, int(timeout_seconds * 1000)))
    try:
        curl.perform()
        data = b"".join(parts)
    except pycurl.error as error:
        code, text = error.args  # type: ignore[misc]  # stubs know no second value
        raise _failure(code, text, timeout_seconds) from None
    finally:
        parts.clear()  # a kept handle would hold the whole answer, a page of a list
    status = curl.getinfo(pycurl.RESPONSE_CODE)
    wait_seconds = curl.getinfo(pycurl.RETRY_AFTER) if status >= 429 else 0
    return Answer(status, data, float(wait_seconds))


def _failure(code: int, text: str, timeout_seconds: float) -> OSError:
    if code == pycurl.E_OPERATION_TIMEDOUT and "Connection timed out" not in text:
        return TimeoutError(f"no answer within {timeout_seconds:g} s")
    return BrokenConnectionError(text) if code in _BROKEN else OSError(text)
