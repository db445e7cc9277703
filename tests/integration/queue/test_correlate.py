"""The event budget of L-006, shared by all workers."""

from __future__ import annotations

from collections import Counter

import pytest

from workers.queue.correlate import (
    MERGED_PREFIX,
    Create,
    Decision,
    Drop,
    EventBudget,
    Occurrence,
    Patch,
)

_SCRIPT_COMMANDS = ("fcall", "evalsha", "eval")
CLAIM = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data", "uid": "u"}


@pytest.fixture
def decide(bench):
    """Each call asks a new worker, so that only Redis remembers."""

    def ask(
        message: str,
        reason: str = "ProvisioningFailed",
        type_: str = "Warning",
        **changes: str,
    ) -> Decision:
        budget = EventBudget(bench.client, now_ms=lambda: bench.now_ms)
        claim = CLAIM | changes
        one = Occurrence("driver_csi-fleet", claim, type_, reason, message)
        return budget.decide([one])[0]

    return ask


def test_l006_identical_events_become_one_with_a_count(decide):
    first = decide("no space")
    assert isinstance(first, Create)
    assert first.name.startswith("data.")
    assert decide("no space") == Patch(first.name, "no space", 2)
    assert decide("no space", resourceVersion="77") == Patch(first.name, "no space", 3)


def test_l006_from_the_tenth_message_on_similar_events_are_merged(decide):
    for i in range(9):
        assert isinstance(decide(f"attempt {i}"), Create)
    merged = decide("attempt 9")
    assert isinstance(merged, Create)
    assert merged.message == MERGED_PREFIX + "attempt 9"
    assert decide("attempt 10") == Patch(merged.name, MERGED_PREFIX + "attempt 10", 2)
    assert isinstance(decide("attempt 3"), Patch), "known messages keep their own event"


def test_l006_burst_of_25_then_one_in_five_minutes_per_object(bench, decide):
    decisions = [decide("same") for _ in range(30)]
    assert [isinstance(d, Drop) for d in decisions] == [False] * 25 + [True] * 5
    assert isinstance(decide("same", name="other", uid="v"), Create), "another object's budget"
    bench.advance(301)
    assert decide("same") == Patch(decisions[0].name, "same", 31)
    assert decide("same") == Drop()


def test_l006_failures_leave_the_budget_of_normal_events_alone(decide):
    for _ in range(26):
        last = decide("no space")
    assert last == Drop()
    assert isinstance(decide("made", "ProvisioningSucceeded", "Normal"), Create)
    assert decide("no room", "VolumeFailedDelete") == Drop(), "one budget for all reasons"


def test_c086_forty_failures_in_a_minute_write_at_most_25_events(bench, decide):
    decisions = []
    for i in range(40):
        decisions.append(decide(f"error {i}"))
        bench.advance(1.5)
    assert sum(not isinstance(d, Drop) for d in decisions) == 25
    assert sum(isinstance(d, Create) for d in decisions) == 10


def test_message_text_never_reaches_redis(bench, decide):
    decide("password=hunter2")
    assert not [k for k in bench.client.keys("*") if b"hunter2" in bench.client.dump(k)]


def test_repeated_request_gets_the_same_answer(bench):
    """A lost reply must not count twice nor turn a create into a patch."""
    budget = EventBudget(bench.client, now_ms=lambda: bench.now_ms)
    scripts, replies = budget._scripts, []
    run = scripts.run
    scripts.run = lambda *args: [replies.append(run(*args)) for _ in range(2)] and replies[-1]
    for _ in range(2):
        budget.decide([Occurrence("s", CLAIM, "Normal", "r", "m")])
    assert [reply[0] for reply in replies] == [b"create", b"create", b"patch", b"patch"]
    assert [reply[2] for reply in replies] == [1, 1, 2, 2]


def test_events_decided_together_are_answered_in_order(bench):
    """One round trip, with a Redis that does not know the script yet."""
    budget = EventBudget(bench.client, now_ms=lambda: bench.now_ms)
    bench.client.script_flush()
    texts = ("one", "two", "one")
    first, second, third = budget.decide(
        [Occurrence("s", CLAIM, "Warning", "r", message) for message in texts]
    )
    assert isinstance(first, Create)
    assert isinstance(second, Create)
    assert third == Patch(first.name, "one", 2)


@pytest.mark.parametrize(("has_functions", "command"), [(True, "fcall"), (False, "evalsha")])
def test_events_decided_together_are_one_command_each(bench, has_functions, command):
    """As functions or as texts, whichever this Redis runs: none is sent twice."""

    def calls():
        stats = bench.client.info("commandstats")
        found = {name: stats.get(f"cmdstat_{name}", {"calls": 0}) for name in _SCRIPT_COMMANDS}
        return Counter({name: one["calls"] for name, one in found.items()})

    budget = EventBudget(bench.client, now_ms=lambda: bench.now_ms)
    budget._scripts._has_functions = has_functions
    occurrences = [Occurrence("s", CLAIM, "Warning", "r", message) for message in ("one", "two")]
    budget.decide(occurrences[:1])  # Redis knows the script now
    before = calls()
    budget.decide(occurrences)
    assert calls() - before == {command: 2}


def test_a_key_of_a_wrong_type_is_repaired_for_events_decided_together(bench):
    budget = EventBudget(bench.client, now_ms=lambda: bench.now_ms)
    occurrences = [Occurrence("s", CLAIM, "Warning", "r", message) for message in ("one", "two")]
    budget.decide(occurrences)
    (bucket,) = [key for key in bench.client.keys("*") if b"spam" in key]
    bench.client.delete(bucket)
    bench.client.set(bucket, "x")
    assert all(isinstance(one, Create | Patch) for one in budget.decide(occurrences))
