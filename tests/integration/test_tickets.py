"""Where tickets go: straight to the list of their driver, which only its workers read."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
import redis
from kombu import Consumer
from kombu.transport.virtual import base

from tests.support.redis_server import RedisServer
from workers.app import DIRECT, SYSTEM_QUEUE, make_app, publisher, queue_for, ticket
from workers.config.load import parse
from workers.controllers import catalogue
from workers.errors import QueueUnavailable
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


def test_a_ticket_is_what_celery_would_have_sent(redis_server, redis_client):
    """The message is written by us; a worker of any release of Celery has to understand it."""
    app = make_app(parse("watcher", [f"--redis-url={redis_server.unix_url}"], {}))
    key = claim_key("one", "ns", "a|b", "uid-1")
    kind, name = catalogue.kinds()[key.kind], celery_queue("one")
    with app.producer_pool.acquire() as producer:
        app.amqp.send_task_message(
            producer,
            kind.task,
            ticket(app, kind, key),
            exchange=DIRECT,
            routing_key=name,
            declare=[],
        )
    publisher(app)([key])
    theirs, ours = (_with_known_ids(json.loads(redis_client.rpop(name))) for _ in range(2))
    assert ours == theirs
    app.close()


def _with_known_ids(message):
    """A message whose own names are replaced, and whose body is read."""
    headers, properties = message["headers"], message["properties"]
    assert headers["id"] == headers["root_id"] == properties["correlation_id"]
    headers["id"] = headers["root_id"] = properties["correlation_id"] = "id"
    assert properties.pop("delivery_tag")
    return message | {"body": json.loads(b64decode(message["body"]))}


def test_tickets_of_one_call_are_sent_together_and_again_over_a_new_connection(
    redis_binary, tmp_path
):
    """A Redis that was restarted meanwhile gets all of them, by the same producer."""
    keys = [claim_key("one", "ns", f"c{number}", f"uid-{number}") for number in range(50)]
    server = RedisServer(redis_binary, tmp_path).start()
    app = make_app(parse("watcher", [f"--redis-url={server.url}"], {}))
    publish = publisher(app)
    try:
        with redis.Redis.from_url(server.url) as client:
            publish(keys)
            assert client.llen(celery_queue("one")) == len(keys)
        server.kill()
        with pytest.raises(QueueUnavailable, match="tickets not sent"):
            publish(keys)
        server.start()
        publish(keys)
        with redis.Redis.from_url(server.url) as client:
            assert client.llen(celery_queue("one")) >= len(keys)
    finally:
        app.close()
        server.kill()


def test_a_ticket_in_hand_does_not_outlive_its_connection(redis_binary, tmp_path, monkeypatch):
    """What Celery does after a cut: a ticket in hand must not end the worker.

    The transport would give it back, through the connection that just went. Tickets are never
    given back and leave no copy: the sweep publishes lost ones again.
    """

    def gone(_connection):
        raise OSError("gone")

    dumped = []
    monkeypatch.setattr(base, "emergency_dump_state", lambda *a, **_: dumped.append(a))
    server = RedisServer(redis_binary, tmp_path).start()
    app = make_app(parse("watcher", [f"--redis-url={server.url}"], {}))
    try:
        publisher(app)([claim_key("one", "ns", "a", "uid-1")])
        connection = app.connection_for_read()
        channel = connection.default_channel
        queue = queue_for(celery_queue("one"))
        assert queue(channel).get() is not None
        Consumer(channel, [queue]).consume()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        with redis.Redis.from_url(server.url) as client:
            assert client.keys("unacked*") == []
        server.kill()
        connection.transport.close_connection = gone
        connection.collect()
        connection.close()
        assert dumped == []
    finally:
        app.close()
        server.kill()
