"""The outbox: order, coalescing, and what happens while Redis is away."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import wait_until
from watcher.outbox import CatalogList, Outbox
from workers.errors import QueueUnavailable
from workers.kube.backoff import Backoff
from workers.queue.keys import claim_key, volume_key

A, B, V = claim_key("d", "ns", "a", "1"), claim_key("d", "ns", "b", "2"), volume_key("d", "pv")


class FakeRedis:
    """Queue and catalog in one; refuses while `is_down`."""

    def __init__(self):
        self.calls = []
        self.is_down = False
        self.error = QueueUnavailable("redis: away")

    def _note(self, *call):
        if self.is_down:
            raise self.error
        self.calls.append(call)

    def add(self, keys, *, delay_seconds=0.0):
        self._note("add", [key.object for key in keys], delay_seconds)

    def forget(self, key):
        self._note("forget", key.object)

    def put(self, kind, name, version, value):
        self._note("put", kind, name, version, value)

    def remove(self, kind, name, version):
        self._note("remove", kind, name, version)

    def replace(self, kind, items, version):
        self._note("replace", kind, list(items), version)

    def mark_complete(self, kinds, epoch):
        self._note("complete", *kinds, epoch)


@pytest.fixture
def fake():
    return FakeRedis()


@pytest.fixture
def outbox(fake):
    return Outbox(fake, fake, backoff=Backoff(0.01, 0.02))


@pytest.fixture
def running(outbox):
    thread = threading.Thread(target=outbox.run)

    def start():
        thread.start()
        return outbox

    yield start
    outbox.stop()
    thread.join(5)
    assert not thread.is_alive()


def settle(outbox):
    wait_until(lambda: outbox.is_idle, 5, "outbox is idle", interval_seconds=0.005)


def test_catalog_goes_before_keys(fake, outbox, running):
    """A worker that takes a claim must find its class."""
    outbox.add([A])
    outbox.put("classes", "c", "5", {"x": 1})
    outbox.replace("nodes", CatalogList({"n": ("3", {})}, "9", "epoch"))
    settle(running())
    assert fake.calls == [
        ("replace", "nodes", [("n", "3", {})], "9"),
        ("complete", "nodes", "epoch"),
        ("put", "classes", "c", "5", {"x": 1}),
        ("add", ["ns/a"], 0.0),
    ]


def test_newest_word_about_a_key_or_entry_wins(fake, outbox, running):
    outbox.add([A, V])
    outbox.forget([V])
    outbox.put("classes", "c", "5", {"x": 1})
    outbox.put("classes", "c", "6", None)
    settle(running())
    assert fake.calls == [
        ("remove", "classes", "c", "6"),
        ("add", ["ns/a"], 0.0),
        ("forget", "pv"),
    ]


def test_list_supersedes_waiting_entries_of_its_kind(fake, outbox, running):
    outbox.put("classes", "old", "5", {})
    outbox.replace("classes", CatalogList({}, "9", "e"))
    outbox.put("classes", "new", "10", {})
    settle(running())
    assert [call[0] for call in fake.calls] == ["replace", "complete", "put"]


def test_nothing_is_lost_while_redis_is_away(fake, outbox, running):
    """G4: accepted events survive an outage; the newest word still wins."""
    fake.is_down = True
    outbox.add([A])
    outbox.put("classes", "c", "5", {})
    running()
    wait_until(lambda: outbox.is_down, 5, "outage noticed", interval_seconds=0.005)
    outbox.add([B])
    outbox.put("classes", "c", "6", {"new": True})
    fake.is_down = False
    settle(outbox)
    assert ("put", "classes", "c", "6", {"new": True}) in fake.calls
    assert [call for call in fake.calls if call[0] == "add"] == [("add", ["ns/a", "ns/b"], 0.0)]
    assert not outbox.is_down


def test_a_defect_does_not_end_the_thread(fake, outbox, running):
    fake.is_down, fake.error = True, ZeroDivisionError("defect")
    outbox.add([A])
    running()
    wait_until(lambda: outbox.is_down, 5, "defect met", interval_seconds=0.005)
    fake.is_down = False
    settle(outbox)
    assert fake.calls == [("add", ["ns/a"], 0.0)]


def test_many_keys_are_spread_over_time(fake, outbox, running):
    """S-004: a Redis that lost its data does not make all failing claims call at once."""
    keys = [claim_key("d", "ns", str(number), str(number)) for number in range(10)]
    outbox.add_spread(keys, per_second=8)
    settle(running())
    assert [(len(call[1]), call[2]) for call in fake.calls] == [(4, 0.0), (4, 0.5), (2, 1.0)]
