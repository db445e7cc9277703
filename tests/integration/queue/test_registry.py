"""Drivers are registered as long as a worker renews them."""

from __future__ import annotations

from workers.queue.names import NAMES
from workers.queue.registry import DriverRegistry


def test_driver_expires_without_renewal_and_the_version_tells(bench):
    registry = DriverRegistry(bench.client, now_ms=lambda: bench.now_ms)
    assert registry.register("a", {"version": "1"}, ttl_seconds=10)
    assert not registry.register("a", {"version": "1"}, ttl_seconds=10)
    assert registry.alive() == {"a": {"version": "1"}}
    before = registry.version
    bench.advance(6)
    assert registry.register("b", {}, ttl_seconds=10)
    assert set(registry.alive()) == {"a", "b"}
    bench.advance(5)
    assert set(registry.alive()) == {"b"}
    assert registry.register("b", {}, ttl_seconds=10), "the expiry of a is a change"
    registry.alive()
    assert registry.version == before + 2


def test_broken_record_is_left_out(bench, caplog):
    registry = DriverRegistry(bench.client, now_ms=lambda: bench.now_ms)
    registry.register("a", {}, ttl_seconds=10)
    bench.client.hset(NAMES["drivers"].full, "a", "{")
    assert registry.alive() == {}
    assert registry.register("a", {}, ttl_seconds=10)
    assert registry.alive() == {"a": {}}
