"""Which steps a reconcile has, in which order, and what stops it (MR-001, MR-033, MR-040)."""

from __future__ import annotations

import threading

import pytest

from tests.support.resizer_world import NAME, NAMESPACE, NODE_PENDING, VOLUME, ResizerWorld
from workers.errors import LeaseLost
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError, NotFoundError
from workers.observability import trail

NOTE = "volume.alpha.kubernetes.io/pre-resize-capacity"
STATUS = f"{NAME}/status"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")
EXPANDED = ["save-size", "record-expansion"]
MODIFIED = ["save-class", "record-modification"]


def wanting(*start, spec=None, **settings):
    """Return a world with a claim, and with its class b if `spec` names it."""
    world = ResizerWorld(**settings)
    world.attributes_class("b", tier="b")
    world.claim(*start, **({"volumeAttributesClassName": spec} if spec else {}))
    return world


def steps(world):
    """Return the steps of one reconcile."""
    world.steps.reached.clear()
    world.run()
    return world.steps.reached


def test_a_growth_has_four_effects_and_no_mark():
    """MR-042, MR-010: A call that simply succeeds needs no state in Redis."""
    assert steps(wanting(2, 1)) == ["mark-started", "expand-volume", *EXPANDED]


def test_a_class_has_four_effects_and_a_mark_until_its_end():
    """MR-010, DR-027: Facts that the claim does not show are stored in Redis before the call."""
    world = wanting(1, 1, spec="b")
    found = ["mark-started", "record-call", "modify-volume", *MODIFIED, "keep-mark"]
    assert steps(world) == found
    assert world.queue.marks == {}


def test_both_are_begun_with_one_write_and_called_together():
    """MR-001, MR-011: Both calls are announced before either is made."""
    found = steps(wanting(2, 1, spec="b"))
    assert found[:4] == ["mark-started", "record-call", "expand-volume", "modify-volume"]
    assert sorted(found[4:-1]) == sorted([*EXPANDED, *MODIFIED])
    assert found[-1] == "keep-mark"


def test_with_serialize_expand_modify_the_second_call_follows_the_first_result():
    """`--serialize-expand-modify`: The first result is written before the second call."""
    found = steps(wanting(2, 1, spec="b", serializes=True))
    modified = ["record-call", "modify-volume", *MODIFIED, "keep-mark"]
    assert found == ["mark-started", "expand-volume", *EXPANDED, *modified]


@pytest.mark.parametrize("spec", ["b", None], ids=["two, kept apart", "one"])
def test_calls_one_after_the_other_need_no_thread(spec):
    """Only two parallel calls need a thread."""
    world = wanting(2, 1, spec=spec, serializes=spec is not None)
    threads = set()
    world.answers(lambda _: threads.add(threading.current_thread()) or {})
    world.modifies(lambda _: threads.add(threading.current_thread()) or {})
    world.run()
    assert threads == {threading.current_thread()}


def test_a_failure_is_kept_and_taken_back_before_the_next_call():
    """MR-020, MR-021: From then on a new call may run."""
    world = wanting(2, 1)
    world.answers({"code": "INTERNAL"}, {})
    called = ["mark-started", "expand-volume", "record-expansion", "keep-mark"]
    assert steps(world) == called
    # Nothing new has to be written to the claim before the second call.
    assert steps(world) == ["record-call", "expand-volume", *EXPANDED, "keep-mark"]


def test_the_note_of_before_goes_first():
    """R-020/4, DR-035: The annotation is removed before anything else."""
    world = ResizerWorld()
    world.volume(2, annotations={NOTE: "1Gi"})
    world.claim(2, 2)
    assert steps(world) == ["drop-pre-resize"]


def test_a_class_that_was_taken_back_has_one_effect():
    """R-105: The only step is the cancellation."""
    world = ResizerWorld()
    found = {"status": "Infeasible", "targetVolumeAttributesClassName": "b"}
    conditions = {"ModifyingVolume": "x"}
    world.claim(1, 1, conditions=conditions, status={"modifyVolumeStatus": found})
    assert steps(world) == ["cancel-modification"]


@pytest.mark.parametrize("spec", [None, "b"], ids=["expand", "both"])
def test_mr033_who_lost_its_lease_does_nothing_more(spec):
    """MR-033, G9: The lease is checked before each step; without it the step does not happen."""
    reached = steps(wanting(2, 1, spec=spec, serializes=True))
    for number, step in enumerate(reached):
        world = wanting(2, 1, spec=spec, serializes=True)
        world.steps.loses_before = number
        with pytest.raises(LeaseLost):
            world.run()
        assert world.steps.reached == reached[: number + 1]
        calls = [one for one in reached[:number] if one.endswith("-volume")]
        marks = [one for one in reached[:number] if one in {"record-call", "keep-mark"}]
        assert len(world.client.methods) == len(calls), step
        assert len(world.api.writes) == number - len(calls) - len(marks), step


@pytest.mark.parametrize("has_failed", [False, True], ids=["small", "failing"])
def test_what_is_over_is_forgotten(has_failed):
    """MR-020, R-080: A claim without work keeps no state, whatever the state was about."""
    world = ResizerWorld()
    world.claim(2, 2)
    calls = {kind: {"target": "x", "result": "final", "at": 1.0} for kind in ("expand", "modify")}
    mark = {"in_use": True, **(calls if has_failed else {})}
    world.queue.marks[world.key.text] = mark
    assert steps(world) == ["keep-mark"]
    assert world.queue.marks == {}


# Conflicts on the volume.


