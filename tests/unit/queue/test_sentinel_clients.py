"""How clients of sentinels are made, and whom a follower leaves; nothing is connected."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import redis
from redis.connection import Connection, SSLConnection
from redis.sentinel import SentinelManagedConnection

from workers.config.redisurl import parse_sentinels
from workers.queue import sentinels
from workers.queue.asyncsentinels import async_master_client
from workers.queue.sentinels import (
    LOOK_SECONDS,
    Follower,
    MasterConnection,
    MasterTlsConnection,
    SentinelLogin,
    master_client,
    sentinel_options,
)

PLAIN = parse_sentinels("sentinel://one,two:7/m?db=3")
TLS = parse_sentinels("sentinel://user:secret@one/m?ssl_ca_certs=/ca&sentinel_password=hush")


class FakeLoop:
    """Remembers what it was told; the test makes the steps."""

    made: list

    def __init__(self, name, step):
        self.name, self.step, self.did = name, step, []
        self.made.append(self)

    def __getattr__(self, word):
        return lambda: self.did.append(word)


@pytest.fixture
def loops(monkeypatch):
    FakeLoop.made = []
    monkeypatch.setattr(sentinels, "Loop", FakeLoop)
    return FakeLoop.made


class Socket:
    """Counts how often it is shut down."""

    def __init__(self, *, fails=False):
        self.ends, self.fails = 0, fails

    def shutdown(self, _how):
        self.ends += 1
        if self.fails:
            raise OSError("closed meanwhile")


class Link:
    """A connection as a follower sees it."""

    is_open = True

    def __init__(self, host, sock=None, port=6379):
        self.host, self.port, self._sock = host, port, sock


class FakeSentinel:
    """Tells of a master; the last connection closes after so many looks."""

    def __init__(self, *states, closes=()):
        self.states, self.closes, self.said = list(states), closes, []

    def pubsub(self, **options):
        self.said.append(("pubsub", options))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said.append("left")

    def close(self):
        self.said.append("closed")

    def subscribe(self, name):
        self.said.append(("subscribe", name))

    def sentinel_master(self, name):
        self.said.append(("look", name))
        epoch, host = self.states.pop(0)
        for link in self.closes if not self.states else ():
            link.is_open = False
        return {"config-epoch": epoch, "ip": host, "port": 6379}

    def get_message(self, timeout):
        self.said.append(("wait", timeout))


def test_one_thread_follows_for_all_connections_and_each_wakes_it(loops):
    """It may have stopped looking while nobody was connected."""
    follower = Follower([], "m")
    for host in ("a", "b", "c"):
        follower.add(Link(host))
    (loop,) = loops
    assert loop.did == ["start", "wake", "wake", "wake"]


def test_a_listener_says_that_it_lives_and_hears_of_promotions_alone(loops):
    link = Link("a")
    sentinel = FakeSentinel((1, "a"), (1, "a"), closes=[link])
    follower = Follower([sentinel], "m")
    follower.add(link)
    assert loops[0].step() is None
    look = [("look", "m"), ("wait", LOOK_SECONDS)]
    assert sentinel.said == [
        ("pubsub", {"ignore_subscribe_messages": True}),
        ("subscribe", "+switch-master"),
        *look,
        *look,
        "left",
        "closed",
    ]
    assert loops[0].did.count("beat") == 2


def test_nobody_listens_without_a_loop_or_a_connection(loops):
    sentinel = FakeSentinel()
    follower = Follower([sentinel], "m")
    assert follower._step() is None
    follower.add(SimpleNamespaceLink())
    assert loops[0].step() is None, "one that does not say that it is open is not"
    assert not [one for one in sentinel.said if one[0] == "look"]


class SimpleNamespaceLink:
    """A connection of another kind."""


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        pytest.param([(1, "a"), (2, "b")], "b", id="a promotion"),
        pytest.param([(1, "a"), (1, "b")], "b", id="the same configuration, moved"),
        pytest.param([(2, "b"), (1, "a")], "b", id="a sentinel that knows less"),
        pytest.param([(0, "a")], "a", id="never promoted"),
    ],
)
def test_the_newest_configuration_counts(loops, epochs, expected):
    follower, links = Follower([], "m"), [Link("a", Socket()), Link("b", Socket())]
    for link in links:
        follower.add(link)
    sentinel = FakeSentinel(*epochs)
    for _ in epochs:
        follower._look(sentinel)
    assert follower.address == (expected, 6379)
    (loser,) = (link for link in links if link.host != expected)
    assert loser._sock.ends == 1


def test_connections_to_others_are_ended_once(loops):
    """Whoever reads from one connects anew, and is followed again by then."""
    links = [
        *(Link("old", Socket()), Link("old", None), Link("old", Socket(fails=True))),
        *(Link("master", Socket()), Link("master", Socket(), port=7)),
    ]
    follower = Follower([], "m")
    for link in links:
        follower.add(link)
    for _ in range(2):
        follower._leave_others(("master", 6379))
    assert [link._sock and link._sock.ends for link in links] == [1, None, 1, 0, 1]


def test_one_follower_per_set_of_sentinels_and_master():
    def manager(*hosts):
        return SimpleNamespace(sentinels=[redis.Redis(host=host, port=1) for host in hosts])

    followers = sentinels._Followers()
    one = followers.of(manager("a", "b"), "m")
    assert followers.of(manager("b", "a"), "m") is one
    assert followers.of(manager("a", "b"), "other") is not one
    assert followers.of(manager("a"), "m") is not one


def test_a_follower_lives_on_when_its_manager_is_closed():
    """As kombu closes it with its channel; the next one gets the same follower."""
    client = redis.Redis(host="a", port=1, password="p", socket_timeout=3)
    manager = SimpleNamespace(sentinels=[client])
    (own,) = sentinels._Followers().of(manager, "m")._sentinels
    assert own.connection_pool is not client.connection_pool
    assert own.connection_pool.connection_class is client.connection_pool.connection_class
    assert own.auto_close_connection_pool, "who listens no more leaves nothing open"
    kept = {"host": "a", "port": 1, "password": "p", "socket_timeout": 3}.items()
    assert kept <= own.connection_pool.connection_kwargs.items()


@pytest.mark.parametrize("told", [None, ("promoted", 7)], ids=["nobody listens", "told"])
def test_a_connection_goes_where_the_master_is_and_is_followed(monkeypatch, told):
    """What the listener heard is newer than what a sentinel answers that lags."""
    asked, followed = [], []
    pool = SimpleNamespace(
        sentinel_manager=None,
        service_name="m",
        get_master_address=lambda: asked.append(1) or ("asked", 6379),
    )
    follower = SimpleNamespace(address=told, add=followed.append)
    monkeypatch.setattr(sentinels._followers, "of", lambda *_: follower)
    sock = SimpleNamespace(gettimeout=lambda: None)
    monkeypatch.setattr(Connection, "_connect", lambda _self: sock)
    connection = MasterConnection(connection_pool=pool)
    assert not connection.is_open
    address = told or ("asked", 6379)
    assert connection._connect() is sock
    assert (connection.host, connection.port) == address == pool.master_address
    assert (len(asked), followed, connection.is_open) == (0 if told else 1, [connection], True)


def test_a_new_connection_asks_no_health_of_its_own(monkeypatch):
    """The login is question enough; one that cannot be made is cleared away."""
    asked = []
    monkeypatch.setattr(
        SentinelManagedConnection,
        "connect_check_health",
        lambda _self, **options: asked.append(options),
    )
    MasterConnection(connection_pool=None).connect()
    assert asked == [{"check_health": False, "retry_socket_connect": False}]


@pytest.mark.parametrize(
    ("user", "login"), [("", ("hush",)), ("watcher", ("watcher", "hush"))], ids=["default", "user"]
)
def test_the_login_of_the_sentinels(user, login):
    url = "sentinel://one/m?sentinel_password=hush" + (f"&sentinel_username={user}" if user else "")
    place = parse_sentinels(url)
    assert SentinelLogin(place).get_credentials() == login
    assert asyncio.run(SentinelLogin(place).get_credentials_async()) == login


def test_how_sentinels_are_asked():
    """Within a second, once; TLS as for the servers, but not their password."""
    plain, tls = sentinel_options(PLAIN), sentinel_options(TLS)
    for options in (plain, tls):
        assert options["socket_timeout"] == options["socket_connect_timeout"] == 1.0
        assert options["decode_responses"] is True
        assert options["retry"].get_retries() == 0
        assert "password" not in options
    assert ("ssl" in plain, "credential_provider" in plain) == (False, False)
    assert (tls["ssl"], tls["ssl_ca_certs"]) == (True, "/ca")
    assert "credential_provider" in tls


@pytest.mark.parametrize("url", [PLAIN, TLS], ids=["tcp", "tls"])
def test_how_the_master_is_asked(url):
    client = master_client(url, socket_timeout=5)
    pool = client.connection_pool
    options = pool.connection_kwargs
    assert (options["db"], options["socket_keepalive"]) == (url.database, True)
    assert options["socket_timeout"] == 5
    assert pool.connection_class is (MasterTlsConnection if url.tls else MasterConnection)
    assert options.get("password") == (url.password or None)
    places = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in places] == list(url.hosts)
    with_file = master_client(url, password_file="/secret").connection_pool.connection_class
    assert issubclass(with_file, pool.connection_class)
    assert with_file.password_file == "/secret"


@pytest.mark.parametrize("url", [PLAIN, TLS], ids=["tcp", "tls"])
def test_flowers_client_speaks_tls_where_the_others_do(url):
    client = async_master_client(url)
    names = {
        *(type_name(client.connection_pool),),
        *(type_name(one.connection_pool) for one in client.sentinels),
    }
    has_tls = {"SSL" in name for name in names}
    assert has_tls == {bool(url.tls)}
    assert len(client.sentinels) == len(url.hosts)
    asyncio.run(client.aclose())


def type_name(pool):
    return pool.connection_class.__name__


def test_the_classes_are_those_of_their_transport():
    assert issubclass(MasterTlsConnection, SSLConnection)
    assert not issubclass(MasterConnection, SSLConnection)
    assert issubclass(MasterConnection, redis.Connection)
