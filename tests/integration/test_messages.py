"""Messages go directly to the list of their driver, and only the driver's workers read it."""

from __future__ import annotations

import pytest
import redis
from kombu import Consumer
from kombu.transport.redis import Channel
from kombu.transport.virtual import base

from tests.support.redis_server import RedisServer
from workers.app import SYSTEM_QUEUE, make_app, publisher, queue_for
from workers.config.load import parse
from workers.errors import QueueUnavailable
from workers.queue.names import celery_queue


def test_each_driver_has_a_list_of_its_own(redis_server, redis_client):
    """Each driver has its own list.

    In a common list, a message would reach workers that do not serve its driver.
    """
    settings = parse("watcher", [f"--redis-url={redis_server.unix_url}"], {})
    app = make_app(settings)
    publisher(app)([celery_queue("one"), celery_queue("two")])
    assert redis_client.llen(celery_queue("one")) == 1
    assert redis_client.llen(celery_queue("two")) == 1
    assert redis_client.llen(SYSTEM_QUEUE) == 0
    assert redis_client.keys("_kombu*") == []
    app.close()


def test_messages_are_sent_again_over_a_new_connection(redis_binary, tmp_path):
    """After a restart of Redis, the same producer sends the messages again."""
    lists = [celery_queue("one"), celery_queue("two")]
    server = RedisServer(redis_binary, tmp_path).start()
    app = make_app(parse("watcher", [f"--redis-url={server.url}"], {}))
    publish = publisher(app)
    try:
        with redis.Redis.from_url(server.url) as client:
            publish(lists)
            assert client.llen(celery_queue("one")) == 1
        server.kill()
        with pytest.raises(QueueUnavailable, match="could not wake the workers"):
            publish(lists)
        server.start()
        publish(lists)
        with redis.Redis.from_url(server.url) as client:
            assert client.llen(celery_queue("one")) >= 1
    finally:
        app.close()
        server.kill()


def test_a_channel_that_is_closed_while_it_sends_is_an_error_of_redis(
    redis_server, redis_client, monkeypatch
):
    """A channel that is closed while it sends is an error of Redis. kombu raises AttributeError,
    because the channel no longer has a connection.
    """
    app = make_app(parse("watcher", [f"--redis-url={redis_server.unix_url}"], {}))
    publish, put = publisher(app), Channel._put

    def closed(channel, *arguments, **options):
        channel.close()
        channel._pool = None
        put(channel, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "_put", closed)
        with pytest.raises(QueueUnavailable, match="could not wake the workers"):
            publish([celery_queue("one")])
    publish([celery_queue("one")])
    assert redis_client.llen(celery_queue("one")) == 1
    app.close()


def test_a_message_in_hand_does_not_outlive_its_connection(redis_binary, tmp_path, monkeypatch):
    """After a lost connection, Celery must not end the worker because of a message it holds.

    The transport would return the message through the connection that was lost. csi-fleet never
    returns messages and keeps no copy: the sweep wakes the list again.
    """

    def gone(_connection):
        raise OSError("gone")

    dumped = []
    monkeypatch.setattr(base, "emergency_dump_state", lambda *a, **_: dumped.append(a))
    server = RedisServer(redis_binary, tmp_path).start()
    app = make_app(parse("watcher", [f"--redis-url={server.url}"], {}))
    try:
        publisher(app)([celery_queue("one")])
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
