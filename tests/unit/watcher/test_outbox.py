"""The outbox: order, coalescing, and behaviour while Redis is unreachable."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from watcher.outbox import CatalogList, Outbox
from workers.backoff import Backoff
from workers.errors import QueueUnavailable
from workers.loop import Loop
from workers.queue.keys import Key, claim_key, volume_key

A, B, V = claim_key("d", "ns", "a", "1"), claim_key("d", "ns", "b", "2"), volume_key("d", "pv")


class FakeRedis:
    """Queue and shared cache in one; it raises `error` while `is_down`."""

    def __init__(self):
        self.calls = []
        self.added = []
        self.is_down = False
        self.error = QueueUnavailable("redis: away")
        self.meanwhile = lambda: None

    def _note(self, *call):
        if self.is_down:
            self.meanwhile()
            raise self.error
        self.calls.append(call)

    def add(self, keys, *, delay_seconds=0.0):
        self._note("add", [key.object for key in keys], delay_seconds)
        self.added += keys

    def add_events(self, versions):
        self._note("events", {key.object: version for key, version in versions.items()})
        self.added += versions

    def forget(self, keys):
        self._note("forget", [key.object for key in keys])

    def write(self, kind, entries):
        self._note("write", kind, *entries)

    def replace(self, kind, items, version):
        self._note("replace", kind, list(items), version)

    def mark_complete(self, kinds, epoch):
        self._note("complete", *kinds, epoch)

    def keep_fresh(self, kinds, epoch):
        self._note("fresh", *kinds, epoch)


@pytest.fixture
def fake():
    return FakeRedis()


@pytest.fixture
def started():
    """A list for the loops that a test starts; they are stopped afterwards."""
    loops = []
    yield loops
    for loop in loops:
        loop.stop()
        loop.join(5)
        assert not loop.is_alive


def start(outbox, started):
    loop = Loop("outbox", outbox.step, backoff=Backoff(0.01, 0.02), first_wait_seconds=None)
    outbox.on_waiting(loop.wake)
    loop.start()
    loop.wake()
    started.append(loop)
    return outbox


@pytest.fixture
def running_with(fake, started):
    """Return a function that starts an outbox with the given arguments."""
    return lambda **arguments: start(Outbox(fake, fake, **arguments), started)


@pytest.fixture
def outbox(fake):
    return Outbox(fake, fake)


@pytest.fixture
def running(outbox, started):
    return lambda: start(outbox, started)


def wait_for_outage(started):
    wait_until(lambda: started[0].is_failing, 5, "outage noticed", interval_seconds=0.005)


def settle(outbox):
    wait_until(lambda: outbox.is_idle, 5, "outbox is idle", interval_seconds=0.005)


def test_keys_wait_for_the_first_list_of_what_they_rest_on(fake, outbox, running):
    """COR2-5: only the held kinds of key wait, and a kind that was released is never held again."""
    outbox.hold(["claims"], "classes")
    outbox.hold(["claims"], "nodes")
    outbox.add([A, V], version="3")
    settle(running())
    assert fake.added == [V]
    outbox.replace("nodes", CatalogList({}, "9", "epoch"))
    settle(outbox)
    assert fake.added == [V]
    outbox.replace("classes", CatalogList({}, "9", "epoch"))
    settle(outbox)
    assert fake.added == [V, A]
    assert [call[0] for call in fake.calls[-3:]] == ["replace", "complete", "events"]
    outbox.hold(["claims"], "classes")
    outbox.add([B])
    settle(outbox)
    assert fake.added == [V, A, B]


def test_a_key_that_is_held_is_forgotten_and_asked_for_in_any_case(fake, outbox, running):
    """COR2-5: held keys behave like keys that wait for Redis."""
    outbox.hold(["claims"], "classes")
    outbox.add([A, B])
    outbox.add([B], version="4")
    outbox.forget([A])
    settle(running())
    assert fake.added == []
    outbox.replace("classes", CatalogList({}, "9", "epoch"))
    settle(outbox)
    assert fake.added == [B]
    assert fake.calls[-1] == ("add", ["ns/b"], 0.0)


def test_everything_is_added_but_what_is_held(fake, running_with):
    """COR2-5: this covers a resync, or a new epoch of Redis, just after the start."""
    outbox = running_with(all_keys=lambda: [A, V])
    outbox.hold(["claims"], "classes")
    outbox.add_everything()
    settle(outbox)
    assert fake.added == [V]
    outbox.replace("classes", CatalogList({}, "9", "epoch"))
    settle(outbox)
    assert fake.added == [V, A]


def test_a_kind_is_fresh_once_all_it_brought_is_written(fake, outbox, running):
    outbox.keep_fresh(["attachments"], "epoch")
    outbox.put("attachments", "pv", "5", {"va": "n"})
    settle(running())
    assert [call[0] for call in fake.calls] == ["write", "fresh"]


def test_catalog_goes_before_keys(fake, outbox, running):
    """A worker that takes a claim must find its class."""
    outbox.add([A])
    outbox.put("classes", "c", "5", {"x": 1})
    outbox.replace("nodes", CatalogList({"n": ("3", {})}, "9", "epoch"))
    settle(running())
    assert fake.calls == [
        ("replace", "nodes", [("n", "3", {})], "9"),
        ("complete", "nodes", "epoch"),
        ("write", "classes", ("c", "5", {"x": 1})),
        ("add", ["ns/a"], 0.0),
    ]


def test_newest_word_about_a_key_or_entry_wins(fake, outbox, running):
    outbox.add([A, V])
    outbox.forget([V])
    outbox.put("classes", "c", "5", {"x": 1})
    outbox.put("classes", "c", "6", None)
    settle(running())
    assert fake.calls == [
        ("forget", ["pv"]),
        ("write", "classes", ("c", "6", None)),
        ("add", ["ns/a"], 0.0),
    ]


def test_what_waits_together_is_sent_together(fake, outbox, running):
    """Each kind of cache entry takes one round trip, and so do all keys to forget."""
    outbox.put("classes", "c", "5", {})
    outbox.put("nodes", "n", "6", {})
    outbox.put("classes", "d", "7", None)
    outbox.forget([A, B])
    settle(running())
    assert fake.calls == [
        ("forget", ["ns/a", "ns/b"]),
        ("write", "classes", ("c", "5", {}), ("d", "7", None)),
        ("write", "nodes", ("n", "6", {})),
    ]


def test_list_supersedes_waiting_entries_of_its_kind(fake, outbox, running):
    outbox.put("classes", "old", "5", {})
    outbox.replace("classes", CatalogList({}, "9", "e"))
    outbox.put("classes", "new", "10", {})
    settle(running())
    assert [call[0] for call in fake.calls] == ["replace", "complete", "write"]


def test_nothing_is_lost_while_redis_is_away(fake, outbox, running, started):
    """G4: accepted events survive an outage, and the newest value of an entry wins."""
    fake.is_down = True
    outbox.add([A])
    outbox.put("classes", "c", "5", {})
    running()
    wait_for_outage(started)
    outbox.add([B])
    outbox.put("classes", "c", "6", {"new": True})
    fake.is_down = False
    settle(outbox)
    assert ("write", "classes", ("c", "6", {"new": True})) in fake.calls
    assert [call for call in fake.calls if call[0] == "add"] == [("add", ["ns/a", "ns/b"], 0.0)]
    wait_until(lambda: not started[0].is_failing, 5, "it is told", interval_seconds=0.005)


def test_a_defect_does_not_end_the_thread(fake, outbox, running, started):
    fake.is_down, fake.error = True, ZeroDivisionError("defect")
    outbox.add([A])
    running()
    wait_for_outage(started)
    fake.is_down = False
    settle(outbox)
    assert fake.calls == [("add", ["ns/a"], 0.0)]


def lane_keys(kind, count):
    return [Key(kind, "d", str(number)) for number in range(count)]


def test_everything_is_added_spread_over_time(fake, running_with):
    """S-004: after Redis lost its data, failing claims do not all call the driver at once."""
    outbox = running_with(all_keys=lambda: lane_keys("claims", 250))
    outbox.add_everything()
    settle(outbox)
    assert [(len(call[1]), call[2]) for call in fake.calls] == [(100, 0.0), (100, 0.5), (50, 1.0)]


def test_claims_do_not_wait_until_all_volumes_are_added(fake, running_with):
    """COR-15: after a wipe the driver queues are filled in turn."""
    keys = lane_keys("volumes", 1000) + lane_keys("claims", 10)
    outbox = running_with(all_keys=lambda: keys)
    outbox.add_everything()
    settle(outbox)
    first = fake.added[:20]
    assert sorted(first) == sorted(keys[:10] + keys[1000:])


def test_looks_at_everything_do_not_pile_up_while_redis_is_away(fake, running_with, started):
    """COR-15: a resync every 15 minutes during an outage must not fill the memory."""
    fake.is_down = True
    outbox = running_with(all_keys=lambda: lane_keys("claims", 300))
    for _ in range(50):
        outbox.add_everything()
    wait_for_outage(started)
    for _ in range(50):
        outbox.add_everything()
    fake.is_down = False
    settle(outbox)
    assert len(fake.added) <= 2 * 300


@pytest.mark.parametrize("kind", ["keys", "entries"])
def test_what_waits_for_redis_is_bounded(fake, running_with, kind, started):
    """COR-15: beyond the bound everything is dropped, and later listed and added again."""
    fake.is_down = True
    outbox = running_with(
        all_keys=lambda: [A], on_cut=lambda: fake._note("listed again"), most_waiting=100
    )
    for number in range(1000):
        if kind == "keys":
            outbox.add(lane_keys("claims", number))
        else:
            outbox.put("nodes", str(number), "1", {})
        assert outbox.waiting <= 100
    wait_for_outage(started)
    assert outbox.waiting <= 100
    fake.is_down = False
    settle(outbox)
    assert fake.calls.count(("listed again",)) == 1
    assert A in fake.added


@pytest.mark.parametrize(
    ("versions", "sent"),
    [
        pytest.param(["5", "6"], ("events", {"ns/a": "6"}), id="the newest event counts"),
        pytest.param(["5", ""], ("add", ["ns/a"], 0.0), id="another reason counts in any case"),
        pytest.param(["", "6"], ("add", ["ns/a"], 0.0), id="and is not lost to a later event"),
        pytest.param(["", None], ("forget", ["ns/a"]), id="of what is gone nothing is left"),
        pytest.param(["5", None], ("forget", ["ns/a"]), id="nor of its event"),
        pytest.param([None, "6"], ("events", {"ns/a": "6"}), id="what came back is new"),
    ],
)
@pytest.mark.parametrize("moment", ["while it waits", "after it failed", "while it fails"])
def test_events_are_told_from_other_reasons(fake, outbox, versions, sent, moment):
    """COR-15: only an event may be treated as a copy of the other watcher's event."""

    def tell(version):
        if version is None:
            outbox.forget([A])
        else:
            outbox.add([A], version=version)

    first, second = versions
    tell(first)
    if moment != "while it waits":
        fake.is_down = True
        if moment == "while it fails":
            fake.meanwhile = lambda: tell(second)
        with pytest.raises(QueueUnavailable):
            outbox.step()
        fake.is_down = False
    if moment != "while it fails":
        tell(second)
    outbox.step()
    assert fake.calls == [sent]


