"""Sends that keep Python's lock: parts, signals, interrupts, questions after health."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import redis

from tests.support.redis_server import RedisServer
from workers.queue import following
from workers.queue.connection import connect, execute
from workers.queue.following import TcpConnection

pytestmark = pytest.mark.integration


@pytest.fixture
def client(redis_server):
    """Its connections ask after the server's health now and then, as the broker's do."""
    pool = redis.ConnectionPool(
        connection_class=TcpConnection,
        host="127.0.0.1",
        port=redis_server.port,
        socket_timeout=3,
        health_check_interval=1,
    )
    return redis.Redis(connection_pool=pool)


def test_a_question_after_health_is_never_within_a_command(client):
    """A command of which the kernel took a part must not be cut by a PING (health check)."""
    client.ping()
    (connection,) = client.connection_pool._available_connections
    connection.next_health_check = 0
    value = b"1" * 20_000_000
    assert client.set("csifleet:epoch", value)
    got = client.get("csifleet:epoch")
    client.delete("csifleet:epoch")
    assert got == value


def test_a_short_command_asks_after_health_as_the_library_does(client):
    """The broker's connections have an interval for it: half-open ones are found."""
    client.echo("x")
    (connection,) = client.connection_pool._available_connections
    connection.next_health_check = 0
    before = client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
    connection.next_health_check = 0
    client.echo("x")
    assert client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"] > before


@pytest.mark.parametrize("address", ["url", "unix_url"])
def test_signals_between_the_parts(redis_binary, tmp_path, address):
    server = RedisServer(redis_binary, tmp_path).start()
    client = connect(getattr(server, address), socket_timeout_seconds=5, retries=0)
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for size in (1, 1000, 300_000, 8_000_000) * 5:
            value = os.urandom(size)
            assert execute(client, "SET", "csifleet:epoch", value)
            assert execute(client, "GET", "csifleet:epoch") == value
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        server.kill()
    client.close()


def test_an_interrupt_between_the_parts_leaves_no_half_command(redis_client, monkeypatch):
    """The kernel took a part, then KeyboardInterrupt; the next command is its own."""

    def part(sock, data):
        sock.send(data[:5])
        raise KeyboardInterrupt

    for ask in (
        lambda: execute(redis_client, "ECHO", "one"),
        lambda: redis_client.echo("one"),
        lambda: redis_client.pipeline(transaction=False).echo("one").execute(),
        lambda: redis_client.pipeline().echo("one").execute(),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(following, "send_at_once", part)
            with pytest.raises(KeyboardInterrupt):
                ask()
        assert redis_client.echo("two") == b"two"


def test_commands_of_memoryviews(redis_client):
    view = memoryview(b"abc" * 100)
    redis_client.set("csifleet:epoch", view)
    assert redis_client.get("csifleet:epoch") == view.tobytes()
    big = memoryview(b"abc" * 10_000)
    with redis_client.pipeline() as pipe:
        pipe.set("csifleet:epoch", big)
        pipe.get("csifleet:epoch")
        assert pipe.execute()[1] == big.tobytes()


def test_many_threads_and_a_closed_socket(redis_client):
    errors = []

    def work(number):
        try:
            for turn in range(100):
                text = f"{number}.{turn}"
                assert redis_client.echo(text) == text.encode()
        except Exception as error:  # noqa: BLE001 - of a thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for _ in range(50):
        redis_client.connection_pool.disconnect(inuse_connections=False)
    for one in threads:
        one.join(30)
    assert errors == []
