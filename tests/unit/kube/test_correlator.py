"""The event budget of L-006, which client-go's EventCorrelator applies in each process."""

from __future__ import annotations

import pytest

from workers.kube import correlator
from workers.kube.correlator import MERGED_PREFIX, EventCorrelator, EventPlan
from workers.kube.events import make_event

CLAIM = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plan(clock):
    budget = EventCorrelator(clock)

    def ask(message, reason="ProvisioningFailed", type_="Warning", **metadata):
        clock.now += 0.001
        claim = CLAIM | {"metadata": {"namespace": "ns", "name": "data", "uid": "u"} | metadata}
        return budget.plan(make_event(claim, type_, reason, message, "driver_x", now=clock.now))

    return ask


def test_l006_identical_events_become_one_with_a_count(plan):
    first = plan("no space")
    assert (first.action, first.count, first.message) == ("create", 1, "no space")
    assert first.name.startswith("data.")
    assert plan("no space") == EventPlan("patch", first.name, 2, "no space")
    assert plan("no space", resourceVersion="77") == EventPlan("patch", first.name, 3, "no space")


def test_l006_from_the_tenth_message_on_similar_events_are_merged(plan):
    for number in range(9):
        assert plan(f"attempt {number}").action == "create"
    merged = plan("attempt 9")
    assert (merged.action, merged.message) == ("create", MERGED_PREFIX + "attempt 9")
    assert plan("attempt 10") == EventPlan("patch", merged.name, 2, MERGED_PREFIX + "attempt 10")
    known = plan("attempt 3")
    assert (known.action, known.message) == ("patch", "attempt 3"), "it keeps its own event"


def test_l006_ten_minutes_without_a_similar_event_end_the_merging(plan, clock):
    for number in range(10):
        last = plan(f"attempt {number}")
    assert last.message.startswith(MERGED_PREFIX)
    clock.now += 599
    assert plan("attempt 10").message.startswith(MERGED_PREFIX)
    clock.now += 601
    assert plan("attempt 11").message == "attempt 11"


def test_l006_burst_of_25_then_one_in_five_minutes_per_object(plan, clock):
    plans = [plan("same") for _ in range(30)]
    assert [one.action for one in plans] == ["create"] + 24 * ["patch"] + 5 * ["drop"]
    assert plan("same", name="other", uid="v").action == "create", "another object's budget"
    clock.now += 301
    assert plan("same") == EventPlan("patch", plans[0].name, 31, "same")
    assert plan("same").action == "drop"


def test_l006_failures_leave_the_budget_of_normal_events_alone(plan):
    assert [plan("no space").action for _ in range(26)][-1] == "drop"
    assert plan("made", "ProvisioningSucceeded", "Normal").action == "create"
    assert plan("no room", "VolumeFailedDelete").action == "drop", "one budget for all reasons"


def test_c086_forty_failures_in_a_minute_write_at_most_25_events(plan, clock):
    actions = []
    for number in range(40):
        actions.append(plan(f"error {number}").action)
        clock.now += 1.5
    assert actions.count("drop") == 15
    assert actions.count("create") == 10


def test_an_event_that_was_dropped_is_created_when_there_is_room_again(plan, clock):
    for number in range(25):
        plan("m", f"Reason{number}")
    assert plan("new").action == "drop"
    clock.now += 301
    assert plan("new").action == "create", "no count of an Event that nobody wrote"


def test_memory_is_bounded_and_what_was_used_last_stays(plan, monkeypatch):
    monkeypatch.setattr(correlator, "CACHE_SIZE", 3)
    plan("kept")
    for number in range(5):
        assert plan("m", name=f"other-{number}", uid=str(number)).action == "create"
        assert plan("kept").action == "patch"
    assert plan("m", name="other-0", uid="0").action == "create", "forgotten"
