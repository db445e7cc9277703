"""What odd servers and proxies do to an exchange: surplus, half answers, early ends, signals."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import urllib3

from tests.unit.kube.test_transport import OK, certificate, get, serve  # noqa: F401
from workers.kube.client import KubeClient
from workers.kube.connection import _opener
from workers.kube.errors import ApiError
from workers.kube.transport import Transport


@contextmanager
def scripted(handle):
    """A server that does with each accepted connection what `handle` says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = []

        def run():
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    ours.append(connection)
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection):
            with suppress(OSError), connection:
                handle(connection)

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        for connection in ours:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def plain(port, scheme="http"):
    address = f"{scheme}://127.0.0.1:{port}"
    return Transport(
        address, _opener(urllib3.PoolManager(cert_reqs="CERT_NONE"), address), most_kept=2
    )


def head_of(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise OSError
        data += more
    return data


LENGTH_2 = b"Content-Length: 2\r\n\r\nhi"
SECOND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nbad"


@pytest.mark.parametrize("serve", ["http"], indirect=True)
@pytest.mark.parametrize(
    "surplus",
    [
        pytest.param(SECOND, id="a whole answer"),
        pytest.param(SECOND[:-1], id="all but its end"),
        pytest.param(SECOND[:30], id="a part of a head"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="an interim one"),
    ],
)
def test_a_second_answer_is_no_part_of_the_first(serve, surplus):  # noqa: F811
    server, transport = serve([OK + surplus, b""], [OK])
    answer = get(transport, timeout_seconds=1)
    assert (answer.status, answer.data) == (200, b"hi")
    assert get(transport).data == b"hi"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(
            [b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"], (204, b""), id="204 length"
        ),
        pytest.param(
            [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"], (304, b""), id="304 length"
        ),
        pytest.param([b"HTTP/1.1 304 Not Modified\r\n\r\n"], (304, b""), id="304"),
        pytest.param(
            [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", OK],
            (200, b"hi"),
            id="interims",
        ),
        pytest.param(
            [b"HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n" + OK],
            (200, b"hi"),
            id="102 len",
        ),
        pytest.param([b"HTTP/1.0 200 OK\r\n" + b"\r\nhi", b""], (200, b"hi"), id="1.0"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nUpgrade: x\r\nConnection: Upgrade\r\n" + LENGTH_2],
            (200, b"hi"),
            id="upgrade offered",
        ),
        pytest.param(
            [b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nhi"], (200, b"hi"), id="no reason"
        ),
        pytest.param([b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi"], (200, b"hi"), id="no sp"),
        pytest.param([bytes([one]) for one in OK], (200, b"hi"), id="bytes"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\n\r\nA: b\r\nContent-Length: 4\r\nx", b""],
            (200, b"A: b\r\nContent-Length: 4\r\nx"),
            id="body that looks like a head",
        ),
    ],
)
def test_forms(serve, parts, expected):  # noqa: F811
    _, transport = serve(parts)
    answer = get(transport, timeout_seconds=1.5)
    assert (answer.status, answer.data) == expected


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + LENGTH_2],
            id="both",
        ),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", b""], id="two"
        ),
        pytest.param([b"HTTP/1.1 200 OK\nContent-Length: 9\n\nhi", b""], id="bare LF, cut"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nContent-Length:\r\n 9\r\n\r\nhi", b""], id="folded length, cut"
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhi", b""], id="gzip"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 18 + b"\r\n"],
            id="huge",
        ),
        pytest.param([b"HTTP/2.0 200 OK\r\nContent-Length: 9\r\n\r\nhi", b""], id="http2"),
        pytest.param([b"\x15\x03\x01\x00\x02\x02\x46", b""], id="tls alert"),
        pytest.param([b"HTTP/1.1 100 C\r\n\r\n" * 8000], id="interims without end"),
        pytest.param([b"HTTP/1.1 999999 C\r\n\r\n", b""], id="status"),
    ],
)
def test_no_forms(serve, parts):  # noqa: F811
    _, transport = serve(parts)
    with pytest.raises(OSError) as caught:
        get(transport, timeout_seconds=1.5)
    assert not isinstance(caught.value, TimeoutError)
    assert not transport._kept.idle


