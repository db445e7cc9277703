"""Connections that are open beforehand, so that a burst begins without greetings."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.fake_api import FakeApi, Reply, status
from tests.support.waiting import wait_until
from tests.unit.kube.test_transport import OK, certificate, get, serve  # noqa: F401
from tests.unit.kube.test_transport_peers import head_of, plain, scripted
from workers.kube import kept as module
from workers.kube import transport as transport_module
from workers.kube.client import KubeClient
from workers.kube.kept import AGE_SECONDS, ENOUGH, KEEP_SECONDS, REST_SECONDS, Kept

LONG = 60.0


class Connection:
    """One that is fit until somebody says otherwise."""

    def __init__(self):
        self.is_fit, self.is_closed = True, False
        self.opened_at, self.heard_at = time.monotonic(), 0.0
        self.uses = 0

    def use(self):
        self.uses += 1
        self.heard_at = time.monotonic()

    def close(self):
        self.is_closed = True


class Opener:
    """Opens each at once, unless an error is due; notes how long it might take."""

    def __init__(self):
        self.opened, self.errors, self.seconds = [], [], []

    def __call__(self, seconds):
        self.seconds.append(seconds)
        if self.errors:
            raise self.errors.pop(0)
        self.opened.append(Connection())
        return self.opened[-1]


class Clock:
    """`time` of the module under test."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def opener():
    return Opener()


@pytest.fixture
def kept(opener):
    return Kept(opener, most=ENOUGH)


def test_so_many_are_open_and_were_used_once(kept, opener):
    for _ in range(2):
        kept.keep(5, Connection.use)
        assert list(kept.idle) == opener.opened
        assert [one.uses for one in opener.opened] == [1] * 5
        assert kept._open == 5


def test_those_in_use_are_of_them(kept, opener):
    mine = [kept.in_time(LONG) for _ in range(3)]
    kept.keep(5, Connection.use)
    assert (len(kept.idle), kept._open, len(opener.opened)) == (2, 5, 5)
    for one in mine:
        kept.give_back(one)
    assert kept._open == len(kept.idle) == 5


def test_no_more_than_are_kept(opener):
    kept = Kept(opener, most=2)
    kept.keep(5, Connection.use)
    assert (len(kept.idle), kept._open, len(opener.opened)) == (2, 2, 2)


@pytest.mark.parametrize(
    ("silent", "is_fit", "expected"),
    [
        pytest.param(REST_SECONDS - 5, True, "left alone", id="heard lately"),
        pytest.param(REST_SECONDS + 5, True, "used", id="silent"),
        pytest.param(REST_SECONDS + 5, False, "replaced", id="silent and ended"),
    ],
)
def test_one_that_is_idle(kept, opener, silent, is_fit, expected):
    kept.keep(1, Connection.use)
    (one,) = opener.opened
    one.heard_at, one.is_fit = time.monotonic() - silent, is_fit
    kept.keep(1, Connection.use)
    assert one.uses == (1 if expected == "left alone" else 2)
    assert one.is_closed == (expected == "replaced")
    assert kept._open == len(kept.idle) == 1
    assert len(opener.opened) == (2 if expected == "replaced" else 1)


def test_old_ones_are_replaced_one_for_each_look(kept, opener):
    """All at once would be the greetings that a burst is to be spared."""
    kept.keep(3, Connection.use)
    first = list(opener.opened)
    for number, one in enumerate(first[:2]):
        one.opened_at -= AGE_SECONDS + 5 - number
    closed = []
    for _ in range(4):
        kept.keep(3, Connection.use)
        closed.append([one.is_closed for one in first])
        assert kept._open == len(kept.idle) == 3
    assert closed[0] == [True, False, False]
    assert closed[1:] == [[True, True, False]] * 3
    assert len(opener.opened) == 5