def test_mr040_a_volume_that_changed_meanwhile_is_read_again():
    """MR-040, DR-014: The call isn't repeated, and the other program's change stays."""
    world = wanting(2, 1)
    labels = {"metadata": {"labels": {"a": "b"}}}
    world.api.before("patch", VOLUME, lambda: world.api.change(paths.VOLUMES, VOLUME, labels))
    assert world.run().action.value == "done"
    assert world.stored["metadata"]["labels"] == {"a": "b"}
    assert (world.sizes(), world.state().pvcap) == ([2], 2)
    assert world.state().part == NODE_PENDING


@pytest.mark.parametrize(("times", "action"), [(4, "done"), (5, "retry")])
@pytest.mark.parametrize(
    ("spec", "path"),
    [(None, VOLUME), ("b", VOLUME), ("b", STATUS)],
    ids=["size", "class", "class of the claim"],
)
def test_mr040_five_conflicts_in_a_row_are_a_failure(times, action, spec, path):
    """MR-040: Each conflict is followed by a new read, and the call is made once."""
    world = wanting(1 if spec else 2, 1, spec=spec)

    def crowd(_):
        world.api.fail("patch", path, *[CONFLICT] * times)
        return {"node_expansion_required": True}

    world.answers(crowd)
    world.modifies(lambda _: crowd(_) and {})
    assert world.run().action.value == action
    assert len(world.client.methods) == 1


def test_mr041_another_volume_of_the_name_is_not_written():
    """MR-041: The UID shows which volume was expanded."""
    world = wanting(2, 1)

    def replaced():
        volume = world.stored
        volume["metadata"]["uid"] = "another"
        world.api.add(paths.VOLUMES, volume)

    world.api.before("patch", VOLUME, replaced)
    assert world.run().action.value == "retry"
    assert world.state().pvcap == 1
    assert world.messages()[-1].endswith(f'persistentvolumes "{VOLUME}" not found')


def test_mr040_another_claim_of_the_name_is_not_written():
    """DR-006: The result is the same as for a deleted claim."""
    world = wanting(1, 1, spec="b")

    def replaced(_):
        claim = world.seen
        claim["metadata"]["uid"] = "another"
        world.api.add(paths.CLAIMS, claim)
        return {}

    world.modifies(replaced)
    outcome = world.run()
    assert (outcome.action.value, outcome.reason) == ("done", "claim is gone")
    assert world.seen["status"]["modifyVolumeStatus"]["status"] == "InProgress"
    assert world.queue.marks == {}


# Outcomes before the call.


def noted(world):
    """Return the outcome of one reconcile, and the errors in its history."""
    with trail.collect():
        outcome = world.run()
        notes = [one.partition(" ")[2] for one in trail.collected()]
    return outcome, [one.removeprefix("error ") for one in notes if one.startswith("error ")]


@pytest.mark.parametrize(
    ("size", "spec", "start"),
    [
        (2, None, f'marking pvc "{NAMESPACE}/{NAME}" as resizing failed: '),
        (2, "b", f'marking pvc "{NAMESPACE}/{NAME}" as resizing failed: '),
        (1, "b", ""),
    ],
)
def test_r035_why_a_pass_did_not_begin(size, spec, start):
    """R-035: No event is emitted, so only `explain` shows it.

    For a class the text has no prefix.
    """
    world = wanting(size, 1, spec=spec)
    world.api.fail("patch", STATUS, ForbiddenError(403, "Forbidden", "denied"))
    outcome, notes = noted(world)
    assert (outcome.action.value, outcome.reason) == ("retry", "not marked")
    refused = f"can't patch status of PVC {NAMESPACE}/{NAME} with denied"
    assert notes == [start + refused]
    assert world.events.seen == []


def test_r035_a_claim_that_goes_before_the_call():
    """R-022: No event is emitted for a deleted claim."""
    world = wanting(2, 1)
    world.api.fail("patch", STATUS, NotFoundError(404, "NotFound", "gone"))
    outcome, notes = noted(world)
    assert (outcome.action.value, outcome.reason, notes) == ("done", "claim is gone", [])
    assert world.client.methods == []


def test_r020_a_volume_that_is_missing_is_explained():
    """R-020/3: The text is csi-resizer's."""
    world = wanting(2, 1)
    world.api.drop(paths.VOLUMES, VOLUME)
    outcome, notes = noted(world)
    assert outcome.reason == "volume not found"
    assert notes == [f'PV "{VOLUME}" bound to pvc "{NAMESPACE}/{NAME}" not found']


def test_a_claim_that_cannot_be_read_is_explained():
    """The watcher cannot read such a claim, so the worker reports it."""
    world = wanting(2, 1)
    world.edit({"spec": {"resources": {"requests": {"storage": "nonsense"}}}})
    outcome, notes = noted(world)
    assert (outcome.action.value, outcome.reason) == ("retry", "unreadable")
    assert "nonsense" in "".join(notes)
    assert world.api.writes == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(None, "ControllerExpandVolume 2Gi"), ("b", "ControllerModifyVolume b")],
)
def test_the_trail_names_the_call_and_what_came_of_it(spec, expected):
    """For the timeline of `explain`: the call with its target, then the error as users see it."""
    world = wanting(1 if spec else 2, 1, spec=spec)
    world.answers({"code": "INTERNAL", "message": "boom"})
    world.modifies({"code": "INTERNAL", "message": "boom"})
    with trail.collect():
        world.run()
        notes = [one.partition(" ")[2] for one in trail.collected()]
    assert [one for one in notes if not one.startswith("api ")] == [
        f"rpc {expected}",
        f"error {world.messages()[-1]}",
    ]
