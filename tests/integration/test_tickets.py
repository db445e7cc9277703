"""Where tickets go: straight to the list of their driver, which only its workers read."""

from __future__ import annotations

from workers.app import SYSTEM_QUEUE, make_app, publisher
from workers.config import parse
from workers.queue.keys import claim_key, volume_key
from workers.queue.names import celery_queue


def test_each_driver_has_a_list_of_its_own(redis_server, redis_client):
    """A ticket in the common list would reach workers that do not serve its driver."""
    settings = parse("watcher", [f"--redis-url={redis_server.unix_url}"], {})
    app = make_app(settings)
    publisher(app)([claim_key("one", "ns", "a", "uid-1"), volume_key("two", "pvc-1")])
    assert redis_client.llen(celery_queue("one")) == 1
    assert redis_client.llen(celery_queue("two")) == 1
    assert redis_client.llen(SYSTEM_QUEUE) == 0
    assert redis_client.keys("_kombu*") == []
    app.close()
