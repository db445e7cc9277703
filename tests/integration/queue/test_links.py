"""Lost connections, lowered limits, pauses and fairness, on a Redis with a settable clock."""

from __future__ import annotations

import pytest

from tests.support.taking import take_all
from workers.kube.pauserecord import Recorded
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.leases import Lease
from workers.queue.links import ANYWHERE, Links, Place, record_text
from workers.queue.pauses import Pauses
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration


KINDS = ("claims", "volumes", "capacity", "cloning", "sweep")


class World:
    """One queue, the links of two processes, and a clock that only the test moves."""

    def __init__(self, client):
        self.now = 1_000_000
        self.client = client
        self.running: dict[Key, Lease] = {}
        clock = {"now_ms": lambda: self.now}
        self.queue = WorkQueue(client, publish=lambda _: None, **clock)
        self.queue.register_process()
        self.one, self.two = (Links(client, publish=lambda _: None, **clock) for _ in range(2))
        for kind in KINDS:
            self.queue.set_limits(f"{kind}|d", 100)

    def later(self, seconds):
        self.now += round(seconds * 1000)

    def claims(self, count, namespace="ns", start=0):
        keys = [
            claim_key("d", namespace, f"c{i}", f"{namespace}{i}")
            for i in range(start, start + count)
        ]
        self.queue.add(keys)
        return keys

    def fresh(self):
        """Take all keys that can be taken now and return them; they keep running."""
        found = take_all(self.queue, "d", *KINDS)
        self.running |= {lease.key: lease for lease in found}
        return [lease.key for lease in found]

    def pump(self):
        self.queue.heartbeat()
        self.queue.pump(period_seconds=0)
        return self.fresh()

    def paused(self):
        return self.queue.stats()["claims|d"].paused


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def lose(world, links):
    links.lost("d", "driver socket lost")
    return world.paused()


LOST = {"driver": "driver socket lost"}


def test_keys_wait_when_the_last_connection_is_lost(world):
    world.one.back("d", 15)
    world.two.back("d", 15)
    assert lose(world, world.one) == {}
    assert lose(world, world.two) == LOST
    world.claims(10)
    assert world.pump() == []
    world.one.back("d", 15)
    assert len(world.fresh()) == 10
    assert world.paused() == {}


def test_the_pause_of_a_lost_driver_ends_when_nobody_says_so_again(world):
    """The pause of a lost driver ends 15 s after the last report of the loss."""
    assert lose(world, world.one) == LOST
    world.later(14)
    assert lose(world, world.one) == LOST
    world.later(14.999)
    assert world.paused() == LOST
    world.later(0.001)
    assert world.paused() == {}


def test_a_connection_that_is_back_ends_no_other_pause(world):
    world.queue.pause("claims|d", "upgrade", kind="lease")
    world.one.back("d", 15)
    assert world.paused() == {"lease": "upgrade"}


def test_a_driver_with_a_connected_worker_is_not_lost_after_a_wipe(world, redis_client):
    """After a loss of data, the pause of a lost driver
    ends when a connected worker registers again.
    """
    world.one.back("d", 15)
    world.two.back("d", 15)
    redis_client.flushall()
    world.queue.heartbeat()
    assert lose(world, world.one) == LOST
    world.two.keep({"d": b"{}"}, {"d": ANYWHERE}, ttl_seconds=15)
    assert world.paused() == {}


def test_the_next_word_of_a_parted_worker_ends_lost_too(world, redis_client):
    """The next report of a disconnected worker ends the pause
    if another worker has registered as connected meanwhile.
    """
    assert lose(world, world.one) == LOST
    redis_client.zadd("csifleet:links:d", {"two": world.now + 15_000})
    assert lose(world, world.one) == {}


def test_a_worker_that_keeps_its_drivers_counts_as_connected(world):
    """A worker counts by its repeated registrations, not only by its first one."""
    world.two.keep({"d": b"{}"}, {"d": ANYWHERE}, ttl_seconds=15)
    assert lose(world, world.one) == {}
    world.later(16)
    assert lose(world, world.one) == LOST


def test_a_killed_process_does_not_count_as_connected_for_ever(world, redis_client):
    world.one.back("d", 15)
    world.two.back("d", 15)
    assert redis_client.pttl("csifleet:links:d") > 0
    world.later(16)
    assert lose(world, world.one) == LOST


