"""Redis restarts, fails over to a replica that lags, or loses all data; commands arrive late.

A process that works continues, and no other process begins the same key. The loss of an
acknowledged write is noticed.
"""

from __future__ import annotations

import pytest
import redis

from tests.support.redis_server import RedisServer
from tests.support.taking import due_keys, take
from tests.support.waiting import wait_until
from workers.errors import LeaseLost
from workers.queue.catalog import CatalogWriter
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.locks import Lock
from workers.queue.names import NAMES
from workers.queue.workqueue import WorkQueue

INTENT = {"stage": "calling"}
PV = {"metadata": {"name": "pvc-a"}}


def claim(name):
    return claim_key("d", "ns", name, f"uid-{name}")


def beat(bench, *queues, seconds=1.0):
    """Let time pass for living processes: heartbeats, then one sweep."""
    bench.advance(seconds)
    for queue in queues:
        queue.heartbeat()
    queues[0].pump(period_seconds=0)


class Recorder:
    """Keeps the commands that a queue sends, so that a copy can be delivered late."""

    def __init__(self, queue):
        self.sent = []
        self._run = queue.scripts.run
        queue.scripts.run = getattr(queue, "_heartbeats", queue.scripts).run = self

    def __call__(self, name, *args):
        self.sent.append((name, args))
        return self._run(name, *args)

    def deliver_late(self, name):
        return self._run(name, *next(args for sent, args in self.sent if sent == name))


@pytest.fixture
def pair(redis_binary, tmp_path):
    """Return a master and a replica in sync; the replica may lag."""
    servers = []
    for name in ("master", "replica"):
        (tmp_path / name).mkdir()
        servers.append(RedisServer(redis_binary, tmp_path / name).start())
    master, replica = (redis.Redis(port=server.port) for server in servers)
    replica.replicaof("127.0.0.1", servers[0].port)
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up", 20, "in step")
    yield master, replica
    for server in servers:
        server.kill()


class Fleet:
    """Processes that can switch to another server, as after a DNS change or by a sentinel."""

    def __init__(self, client):
        self.client, self.queues = client, []

    def process(self):
        queue = WorkQueue(self.client, publish=lambda _: None)
        queue.register_process()
        queue.set_limits("claims|d", 10)
        self.queues.append(queue)
        return queue

    def follow(self, client):
        self.client = client
        for queue in self.queues:
            queue.scripts.client = client
            if hasattr(queue, "_heartbeats"):
                queue._heartbeats.client = client


def test_cor1_promotion_of_a_replica_that_lags_is_a_new_life(pair):
    """The acknowledged add is found again. The owner stays the only one and keeps its intent."""
    master, replica = pair
    fleet = Fleet(master)
    owner, other = fleet.process(), fleet.process()
    writer = CatalogWriter(master)
    epoch = writer.epoch()
    writer.mark_complete(["attachments"], epoch)
    owner.add([claim("a")])
    master.wait(1, 5000)
    replica.replicaof("127.0.0.1", 1)  # from now on the replica lags
    lease = take(owner, claim("a"), "pvc-a")
    IntentStore(master, driver="d").begin("pvc-a", INTENT, lease)
    owner.add([claim("lost")])
    replica.replicaof("NO", "ONE")
    fleet.follow(replica)

    assert take(other, claim("a"), "pvc-a") is None, "before anybody noticed"
    for queue in (other, owner):
        queue.heartbeat()
    assert CatalogWriter(replica).epoch() != epoch, "watchers list again and add everything"
    assert writer.incomplete(["attachments"], CatalogWriter(replica).epoch()) == {"attachments"}
    lease.check()
    assert IntentStore(replica, driver="d").get("pvc-a") == INTENT

    def is_served():
        for queue in fleet.queues:
            queue.heartbeat()
            queue.pump()
        return take(owner, claim("new"), "pvc-new")

    owner.add([claim("new"), claim("a")])
    wait_until(is_served, 15, "the silence ends")
    assert take(other, claim("a"), "pvc-a") is None
    lease.check()
    assert owner.done(lease)


