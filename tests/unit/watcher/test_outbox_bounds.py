"""What the outbox keeps, how much of it, and when it wakes its sender (COR-15)."""

from __future__ import annotations

import pytest

from tests.unit.watcher.test_outbox import A, B, FakeRedis, V, lane_keys
from watcher.outbox import CatalogList, Outbox
from workers.errors import QueueUnavailable


@pytest.fixture
def fake():
    return FakeRedis()


@pytest.mark.parametrize(
    ("act", "wakes"),
    [
        pytest.param(lambda box: box.add([A]), 1, id="a key"),
        pytest.param(lambda box: box.add([]), 0, id="no key"),
        pytest.param(lambda box: box.forget([A]), 1, id="a key to forget"),
        pytest.param(lambda box: box.forget([]), 0, id="nothing to forget"),
        pytest.param(lambda box: box.put("classes", "c", "5", {}), 1, id="an entry"),
        pytest.param(lambda box: box.replace("classes", CatalogList({}, "9", "e")), 1, id="list"),
        pytest.param(lambda box: box.add_everything(), 1, id="everything"),
    ],
)
def test_whatever_waits_wakes_the_sender(fake, act, wakes):
    """The sender waits only for this, so anything that does not wake it is never sent."""
    outbox, woken = Outbox(fake, fake), []
    outbox.on_waiting(lambda: woken.append(1))
    act(outbox)
    assert len(woken) == wakes


@pytest.mark.parametrize(
    ("keys", "entries", "is_cut"),
    [(10, 0, False), (0, 10, False), (6, 4, False), (11, 0, True), (0, 11, True), (6, 5, True)],
)
def test_as_much_waits_as_fits_and_not_one_more(fake, keys, entries, is_cut):
    """Keys and entries count together; beyond the bound all is dropped and listed again."""
    told = []
    outbox = Outbox(fake, fake, on_cut=lambda: told.append(1), most_waiting=10)
    outbox.add(lane_keys("claims", keys))
    for number in range(entries):
        outbox.put("nodes", str(number), "1", {})
    assert outbox.waiting == (0 if is_cut else 10)
    assert not outbox.is_idle
    outbox.step()
    assert told == ([1] if is_cut else [])
    assert len(fake.added) == (0 if is_cut else keys)
    outbox.step()
    assert told == ([1] if is_cut else []), "once"


def test_keys_go_after_new_lists_were_asked_for_when_too_much_waited(fake):
    """A claim waits for the list if its class was dropped, a volume if its attachment was."""
    outbox = Outbox(
        fake, fake, all_keys=lambda: [A], on_cut=lambda: fake._note("lists"), most_waiting=1
    )
    outbox.replace("attachments", CatalogList({}, "4", "e"))
    outbox.put("attachments", "pv1", "5", {"va": "n"})
    outbox.put("attachments", "pv2", "6", {"va": "n"})
    failing(fake, outbox, lambda: None)
    assert not outbox.is_idle
    outbox.step()
    assert fake.calls == [("lists",), ("add", ["ns/a"], 0.0)], "the older list is not complete"


def failing(fake, outbox, meanwhile):
    """Make one attempt that fails, and call `meanwhile` during it."""
    fake.is_down, fake.meanwhile = True, meanwhile
    with pytest.raises(QueueUnavailable):
        outbox.step()
    fake.is_down = False


def test_what_comes_while_a_try_fails_counts_against_the_bound(fake):
    """An outage of hours consists of many failed attempts."""
    told = []
    outbox = Outbox(fake, fake, on_cut=lambda: told.append(1), most_waiting=10)
    outbox.add(lane_keys("claims", 6))
    failing(fake, outbox, lambda: outbox.add(lane_keys("volumes", 6)))
    assert outbox.waiting == 0
    outbox.step()
    assert told == [1]


def test_a_list_that_failed_is_not_sent_after_its_changes_were_dropped(fake):
    """It would count as complete although its changes are missing."""
    outbox = Outbox(fake, fake, on_cut=lambda: fake._note("lists"), most_waiting=10)
    outbox.replace("nodes", CatalogList({}, "4", "e"))

    def meanwhile():
        for number in range(11):
            outbox.put("nodes", str(number), "5", {})
        outbox.replace("classes", CatalogList({}, "6", "e"))

    failing(fake, outbox, meanwhile)
    outbox.step()
    assert [call[:2] for call in fake.calls] == [
        ("lists",), ("replace", "classes"), ("complete", "classes")
    ]  # fmt: skip
    assert outbox.is_idle


def test_what_comes_while_a_try_fails_is_the_newest_word(fake):
    """This holds for entries and lists; values that exist only in the failed attempt are kept."""
    outbox = Outbox(fake, fake)
    outbox.put("classes", "c", "5", {})
    outbox.put("classes", "d", "5", {})
    outbox.replace("nodes", CatalogList({}, "7", "e"))
    outbox.replace("csinodes", CatalogList({}, "7", "e"))

    def meanwhile():
        outbox.put("classes", "c", "6", {"new": True})
        outbox.replace("nodes", CatalogList({}, "8", "e"))

    failing(fake, outbox, meanwhile)
    outbox.step()
    assert ("write", "classes", ("c", "6", {"new": True}), ("d", "5", {})) in fake.calls
    lists = {call[1]: call[3] for call in fake.calls if call[0] == "replace"}
    assert lists == {"nodes": "8", "csinodes": "7"}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_look_at_everything_outlives_a_failed_try(fake, when):
    """This holds whether it was requested before the attempt or during it."""
    outbox = Outbox(fake, fake, all_keys=lambda: [V])
    outbox.add([A])
    if when == "before":
        outbox.add_everything()
    failing(fake, outbox, outbox.add_everything if when == "meanwhile" else lambda: None)
    outbox.step()
    assert fake.added == [A, V]


def test_keys_of_both_sorts_are_sent_once_each(fake):
    """Events carry their versions, and other keys do not."""
    outbox = Outbox(fake, fake)
    outbox.add([A], version="5")
    outbox.add([B])
    assert outbox.waiting == 2
    outbox.step()
    assert fake.calls == [("add", ["ns/b"], 0.0), ("events", {"ns/a": "5"})]
    assert (outbox.waiting, outbox.is_idle) == (0, True)


def test_a_list_leaves_the_entries_of_other_kinds(fake):
    outbox = Outbox(fake, fake)
    outbox.put("classes", "c", "5", {})
    outbox.put("nodes", "n", "5", {})
    outbox.replace("classes", CatalogList({}, "9", "e"))
    outbox.step()
    assert [call[:2] for call in fake.calls] == [
        ("replace", "classes"), ("complete", "classes"), ("write", "nodes")
    ]  # fmt: skip
