"""What the frame reports about a reconcile: to the queue, metrics, history and trace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.engine.frame_world import LOOSE, WORK, World
from workers.engine import frame
from workers.engine.frame import AWAY_SECONDS, FULL_SECONDS, RETRY_MAX_SECONDS
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.errors import LeaseLost, QueueFull, QueueUnavailable
from workers.kube.errors import ForbiddenError, Unreachable
from workers.queue.leases import CURRENT
from workers.queue.locks import Lock


@pytest.fixture
def world():
    return World()


def failed(**changes):
    """Return what the queue gets for a failed attempt: the defaults with these changes."""
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
    """P-400, L-050: each outcome maps to one operation of the queue, and each is counted."""
    assert world.run(outcome) == told
    labels = {"kind": "claims", "driver_name": "d"}
    assert world.counted("csi_fleet_attempts_total", **labels, outcome=result) == 1
    assert world.counted("workqueue_retries_total", name="work-queue") == (result == "retry")
    unexpected = isinstance(outcome, ZeroDivisionError)
    assert world.counted("csi_fleet_unexpected_errors_total", **labels) == unexpected
    lost = isinstance(outcome, LeaseLost)
    assert world.counted("csi_fleet_lease_losses_total", kind="claims") == lost


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (LeaseLost("x"), "waits lease lost"),
        (QueueUnavailable("redis: away"), "waits redis: away"),
        (ForbiddenError(403, "Forbidden", "no"), "error the API server refused: "),
    ],
)
def test_the_trail_says_why_a_key_came_back(world, error, note):
    """`explain` has no other source for the reason."""
    world.run(error)
    assert [one for one in world.queue.notes if one.startswith(note)]


@pytest.mark.parametrize(("outcome", "is_error"), [(done("well"), False), (retry("no"), True)])
def test_a_trace_says_how_its_pass_ended(world, monkeypatch, outcome, is_error):
    """Only a failed attempt marks its span as an error."""
    told = []
    monkeypatch.setattr(frame.tracing, "ended", lambda *what, **how: told.append((*what, how)))
    world.run(outcome)
    assert told == [(outcome.action.value, outcome.reason, {"is_error": is_error})]


def test_the_lease_is_at_hand_during_its_pass_alone(world):
    """A call of the next reconcile must not be attributed to this one."""
    world.run(done())
    ((driver, lease),) = world.seen
    assert (driver, lease.key) == (world.driver, WORK)
    assert CURRENT.get() is None


def test_a_key_without_driver_has_none_in_its_pass(world):
    """Keys of the snapshot controller belong to no driver, so no driver is looked up."""
    world.context.driver_of = lambda name: pytest.fail("nobody serves it")
    assert world.run(done(), LOOSE) != []
    assert world.seen[0][0] is None
    assert world.counted(
        "csi_fleet_attempts_total", kind="bindings", driver_name="", outcome="done"
    )


@pytest.mark.parametrize("is_released", [False, True])
def test_a_pass_that_could_not_be_ended_counts_as_a_failure(world, is_released):
    """Otherwise a defect at the end of reconciles would recur every second forever."""
    given_back = [("release", {"delay_seconds": AWAY_SECONDS, "count": True})]

    def broken(lease, **_):
        lease.is_released = is_released
        raise ZeroDivisionError

    world.queue.done = broken
    assert world.run(done()) == ([] if is_released else given_back)
    labels = {"kind": "claims", "driver_name": "d"}
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
    """A part of a controller, such as capacity, falls back to the settings of the whole."""
    assert (frame.RETRY_START_SECONDS, RETRY_MAX_SECONDS) == (1.0, 300.0)
    world.driver.settings = SimpleNamespace(controllers=controllers)
    base, cap = expected
    assert world.run(retry()) == failed(base_seconds=base, cap_seconds=cap)


def test_what_an_outcome_is_when_nothing_else_is_said():
    """P-400: no delay, the intent is kept, and the driver's retry limit applies."""
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
