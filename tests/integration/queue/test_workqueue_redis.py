"""The queue with a Redis that restarts, is unreachable or fills up, in real time."""

from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import RedisServer
from tests.support.taking import take
from tests.support.waiting import let_pass, wait_until
from workers.errors import QueueUnavailable
from workers.queue.connection import connect
from workers.queue.keys import Key, claim_key
from workers.queue.leases import Heartbeat, Lease
from workers.queue.names import NAMES
from workers.queue.workqueue import WorkQueue

BACKOFF = {"base_seconds": 1, "cap_seconds": 300}


def claim(name: str, namespace: str = "ns") -> Key:
    return claim_key("d", namespace, name, f"uid-{name}")


def test_c147_hard_restart_keeps_keys_counters_and_delays(redis_binary, tmp_path):
    """With AOF, no acknowledged write is lost, and the same client continues."""
    server = RedisServer(redis_binary, tmp_path, appendonly=True).start()
    client = connect(server.url)
    try:
        queue = WorkQueue(client, publish=lambda _: None)
        queue.register_process()
        queue.set_limits("claims|d", 1000)
        queue.add([claim(str(i)) for i in range(1000)])
        for number in range(200):
            lease = take(queue, claim(str(number)))
            assert lease is not None
            queue.fail(lease, **BACKOFF)
        running = take(queue, claim("500"))
        assert running is not None
        server.kill()
        server.start()
        assert take(queue, claim("600")) is None, "its scripts remember nothing of the earlier run"
        assert not queue.heartbeat()
        running.check()
        assert queue.done(running)
        stats = queue.stats()["claims|d"]
        assert stats.delayed + stats.retry + stats.ready == 999
        assert client.hlen(NAMES["fails"].full) == 200
    finally:
        client.close()
        server.kill()


def test_unreachable_redis_is_one_clear_error(tmp_path):
    client = connect(f"unix://{tmp_path}/nobody.sock")
    queue = WorkQueue(client, publish=lambda keys: None)
    with pytest.raises(QueueUnavailable, match="redis: "):
        queue.add([claim("a")])


def test_heartbeat_thread_keeps_a_lease_and_registers_again(redis_client: redis.Redis):
    beats: list[Heartbeat] = []
    queue = WorkQueue(
        redis_client,
        publish=lambda _: None,
        lease_ttl_seconds=1,
        on_lost=lambda: beats[0].wake(),  # noqa: PLW0108 - it does not exist yet
    )
    beats.append(Heartbeat(queue, interval_seconds=0.1))
    queue.register_process()
    queue.set_limits("claims|d", 1)
    beats[0].start()
    try:
        queue.add([claim("a")])
        lease = take(queue, claim("a"))
        assert lease is not None
        let_pass(1.2)  # longer than one TTL
        lease.check()
        epoch = queue.epoch
        redis_client.flushall()
        wait_until(lambda: queue.epoch != epoch, 5, "the new life is noticed")
        lease.check()
        assert queue.done(lease)
        queue.add([claim("b")])

        def admitted() -> Lease | None:
            queue.pump()
            return take(queue, claim("b"))

        wait_until(admitted, 5, "limits are declared again")
    finally:
        beats[0].stop()


def test_ten_thousand_waiting_keys_cost_less_than_20_mb(redis_client: redis.Redis):
    """10,000 waiting keys use less than 20 MB of Redis' memory, as Redis itself measures it."""
    queue = WorkQueue(redis_client, publish=lambda keys: None)
    queue.register_process()
    queue.set_limits("claims|csi.example.com", 10)
    before = redis_client.info("memory")["used_memory"]
    queue.add(
        claim_key("csi.example.com", f"namespace-{i % 50}", f"data-database-{i}", f"{i:036}")
        for i in range(10_000)
    )
    used = redis_client.info("memory")["used_memory"] - before
    assert used < 20_000_000
    assert queue.stats()["claims|csi.example.com"].ready == 10_000
