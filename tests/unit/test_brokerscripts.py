"""SEC-5: kombu's own scripts are replaced by commands that do the same."""

from __future__ import annotations

from types import SimpleNamespace

from kombu.transport.redis import Channel, QoS, SentinelChannel, Transport

from workers import brokerscripts

TABLE, DEADLINES, PERMANENT = "_kombu.binding.", "_kombu.deadlines", "_kombu.permanent."


def test_kombu_sends_none_of_its_own():
    messages = brokerscripts.Messages(SimpleNamespace(tasks={}), lambda: None)
    brokerscripts.install(Channel, QoS, Transport, messages)
    for channel in (Channel, SentinelChannel):
        assert channel._refresh_binding is brokerscripts.refresh_binding
        assert channel._sweep_bindings is brokerscripts.sweep_bindings


def test_a_binding_that_nobody_refreshes_goes(redis_client, monkeypatch):
    now = 1_000_000
    monkeypatch.setattr(brokerscripts, "_now_ms", lambda: now)
    for exchange, lifetime in (("short", 10), ("long", 1000), ("kept", 10)):
        brokerscripts.refresh_binding(
            keys=[TABLE + exchange, DEADLINES], args=["queue", exchange, lifetime],
            client=redis_client,
        )  # fmt: skip
    redis_client.sadd(PERMANENT + "kept", "queue")
    sweep = {"keys": [DEADLINES], "args": [TABLE, PERMANENT, 100], "client": redis_client}
    assert brokerscripts.sweep_bindings(**sweep) == 0
    now += 11
    assert brokerscripts.sweep_bindings(**sweep) == 2
    assert not redis_client.exists(TABLE + "short")
    assert redis_client.smembers(TABLE + "long") == {b"queue"}
    assert redis_client.exists(TABLE + "kept"), "a queue without a deadline is in it"
    assert redis_client.zrange(DEADLINES, 0, -1) == [b"long"]


def test_a_deadline_only_moves_on(redis_client, monkeypatch):
    monkeypatch.setattr(brokerscripts, "_now_ms", lambda: 0)
    for lifetime in (100, 50):
        brokerscripts.refresh_binding(
            keys=[TABLE + "x", DEADLINES], args=["queue", "x", lifetime], client=redis_client
        )
    assert redis_client.zscore(DEADLINES, "x") == 100