@pytest.mark.parametrize("ending", ["done", "fail", "release"])
def test_cor1_an_end_before_anybody_noticed_the_promotion_keeps_the_intent(pair, ending):
    """The end of a pass on a promoted replica keeps the intent.

    The replica has its master's epoch, so a missing lease does not prove that the lease ended.
    """
    master, replica = pair
    fleet = Fleet(master)
    owner = fleet.process()
    owner.add([claim("a")])
    master.wait(1, 5000)
    replica.replicaof("127.0.0.1", 1)  # from now on the replica lags
    lease = take(owner, claim("a"), "pvc-a")
    IntentStore(master, driver="d").begin("pvc-a", INTENT, lease)
    replica.replicaof("NO", "ONE")
    fleet.follow(replica)
    ends = {
        "done": lambda: owner.done(lease),
        "fail": lambda: owner.fail(lease, base_seconds=1, cap_seconds=1).is_owner,
        "release": lambda: owner.release(lease),
    }
    assert not ends[ending]()
    assert IntentStore(replica, driver="d").get("pvc-a") == INTENT
    assert due_keys(replica) == [claim("a")], "worked on again"


def test_cor1_older_owner_in_a_promoted_replica_gives_way(pair):
    """The lagging replica still has the earlier owner, but the higher fencing number wins."""
    master, replica = pair
    fleet = Fleet(master)
    older, newer = fleet.process(), fleet.process()
    older.add([claim("a")])
    first = take(older, claim("a"), "pvc-a")
    master.wait(1, 5000)
    replica.replicaof("127.0.0.1", 1)
    older.done(first)
    older.add([claim("b")])
    second = take(newer, claim("b"), "pvc-a")
    replica.replicaof("NO", "ONE")
    fleet.follow(replica)
    for queue in (older, newer):
        queue.heartbeat()
    second.check()
    holders = replica.zrange(NAMES["holders"].full, 0, -1)
    assert [member.rpartition(b"\0")[2] for member in holders] == [b"x" + claim("b").text.encode()]


def test_cor1_wiped_redis_gets_back_what_the_owner_wrote(bench, start_queue):
    """The intent is restored too, so a worker that dies after the loss leaves no volume behind."""
    queue = start_queue()
    store = IntentStore(bench.client, driver="d")
    queue.add([claim("a")])
    lease = bench.run_next(queue, "pvc-a")
    store.begin("pvc-a", INTENT, lease)
    bench.client.flushall()
    beat(bench, queue)
    lease.check()
    assert store.get("pvc-a") == INTENT
    store.created("pvc-a", INTENT | {"stage": "created"}, PV, lease)
    bench.client.flushall()
    beat(bench, queue)
    assert (store.get("pvc-a"), store.all_pvs().get("pvc-a")) == (INTENT | {"stage": "created"}, PV)


def test_cor1_nobody_begins_what_a_living_process_is_at(bench, start_queue):
    """After a loss of all data the key is added again, but not taken before its owner returns."""
    owner, other = start_queue(), start_queue()
    owner.add([claim("a")])
    lease = bench.run_next(owner, "pvc-a")
    bench.client.flushall()
    other.heartbeat()
    other.add([claim("a")])
    other.pump(period_seconds=0)
    assert not bench.may_take(other)
    for _ in range(6):
        beat(bench, owner, other)
    lease.check()
    assert not bench.may_take(other)
    owner.done(lease)
    assert bench.may_take(other), "added while it ran"


def test_cor9_late_copy_of_a_take_locks_nothing_for_long(bench, start_queue):
    """The first command timed out, its repetition worked; then the original arrives."""
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    recorder = Recorder(one)
    one.done(bench.run_next(one, "pvc-a"))
    one.add([claim("a")])
    recorder.deliver_late("take")
    for _ in range(6):
        beat(bench, one, two)
    assert bench.run_next(two, "pvc-a").key == claim("a")