def test_too_much_halves_the_lane_down_to_one_and_it_recovers(world):
    assert world.one.throttle("claims|d") == 50
    assert world.two.throttle("claims|d") == 50  # calls that ran together fail together
    for expected in (25, 12, 6, 3, 1, 1):
        world.later(1.1)
        assert world.one.throttle("claims|d") == expected
    world.claims(100)
    assert len(world.fresh()) == 1
    world.later(5)
    assert len(world.pump()) == 2  # 2 % of the limit every 5 s
    world.later(300)
    assert len(world.pump()) == 97


def test_calls_of_a_rate_take_turns_over_all_processes(world):
    world.queue.set_limits("claims|d", 100, rate_per_second=10, burst=2)
    waits = [each.pace("claims|d") for each in (world.one, world.two, world.one, world.two)]
    assert waits == [0, 0, 0.1, 0.2]
    world.later(10)
    assert [world.one.pace("claims|d") for _ in range(3)] == [0, 0, 0.1]
    assert world.one.pace("volumes|d") == 0


def test_a_serial_driver_has_one_call_of_any_kind_and_kinds_take_turns(world):
    for kind in ("claims", "volumes", "capacity"):
        world.queue.set_limits(f"{kind}|d", 1, total=1)
    world.queue.add([volume_key("d", f"pv{i}") for i in range(3)])
    world.claims(3)
    seen = []
    for _ in range(6):
        (key,) = world.fresh()
        seen.append(key.kind)
        world.queue.done(world.running[key])
    assert seen == ["claims", "volumes"] * 3


def test_keep_announces_all_drivers_in_one_call(world, redis_client):
    registry = DriverRegistry(redis_client, now_ms=lambda: world.now)
    records = {f"d{i}": record_text({"name": f"d{i}"}) for i in range(200)}
    connected = dict.fromkeys(records, ANYWHERE)
    world.one.keep(records, connected, ttl_seconds=15)
    assert len(registry.alive()) == 200
    version = registry.version
    world.one.keep(records, connected, ttl_seconds=15)
    registry.alive()
    assert registry.version == version, "nothing has changed"
    del records["d7"]
    world.later(10)
    world.one.keep(records, connected, ttl_seconds=15)
    world.later(10)
    assert "d7" not in registry.alive()
    assert len(registry.alive()) == 199


# The next tests choose the replica of a driver that is called.


def at(address, *, open_seconds=0, longest=20):
    return Place(address, open_seconds, longest)


def grown_up(world):
    """Let the epoch get older than a report and the longest call: Redis then knows all replicas."""
    world.later(20 + 15)


def back(world, links, place, **options):
    verdict = links.back("d", 15, place, **options)
    return (verdict.is_ours, verdict.hold_seconds, verdict.chosen)


def test_the_first_replica_that_a_worker_reaches_is_that_of_all(world):
    grown_up(world)
    assert back(world, world.one, at("10.0.0.1")) == (True, 0, "10.0.0.1")
    assert back(world, world.two, at("10.0.0.2")) == (False, 0, "10.0.0.1")
    assert back(world, world.two, at("10.0.0.1")) == (True, 0, "10.0.0.1")


def test_a_replica_is_not_changed_while_a_worker_is_connected_to_it(world):
    grown_up(world)
    for links in (world.one, world.two):
        back(world, links, at("a"))
    world.one.lost("d", "lost", at("a"))
    assert back(world, world.one, at("b")) == (False, 0, "a")
    world.two.lost("d", "lost", at("a"))
    assert back(world, world.one, at("b")) == (True, 0, "b")
    assert back(world, world.two, at("a")) == (False, 0, "b")


def test_another_replica_is_called_when_calls_at_the_old_one_have_ended(world):
    """Another replica is called when the longest call to the old one has ended.

    A worker that connects later waits too.
    """
    grown_up(world)
    for links in (world.one, world.two):
        back(world, links, at("a"))
    world.claims(1)
    world.one.lost("d", "lost", at("a", open_seconds=4))
    world.two.lost("d", "lost", at("a", open_seconds=9))
    world.later(1)
    assert back(world, world.one, at("b")) == (True, 8, "b")
    assert world.pump() == []
    world.later(5)
    assert back(world, world.two, at("b")) == (True, 3, "b")
    world.later(2.9)
    world.one.keep({"d": b"{}"}, {"d": at("b")}, ttl_seconds=15)
    assert world.pump() == []
    world.later(0.1)
    world.queue.heartbeat()
    assert len(world.pump()) == 1


