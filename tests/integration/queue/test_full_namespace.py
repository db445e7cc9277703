"""A namespace whose attempts never end fills only its own share of Redis."""

from __future__ import annotations

import pytest

from tests.support.redis_server import delete_functions
from workers.controllers.provisioner.intent import Intent, Request
from workers.errors import NamespaceFull
from workers.queue.intents import NAMESPACE_BYTES, IntentStore
from workers.queue.keys import claim_key
from workers.queue.leases import Session
from workers.queue.names import NAMES
from workers.queue.recovery import Recovery
from workers.queue.seal import Seal
from workers.queue.workqueue import WorkQueue

HELD = NAMES["held"].full
SEAL = Seal.of_lines(["k" * 64])
FILLING = {f"team/{number}": "x" * 250 for number in range(1000)}


@pytest.fixture
def store(redis_client):
    return IntentStore(redis_client, SEAL, namespace_bytes=40_000, driver="d")


def intent(namespace, number, **metadata):
    claim = {"metadata": {"namespace": namespace, "uid": f"u{number}", **metadata}, "spec": {}}
    return Intent.begin(
        key=claim_key("d", namespace, f"c{number}", f"u{number}").text, driver="d", claim=claim,
        storage_class={"metadata": {"name": "fast"}}, request=Request(), previous=None,
        session=Session(epoch="e"),
    ).record()  # fmt: skip


def fill(store, namespace, most=1000):
    """Record attempts of large claims until the namespace is full, and return their number."""
    for number in range(most):
        try:
            store.begin(f"{namespace}-{number}", intent(namespace, number, annotations=FILLING))
        except NamespaceFull:
            return number
    return most


def test_a_full_namespace_waits_alone(store):
    count = fill(store, "greedy")
    assert 1 < count < 20
    with pytest.raises(NamespaceFull, match=r"namespace greedy .* Delete claims"):
        store.begin("greedy-new", intent("greedy", 99, annotations=FILLING))
    store.begin("other-1", intent("other", 1, annotations=FILLING))
    assert store.get("greedy-new") is None
    assert store.get("other-1") is not None


def test_what_is_under_way_goes_on_in_a_full_namespace(store):
    fill(store, "greedy")
    again = intent("greedy", 0, annotations=FILLING)
    store.begin("greedy-0", {**again, "stage": "background"})
    store.created("greedy-0", again, {"metadata": {"name": "greedy-0"}})
    assert store.finish("greedy-0")


def test_it_recovers_when_its_claims_are_gone(store, redis_client):
    count = fill(store, "greedy")
    for number in range(count):
        store.finish(f"greedy-{number}")
    assert redis_client.hgetall(HELD) == {}
    assert fill(store, "greedy") == count


def test_a_count_that_is_wrong_is_made_anew(store, redis_client):
    """A wrong count of a namespace's bytes is corrected.

    Records also disappear by a repair, a restore or an operator's command.
    """
    fill(store, "greedy", most=2)
    right = redis_client.hgetall(HELD)
    redis_client.hset(HELD, mapping={"greedy": 10**9, "gone": 5})
    Recovery(redis_client, WorkQueue(redis_client, publish=lambda _: None)).run(lambda _: [])
    assert redis_client.hgetall(HELD) == right
    store.begin("greedy-new", intent("greedy", 99))


def test_the_share_is_a_small_part_of_redis():
    """The share of a namespace is a small part of the 350 MB of redis.conf. 2,000 claims with 264
    KB of annotations each are two shares.
    """
    assert NAMESPACE_BYTES * 20 <= 350 * 1024 * 1024


def test_sec4_what_is_kept_for_people_goes_first_where_room_is_scarce(redis_client):
    """When memory gets scarce, trails are no longer written.

    The trail of each claim can have 16 KB, so 20,000 failing claims would fill Redis.
    """
    queue = WorkQueue(redis_client, publish=lambda _: None)
    queue.register_process()
    trails = f"{NAMES['trail'].full}*"
    queue.add([claim_key("d", "greedy", "before", "u1")])
    assert len(redis_client.keys(trails)) == 1
    used = redis_client.info("memory")["used_memory"]
    try:
        redis_client.config_set("maxmemory", used * 5 // 4)  # between both shares, with room
        delete_functions(redis_client)  # the library checks once a second
        queue.pump(period_seconds=0)
        queue.add([claim_key("d", "greedy", "after", "u2")])
        assert len(redis_client.keys(trails)) == 1
    finally:
        redis_client.config_set("maxmemory", 0)
        delete_functions(redis_client)
    redis_client.delete(NAMES["tight"].full)
    queue.add([claim_key("d", "greedy", "later", "u3")])
    assert len(redis_client.keys(trails)) == 2
