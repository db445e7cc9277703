"""One exchange over a kept connection: every form of an answer, every way to break."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest
import urllib3

from tests.support.certificates import make_ca, make_certificate
from tests.support.fake_api import FakeApi, Reply
from workers.kube.connection import _opener, connect
from workers.kube.transport import BrokenConnectionError, Transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Accepts connections; on each it reads a request's head and sends the next scripted bytes.

    An empty script closes the connection without a word.
    """

    def __init__(self, *scripts, tls=None):
        self.scripts = list(scripts)
        self.tls = tls
        self.requests = []
        self.connections = 0
        self.closed = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while self.scripts:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):  # a client may give up
                if self.tls is None:
                    self.answer(connection)
                else:
                    with self.tls.wrap_socket(connection, server_side=True) as secured:
                        self.answer(secured)
            self.closed.set()

    def answer(self, connection):
        while self.scripts:
            data = b""
            while b"\r\n\r\n" not in data:
                more = connection.recv(65536)
                if not more:
                    return
                data += more
            self.requests.append(data)
            script = self.scripts.pop(0)
            for part in script:
                connection.sendall(part)
            if not script or script[-1] == b"":
                return

    def transport(self, prefix="", user=""):
        scheme = "http" if self.tls is None else "https"
        place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        pool = urllib3.PoolManager(cert_reqs="CERT_NONE")
        opened = _opener(pool, f"{scheme}://{place}")
        return Transport(f"{scheme}://{user}{place}{prefix}", opened, most_kept=2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    make_ca(folder, "ca")
    make_certificate(folder, "ca", "server", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context


@pytest.fixture(params=["http", "https"])
def serve(request, certificate):
    servers, transports = [], []
    tls = certificate if request.param == "https" else None

    def start(*scripts, prefix=""):
        servers.append(Server(*scripts, tls=tls))
        transports.append(servers[-1].transport(prefix))
        return servers[-1], transports[-1]

    yield start
    for one in transports:
        one.close()
    for one in servers:
        one.scripts.clear()
        with suppress(OSError):  # ends a blocked accept
            one.listener.shutdown(socket.SHUT_RDWR)
        one.thread.join(5)
        one.listener.close()


def get(transport, url="/x", timeout_seconds=5.0, **headers):
    return transport.send(
        "GET", url, transport.lines(headers), None, timeout_seconds=timeout_seconds
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([OK], b"hi", id="length"),
        pytest.param([OK[:20], OK[20:41], OK[41:]], b"hi", id="in pieces"),
        pytest.param(
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
                b"3;ext=1\r\n yo\r",
                b"\n0\r\nTrailer: x\r\n\r\n",
            ],
            b"hi yo",
            id="chunks, extension, trailer",
        ),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], b"hi", id="interim answer"),
        pytest.param([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", id="no content"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nto the ", b"end", b""], b"to the end", id="to EOF"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-LENGTH:  0\r\n\r\n"], b"", id="empty"),
    ],
)
def test_answer_is_read_whole(serve, parts, expected):
    _, transport = serve(parts)
    assert get(transport).data == expected


def test_connection_is_kept_and_request_has_prefix_host_and_length(serve):
    server, transport = serve([OK], [OK], prefix="/k8s/clusters/c-1")
    get(transport, "/a", Accept="application/json")
    answer = transport.send("POST", "/b?c=d", transport.lines({}), b"{}", timeout_seconds=5)
    host = f"127.0.0.1:{server.listener.getsockname()[1]}".encode()
    assert answer.status == 200
    assert server.connections == 1
    reading, writing = server.requests
    assert reading.startswith(b"GET /k8s/clusters/c-1/a HTTP/1.1\r\nHost: " + host + b"\r\n")
    assert b"\r\nAccept: application/json\r\n" in reading
    assert writing.startswith(b"POST /k8s/clusters/c-1/b?c=d HTTP/1.1\r\nHost: " + host)
    assert b"\r\nContent-Length: 2\r\n" in writing
    assert writing.endswith(b"\r\n\r\n{}")
    assert b"Expect" not in writing


def test_who_we_are_in_an_address_is_not_told_in_the_host(serve):
    server, _ = serve([OK])
    named = server.transport(user="me:secret@")
    get(named)
    named.close()
    assert b"secret" not in server.requests[0]


def test_methods_do_not_stick(serve):
    """A connection is used for one method after the other."""
    server, transport = serve([OK], [OK], [OK])
    transport.send("DELETE", "/x", b"", None, timeout_seconds=5)
    lines = transport.lines({"Content-Type": "a/b"})
    transport.send("PATCH", "/x", lines, b"[]", timeout_seconds=5)
    get(transport)
    assert [one.split()[0] for one in server.requests] == [b"DELETE", b"PATCH", b"GET"]
    assert b"Content-Type: a/b\r\n" in server.requests[1]
    assert b"Content-Length" not in server.requests[2]
    assert server.connections == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", id="close"
        ),
        pytest.param(OK + b"more than was announced", id="more than announced"),
    ],
)
def test_connection_that_cannot_be_trusted_is_not_kept(serve, first):
    server, transport = serve([first, b""], [OK])
    get(transport)
    assert get(transport).data == b"hi"
    assert server.connections == 2


