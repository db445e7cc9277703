"""What the listener to the sentinels does, on sentinels in memory."""

from __future__ import annotations

import socket
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from workers.queue import sentinels
from workers.queue.sentinels import RETRY_SECONDS, Follower, MasterConnection

HOST, PORT = "master", 6379
MOST_LOOKS = 10


class FakeLoop:
    """The test makes the steps."""

    def __init__(self, _name, step):
        self.step = step

    def start(self):
        pass

    wake = beat = start


class FakeSentinel:
    """Knows the master; what it is asked, in order. Whoever waits closes `closes` in the end."""

    def __init__(self, *, is_away=False, closes=None, waits=3):
        self.is_away, self.closes, self.waits = is_away, closes, waits
        self.asked = []

    @contextmanager
    def pubsub(self, **_):
        if self.is_away:
            raise redis.ConnectionError("no answer")
        yield self

    def subscribe(self, _name):
        pass

    def close(self):
        pass

    def sentinel_master(self, _name):
        self.asked.append("look")
        assert len(self.asked) < MOST_LOOKS, "it looks again and again"
        return {"config-epoch": 1, "ip": HOST, "port": PORT}

    def get_message(self, timeout):
        assert timeout > 0
        self.asked.append("wait")
        self.closes.is_open = self.asked.count("wait") < self.waits


class FakeConnection:
    host, port, is_open = HOST, PORT, True


@pytest.fixture
def connection(monkeypatch):
    monkeypatch.setattr(sentinels, "Loop", FakeLoop)
    return FakeConnection()


def test_sentinels_that_are_away_are_asked_again_while_somebody_is_connected(connection):
    """Else nobody would tell of the next promotion; without connections the next one wakes it."""
    follower = Follower([FakeSentinel(is_away=True)], "m")
    follower.add(connection)
    assert follower._loop.step() == RETRY_SECONDS
    connection.is_open = False
    assert follower._loop.step() is None


def test_a_listener_looks_and_waits_in_turns(connection):
    """Its thread sleeps in the sentinel's channel until there is something to see."""
    sentinel = FakeSentinel(closes=connection)
    follower = Follower([sentinel], "m")
    follower.add(connection)
    assert follower._loop.step() is None
    assert sentinel.asked == ["look", "wait"] * 3
    assert follower.address is None, "nobody is listened to"


def test_a_new_connection_is_tried_again_and_one_of_a_command_once(monkeypatch):
    """The command repeats it; each attempt asks where the master is."""
    asked = []
    pool = SimpleNamespace(
        sentinel_manager=None,
        service_name="m",
        get_master_address=lambda: asked.append(1) or (HOST, PORT),
    )
    follower = SimpleNamespace(address=None)
    monkeypatch.setattr(sentinels._followers, "of", lambda *_: follower, raising=True)
    monkeypatch.setattr(Connection, "_connect", drop)
    connection = MasterConnection(connection_pool=pool, retry=Retry(NoBackoff(), 3))
    with pytest.raises(redis.TimeoutError):
        connection.connect()
    assert len(asked) == 4
    with pytest.raises(redis.TimeoutError):
        connection.send_command("PING")
    assert len(asked) == 5


def drop(_connection):
    raise TimeoutError


def test_a_connection_that_ends_is_closed_and_needs_no_news():
    """Whoever was woken because its server is not the master any more connects anew."""
    connection = MasterConnection(connection_pool=SimpleNamespace())
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        connection._sock, connection.is_open = ours, True
        connection.disconnect()
        assert not connection.is_open
        assert connection._sock is None
        assert theirs.recv(1) == b"", "the other end sees it"
