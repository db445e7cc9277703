"""One request by libcurl: every form of answer, every kind of failure, and the pool."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.support.certificates import make_ca, make_certificate
from tests.support.fake_api import FakeApi, Reply
from tests.support.waiting import wait_until
from workers.errors import LeaseLost
from workers.kube import transport as module
from workers.kube.connection import connect
from workers.kube.transport import Tls, Transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Accepts connections; on each it reads a request's head and sends the next scripted bytes.

    An empty script closes the connection without an answer.
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
            with connection, suppress(OSError):  # the client may close the connection
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
        return Transport(f"{scheme}://{user}{place}{prefix}", Tls(is_verified=False))


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
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return transport.send("GET", url, lines, timeout_seconds=timeout_seconds)


def post(transport, body=b"{}", timeout_seconds=5.0, **options):
    return transport.send("POST", "/x", [], body, timeout_seconds=timeout_seconds, **options)


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
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-LENGTH:  0\r\n\r\n"], b"", id="empty"),
    ],
)
def test_answer_is_read_whole(serve, parts, expected):
    _, transport = serve(parts)
    assert get(transport).data == expected


@pytest.mark.parametrize("serve", ["http", "https"], indirect=True)
def test_an_answer_as_long_as_its_connection(request, serve):
    """Over TLS, an attacker who can cut the TCP connection could otherwise truncate an answer."""
    _, transport = serve([b"HTTP/1.0 200 OK\r\n\r\nto the ", b"end", b""])
    if "https" in request.node.name:
        with pytest.raises(ConnectionError, match="eof"):
            get(transport)
    else:
        assert get(transport).data == b"to the end"


def test_connection_is_kept_and_request_has_prefix_host_and_length(serve):
    server, transport = serve([OK], [OK], prefix="/k8s/clusters/c-1")
    get(transport, "/a", Accept="application/json")
    answer = transport.send("POST", "/b?c=d", [], b"{}", timeout_seconds=5)
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
    """A connection is reused for one method after another."""
    server, transport = serve([OK], [OK], [OK])
    transport.send("DELETE", "/x", [], b"", timeout_seconds=5)
    transport.send("PATCH", "/x", ["Content-Type: a/b"], b"[]", timeout_seconds=5)
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
    # libcurl checks a kept connection if it was idle for a second.
    idle_since = time.monotonic()
    wait_until(lambda: time.monotonic() - idle_since > 1.1, 5, "it was idle for a second")
    assert post(transport).data == b"hi"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        pytest.param([], ConnectionError, id="no answer"),
        pytest.param([b"HTTP/1.1 200", b""], ConnectionError, id="in the head"),
        pytest.param([OK[:-1], b""], ConnectionError, id="in the body"),
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
    """DA-026: a server that sends nothing is not waited for without end."""
    _, transport = serve([b"HTTP/1.1 200 OK\r\n"], [OK])
    with pytest.raises(TimeoutError, match="timed out"):
        get(transport, timeout_seconds=0.05)


class Trickle(list):
    """A script that sends its parts slowly: each is in time, but the whole is too late."""

    def __iter__(self):
        for part in super().__iter__():
            time.sleep(0.02)
            yield part


def test_the_time_is_for_the_whole_answer(serve):
    """DA-026: a server that keeps sending small parts does not hold a thread forever."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    _, transport = serve(Trickle([head, *[b"x"] * 1000]), [OK])
    with pytest.raises(TimeoutError, match="timed out"):
        get(transport, timeout_seconds=0.2)


def test_a_server_that_reads_nothing_holds_no_write_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="timed out"):
            post(Transport(address), bytes(2**26), timeout_seconds=0.2)


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
    with pytest.raises(ValueError, match="the header 'Authorization' contains a line break"):
        get(transport, Authorization="Bearer a\r\nX: y")
    assert server.requests == []


def test_a_header_that_cannot_be_sent_is_not_told(serve):
    _, transport = serve([OK])
    with pytest.raises(ValueError, match="contains a character outside ASCII") as caught:
        get(transport, Authorization="Bearer secret\u2014")
    assert caught.value.__cause__ is None
    assert "secret" not in repr(caught.value)


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
    found = connect("", "http://api.example.org")
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
    found = connect("", address)
    assert get(found.transport).data == b"hi"
    found.transport.close()


def test_master_with_a_path_in_front():
    with FakeApi() as api:
        api.other = lambda _request: Reply(body=b"[]")
        found = connect("", f"{api.url}/front/")
        get(found.transport, "/api")
        found.transport.close()
        assert api.requests[0].path == "/front/api"


# A kept connection that has ended: the request arrives, but its reply is lost.


def test_a_read_on_a_dead_kept_connection_is_sent_again(serve):
    server, transport = serve([OK], [], [OK])
    get(transport)
    assert get(transport).data == b"hi"
    assert [one[:3] for one in server.requests] == [b"GET"] * 3


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000])
def test_a_write_whose_reply_may_be_lost_is_sent_once(serve, method, body):
    """It may have succeeded; only the next reconcile, which reads the state, can find out."""
    server, transport = serve([OK], [], [OK])
    get(transport)
    with pytest.raises(ConnectionError):
        transport.send(method, "/x", [], body, timeout_seconds=5)
    assert [one.split()[0] for one in server.requests] == [b"GET", method.encode()]
    assert get(transport).data == b"hi"


# The moment before a write is sent.


def lost():
    raise LeaseLost("lost")


