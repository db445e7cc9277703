"""What the frame tells of a pass: to the queue, in metrics, in the key's trail and its trace."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.support.fake_context import FakeLease
from workers.config.settings import Settings
from workers.engine import frame
from workers.engine.context import Context
from workers.engine.frame import AWAY_SECONDS, FULL_SECONDS, RETRY_MAX_SECONDS
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.errors import LeaseLost, QueueFull, QueueUnavailable
from workers.kube.errors import ForbiddenError, Unreachable
from workers.observability import trail
from workers.queue.keys import Key
from workers.queue.leases import CURRENT
from workers.queue.locks import Lock
from workers.spec import Kind, Spec

WORK, LOOSE = Key("work", "d", "a/b", "u"), Key("loose", "", "a/b", "u")
KINDS = (
    Kind("work", "t", "work-queue", noun="pvc"),
    Kind("loose", "t", "loose-queue", has_driver=False),
)
SPEC = Spec("one", "", KINDS, (), dict, part_of="whole")


class Queue:
    """Gives one lease and notes what becomes of it; `broken` is raised at the end of a lease."""

    def __init__(self):
        self.lease = FakeLease(WORK, fails=0, memo="", mark={})
        self.lease.waited_seconds = 3.0
        self.broken = None
        self.ended = []
        self.notes = []

    def take_any(self, key, locks, rules):
        self.locks, self.rules = locks, rules
        if self.lease is not None:
            self.lease.key = key
        return self.lease

    def _end(self, *what, **how):
        self.ended.append((*what, how) if how else what)
        self.notes = [note.split(" ", 1)[1] for note in trail.collected()]
        if self.broken is not None and what[0] != "release":
            raise self.broken
        return SimpleNamespace(is_owner=True)

    def done(self, lease, **how):
        return self._end("done", **how)

    def fail(self, lease, **how):
        return self._end("fail", **how)

    def block(self, lease, lock):
        return self._end("block", lock)

    def release(self, lease, **how):
        return self._end("release", **how)


class World:
    """One process with one driver, `d`, and a controller of the test's own."""

    def __init__(self):
        self.queue, self.seen = Queue(), []
        self.driver = SimpleNamespace(name="d", settings=SimpleNamespace(controllers={}))
        self.context = Context(
            settings=Settings(),
            kube=None,
            effects=SimpleNamespace(reach=lambda step, lease: None),
            queue=self.queue,
            catalog=None,
            driver_of={"d": self.driver}.get,
        )

    def run(self, outcome, key=WORK):
        """One pass; an exception is raised in it."""

        def sync(context, driver, key, lease):
            self.seen.append((driver, CURRENT.get()))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        controller = SimpleNamespace(spec=SPEC, locks=lambda key, driver: (), sync=sync)
        frame.run(self.context, {"work": controller, "loose": controller}, key.text)
        return self.queue.ended

    def counted(self, metric, /, **labels):
        return self.context.metrics.registry.get_sample_value(metric, labels) or 0


@pytest.fixture
def world():
    return World()


def failed(**changes):
    """What the queue is told of a failed attempt where nothing else is said."""
    plain = {
        "base_seconds": 1.0,
        "cap_seconds": 300.0,
        "min_delay_seconds": 0.0,
        "threshold": 0,
        "memo": "",
    }
    return [("fail", plain | changes)]


