"""Reading a key's state, its trail and all lanes is cheap, however many keys wait."""

from __future__ import annotations

import pytest

from tests.support.taking import take
from workers.observability import trail
from workers.observability.exposition import Exposition
from workers.observability.lanes import LaneCollector
from workers.queue.inspect import failed_keys, read_key, read_sizes
from workers.queue.keys import claim_key, lane_name
from workers.queue.limits import read_stats
from workers.queue.names import NAMES
from workers.queue.presence import Presence
from workers.queue.workqueue import WorkQueue


@pytest.fixture
def queue(redis_client):
    queue = WorkQueue(redis_client, publish=lambda keys: None)
    queue.register_process()
    queue.set_limits(lane_name("claims", "d"), 1)
    yield queue
    queue.close()


def key_of(name: str):
    return claim_key("d", "shop", name, f"uid-{name}")


def test_a_trail_tells_each_step_in_order(queue, redis_client):
    key = key_of("one")
    queue.add([key])
    lease = take(queue, key)
    with trail.collect():
        trail.note("rpc", "CreateVolume Internal 0.100")
        trail.note("error", "rpc error: code = Internal\ndesc = boom")
        queue.fail(lease, base_seconds=60, cap_seconds=60)
    state = read_key(redis_client, key)
    assert [note.event for note in state.trail] == ["queued", "taken", "rpc", "error", "failed"]
    assert state.trail[3].detail == "rpc error: code = Internal desc = boom"
    assert [note.at for note in state.trail] == sorted(note.at for note in state.trail)
    assert state.fails == 1
    assert 50 < state.due - state.now < 61
    assert [(one.key, one.error) for one in failed_keys(redis_client)] == [
        (key, "rpc error: code = Internal desc = boom")
    ]


def test_a_trail_is_bounded_and_ends(queue, redis_client):
    key = key_of("one")
    for _ in range(30):
        queue.add([key])
        queue.done(take(queue, key))
    name = f"csifleet:trail:claims|shop/one|{key.uid}"
    assert redis_client.llen(name) == 40
    assert 3500 < redis_client.ttl(name) <= 3600


def commands(redis_client):
    return redis_client.info("stats")["total_commands_processed"]


def test_position_among_ten_thousand_by_few_commands(queue, redis_client):
    """The cost of `explain` in Redis does not grow with the number of waiting keys."""
    queue.add(key_of(f"n{number}") for number in range(10_000))
    before = commands(redis_client)
    state = read_key(redis_client, key_of("n9999"))
    assert state.waiting == 10_000
    assert state.position == 10_000
    assert commands(redis_client) - before < 30
    redis_client.flushall()  # otherwise the check for undeclared keys takes long


def test_a_scrape_of_200_drivers_is_bounded(queue, redis_client):
    for number in range(200):
        for kind in ("claims", "volumes", "cloning", "capacity", "sweep"):
            queue.set_limits(lane_name(kind, f"driver-{number}"), 10)
        queue.add([claim_key(f"driver-{number}", "shop", f"c{number}", f"u{number}")])
    lanes = LaneCollector(lambda: read_stats(redis_client), lambda: read_sizes(redis_client))
    before = commands(redis_client)
    families = list(Exposition(lanes).collect())
    asked = commands(redis_client) - before
    series = sum(len(family.samples) for family in families)
    assert asked < 15 * 1_001
    assert series < 11 * 1_001 + 200


def test_presence_names_the_living(redis_client, queue):
    presence = Presence(redis_client)
    presence.announce("watcher")
    assert [one.role for one in presence.alive()] == ["watcher"]
    assert len(presence.workers()) == 1
    assert presence.workers()[0].pid


def test_what_a_process_complains_of_is_told_while_it_says_so(redis_client, queue):
    """A process' warnings are shown while the process repeats them.

    Watchers of an older release, which report no warnings, still count as alive.
    """
    presence = Presence(redis_client)
    presence.announce("watcher")
    troubles = ['pods is forbidden: User "x y" cannot list', "two words"]
    presence.complain("watcher", [*troubles, troubles[0]])
    presence.complain("watcher", [])
    assert presence.troubles() == [f"watcher: {one}" for one in troubles]
    assert [one.role for one in presence.alive()] == ["watcher"]
    marks = redis_client.zrange(NAMES["presence"].full, 0, -1)
    redis_client.zadd(NAMES["presence"].full, dict.fromkeys(marks, 1_000))
    assert presence.troubles() == []


def test_the_dead_are_not_counted_though_nobody_is_left_to_clear_the_list(redis_client):
    """Dead workers do not count, even if no worker is left to clear the list.

    The alert CsiFleetNoWorker depends on that.
    """
    redis_client.zadd(NAMES["procs"].full, {"host:1:dead": 1_000})
    redis_client.zadd(NAMES["drivers_until"].full, {"gone": 1_000})
    sizes = read_sizes(redis_client)
    assert (sizes["worker_processes"], sizes["registered_drivers"]) == (0, 0)
    queue = WorkQueue(redis_client, publish=lambda _: None)
    queue.register_process()
    assert read_sizes(redis_client)["worker_processes"] == 1
    queue.close()
