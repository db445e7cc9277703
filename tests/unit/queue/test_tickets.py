"""What becomes of the keys that a script admitted, without Redis and Celery."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from workers.errors import QueueUnavailable
from workers.queue.keys import claim_key
from workers.queue.tickets import Tickets, ticket_key

ONE, TWO, THREE = (claim_key("d", "ns", name, f"uid-{name}") for name in ("a", "b", "c"))


def raw(*keys):
    return [key.text.encode() for key in keys]


def test_what_is_held_goes_with_the_next_that_is_sent_once_and_first():
    published = []
    tickets = Tickets(published.append)
    tickets.hold(raw(ONE))
    tickets.hold(raw(TWO))
    assert published == []
    tickets.publish(raw(THREE))
    tickets.publish([])
    assert published == [[ONE, TWO, THREE]]


def test_what_is_no_key_is_named_and_left_out(caplog):
    published = []
    Tickets(published.append).publish([b"|dropped", b"no key", *raw(ONE)])
    assert published == [[ONE]]
    assert [one.fields["key"] for one in caplog.records] == ["dropped", "no key"]


def test_a_broker_that_is_away_is_no_error(caplog):
    """The sweep repeats it."""

    def away(_keys):
        raise QueueUnavailable("no broker")

    Tickets(away).publish(raw(ONE))
    assert "not published" in caplog.text


def message(body):
    return json.dumps({"body": b64encode(json.dumps(body).encode()).decode()}).encode()


def test_the_key_of_a_message_is_read():
    assert ticket_key(message([[ONE.text], {}, {}])) == ONE


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"body": 7}',
        b'{"body": "@@@"}',
        b'{"body": "bm9uc2Vuc2U="}',
        message({}),
        message([]),
        message([[]]),
        message([[7], {}, {}]),
        message([[None], {}, {}]),
        message(["no key"]),
        message([["no key"], {}, {}]),
        b"[" * 100_000,
    ],
)
def test_what_is_no_ticket_is_dropped_and_told(raw, caplog):
    """Anything may stand in Redis."""
    assert ticket_key(raw) is None
    assert "ticket dropped" in caplog.text