@pytest.mark.parametrize("script", ["take", "done", "add"])
def test_cor9_late_copies_do_not_disturb_the_present_owner(bench, start_queue, script):
    one, two = start_queue(), start_queue()
    recorder = Recorder(one)
    one.add([claim("a")])
    one.done(bench.run_next(one, "pvc-a"))
    two.add([claim("a")])
    lease = bench.run_next(two, "pvc-a")
    recorder.deliver_late(script)
    for _ in range(6):
        beat(bench, one, two)
    lease.check()
    assert two.done(lease)


def test_cor9_late_renewal_revives_nothing(bench, start_queue):
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    lease = bench.run_next(one, "pvc-a")
    recorder = Recorder(one)
    one.heartbeat()
    one.done(lease)
    one.add([claim("a")])
    recorder.deliver_late("renew")
    assert bench.run_next(two, "pvc-a").fence > lease.fence


def test_cor11_a_machine_too_slow_for_its_sweeps_still_finds_its_dead(bench, start_queue):
    """A machine that is too slow for its sweeps still takes
    over the keys of a dead process when their leases expire.
    """
    owner, other = start_queue(), start_queue()
    for _ in range(4):
        beat(bench, owner, other, seconds=2)
    owner.add([claim("a")])
    bench.run_next(owner, "pvc-a")
    for _ in range(2):
        beat(bench, other, seconds=2)
    assert bench.due == [claim("a")]


def test_cor1_lease_that_a_newer_owner_keeps_out_of_a_new_life_ends_as_lost(bench, start_queue):
    """A lease that a newer owner replaced before the loss
    ends as lost, so its owner puts its records back.
    """
    one, two = start_queue(), start_queue()
    one.add([claim("a")])
    old, new = bench.hand_over(one, two, "pvc-a")
    bench.client.flushall()
    two.heartbeat()
    assert one.heartbeat()
    assert not one.done(old)
    new.check()
    assert two.done(new)


def test_cor1_lease_that_was_lost_before_a_wipe_ends_as_lost(bench, start_queue):
    """A lease that was lost before the loss of data ends as lost.

    The new epoch does not know that, but begun work must be put back.
    """
    one, two = start_queue(), start_queue()
    store = IntentStore(bench.client, driver="d")
    one.add([claim("a")])
    old = bench.run_next(one, "pvc-a")
    store.begin("pvc-a", INTENT, old)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    assert one.heartbeat()
    bench.client.flushall()
    one.heartbeat()
    with pytest.raises(LeaseLost):
        one.mark(old, {"text": "a"})
    assert not one.release(old)
    assert store.get("pvc-a") == INTENT


def test_cor1_replica_that_lags_gets_back_the_lock_that_was_taken_last(bench, start_queue):
    """The replica has an earlier lease. No other process may take the locks added since."""
    one, two = start_queue(), start_queue()
    one.add([claim("a"), claim("b")])
    held = take(one, claim("a"), "pvc-a")
    lagging = {name: bench.client.dump(name) for name in bench.client.scan_iter()}
    assert one.acquire(held, Lock("pvc-b")) is None
    bench.client.flushall()
    for name, value in lagging.items():
        bench.client.restore(name, 0, value)
    bench.client.set(NAMES["epoch"].full, "other:0:run")
    one.heartbeat()
    beat(bench, two, one, seconds=4.1)
    beat(bench, two, one)
    assert take(two, claim("b"), Lock("pvc-b")) is None
    assert one.done(held)


def test_cor15_broken_lease_with_two_waiters_does_not_stop_the_sweep(bench, start_queue):
    queue = start_queue()
    keys = [claim(name) for name in "abc"]
    queue.add(keys)
    bench.run_next(queue, "pvc-a")
    for key in keys[1:]:
        assert take(queue, key, "pvc-a") is None
    bench.client.hset(NAMES["leases"].full, keys[0].text, b"broken")
    for _ in range(3):
        beat(bench, queue)
    assert set(bench.due) == set(keys)