@pytest.mark.parametrize("way", ["not opened", "not kept", "not answered"])
def test_an_old_one_stays_while_no_other_is_to_be_had(kept, opener, way):
    kept.keep(2, Connection.use)
    first = list(opener.opened)
    for one in first:
        one.opened_at -= AGE_SECONDS + 5
    if way == "not opened":
        opener.errors = [TimeoutError("no greeting")]

    def use(one):
        one.use()
        one.is_fit = way != "not kept"
        if way == "not answered":
            raise TimeoutError

    if way == "not kept":
        kept.keep(2, use)
    else:
        with pytest.raises(TimeoutError):
            kept.keep(2, use)
    assert list(kept.idle) == first
    assert kept._open == 2


def test_silent_ones_beyond_go(kept, opener):
    """Of a burst whose requests waited for each other."""
    kept.keep(5, Connection.use)
    for one in opener.opened[1:]:
        one.heard_at = 0.0
    kept.keep(3, Connection.use)
    assert [one.is_closed for one in opener.opened] == [False, True, True, False, False]
    assert kept._open == len(kept.idle) == 3


def test_one_that_is_taken_meanwhile_is_left_to_its_taker(kept, opener):
    kept.keep(3, Connection.use)
    for one in opener.opened:
        one.heard_at = 0.0
    taken = []

    def use(one):
        one.use()
        if not taken:
            taken.append(kept.at_once())

    kept.keep(3, use)
    assert taken == [opener.opened[-1]]
    assert [one.uses for one in opener.opened] == [2, 2, 1]
    assert (len(kept.idle), kept._open) == (2, 3)


@pytest.mark.parametrize("of", ["one that was idle", "a new one"])
def test_a_use_that_fails_costs_its_connection_and_no_place(kept, opener, of):
    if of == "one that was idle":
        kept.keep(1, Connection.use)
        opener.opened[0].heard_at = 0.0
    with pytest.raises(ZeroDivisionError):
        kept.keep(3, lambda _one: 1 / 0)
    assert [one.is_closed for one in opener.opened] == [True]
    assert kept._open == 0
    kept.keep(3, Connection.use)
    assert kept._open == len(kept.idle) == 3


def test_one_that_cannot_be_opened_holds_no_place(kept, opener):
    opener.errors = [OSError("refused")]
    with pytest.raises(OSError, match="refused"):
        kept.keep(3, Connection.use)
    assert kept._open == 0


def test_of_a_server_that_keeps_none_one_is_tried(kept, opener):
    def use(one):
        one.is_fit = False

    kept.keep(3, use)
    assert [one.is_closed for one in opener.opened] == [True]
    assert kept._open == 0


def test_who_waits_gets_it(kept, opener, monkeypatch):
    """It came too late for a place of its own."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", LONG)
    mine = [kept.in_time(LONG) for _ in range(ENOUGH - 1)]
    with ThreadPoolExecutor(1) as pool:
        waiting = []

        def use(one):
            waiting.append(pool.submit(kept.in_time, LONG))
            wait_until(lambda: len(kept._others) == 1, LONG, "it waits")
            one.use()

        kept.keep(ENOUGH, use)
        assert waiting[0].result(LONG) is opener.opened[-1]
    assert (kept._open, len(mine)) == (ENOUGH, ENOUGH - 1)


def test_nothing_is_begun_late(kept, opener, monkeypatch):
    """Of sixteen each may take seconds; all that began has its whole time."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("tests.unit.kube.test_keep.time", clock)

    def slow(one):
        clock.now += 1.5
        one.use()

    opened = []
    for _ in range(5):
        kept.keep(16, slow)
        opened.append(len(opener.opened))
    assert opened == [4, 8, 12, 16, 16]
    assert set(opener.seconds) == {KEEP_SECONDS}
    clock.now += REST_SECONDS + 5
    kept.keep(16, slow)
    assert sum(one.uses for one in opener.opened) == 16 + 4
    clock.now += AGE_SECONDS
    kept.keep(16, slow)
    assert sum(one.uses for one in opener.opened) == 16 + 8
    assert kept._open == len(kept.idle) == 16
    assert len(opener.opened) == 16


