"""What becomes of the keys that a script admitted, without Redis and Celery."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.errors import QueueUnavailable
from workers.queue.keys import Key, claim_key, volume_key
from workers.queue.tickets import Tickets

ONE, TWO, THREE = (claim_key("d", "ns", name, f"uid-{name}") for name in ("a", "b", "c"))
OTHER = claim_key("e", "ns", "a", "uid")
LEASE = SimpleNamespace(key=claim_key("d", "ns", "ended", "uid"))


class Threads:
    """Those of the process; `begun` is what they were given."""

    def __init__(self, *, wants=True, begins=True):
        self.wants, self.begins, self.begun = wants, begins, []

    def wanted(self, _lease):
        return self.wants

    def read(self, message):
        return Key.parse(message.decode())

    def begin(self, key):
        self.begun += [key] if self.begins else []
        return self.begins


def raw(*keys):
    return [key.text.encode() for key in keys]


@pytest.mark.parametrize(
    ("threads", "is_wanted"),
    [
        pytest.param(None, False, id="all go through the broker"),
        pytest.param(Threads(wants=False), False, id="no thread is free"),
        pytest.param(Threads(), True, id="a thread goes on"),
    ],
)
def test_the_next_ticket_is_wanted_by_a_thread_alone(threads, is_wanted):
    assert Tickets([].extend, threads).wants_next(LEASE) is is_wanted


@pytest.mark.parametrize(
    ("message", "admitted", "begins", "begun", "sent"),
    [
        pytest.param(ONE, [TWO, OTHER], True, [ONE], [TWO, OTHER], id="the oldest message"),
        pytest.param(ONE, [TWO], False, [], [TWO, ONE], id="the oldest, and no thread any more"),
        pytest.param(None, [OTHER, TWO, THREE], True, [TWO], [OTHER, THREE], id="the first of it"),
        pytest.param(None, [OTHER, TWO], False, [], [OTHER, TWO], id="and no thread any more"),
        pytest.param(None, [OTHER], True, [], [OTHER], id="none of the driver"),
        pytest.param(None, [], True, [], None, id="nothing at all"),
        pytest.param(None, [volume_key("d", "pv")], True, [volume_key("d", "pv")], None,
            id="another kind of the same workers"),
        pytest.param("no ticket", [TWO], True, [], [TWO], id="an unreadable message"),
    ],
)  # fmt: skip
def test_the_end_of_a_lease_begins_one_ticket_and_sends_the_others(
    message, admitted, begins, begun, sent
):
    threads, published = Threads(begins=begins), []
    found = message.text if isinstance(message, Key) else message
    Tickets(published.append, threads).pass_on(
        LEASE, raw(*admitted), None if found is None else found.encode()
    )
    assert threads.begun == begun
    assert published == ([] if sent is None else [sent])


@pytest.mark.parametrize("message", [None, ONE.text.encode()])
def test_without_threads_what_is_admitted_is_sent(message):
    """A message that nobody can read comes again by the sweep."""
    published = []
    Tickets(published.extend).pass_on(LEASE, raw(TWO), message)
    assert published == [TWO]


def test_what_is_held_goes_with_the_next_that_is_sent_once_and_first():
    published = []
    tickets = Tickets(published.append)
    tickets.hold(raw(ONE))
    tickets.hold(raw(TWO), b"message")
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