@pytest.mark.parametrize(
    ("outcome", "told", "result"),
    [
        (done(), [("done", {"finish_intent": False, "known": ""})], "done"),
        (
            done("made", finish_intent=True, known="7"),
            [("done", {"finish_intent": True, "known": "7"})],
            "done",
        ),
        (retry(), failed(), "retry"),
        (retry(not_before_seconds=9.0), failed(min_delay_seconds=9.0), "retry"),
        (
            Outcome(Action.RETRY, base_seconds=2.0, cap_seconds=4.0, memo="m", give_up_after=5),
            failed(base_seconds=2.0, cap_seconds=4.0, memo="m", threshold=5),
            "retry",
        ),
        (wait(7.0), [("release", {"delay_seconds": 7.0})], "wait"),
        (blocked(Lock("x")), [("block", Lock("x"))], "blocked"),
        (Outcome(Action.BLOCKED), [("release", {"delay_seconds": 0.0})], "blocked"),
        (Outcome(Action.WAIT, lock=Lock("x")), [("release", {"delay_seconds": 0.0})], "wait"),
        (LeaseLost("x"), [("release", {"delay_seconds": 0})], "wait"),
        (QueueUnavailable("x"), [("release", {"delay_seconds": AWAY_SECONDS})], "wait"),
        (Unreachable("x"), [("release", {"delay_seconds": AWAY_SECONDS})], "wait"),
        (QueueFull("x"), [("release", {"delay_seconds": FULL_SECONDS})], "wait"),
        (ForbiddenError(403, "Forbidden", "no"), failed(), "retry"),
        (ZeroDivisionError(), failed(), "retry"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_p400_what_the_queue_is_told_of_each_outcome(world, outcome, told, result):
    """P-400, L-050: one table, from a pass's end to what the queue does; each end is counted."""
    assert world.run(outcome) == told
    labels = {"kind": "work", "driver_name": "d"}
    assert world.counted("csi_fleet_attempts_total", **labels, outcome=result) == 1
    assert world.counted("workqueue_retries_total", name="work-queue") == (result == "retry")
    unexpected = isinstance(outcome, ZeroDivisionError)
    assert world.counted("csi_fleet_unexpected_errors_total", **labels) == unexpected
    lost = isinstance(outcome, LeaseLost)
    assert world.counted("csi_fleet_lease_losses_total", kind="work") == lost


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (LeaseLost("x"), "waits lease lost"),
        (QueueUnavailable("redis: away"), "waits redis: away"),
        (ForbiddenError(403, "Forbidden", "no"), "error the API server refused: "),
    ],
)
def test_the_trail_says_why_a_key_came_back(world, error, note):
    """`explain` has nothing else to tell people from."""
    world.run(error)
    assert [one for one in world.queue.notes if one.startswith(note)]


def test_each_ticket_counts_by_what_became_of_it(world):
    """Taken, or dropped because nothing was left to do; a taken one counts in its work queue."""

    def counts():
        return (
            world.counted("csi_fleet_tickets_total", kind="work", fate="taken"),
            world.counted("csi_fleet_tickets_total", kind="work", fate="dropped"),
            world.counted("workqueue_adds_total", name="work-queue"),
            world.counted("workqueue_queue_duration_seconds_sum", name="work-queue"),
        )

    world.run(done())
    assert counts() == (1, 0, 1, 3.0)
    world.queue.lease = None
    world.run(done())
    assert counts() == (1, 1, 1, 3.0)


@pytest.mark.parametrize(("outcome", "is_error"), [(done("well"), False), (retry("no"), True)])
def test_a_trace_says_how_its_pass_ended(world, monkeypatch, outcome, is_error):
    """A failed attempt is an error of its span, nothing else is."""
    told = []
    monkeypatch.setattr(frame.tracing, "ended", lambda *what, **how: told.append((*what, how)))
    world.run(outcome)
    assert told == [(outcome.action.value, outcome.reason, {"is_error": is_error})]


def test_the_lease_is_at_hand_during_its_pass_alone(world):
    """A call of the next pass must not be taken for one of this."""
    world.run(done())
    assert world.seen == [(world.driver, world.queue.lease)]
    assert CURRENT.get() is None


def test_a_key_without_driver_has_none_in_its_pass(world):
    """The snapshot controller's keys: nobody is asked for a driver."""
    world.context.driver_of = lambda name: pytest.fail("nobody serves it")
    assert world.run(done(), LOOSE) != []
    assert world.seen[0][0] is None
    assert world.counted("csi_fleet_attempts_total", kind="loose", driver_name="", outcome="done")


@pytest.mark.parametrize("key", [Key("other", "d", "a"), Key("work", "gone", "a")], ids=str)
def test_a_ticket_of_nobody_here_is_dropped(world, key):
    """Its controller does not run here, or its driver is not served."""
    assert world.run(done(), key) == []
    assert world.seen == []


@pytest.mark.parametrize("is_released", [False, True])
def test_a_pass_that_could_not_be_ended_counts_as_a_failure(world, is_released):
    """Else a defect at the end of passes would be met again each second for ever."""
    world.queue.broken = ZeroDivisionError()
    world.queue.lease.is_released = is_released
    given_back = [("release", {"delay_seconds": AWAY_SECONDS, "count": True})]
    ended = world.run(done())
    assert ended[1:] == ([] if is_released else given_back)
    labels = {"kind": "work", "driver_name": "d"}
    assert world.counted("csi_fleet_unexpected_errors_total", **labels) == 1


def interval(start, longest):
    return SimpleNamespace(retry_interval_start_seconds=start, retry_interval_max_seconds=longest)


@pytest.mark.parametrize(
    ("controllers", "expected"),
    [
        pytest.param({}, (1.0, 300.0), id="client-go's"),
        pytest.param({"one": interval(2, 20)}, (2, 20), id="its own"),
        pytest.param({"one": interval(2, 20), "whole": interval(3, 30)}, (2, 20), id="own first"),
        pytest.param({"one": object(), "whole": interval(3, 30)}, (3, 30), id="its whole's"),
        pytest.param({"one": interval(2, None), "whole": interval(3, 30)}, (3, 30), id="no end"),
        pytest.param({"one": interval(None, 20), "whole": interval(3, 30)}, (3, 30), id="no start"),
        pytest.param({"other": interval(4, 40)}, (1.0, 300.0), id="another's"),
    ],
)
def test_whose_retry_interval_counts(world, controllers, expected):
    """A part of a controller, as capacity, has its whole's where it has none of its own."""
    assert (frame.RETRY_START_SECONDS, RETRY_MAX_SECONDS) == (1.0, 300.0)
    world.driver.settings = SimpleNamespace(controllers=controllers)
    base, cap = expected
    assert world.run(retry()) == failed(base_seconds=base, cap_seconds=cap)


def test_what_an_outcome_is_when_nothing_else_is_said():
    """P-400: no delay, no intent dropped, and the driver's threshold of failures counts."""
    assert done() == Outcome(
        Action.DONE,
        delay_seconds=0.0,
        base_seconds=None,
        cap_seconds=None,
        finish_intent=False,
        known="",
        memo="",
        may_give_up=True,
        give_up_after=0,
        lock=None,
        reason="",
    )
    assert blocked(Lock("x")).reason == "x is busy"
    assert blocked(Lock("x"), "in use").reason == "in use"


# A thread goes on.

NEXT = Key("work", "d", "a/next", "v")


def follower(key=NEXT, locks=()):
    lease = FakeLease(key, fails=0, memo="", mark={})
    lease.locks = locks
    return lease


class Following:
    """A world whose threads go on with `leases`, one after the other."""

    def __init__(self, world, *leases):
        self.world, self.leases = world, list(leases)
        self.rules, self.shown = [], []
        world.context.wants_next = lambda lease: True
        world.context.shown = self.show
        end = world.queue._end

        def ended(*what, **how):
            if (lease := CURRENT.get()) is not None:
                self.rules.append(lease.rules)
                lease.successor = self.leases.pop(0) if self.leases else None
            return end(*what, **how)

        world.queue._end = ended

    @contextmanager
    def show(self, task, key):
        self.shown.append((task, key))
        yield


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
    assert world.queue.ended[1:] == [("release", {"delay_seconds": AWAY_SECONDS, "count": True})]
    assert len(world.seen) == 1


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
    assert world.queue.ended[-1] == ("release", {"delay_seconds": AWAY_SECONDS, "count": True})


def test_a_thread_that_has_nothing_to_go_on_with_waits_for_a_ticket(world):
    """Outside of the driver's seat, and only after an end that was to be gone on from."""
    following, asked, tickets = Following(world), [], [NEXT, None]

    def next_ticket(key):
        asked.append((key, world.context.seats.taken("d")))
        return tickets.pop(0)

    world.context.next_ticket = next_ticket
    world.run(done())
    assert asked == [(WORK, 0), (NEXT, 0)]
    assert [lease.key for _, lease in world.seen] == [NEXT, NEXT]
    assert [key for _, key in following.shown] == [NEXT]
    world.context.wants_next, world.queue.lease.rules = lambda lease: False, ""
    world.run(done())
    assert len(asked) == 2