def test_connection_closed_while_idle_is_replaced_before_a_write(serve):
    """A write must not be lost on a connection that a load balancer has dropped."""
    server, transport = serve([OK, b""], [OK])
    get(transport)
    assert server.closed.wait(5)
    assert transport.send("POST", "/x", transport.lines({}), b"{}", timeout_seconds=5).data == b"hi"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        pytest.param([], BrokenConnectionError, id="no answer"),
        pytest.param([b"HTTP/1.1 200", b""], BrokenConnectionError, id="in the head"),
        pytest.param([OK[:-1], b""], BrokenConnectionError, id="in the body"),
        pytest.param([b"SSH-2.0\r\n\r\n"], OSError, id="not HTTP"),
        pytest.param(
            [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nx"],
            OSError,
            id="another protocol",
        ),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
            OSError,
            id="chunk size",
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], OSError, id="length"),
        pytest.param([b"HTTP/1.1 200 OK\r\n" + b"a" * 2**17], OSError, id="endless head"),
    ],
)
def test_broken_answer_is_an_error_and_ends_the_connection(serve, parts, error):
    server, transport = serve(parts, [OK])
    with pytest.raises(error):
        get(transport)
    assert get(transport).data == b"hi"
    assert server.connections == 2


def test_silence_is_a_timeout(serve):
    """DA-026."""
    _, transport = serve([b"HTTP/1.1 200 OK\r\n"], [OK])
    with pytest.raises(TimeoutError, match="no answer within"):
        get(transport, timeout_seconds=0.05)


class Trickle(list):
    """A script whose parts come one by one, so that none is late and the whole is."""

    def __iter__(self):
        for part in super().__iter__():
            time.sleep(0.02)
            yield part


def test_the_time_is_for_the_whole_answer(serve):
    """DA-026: a server that always says a little holds no thread for ever."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    _, transport = serve(Trickle([head, *[b"x"] * 1000]), [OK])
    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
        get(transport, timeout_seconds=0.2)


def test_a_server_that_reads_nothing_holds_no_write_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        transport = Transport(address, _opener(urllib3.PoolManager(), address), most_kept=1)
        with pytest.raises(TimeoutError, match="no answer within"):
            transport.send("POST", "/x", b"", bytes(2**26), timeout_seconds=0.2)


def test_a_long_answer_is_read_whole_and_the_next_has_its_own_time(serve):
    body = bytes(range(256)) * 4096
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    server, transport = serve([head + body], [head, body], [OK])
    assert get(transport).data == body
    assert get(transport, timeout_seconds=60).data == body
    assert get(transport).data == b"hi"
    assert server.connections == 1


@pytest.mark.parametrize("url", ["/a b", "/a\r\nHost: x", "/ä"])
def test_path_cannot_end_the_line(serve, url):
    server, transport = serve([OK])
    with pytest.raises((ValueError, OSError)):
        get(transport, url)
    with pytest.raises(ValueError, match="a line break in 'Authorization'"):
        get(transport, Authorization="Bearer a\r\nX: y")
    assert server.requests == []


def test_a_header_that_cannot_be_sent_is_not_told(serve):
    _, transport = serve([OK])
    with pytest.raises(ValueError, match="a character that HTTP has not") as caught:
        transport.lines({"Authorization": "Bearer secret\u2014"})
    assert caught.value.__cause__ is None
    assert "secret" not in repr(caught.value)


def test_kept_connection_holds_no_answer(serve):
    """Neither a page of a list in memory, nor anything that the next answer could begin with."""
    _, transport = serve([OK], [OK[:-1], b""], [OK])
    assert get(transport).data == b"hi"
    reader = transport._kept.idle[0].reader
    assert (reader._parts, reader._head) == ([], b"")
    with pytest.raises(BrokenConnectionError):
        get(transport)
    assert get(transport).data == b"hi"


def test_how_long_to_wait_is_told(serve):
    _, transport = serve([b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"])
    answer = get(transport)
    assert (answer.status, answer.retry_after_seconds) == (429, 3.0)


@pytest.mark.parametrize("serve", ["http"], indirect=True)
def test_requests_go_through_the_proxy(monkeypatch, serve):
    proxy, _ = serve([OK])
    address = f"http://127.0.0.1:{proxy.listener.getsockname()[1]}"
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = connect("", "http://api.example.org", pool_size=1)
    assert get(found.transport, "/api").data == b"hi"
    assert proxy.requests[0].startswith(b"GET http://api.example.org/api HTTP/1.1\r\n")
    found.transport.close()


@pytest.mark.parametrize("serve", ["http"], indirect=True)
def test_no_proxy_holds(monkeypatch, serve):
    server, _ = serve([OK])
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    address = f"http://127.0.0.1:{server.listener.getsockname()[1]}"
    found = connect("", address, pool_size=1)
    assert get(found.transport).data == b"hi"
    found.transport.close()


def test_master_with_a_path_in_front():
    with FakeApi() as api:
        api.other = lambda _request: Reply(body=b"[]")
        found = connect("", f"{api.url}/front/", pool_size=1)
        found.transport.send("GET", "/api", b"", None, timeout_seconds=5)
        found.transport.close()
        assert api.requests[0].path == "/front/api"
