"""Connections that are dead or lead to a server that is no longer the master."""

from __future__ import annotations

import os
import signal
import time

import pytest
import redis
from redis.connection import AbstractConnection, Connection

from tests.support.redis_server import RedisServer, delete_functions
from tests.support.taking import take
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until
from workers.app import make_app, publisher
from workers.config.settings import RedisSettings, Settings
from workers.errors import QueueUnavailable
from workers.queue.connection import RETRIES, connect, connect_heartbeat
from workers.queue.keys import claim_key
from workers.queue.leases import Heartbeat
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration


@pytest.fixture
def pair(redis_binary, tmp_path):
    """Return a master, a replica in sync, and a proxy whose address leads to the master."""
    servers = []
    for name in ("master", "replica"):
        (tmp_path / name).mkdir()
        servers.append(RedisServer(redis_binary, tmp_path / name).start())
    master, replica = servers
    with redis.Redis(port=replica.port) as client, TcpProxy(master.port) as proxy:
        client.replicaof("127.0.0.1", master.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", 20, "in step")
        yield master, replica, proxy
    for server in servers:
        server.kill()


def demote(master, replica, proxy):
    """Fail over by plain REPLICAOF: the old master keeps running and keeps its connections."""
    with redis.Redis(port=replica.port) as client:
        client.replicaof("NO", "ONE")
    with redis.Redis(port=master.port) as client:
        client.replicaof("127.0.0.1", replica.port)
    proxy.target = replica.port


def test_a_demoted_master_is_left_by_the_connections_that_were_open(pair):
    """Clients leave a demoted master, although nothing closes the connections that are open."""
    master, replica, proxy = pair
    url = f"redis://127.0.0.1:{proxy.port}/0"
    queue = WorkQueue(connect(url), publish=publisher(make_app(_settings(url))))
    queue.register_process()
    queue.set_limits("claims|d", 10)
    queue.add([claim_key("d", "ns", "one", "u1")])
    with redis.Redis(port=replica.port) as direct:
        wait_until(lambda: direct.llen("drv.d") == 1, 20, "the first message")
        demote(master, replica, proxy)
        assert queue.heartbeat() is False
        direct.delete("drv.d")  # a reader that is gone took the message
        queue.add([claim_key("d", "ns", "two", "u2")])

        def is_admitted():
            queue.pump()
            return direct.llen("drv.d") == 1

        wait_until(is_admitted, 20, "the silence of the new life is over")


def test_a_master_that_lost_its_replicas_is_asked_for_again(pair):
    """A client connects again if its master refuses
    writes for lack of replicas (min-replicas-to-write).
    """
    master, replica, proxy = pair
    client = connect(f"redis://127.0.0.1:{proxy.port}/0")
    scripts = Scripts(client)
    pause = ("pause", "operator", 0, "why", "", "", "claims|d")
    scripts.run(*pause)
    with redis.Redis(port=replica.port) as direct:
        direct.replicaof("NO", "ONE")
    with redis.Redis(port=master.port) as direct:
        direct.config_set("min-replicas-to-write", 1)
    proxy.target = replica.port
    with pytest.raises(QueueUnavailable, match="NOREPLICAS"):
        scripts.run(*pause)
    scripts.run(*pause)
    client.close()


def test_a_silent_connection_costs_no_lease(redis_server, redis_client):
    """A half-open connection reports no error, so the heartbeat must notice it in time."""
    with TcpProxy(redis_server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        lost = []
        queue = WorkQueue(
            connect(url),
            publish=lambda _: None,
            heartbeat_client=connect_heartbeat(url),
            on_lost=lambda: lost.append(1),
        )
        queue.register_process()
        queue.set_limits("claims|d", 10)
        key = claim_key("d", "ns", "one", "u1")
        queue.add([key])
        lease = take(queue, key)
        assert lease is not None
        beats = Heartbeat(queue)
        beats.start()
        try:
            end = lease.valid_until
            wait_until(lambda: lease.valid_until > end, 10, "the lease is renewed")
            assert proxy.fall_silent() >= 2
            # After four lifetimes of a lease, the process still holds the same lease.
            wait_until(lambda: lease.valid_until > end + 16, 60, "it is renewed again")
        finally:
            beats.stop()
        assert lost == []
        assert lease.is_held()


ASKING = {
    "a command": lambda client: client.ping(),
    "a pipeline": lambda client: client.pipeline(transaction=False).ping().execute(),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_host_that_drops_packets_costs_a_command_seconds(redis_server, monkeypatch, ask):
    """A command fails after few connection attempts.

    Otherwise the liveness probe would report its thread as hanging.
    """
    tries = []
    real = Connection._connect

    def drop(connection):
        if connection.port != proxy.port:  # a thread of another test
            return real(connection)
        tries.append(1)
        raise TimeoutError

    with TcpProxy(redis_server.port) as proxy:
        client = connect(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout_seconds=0.5)
        connection = client.connection_pool.get_connection()
        client.connection_pool.release(connection)
        assert proxy.fall_silent()
        monkeypatch.setattr(Connection, "_connect", drop)
        with pytest.raises(redis.TimeoutError):
            ask(client)
        assert len(tries) == RETRIES * (RETRIES + 1), "each repetition connects, so often"
        tries.clear()
        with pytest.raises(redis.TimeoutError):
            ask(client)
        assert len(tries) == RETRIES + 1, "no connection, no command"
        client.close()


@pytest.mark.parametrize("size", [1, 20_000_000], ids=["short", "longer than all buffers"])
@pytest.mark.parametrize("address", ["url", "unix_url"])
def test_a_server_that_stands_still_costs_one_time_out(redis_binary, tmp_path, address, size):
    """A frozen server costs one timeout, also while a command is being sent."""
    server = RedisServer(redis_binary, tmp_path).start()
    client = connect(getattr(server, address), socket_timeout_seconds=2, retries=0)
    assert client.ping()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            client.set("csifleet:epoch", "x" * size)
        # Two timeouts would take four seconds. The margin is for a slow machine.
        assert 1.9 < time.monotonic() - begin < 3.9
    finally:
        server.kill()
    client.close()


def test_a_connection_that_died_unnoticed_costs_no_command(redis_server, redis_client):
    """A dead connection fails no command: the pool
    notices it, or the command is repeated over a new one.
    """
    client = connect(redis_server.url)
    assert client.ping()
    assert redis_client.client_kill_filter(_type="normal", skipme=True) >= 1
    assert client.ping()
    assert len(client.connection_pool._available_connections) == 1
    client.close()


def test_heartbeats_leave_wake_ups_to_others(redis_client):
    """The heartbeat sends no messages, because the broker's
    connection can hang for longer than a lease lasts.
    """
    sent, now = [], [0.0]
    queue = WorkQueue(redis_client, publish=sent.extend, clock=lambda: now[0])
    queue.register_process()
    queue.set_limits("claims|d", 10)
    redis_client.delete(NAMES["limits"].full + "claims|d")
    key = claim_key("d", "ns", "one", "u1")
    queue.add([key])
    now[0] = 3600.0
    queue.heartbeat()  # declares the limits again, and they allow the key
    assert sent == []
    queue.pump()
    assert sent == ["drv.d"]


def test_limits_and_pauses_of_many_lanes_cost_the_heartbeat_few_round_trips(
    redis_client, monkeypatch
):
    """The heartbeat declares the limits and pauses of 600 lanes
    in few round trips, because it renews no lease meanwhile.
    """
    lanes, now = [f"claims|d{number}" for number in range(600)], [0.0]
    queue = WorkQueue(redis_client, publish=lambda _: None, clock=lambda: now[0])
    queue.register_process()
    for lane in lanes:
        queue.set_limits(lane, 10)
        queue.pause(lane, "another's Lease", seconds=7200, kind="lease")
    redis_client.delete(*(NAMES["limits"].full + lane for lane in lanes), NAMES["paused"].full)
    now[0] = 3600.0
    sent = []
    send = AbstractConnection.send_packed_command

    def count(connection, *args, **named):
        sent.append(1)
        return send(connection, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", count)
        queue.heartbeat()
    assert 0 < len(sent) < 20
    stats = queue.stats()
    assert all(stats[lane].limits and stats[lane].paused for lane in lanes)


def _settings(url: str) -> Settings:
    return Settings(redis=RedisSettings(url=url))


def test_a_library_that_another_process_loaded_a_moment_ago_is_used(redis_client, monkeypatch):
    """Two processes can load the library at the same time."""
    delete_functions(redis_client)
    scripts = Scripts(redis_client)
    load = redis_client.function_load

    def after_another(*args, **options):
        load(*args)
        return load(*args, **options)

    monkeypatch.setattr(redis_client, "function_load", after_another)
    scripts.run("pause", "operator", 0, "why", "claims|d")
    assert redis_client.hlen(NAMES["paused"].full) == 1


def test_a_redis_without_functions_is_refused_with_the_remedy(redis_client, monkeypatch):
    """A Redis without functions (Redis 6) is refused with a message that names the remedy."""

    def unknown(*_args):
        raise redis.ResponseError("unknown command `FCALL`, with args beginning with: ")

    monkeypatch.setattr(redis_client, "fcall", unknown)
    with pytest.raises(QueueUnavailable, match=r"csi-fleet needs Redis 7 or newer.*Upgrade"):
        Scripts(redis_client).run("pace", "claims|d")
