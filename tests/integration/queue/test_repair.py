"""Scripts reach Redis as functions or as texts, with wrong types and with full memory."""

from __future__ import annotations

import pytest

from tests.support.redis_server import delete_functions
from workers.errors import QueueUnavailable
from workers.queue.connection import NoPermissionError, ResponseError, connect
from workers.queue.keys import claim_key
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts, repair

KEY = claim_key("d", "ns", "a", "u")
STAYS = ("fails", "intents:d", "paused", "pauses")
GOES = ("leases", "since", "news")


def full(name):
    return f"csifleet:{name}"


@pytest.fixture
def filled(redis_client):
    for name in (*STAYS, *GOES):
        redis_client.hset(full(name), "field", "0 value")
    return redis_client


def left(client):
    return {name for name in (*STAYS, *GOES) if client.exists(full(name))}


def test_where_all_types_fit_nothing_is_touched(filled):
    assert not repair(filled)
    assert left(filled) == {*STAYS, *GOES}


@pytest.mark.parametrize("name", ["dirty", "marks:d"])
def test_a_wrong_type_costs_the_queue_and_nothing_that_is_not_rebuilt(filled, name):
    """A key of a wrong type empties the queue, which the watcher fills again, and nothing else."""
    filled.set(full(name), "x")
    assert repair(filled)
    assert left(filled) == set(STAYS)
    aside = NAMES["quarantined"].full + name
    assert (filled.get(aside), filled.exists(full(name))) == (b"x", 0)
    assert 0 < filled.ttl(aside) <= 7 * 24 * 3600
    assert not repair(filled), "what was set aside may be of any type"
    assert left(filled) == set(STAYS)


def test_a_wrong_type_is_repaired_where_the_queue_is_empty(redis_client):
    redis_client.set(NAMES["marks"].full + "d", "x")
    assert repair(redis_client)
    assert not redis_client.exists(NAMES["marks"].full + "d")


def test_a_wrong_list_of_tickets_goes_alone(filled):
    filled.set("drv.d", "x")
    filled.rpush("drv.e", "ticket")
    assert repair(filled)
    assert left(filled) == {*STAYS, *GOES}
    assert (filled.exists("drv.d"), filled.llen("drv.e")) == (0, 1)


def test_what_is_not_ours_is_not_looked_at(filled):
    filled.set("somebody", "x")
    filled.set("csifleet:unknown", "x")
    assert not repair(filled)
    assert filled.get("somebody") == b"x"
    filled.delete("somebody", "csifleet:unknown")


def test_a_wrong_type_that_cannot_be_repaired_is_an_error(redis_client, monkeypatch):
    """A wrong type that cannot be repaired is an error at
    once, because a second try would fail in the same way.
    """
    scripts, tried = Scripts(redis_client), []

    def fails(*call):
        tried.append(call)
        raise ResponseError("WRONGTYPE of somebody")

    monkeypatch.setattr(scripts, "_evaluate", fails)
    with pytest.raises(QueueUnavailable, match="WRONGTYPE"):
        scripts.run("pace", KEY.lane)
    assert len(tried) == 1


@pytest.mark.parametrize("error", ["ERR of a script", "OOM"])
def test_any_other_error_repairs_nothing(filled, monkeypatch, error):
    filled.set(NAMES["dirty"].full, "x")
    scripts = Scripts(filled)

    def fails(*_):
        raise ResponseError(error)

    monkeypatch.setattr(scripts, "_evaluate", fails)
    with pytest.raises(QueueUnavailable, match=error):
        scripts.run("pace", KEY.lane)
    assert left(filled) == {*STAYS, *GOES}
    filled.delete(NAMES["dirty"].full)


def test_a_redis_that_takes_neither_says_what_to_load(redis_client, monkeypatch):
    """If Redis accepts neither functions nor texts, the error names functions.lua.

    Redis' container loads it shortly afterwards, so scripts try the functions again.
    """
    delete_functions(redis_client)
    scripts, allowed = Scripts(redis_client), []

    def refuse(*_args):
        if allowed:
            return 0
        raise ResponseError("Function not found")

    def load(*_args, **_options):
        raise NoPermissionError("no permissions to run 'function'")

    monkeypatch.setattr(redis_client, "fcall", refuse)
    monkeypatch.setattr(redis_client, "function_load", load)
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match=r"functions\.lua"):
            scripts.run("pace", KEY.lane)
    allowed.append(True)
    assert scripts.run("pace", KEY.lane) == 0


def test_work_ends_where_redis_itself_refuses_all_that_grows(redis_client, bench, start_queue):
    queue = start_queue()
    queue.add([KEY])
    lease = bench.run_next(queue)
    try:
        redis_client.config_set("maxmemory", 1)
        queue.heartbeat()
        assert queue.done(lease)
        with pytest.raises(QueueUnavailable):
            queue.add([KEY])
    finally:
        redis_client.config_set("maxmemory", 0)
        delete_functions(redis_client)


def test_commands_one_after_the_other_use_one_connection(redis_server):
    """Commands use one connection, also after an error.

    A worker must not open a connection for each command.
    """
    with connect(redis_server.unix_url) as client:
        for _ in range(3):
            assert client.ping()
            with pytest.raises(ResponseError):
                client.execute_command("NONSENSE")
        assert not client.connection_pool._in_use_connections
        assert len(client.connection_pool._available_connections) == 1


@pytest.mark.parametrize("url", ["redis://host/0", "rediss://host/0", "unix:///run/redis.sock"])
def test_a_connection_over_tcp_is_kept_alive(url):
    """TCP connections use keepalive, because a worker waits for
    minutes behind load balancers that drop silent connections.
    """
    options = connect(url).connection_pool.connection_kwargs
    assert options.get("socket_keepalive", False) is not url.startswith("unix")
    assert not options.get("decode_responses")
