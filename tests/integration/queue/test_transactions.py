"""Related changes happen in one transaction (MULTI); reads need no transaction."""

from __future__ import annotations

import pytest

from workers.queue import inspect, records
from workers.queue.capacities import CapacityStore
from workers.queue.fellows import LeaseFellows
from workers.queue.keys import claim_key
from workers.queue.limits import read_stats
from workers.queue.names import NAMES
from workers.queue.pauses import Pauses
from workers.queue.presence import Presence
from workers.queue.recovery import Recovery
from workers.queue.shadows import Shadows
from workers.queue.workqueue import WorkQueue

KEY = claim_key("d", "ns", "a", "u")
OBJECT = {"metadata": {"uid": "u1"}}
TOGETHER = {
    "an object and its uid": lambda r: CapacityStore(r).put("d", {"item": OBJECT}),
    "an object that goes, and its uid": lambda r: CapacityStore(r).drop("d", {"item": OBJECT}),
    "what is obsolete": lambda r: CapacityStore(r).replace("d", {}, {}, {"old": "u9"}),
    "who works by a Lease": lambda r: LeaseFellows(r, settle_seconds=1).works("l", "w", 60),
    "who works no more": lambda r: LeaseFellows(r, settle_seconds=1).is_last("l", "w"),
    "what is set aside": lambda r: records.quarantine(r, NAMES["marks"].full + "d", "one", b"x"),
    "the bytes of namespaces": lambda r: Recovery(r, queue_of(r)).run(lambda _: []),
}
APART = {
    "one object": lambda r: CapacityStore(r).known("d", "item"),
    "counts of objects": lambda r: CapacityStore(r).counts("d"),
    "one key": lambda r: inspect.read_key(r, KEY),
    "waiting keys": lambda r: inspect.waiting_keys(r, KEY.lane, 0, 9),
    "failed keys": inspect.failed_keys,
    "sizes": inspect.read_sizes,
    "lanes": read_stats,
    "what drains": lambda r: Pauses(r).draining("d"),
    "a living process": lambda r: Presence(r).announce("watcher"),
    "a prediction": lambda r: Shadows(r).put("d", "/path", {"base": None}),
    "a verdict": lambda r: Shadows(r).tell("d", "/path", "agrees", None),
    "a count": lambda r: Shadows(r).count("d", "agrees"),
}


def queue_of(client):
    return WorkQueue(client, publish=lambda _: None)


def transactions(client):
    return client.info("commandstats").get("cmdstat_multi", {"calls": 0})["calls"]


@pytest.mark.parametrize("act", TOGETHER.values(), ids=TOGETHER)
def test_what_belongs_together_is_one_transaction(redis_client, act):
    redis_client.hset(NAMES["marks"].full + "d", "one", b"x")
    before = transactions(redis_client)
    act(redis_client)
    assert transactions(redis_client) - before == 1


@pytest.mark.parametrize("act", APART.values(), ids=APART)
def test_what_needs_none_is_no_transaction(redis_client, act):
    """These commands run outside of transactions.

    Many of them run each second, and each transaction would block Redis.
    """
    redis_client.hset(NAMES["fails"].full, KEY.text, "1")
    redis_client.sadd(NAMES["lanes"].full, KEY.lane)
    before = transactions(redis_client)
    act(redis_client)
    assert transactions(redis_client) == before