def test_to_the_end_without_close_notify_is_no_end(certificate):  # noqa: F811
    """Whoever can cut the TCP connection could else shorten an answer."""

    def handle(connection):
        with certificate.wrap_socket(connection, server_side=True) as tls:
            head_of(tls)
            tls.sendall(b"HTTP/1.1 200 OK\r\n\r\n[1,")
            tls.detach()

    with scripted(handle) as port, pytest.raises(OSError):
        get(plain(port, "https"), timeout_seconds=2)


# --- time


def timed(function, *args, **options):
    begin = time.monotonic()
    with pytest.raises(OSError) as caught:
        function(*args, **options)
    return time.monotonic() - begin, caught.value


def test_a_server_that_reads_slowly_holds_no_write_for_ever():
    def handle(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(10_000):
            time.sleep(0.02)
            connection.recv(16384)

    with scripted(handle) as port:
        took, error = timed(plain(port).send, "POST", "/x", b"", bytes(2**24), timeout_seconds=0.5)
    assert isinstance(error, TimeoutError)
    assert took < 20


def test_a_server_that_reads_nothing_takes_the_time_once():
    with scripted(lambda connection: time.sleep(60)) as port:
        took, error = timed(plain(port).send, "POST", "/x", b"", bytes(2**26), timeout_seconds=1.0)
    assert isinstance(error, TimeoutError)
    assert took < 20


# --- signals


@pytest.mark.parametrize("serve", ["http", "https"], indirect=True)
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_signal_is_no_end_of_the_time(serve, part):  # noqa: F811
    class Late(list):
        def __iter__(self):
            if part == "body":
                yield OK[:-1]
            time.sleep(0.4)
            yield OK[-1:] if part == "body" else OK

    _, transport = serve([OK], Late([OK]))
    get(transport)
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        assert get(transport, timeout_seconds=5).data == b"hi"
    finally:
        signal.signal(signal.SIGALRM, old)


# --- early answers


EARLY = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig"


@pytest.mark.parametrize("how", ["half-closed", "open"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_answer_that_comes_before_the_body_was_read(certificate, scheme, how):  # noqa: F811
    """As Go's server does: it answers, ends its side, and half a second later all of it."""

    def handle(connection):
        if scheme == "https":
            connection = certificate.wrap_socket(connection, server_side=True)
        connection.recv(4096)
        connection.sendall(EARLY)
        if how == "half-closed":
            connection.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
        connection.close()

    with scripted(handle) as port:
        answer = plain(port, scheme).send("POST", "/x", b"", bytes(2**23), timeout_seconds=2.0)
    assert (answer.status, answer.data) == (413, b"big")


# --- proxies


@pytest.fixture
def through(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    def set_proxy(url):
        for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, url)

    return set_proxy


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"SSH-2.0-x\r\n", id="no HTTP"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 407 Who are you?\r\n\r\n", id="407"),
        pytest.param(b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n", id="a long line"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000 + b"\r\n\r\n", id="a long header"),
        pytest.param(b"HTTP/1.1 abc OK\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nno TLS", id="no TLS"),
    ],
)
def test_a_proxy_that_makes_no_tunnel_is_an_error_of_ours(through, said):
    def handle(connection):
        head_of(connection)
        connection.sendall(said)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.recv(65536)

    with scripted(handle) as port:
        through(f"http://127.0.0.1:{port}")
        client = KubeClient.from_settings(master="https://api.example.org:6443", pool_size=1)
        with pytest.raises(ApiError) as caught:
            client.request("POST", "/x", body={}, timeout_seconds=2)
        print(caught.value)
