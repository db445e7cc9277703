"""How does a thread go on from one pass to the next, and what becomes of a lease in between?"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.unit.engine.frame_world import NEXT, NOT_BEGUN, WORK, Following, World, follower
from workers.engine.outcome import done
from workers.queue.keys import Key
from workers.queue.locks import Lock

OF_ANOTHER_TENANT = Key("work", "d", "b/next", "v")


@pytest.fixture
def world():
    return World()


class Turns:
    """Slots that note which passes were run in one of them."""

    def __init__(self, world):
        self.world, self.turns, self.may = world, [], True

    @contextmanager
    def taken(self, _tenant):
        seen = len(self.world.seen)
        yield
        self.turns.append([lease.key.object for _, lease in self.world.seen[seen:]])

    def may_stay(self, _tenant):
        return self.may


@pytest.mark.parametrize(
    ("objects", "may_stay", "turns"),
    [
        pytest.param(["a/1", "a/2"], True, [["a/b", "a/1", "a/2"]], id="one tenant"),
        pytest.param(["a/1", "b/2"], True, [["a/b", "a/1"], ["b/2"]], id="another tenant"),
        pytest.param(["a/1"], False, [["a/b"], ["a/1"]], id="somebody has a better right"),
        pytest.param(
            [f"a/{number}" for number in range(4)],
            True,
            [["a/b", "a/0", "a/1", "a/2"], ["a/3"]],
            id="as many as there may be",
        ),
    ],
)
def test_a_thread_keeps_its_slot_for_a_few_passes(world, objects, may_stay, turns):
    """Each of whom lets nobody else in: SEC-4, and drivers beside each other."""
    world.context.cpu = slots = Turns(world)
    slots.may = may_stay
    Following(world, *(follower(Key("work", "d", name, "v")) for name in objects))
    world.run(done())
    assert slots.turns == turns


def test_a_thread_works_on_what_follows_and_shows_it(world):
    """Each in a pass of its own: counted, logged and shown as if a ticket had led to it."""
    following = Following(world, follower(), follower(Key("work", "d", "b/more", "w")))
    world.run(done())
    assert [lease.key.object for _, lease in world.seen] == ["a/b", "a/next", "b/more"]
    assert [key.object for _, key in following.shown] == ["a/next", "b/more"]
    assert world.counted("workqueue_adds_total", name="work-queue") == 3
    assert world.counted("csi_fleet_tickets_total", kind="work", fate="taken") == 1
    assert following.rules == ["work\nloose"] * 3


def test_one_that_does_not_go_on_gives_no_rules(world):
    following = Following(world)
    world.context.wants_next = lambda lease: False
    world.run(done())
    assert following.rules == [""]


@pytest.mark.parametrize(
    "lease",
    [
        pytest.param(follower(locks=(Lock("other"),)), id="other locks"),
        pytest.param(follower(Key("work", "gone", "a", "u")), id="its driver went"),
        pytest.param(follower(Key("strange", "d", "a", "u")), id="a kind of nobody here"),
    ],
)
def test_what_cannot_be_worked_on_here_is_given_back(world, lease):
    """A lease that nobody ends would be renewed for ever."""
    lease.is_released = False
    Following(world, lease)
    world.run(done())
    assert world.queue.ended[1:] == [NOT_BEGUN]
    assert len(world.seen) == 1


def test_g9_what_this_process_may_not_work_on_by_now_is_left_to_others(world):
    """The Lease of a Go sidecar went between the end of one pass and the next."""
    Following(world, follower())
    answers = [True, True, False]
    world.context.may_work = lambda kind, driver: answers.pop(0) if answers else False
    world.run(done())
    assert world.queue.ended[1:] == [NOT_BEGUN]
    assert len(world.seen) == 1


@pytest.mark.parametrize("place", ["driver_of", "seat taken", "seat left", "shown"])
def test_what_fails_between_two_passes_leaves_no_lease(world, place):
    """The next one's lease is held by then, and its heartbeat would renew it for ever."""
    Following(world, follower(OF_ANOTHER_TENANT))
    calls = []

    def third(*_):
        calls.append(1)
        if len(calls) == nth:
            raise OSError("ours")
        return world.driver

    nth = {"driver_of": 2, "seat taken": 3, "seat left": 2, "shown": 1}[place]
    if place == "driver_of":
        world.context.driver_of = third
    elif place == "shown":
        world.context.shown = third
    else:
        world.context.seats._change = third
    with pytest.raises(OSError, match="ours"):
        world.run(done())
    assert world.queue.ended[1:] == [NOT_BEGUN]


def test_what_fails_right_after_a_ticket_was_taken_leaves_no_lease(world, monkeypatch):
    def full(*_):
        raise OSError("no room for a metric")

    monkeypatch.setattr(world.context.metrics.tickets, "labels", full)
    with pytest.raises(OSError, match="no room"):
        world.run(done())
    assert world.queue.ended == [NOT_BEGUN]


def test_a_pass_that_could_not_be_ended_asks_for_nothing_to_follow(world):
    """Whoever gives it back has no thread for it, and what came would be renewed for ever."""
    Following(world)
    rules = []
    world.queue.broken = KeyboardInterrupt()
    world.queue.release = lambda lease, **_: rules.append(lease.rules)
    with pytest.raises(KeyboardInterrupt):
        world.run(done())
    assert set(rules) == {""}


def test_a_ticket_that_stands_for_a_key_by_name_counts_once(world):
    world.queue.take_any = lambda key, *_: NEXT if key == WORK else follower()
    world.run(done())
    labels = {"kind": "work"}
    assert world.counted("csi_fleet_tickets_total", **labels, fate="taken") == 1
    assert world.counted("csi_fleet_tickets_total", **labels, fate="dropped") == 0


@pytest.mark.parametrize("found", ["key", "lease"])
def test_a_ticket_may_stand_for_another_key(world, found):
    """Its own was begun before: by name if no rule says its locks, else with its lease."""
    following = Following(world)
    answers = [NEXT if found == "key" else follower(), follower()]
    asked = []

    def take_any(key, locks, rules):
        asked.append(key)
        return answers.pop(0)

    world.queue.take_any = take_any
    world.run(done())
    assert asked == ([WORK, NEXT] if found == "key" else [WORK])
    assert [lease.key for _, lease in world.seen] == [NEXT]
    assert [key for _, key in following.shown] == [NEXT]


def test_what_fails_around_a_pass_gives_back_what_would_follow(world, monkeypatch):
    """Of the pass itself the end was written; the next one has no thread any more."""
    Following(world, follower())

    @contextmanager
    def broken(_name):
        yield
        raise OSError("ours")

    monkeypatch.setattr(world.context.running, "work", broken)
    with pytest.raises(OSError, match="ours"):
        world.run(done())
    assert world.queue.ended[-1] == NOT_BEGUN


def test_a_thread_that_has_nothing_to_go_on_with_waits_for_a_ticket(world):
    """Only after an end that was to be gone on from. It keeps its seat: a driver that hangs would
    have one thread more for each that waits, and Celery's consumer had filled their seats."""
    following, asked, tickets = Following(world), [], [NEXT, None]

    def next_ticket(key):
        asked.append((key, world.context.seats.taken("d")))
        return tickets.pop(0)

    world.context.next_ticket = next_ticket
    world.run(done())
    assert asked == [(WORK, 1), (NEXT, 1)]
    assert [lease.key for _, lease in world.seen] == [NEXT, NEXT]
    assert [key for _, key in following.shown] == [NEXT]
    world.context.wants_next, world.queue.lease.rules = lambda lease: False, ""
    world.run(done())
    assert len(asked) == 2