def test_volume_of_a_lost_lease_is_no_fact_for_redis(bench, start_queue):
    """`created` checks the owner of the volume, and the record is put back with the key."""
    one, two = start_queue(), start_queue()
    store = IntentStore(bench.client, driver="d")
    one.add([claim("a")])
    old = bench.run_next(one, "pvc-a")
    store.begin("pvc-a", INTENT, old)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    new = bench.run_next(two, "pvc-a")
    store.finish("pvc-a", new)
    with pytest.raises(LeaseLost):
        store.created("pvc-a", INTENT, PV, old)
    assert (store.get("pvc-a"), store.all_pvs().get("pvc-a")) == (None, None)
    assert not one.release(old)
    assert (store.get("pvc-a"), store.all_pvs().get("pvc-a")) == (INTENT, PV), (
        "nobody else may know of that volume"
    )
    two.done(new)
    assert bench.due == [claim("a")]


def test_record_of_the_newer_owner_is_not_overwritten_by_a_lost_lease(bench, start_queue):
    one, two = start_queue(), start_queue()
    store = IntentStore(bench.client, driver="d")
    one.add([claim("a")])
    old = bench.run_next(one, "pvc-a")
    store.begin("pvc-a", INTENT, old)
    bench.advance(4.1)
    two.heartbeat()
    two.pump(period_seconds=0)
    newer = INTENT | {"stage": "background"}
    store.begin("pvc-a", newer, bench.run_next(two, "pvc-a"))
    with pytest.raises(LeaseLost):
        store.put("pvc-a", INTENT | {"stage": "stale"}, old)
    one.release(old)
    assert store.get("pvc-a") == newer
    assert not store.restore("pvc-a", store.sealed("pvc-a", INTENT)), (
        "nor by a copy from the API server (COR-15)"
    )
    assert store.get("pvc-a") == newer


def test_limits_of_a_node_that_went_are_dropped(bench, start_queue):
    """The limits of a removed node are dropped.

    A process that serves a lane declares its limits again every few minutes.
    """
    gone, stays = bench.process(), bench.process()
    gone.set_limits("claims|d@gone", 1)
    stays.set_limits("claims|d@here", 1)
    gone.close()
    for _ in range(9):
        beat(bench, stays, seconds=600)
    assert stays.stats().keys() == {"claims|d@here"}
    assert bench.client.exists(NAMES["limits"].full + "claims|d@gone") == 0


def test_one_call_at_a_time_holds_over_a_wipe_and_a_death(bench, start_queue):
    """A serial driver gets no second call after a loss of data
    and the death of its worker, whose call may still run.
    """
    one, two = start_queue(), start_queue()
    for queue in (one, two):
        queue.set_limits("claims|d", 1, hold_seconds=10)
    one.add([claim("a"), claim("b")])
    bench.run_next(one)
    bench.client.flushall()
    two.heartbeat()
    two.add([claim("a"), claim("b")])
    for _ in range(9):
        beat(bench, two)
    assert not bench.may_take(two)
    for _ in range(3):
        beat(bench, two)
    assert bench.run_next(two).key == claim("a")


def test_first_installation_waits_for_nobody(bench):
    queue = bench.process()
    queue.add([claim("a")])
    queue.set_limits("claims|d", 1, hold_seconds=10)
    assert bench.due == [claim("a")]
    assert bench.run_next(queue).key == claim("a")


def test_restart_after_an_orderly_end_waits_for_nobody(bench):
    """A restart without living processes needs no quiet
    period, because no process has a lease to give back.
    """
    queue = bench.process()
    queue.add([claim("a")])
    queue.close()
    epoch = bench.client.get(NAMES["epoch"].full).decode()
    bench.client.set(NAMES["epoch"].full, epoch.rpartition(":")[0] + ":anotherrun")
    bench.process().set_limits("claims|d", 1)
    assert bench.due == [claim("a")]
