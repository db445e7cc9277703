"""kombu stores no bindings and sends no Lua code: declarations stay in the process."""

from __future__ import annotations

from contextlib import closing, suppress
from types import SimpleNamespace

import pytest
from kombu import Connection, Exchange, Queue
from kombu.transport.redis import BINDING_SWEEP_INTERVAL, Channel, SentinelChannel

from workers import brokerscripts
from workers.app import TRANSPORT, make_app
from workers.config.settings import Settings

ANSWERS = Queue("me.reply.celery.pidbox", Exchange("reply.celery.pidbox"), "me", expires=10.0)
EVENTS = Queue(
    "celeryev.me", Exchange("celeryev", type="fanout"), "#", expires=60.0, auto_delete=True
)


def test_it_is_so_behind_sentinels_too():
    make_app(Settings())
    for channel in (Channel, SentinelChannel):
        assert channel._queue_bind is brokerscripts.bind
        assert channel.queue_delete is brokerscripts.forget


@pytest.mark.parametrize(("is_list", "found"), [(False, "next"), (True, True)])
def test_what_arrived_with_a_malformed_message_is_read_at_once(is_list, found):
    """A client's buffer may hold both messages, and no further event tells that it does."""
    arrived = iter([ValueError("malformed"), "next"])
    dropped = []

    def read():
        if isinstance(message := next(arrived), Exception):
            raise message
        return message

    connection = SimpleNamespace(can_read=lambda timeout: timeout == 0)
    channel = SimpleNamespace(subclient=SimpleNamespace(connection=connection))
    messages = brokerscripts.Messages({}, dict, lambda: dropped.append(1))
    assert messages._read(channel, read, is_list=is_list) == found
    assert len(dropped) == 1


def test_a_consumer_of_answers_and_events_stores_nothing(redis_server, redis_client):
    """This covers its whole life, including kombu's refresh of bindings that would expire."""
    make_app(Settings())
    url = redis_server.unix_url.replace("unix:", "redis+socket:").replace("?db", "?virtual_host")
    heard = []
    with (
        Connection(url, transport_options=TRANSPORT) as connection,
        closing(connection.channel()) as channel,
        connection.Consumer([EVENTS], callbacks=[lambda body, _: heard.append(body)]),
    ):
        ANSWERS(channel).declare()
        channel._bindings_swept_at -= 2 * BINDING_SWEEP_INTERVAL
        channel.maybe_refresh_binding_expiry()
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)  # from now on it receives events
        with connection.Producer() as producer:
            producer.publish({"type": "x"}, exchange=EVENTS.exchange, routing_key="task.sent")
        connection.drain_events(timeout=5)
        assert heard == [{"type": "x"}]
        assert redis_client.keys() == []
    assert redis_client.keys() == []