def test_the_same_replica_is_called_again_at_once(world):
    grown_up(world)
    back(world, world.one, at("a"))
    world.one.lost("d", "lost", at("a", open_seconds=9))
    assert back(world, world.one, at("a")) == (True, 0, "a")
    assert world.paused() == {}


def test_calls_of_a_silent_worker_are_waited_for_from_the_end_of_its_word(world):
    """The wait for a silent worker's calls starts when its
    last report expires, because a call can begin just before.
    """
    grown_up(world)
    back(world, world.one, at("a"))
    world.later(14)
    assert back(world, world.two, at("b")) == (False, 0, "a")
    world.later(6)
    assert back(world, world.two, at("b")) == (True, 15, "b"), "15 s its word, then a call of 20 s"


def test_a_worker_that_serves_tells_an_empty_redis_which_replica_it_is(world, redis_client):
    """A connected worker tells an empty Redis which replica
    it uses, and a new worker waits for that report.
    """
    grown_up(world)
    back(world, world.one, at("a"))
    redis_client.flushall()
    world.queue.heartbeat()
    assert back(world, world.two, at("b")) == (False, 0, "")
    told = world.one.keep({"d": b"{}"}, {"d": at("a")}, ttl_seconds=15)
    assert told["d"].is_ours
    assert told["d"].hold_seconds == 0
    assert back(world, world.two, at("b")) == (False, 0, "a")


def test_an_empty_redis_without_a_word_learns_it_after_the_longest_call(world, redis_client):
    redis_client.flushall()
    world.queue.heartbeat()
    assert back(world, world.two, at("b")) == (False, 0, "")
    grown_up(world)
    assert back(world, world.two, at("b")) == (True, 0, "b")


def test_who_keeps_another_replica_is_told_and_does_not_count_for_it(world):
    grown_up(world)
    back(world, world.one, at("a"))
    told = world.two.keep({"d": b"{}"}, {"d": at("b")}, ttl_seconds=15)
    assert (told["d"].is_ours, told["d"].chosen) == (False, "a")
    world.one.lost("d", "lost", at("a"))
    assert world.paused() == LOST | {"driver": "lost"}


def test_the_end_of_a_pause_is_told(world, redis_client):
    pauses = Pauses(redis_client, world.queue)
    pauses.mirror(Recorded("1", {"driver d": "0 new firmware"}))
    assert world.queue.stats()["claims|d"].paused_until == {}
    pauses.mirror(Recorded("2", {"driver d": f"{world.now + 60_000} new firmware"}))
    assert world.queue.stats()["claims|d"].paused_until == {"operator": world.now / 1000 + 60}


def test_pause_and_drain_of_a_driver(world, redis_client):
    pauses = Pauses(redis_client, world.queue)
    (key,) = world.claims(1)
    assert world.fresh() == [key]
    pauses.mirror(Recorded("1", {"driver d": "0 new firmware"}))
    assert pauses.draining("d") == 1
    world.claims(2, start=1)
    assert world.pump() == []
    assert world.paused() == {"operator": "new firmware"}
    world.queue.done(world.running[key])
    assert pauses.draining("d") == 0
    pauses.mirror(Recorded("2"))
    assert len(world.fresh()) == 2


def test_one_claim_of_a_tenant_waits_for_no_flood_of_another(world):
    """With 10,000 claims against 1, the one is next after the running calls."""
    world.queue.set_limits("claims|d", 5)
    world.claims(10_000, "flood")
    running = world.fresh()
    assert len(running) == 5
    (single,) = world.claims(1, "small")
    assert world.fresh() == []
    world.queue.done(world.running[running[0]])
    assert world.fresh() == [single]


def test_retries_of_a_flood_do_not_hold_up_first_attempts(world):
    world.queue.set_limits("claims|d", 1)
    world.claims(30, "flood")
    for _ in range(30):
        (key,) = world.fresh()
        world.queue.fail(world.running[key], base_seconds=1, cap_seconds=1)
    world.later(2)
    (key,) = world.pump()
    world.claims(10, "new")
    order = []
    for _ in range(12):
        world.queue.done(world.running[key])
        (key,) = world.fresh()
        order.append(key.tenant)
    assert order.count("new") == 10
    assert order.count("flood") == 2
