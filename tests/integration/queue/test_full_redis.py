"""A nearly full Redis accepts no new work, but wake-ups and the work under way continue.

At maxmemory Redis itself refuses every command that needs memory, including Celery's messages and
bindings. Only an operator can resolve that state.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu import Exchange, Queue

from tests.support.redis_server import delete_functions
from watcher.outbox import Outbox
from workers.app import make_app, publisher
from workers.cli import doctor
from workers.config.load import parse
from workers.errors import QueueFull, QueueUnavailable
from workers.queue.catalog import CatalogWriter
from workers.queue.catalogkinds import KIND_CLASSES
from workers.queue.intents import IntentStore
from workers.queue.keys import claim_key
from workers.queue.names import NAMES, celery_queue
from workers.queue.scripts import GROWING, Scripts, script_names

FULL = pytest.raises(QueueFull, match=r"nearly full: \d+ % of maxmemory is used")
SHARES = {"FULL_SHARE": 0.9, "CROWDED_SHARE": 0.95}
OLD, NEW = claim_key("d", "ns", "old", "u1"), claim_key("d", "ns", "new", "u2")


@pytest.fixture
def use(redis_client):
    """Set the used share of Redis' memory. At 97 %, about a megabyte is free."""

    def at(share):
        redis_client.config_set("maxmemory", 0)
        # made in the server, which needs no buffer for a large request
        redis_client.setrange("ballast", 40_000_000, "x")
        used = redis_client.info("memory")["used_memory"]
        redis_client.config_set("maxmemory", int(used / share))
        delete_functions(redis_client)  # a new library checks at once, and then once a second

    yield at
    redis_client.config_set("maxmemory", 0)
    redis_client.delete("ballast")
    delete_functions(redis_client)


@pytest.mark.parametrize("share", [0.5, 0.92, 0.97])
def test_what_adds_is_refused_and_nothing_else(redis_client, use, share):
    """A nearly full Redis refuses exactly the scripts that add data; the test runs every script."""
    scripts = Scripts(redis_client)

    def refused(name):
        try:
            scripts.run(name)
        except QueueUnavailable as error:
            return "nearly full" in str(error)
        return False

    for name in script_names():  # Redis keeps the text of each script, a megabyte in all
        refused(name)
    use(share)
    assert {name for name in script_names() if refused(name)} == {
        name for name, most in GROWING.items() if SHARES[most] < share
    }


def test_a_full_redis_drains_and_then_takes_new_work(redis_client, bench, start_queue, use):
    queue = start_queue()
    queue.add([OLD])
    use(0.92)
    with FULL:
        queue.add([NEW])
    lease = bench.run_next(queue)
    queue.mark(lease, {"call": {}})
    assert queue.done(lease)
    redis_client.delete("ballast")
    delete_functions(redis_client)
    queue.add([NEW])
    assert bench.run_next(queue).key == NEW


def test_no_new_record_where_even_that_gets_scarce_but_an_old_one_ends(bench, start_queue, use):
    """A call that has begun can replace and remove its mark. A call without a mark cannot begin."""
    queue = start_queue()
    queue.add([OLD, NEW])
    old, new = bench.run_next(queue), bench.run_next(queue)
    queue.mark(old, {"call": {}})
    use(0.97)
    with FULL:
        queue.mark(new, {"call": {}})
    queue.mark(old, {"call": {"until": 1}})
    queue.mark(old, {})
    assert queue.done(old)


def test_an_intent_is_replaced_but_none_is_new_where_even_that_gets_scarce(redis_client, use):
    """An intent can be replaced, so an attempt under way ends. No new attempt begins."""
    store = IntentStore(redis_client, driver="d")
    store.begin("pvc-old", {"stage": "calling"})
    use(0.97)
    store.begin("pvc-old", {"stage": "failed"})
    assert store.get("pvc-old") == {"stage": "failed"}
    with FULL:
        store.begin("pvc-new", {"stage": "calling"})
    assert store.finish("pvc-old")


def test_a_new_life_gets_its_catalog(redis_client, use):
    """A new epoch gets its catalog.

    Without it no volume could be deleted, and Redis would not drain.
    """
    use(0.97)
    writer = CatalogWriter(redis_client)
    epoch = writer.epoch()
    writer.replace(KIND_CLASSES, [("fast", "5", {"provisioner": "d"})], "9")
    writer.mark_complete([KIND_CLASSES], epoch)
    assert writer.incomplete([KIND_CLASSES], epoch) == set()


def test_what_is_gone_is_forgotten_first(redis_client, bench, start_queue, use):
    """Deleted objects are forgotten before new keys are added, because that frees memory."""
    queue = start_queue()
    queue.add([OLD])
    lease = bench.run_next(queue)
    queue.mark(lease, {"call": {}})
    queue.done(lease)
    outbox = Outbox(queue, CatalogWriter(redis_client))
    outbox.add([NEW])
    outbox.forget([OLD])
    use(0.92)
    with FULL:
        outbox.step()
    assert not redis_client.exists(NAMES["marks"].full + "d")
    assert outbox.waiting == 1


def test_wake_ups_go_and_a_worker_connects(redis_server, redis_client, use):
    """Messages are sent and a worker connects.

    Celery, not csi-fleet, writes its lists and bindings, so Redis must have room for them.
    """
    app = make_app(parse("worker", [f"--redis-url={redis_server.unix_url}"], {}))
    use(0.97)
    try:
        publisher(app)([celery_queue("d")])
        assert redis_client.llen(celery_queue("d")) == 1
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            # for a worker's remote control, and for an answer
            for options in ({}, {"expires": 10}):
                Queue("control", Exchange("pidbox"), **options)(channel).declare()
    finally:
        app.close()


@pytest.mark.parametrize(
    ("share", "states"), [(0.5, []), (0.7, [doctor.WARN]), (0.92, [doctor.FAIL])]
)
def test_doctor_says_so(redis_client, use, share, states):
    use(share)
    found = doctor.redis_settings(SimpleNamespace(redis=redis_client))
    assert [one.state for one in found if one.check == "redis memory"] == states
