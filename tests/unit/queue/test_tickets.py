"""What becomes of the keys that a script admitted, without Redis and Celery."""

from __future__ import annotations

from workers.errors import QueueUnavailable
from workers.queue.keys import claim_key
from workers.queue.tickets import Tickets

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