def test_threads_beside_it_lose_no_place(kept, opener):
    """Random: takes, failures and returns while connections are kept open."""
    ends = time.monotonic() + 2.0

    def work(_number):
        done = 0
        while time.monotonic() < ends and done < 300:
            one = kept.at_once() or kept.in_time(LONG)
            done += 1
            one.is_fit = done % 7 > 0
            one.heard_at = 0.0
            (kept.drop if done % 11 == 0 else kept.give_back)(one)
        return done

    def keep(_number):
        while time.monotonic() < ends:
            kept.keep(ENOUGH, Connection.use)
        return True

    with ThreadPoolExecutor(24) as pool:
        keeping = [pool.submit(keep, number) for number in range(2)]
        assert all(pool.map(work, range(20)))
        assert all(one.result(LONG) for one in keeping)
    assert not kept._first
    assert not kept._others
    assert kept._open == len(kept.idle) <= ENOUGH


def test_requests_find_them_open(serve):  # noqa: F811
    """With TLS too, whose server says more right after the greeting."""
    server, transport = serve([OK], [OK], prefix="/clusters/one")
    transport.keep(1, "/version", lambda: transport.lines({"Accept": "a"}))
    assert get(transport, "/x").data == b"hi"
    first, second = (one.split(b"\r\n")[0] for one in server.requests)
    assert first == b"GET /clusters/one/version HTTP/1.1"
    assert b"\r\nAccept: a\r\n" in server.requests[0]
    assert second == b"GET /clusters/one/x HTTP/1.1"
    assert server.connections == 1


@pytest.mark.parametrize("way", ["it has ended", "it is not answered"])
def test_one_that_is_lost_costs_no_other(monkeypatch, way):
    """A server that is slow, or ends one just then, is greeted no more than it needs."""
    monkeypatch.setattr(transport_module, "CONNECT_TIMEOUT_SECONDS", 0.5)
    lost = []

    def handle(connection):
        while True:
            head_of(connection)
            if connection in lost and way == "it has ended":
                return
            if connection not in lost:
                last.append(connection)
                connection.sendall(OK)

    last = []
    with scripted(handle) as port:
        transport = plain(port)
        kept = transport._kept
        kept._most = 3

        def keep():
            transport.keep(3, "/version", lambda: transport.lines({}))

        keep()
        first, *others = idle = list(kept.idle)
        lost.append(last[0])
        first.heard_at = 0.0
        if way == "it has ended":
            keep()
            assert kept._open == 3
        else:
            with pytest.raises(TimeoutError):
                keep()
            assert kept._open == 2
        assert [one in kept.idle for one in idle] == [False, *(True for _ in others)]
        lost.clear()
        keep()
        assert kept._open == len(kept.idle) == 3


def test_nothing_is_asked_for_when_all_is_well(serve):  # noqa: F811
    """A plug-in for credentials runs for some time."""
    _, transport = serve([OK], [OK])
    transport.keep(1, "/version", lambda: transport.lines({}))
    transport.keep(1, "/version", lambda: 1 / 0)
    (own,) = transport._kept.idle
    assert time.monotonic() - own.opened_at < LONG


@pytest.mark.parametrize("code", [200, 401, 403, 404, 500])
def test_whatever_the_server_answers_the_connection_is_open(code):
    with FakeApi() as api:
        api.other = lambda request: (
            status(code, "Any", "word")
            if request.path == "/version"
            else Reply(body=b'{"kind": "any"}')
        )
        seen = []
        client = KubeClient.from_settings(
            master=api.url, user_agent="fleet", observer=lambda *one: seen.append(one[:3])
        )
        client.keep_connections(3)
        assert seen == [("GET", "/version", code)] * 3
        (own,) = {(one.method, one.path, one.headers["User-Agent"]) for one in api.requests}
        assert own == ("GET", "/version", "fleet")
        assert len(api.requests) == 3
        assert client.get("/any") == {"kind": "any"}
        assert client._connection.transport._kept._open == 3


def test_a_server_that_is_away_is_nobodys_error():
    with FakeApi() as api:
        client = KubeClient.from_settings(master=api.url)
    client.keep_connections(3)
    assert client._connection.transport._kept._open == 0


def test_a_token_that_is_none_is_nobodys_error():
    with FakeApi() as api:
        client = KubeClient.from_settings(master=api.url, user_agent="a\nb")
        client.keep_connections(3)
        assert api.requests == []
        assert client._connection.transport._kept._open == 0