def test_what_is_called_before_a_write_may_stop_it(serve):
    server, transport = serve([OK], [OK])
    with pytest.raises(LeaseLost):
        post(transport, before_sent=lost)
    asked = []
    assert post(transport, before_sent=lambda: asked.append(1)).data == b"hi"
    assert get(transport).data == b"hi"
    assert (asked, len(server.requests)) == ([1], 2)


def test_a_redirect_is_an_answer(serve):
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    _, transport = serve([moved])
    assert get(transport, Authorization="Bearer t").status == 302


def test_an_early_refusal_of_a_large_write_is_read(serve):
    early = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig"
    _, transport = serve(Trickle([early, *[b""] * 25]))
    answer = post(transport, bytes(2**23))
    assert (answer.status, answer.data) == (413, b"big")


# The pool.


class Slow:
    """A transport to a server whose answers wait for `go`."""

    def __init__(self):
        self.go = threading.Event()
        self.api = FakeApi()
        self.api.other = lambda _request: Reply(body=b"hi", wait=self.go)
        self.api.__enter__()
        self.transport = Transport(self.api.url)

    def close(self):
        self.go.set()
        self.transport.close()
        self.api.__exit__()


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(module, "CONNECTIONS", 2)
    slow = Slow()
    yield slow
    slow.close()


def test_a_stalled_server_holds_its_connections_and_one_line(slow):
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(get, slow.transport, timeout_seconds=20) for _ in range(4)]
        wait_until(lambda: len(slow.api.requests) == 2, 10, "two are out")
        with pytest.raises(TimeoutError, match=r"all 2 connections were in use for 0\.1 s"):
            get(slow.transport, timeout_seconds=0.1)
        assert len(slow.api.requests) == 2
        slow.go.set()
        assert [one.result().data for one in asked] == [b"hi"] * 4


def test_a_handle_comes_back_whatever_happened(slow):
    for _ in range(5):
        with pytest.raises(TimeoutError, match="timed out"):
            get(slow.transport, timeout_seconds=0.05)
        with pytest.raises(LeaseLost):
            post(slow.transport, before_sent=lost)
        with pytest.raises((ValueError, OSError)):
            get(slow.transport, "/a b")
    slow.go.set()
    assert get(slow.transport).data == b"hi"


def test_closing_while_requests_run_frees_nobody_elses_place(slow):
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(get, slow.transport) for _ in range(3)]
        wait_until(lambda: len(slow.api.requests) == 2, 10, "two are out")
        slow.transport.close()
        slow.go.set()
        assert [one.result().data for one in asked] == [b"hi"] * 3


def test_a_signal_in_the_main_thread_ends_a_request(slow):
    """Ctrl-C must end a command whose API server stalls."""
    # Other tests in this process may have installed their own handlers.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            get(slow.transport, timeout_seconds=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 30
    slow.go.set()
    assert get(slow.transport).data == b"hi"


def test_many_threads_share_few_connections(serve):
    """Each thread gets its own answer."""
    with FakeApi() as api:
        api.other = lambda request: Reply(body=request.path.encode() * 5000)
        transport = Transport(api.url)
        with ThreadPoolExecutor(32) as threads:
            paths = [f"/{number}" for number in range(400)]
            found = list(threads.map(lambda path: get(transport, path, 60).data, paths))
        assert found == [path.encode() * 5000 for path in paths]
        transport.close()


# Watches.


def test_a_watch_is_read_as_it_comes_and_ends_with_its_server(serve):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, transport = serve(Trickle([head, b"3\r\na\nb\r\n", b"2\r\nc\n\r\n", b"0\r\n\r\n"]))
    stream, data = transport.open("/x", [], silence_seconds=5), b""
    while chunk := stream.read():
        data += chunk
    assert (stream.status, data) == (200, b"a\nbc\n")
    stream.close()
    stream.close()
    stream.interrupt()


def read_all(transport):
    stream = transport.open("/x", [], silence_seconds=5)
    while stream.read():
        pass


def test_a_watch_of_a_process_with_many_open_files(serve):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    open_files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        _, transport = serve(Trickle([head, b"2\r\na\n\r\n", b"0\r\n\r\n"]))
        stream = transport.open("/x", [], silence_seconds=5)
        assert (stream.read(), stream.read()) == (b"a\n", b"")
        stream.close()
    finally:
        for one in open_files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_watch_that_is_cut_off_is_an_error(serve):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, transport = serve([head, b"3\r\na", b""])
    with pytest.raises(ConnectionError):
        read_all(transport)


def test_a_refused_watch_is_a_complete_answer(serve):
    _, transport = serve([OK.replace(b"200 OK", b"410 Gone")])
    answer = transport.open("/x", [], silence_seconds=5)
    assert (answer.status, answer.data) == (410, b"hi")


def test_a_watch_without_a_head_ends(slow):
    with pytest.raises(TimeoutError, match="no data arrived"):
        slow.transport.open("/w", [], silence_seconds=0.2)


def test_a_watch_is_interrupted_from_another_thread(slow):
    slow.api.watches["/w"].append(Reply(lines=[], stays_open=True))
    stream = slow.transport.open("/w?watch=1", [], silence_seconds=60)
    threading.Timer(0.1, stream.interrupt).start()
    with pytest.raises(ConnectionError, match="interrupted"):
        stream.read()
    stream.close()


def test_silence_within_a_watch_ends_it(slow):
    slow.api.watches["/w"].append(Reply(lines=[b"{}"], stays_open=True))
    stream = slow.transport.open("/w?watch=1", [], silence_seconds=0.3)
    assert stream.read() == b"{}\n"
    with pytest.raises(TimeoutError, match=r"no data arrived for 0\.3 s"):
        stream.read()
    stream.close()