def test_what_is_being_sent_is_not_sent_yet(fake, outbox, running):
    """A caller that waits for an idle outbox expects everything to be in Redis."""
    seen = []
    outbox.add([A])
    fake.forget = lambda keys: seen.append(outbox.is_idle)
    outbox.forget([B])
    settle(running())
    assert seen == [False]


def test_an_outbox_is_idle_when_nothing_waits(fake, outbox):
    """Callers use this to wait until Redis has everything that the watcher saw."""
    assert outbox.is_idle
    for put in (
        lambda: outbox.add([A]),
        lambda: outbox.put("classes", "c", "5", {}),
        lambda: outbox.replace("classes", CatalogList({}, "9", "e")),
        outbox.add_everything,
    ):
        put()
        assert not outbox.is_idle
        outbox.step()
        assert outbox.is_idle


def test_an_entry_outlives_every_failure_until_it_is_sent(fake, outbox):
    """G4: each attempt puts back what it could not send."""
    outbox.put("classes", "c", "5", {"x": 1})
    fake.is_down = True
    for _ in range(3):
        with pytest.raises(QueueUnavailable):
            outbox.step()
    fake.is_down = False
    outbox.step()
    assert fake.calls == [("write", "classes", ("c", "5", {"x": 1}))]


def test_a_list_that_comes_while_its_kind_is_sent_supersedes_what_failed(fake, outbox):
    """The list is newer, and an older entry sent after it would restore a deleted object."""
    write = fake.write

    def list_meanwhile(kind, entries):
        fake.write = write
        outbox.replace(kind, CatalogList({}, "9", "e"))
        raise QueueUnavailable("redis: away")

    fake.write = list_meanwhile
    outbox.put("classes", "old", "5", {})
    with pytest.raises(QueueUnavailable):
        outbox.step()
    outbox.step()
    assert [call[0] for call in fake.calls] == ["replace", "complete"]
