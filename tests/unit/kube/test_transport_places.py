"""What an exchange leaves behind: its connection's place, the others, and the time that it took."""

from __future__ import annotations

import socket
import time

import pytest

from tests.support.fake_api import FakeApi, status
from tests.unit.kube.test_transport import OK, certificate, get, serve  # noqa: F401
from tests.unit.kube.test_transport_peers import SECOND, head_of, plain, scripted, timed
from workers.kube import transport as module
from workers.kube.client import KubeClient
from workers.kube.errors import ConflictError
from workers.kube.transport import BrokenConnectionError, Transport

CLOSE = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"


def test_no_end_of_an_exchange_keeps_a_place(serve):  # noqa: F811
    """Else sixteen of them leave none, and each further request waits."""
    _, transport = serve([CLOSE, b""], [], [OK], [b"HTTP/1.1 200 OK\r\n"], [OK])
    get(transport)
    assert transport._kept._open == 0
    with pytest.raises(BrokenConnectionError):
        get(transport)
    assert transport._kept._open == 0
    get(transport)
    assert transport._kept._open == 1
    with pytest.raises(TimeoutError):
        get(transport, timeout_seconds=0.05)
    assert transport._kept._open == 0


def test_an_interrupted_exchange_closes_its_connection(serve, monkeypatch):  # noqa: F811
    """Its answer may still come."""
    server, transport = serve([OK], [OK])
    get(transport)
    (used,) = transport._kept.idle

    def interrupted(_end):
        raise KeyboardInterrupt

    monkeypatch.setattr(used, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(transport)
    assert transport._kept._open == 0
    assert server.closed.wait(30)


@pytest.mark.parametrize("way", ["reset", "silent"])
def test_when_one_is_lost_the_idle_ones_of_before_are_too(way):
    """A fail-over of an address, a node that restarted: nobody tells of connections it forgot."""
    lost: list[socket.socket] = []
    served: list[socket.socket] = []

    def handle(connection):
        while True:
            head_of(connection)
            if connection not in lost:
                served.append(connection)
                connection.sendall(OK)
            elif way == "reset":
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
                return

    with scripted(handle) as port:
        transport = plain(port)
        transport._kept._most = 4
        several = [transport._kept.in_time(5.0) for _ in range(4)]
        for one in several:
            one.exchange(b"GET / HTTP/1.1\r\n\r\n", 5.0)
            transport._kept.give_back(one)
        lost.extend(served)
        with pytest.raises((BrokenConnectionError, TimeoutError)):
            get(transport, timeout_seconds=0.2)
        assert not transport._kept.idle
        assert transport._kept._open == 0
        assert get(transport).data == b"hi"


def test_a_slow_answer_costs_no_connection_that_was_used_since(serve):  # noqa: F811
    """A busy server: with a greeting for each it would be busier."""
    _, transport = serve([OK], Later([OK]))
    get(transport)
    other = Late()
    other.heard_at = time.monotonic() + 60
    transport._kept.idle.appendleft(other)
    with pytest.raises(TimeoutError):
        get(transport, timeout_seconds=0.05)
    assert list(transport._kept.idle) == [other]


class Later(list):
    """A script whose parts come after a second."""

    def __iter__(self):
        time.sleep(1.0)
        return super().__iter__()


class Late:
    """A connection that notes the time it is given."""

    is_fit = True
    heard_at = 0.0

    class reader:  # noqa: N801 - as _Connection has it
        is_kept = True

    def exchange(self, _request, seconds):
        self.seconds = seconds
        return "answer"

    def close(self):
        pass


def test_the_time_is_for_the_connection_and_the_answer_together(monkeypatch):
    made, asked, now = Late(), [], [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    transport = Transport("http://h", None, most_kept=1)

    def opened(seconds):
        asked.append(seconds)
        now[0] += 0.2
        return made

    transport._kept._opened = opened
    transport.send("GET", "/", b"", None, timeout_seconds=1.0)
    assert asked == [1.0]
    assert made.seconds == pytest.approx(0.8)


@pytest.mark.parametrize(("asked", "given"), [(2.0, 2.0), (60.0, module.CONNECT_TIMEOUT_SECONDS)])
def test_to_connect_there_is_a_time_of_its_own(asked, given):
    told = []

    def opened(seconds):
        told.append(seconds)
        raise OSError("refused")

    transport = Transport("http://h", opened, most_kept=1)
    with pytest.raises(OSError, match="refused"):
        transport.send("GET", "/", b"", None, timeout_seconds=asked)
    assert given - 1 < told[0] <= given


@pytest.mark.parametrize("serve", ["http"], indirect=True)
@pytest.mark.parametrize("surplus", [SECOND, SECOND[:-1], SECOND[:30], b"more than announced"])
def test_a_connection_that_is_not_in_step_is_left_though_it_stays_open(serve, surplus):  # noqa: F811
    """The server does not close it, so only our own look at the answer can tell."""
    server, transport = serve([OK + surplus], [OK], [OK])
    get(transport)
    assert transport._kept._open == 0
    assert get(transport).data == b"hi"
    assert server.connections == 2


def test_hardly_any_time_is_not_for_ever(serve):  # noqa: F811
    """For the kernel no time at all means no bound."""
    _, transport = serve([OK], [OK])
    get(transport)
    (one,) = transport._kept.idle
    one._wait_at_most(1e-7)
    assert any(one._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))


def test_a_reader_that_takes_each_part_in_time_is_bounded():
    """The time is that of the whole request, not of each of its parts."""

    def handle(connection):
        while connection.recv(65536):
            time.sleep(0.02)

    with scripted(handle) as port:
        took, error = timed(plain(port).send, "POST", "/x", b"", bytes(2**26), timeout_seconds=0.5)
    assert isinstance(error, TimeoutError)
    assert took < 15, "with a time for each part it is 20 s and more"


def test_who_waits_for_an_answer_does_not_spin(serve):  # noqa: F811
    _, transport = serve([OK], Later([OK]))
    get(transport)
    began = time.thread_time()
    get(transport)
    assert time.thread_time() - began < 0.5


def test_a_conflict_is_no_wait():
    """Only 429 and 5xx say that nothing was done; a POST is not made twice."""
    with FakeApi() as api:
        api.other = lambda _: status(409, "Conflict", "m", Retry_After="1")
        client = KubeClient.from_settings(master=api.url)
        with pytest.raises(ConflictError):
            client.create("/api/v1/persistentvolumes", {})
        assert len(api.requests) == 1
