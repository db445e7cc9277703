"""The result of each patch of a claim under merge-patch rules, and the full write of each state."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.controllers.resizer import editing
from workers.controllers.resizer.claim import Size
from workers.controllers.resizer.decide import Expand
from workers.controllers.resizer.editing import ClaimEdit
from workers.controllers.resizer.words import Condition
from workers.kube import paths

NOW = "2026-01-01T00:00:00Z"
NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
MODIFYING, ERROR = Condition.MODIFYING, Condition.MODIFY_ERROR
NODE_PART = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
EVERY = ("Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError", "Other")


def claim(*conditions, annotations=None, **status):
    """Return a claim whose status has these fields; a condition is a type or an object."""
    found = [one if isinstance(one, dict) else condition(one) for one in conditions]
    metadata = {"name": "c", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "status": {**status, **({"conditions": found} if found else {})}}


def condition(kind, at="then", **more):
    """Return a condition of an earlier reconcile."""
    return {"type": kind, "status": "True", "lastTransitionTime": at} | more


def new(kind, **more):
    """Return a condition of this reconcile."""
    return condition(kind, NOW, **more)


def probed(kind, message, **more):
    return new(kind, message=message, lastProbeTime=NOW, **more)


def patched(item, change):
    """Return (annotations, status) of the patch, or None if there is no patch."""
    edit = ClaimEdit(item, NOW)
    change(edit)
    patch = edit.patch()
    if patch is None:
        return None
    return patch.get("metadata", {}).get("annotations", {}), patch.get("status", {})


def storage(value):
    return {"storage": value}


@pytest.mark.parametrize(
    "others", [{}, {"example.com/iops": "500"}], ids=["alone", "beside others"]
)
@pytest.mark.parametrize("old", [None, "1Gi"])
@pytest.mark.parametrize("new", [None, "1Gi", "2Gi"])
def test_of_a_map_only_the_storage_entry_changes(old, new, others):
    """R-060, DR-009: An empty map is removed, and entries of other resources stay."""
    api = MemoryApi()
    before = others | ({"storage": old} if old else {})
    metadata = {"name": "c", "namespace": "ns"}
    status = {"capacity": before} if before else {}
    claim = api.add(paths.CLAIMS, {"metadata": metadata, "status": status})
    edit = ClaimEdit(claim, "2026-01-01T00:00:00Z")
    edit.set_storage("capacity", new)
    patch = edit.patch()
    assert (patch is None) is (old == new)
    after = api.change(paths.CLAIMS, "c", patch, "ns") if patch else claim
    assert after["status"].get("capacity", {}) == others | ({"storage": new} if new else {})
    assert after["status"].get("capacity") != {}


@pytest.mark.parametrize(
    ("is_new", "part", "allocated", "parts", "kept"),
    [
        pytest.param(True, "", storage("5Gi"), storage("ControllerResizeInProgress"), (), id="new"),
        pytest.param(
            *(False, "ControllerResizeInfeasible", None, storage("ControllerResizeInProgress")),
            EVERY[1:4],
            id="infeasible before (MR-030)",
        ),
        pytest.param(False, "NodeResizeInfeasible", None, None, EVERY[1:4], id="the same"),
    ],
)
def test_r035_what_is_written_before_the_call(is_new, part, allocated, parts, kept):
    """R-035: A new size starts from scratch; the same size keeps its known state."""
    before = claim(*EVERY[1:], annotations={NOT_REQUIRED: "true", "a": "b"})
    plan = Expand(Size(5, "5Gi"), is_new)
    annotations, status = patched(before, lambda edit: editing.mark_resizing(edit, plan, part))
    assert annotations == {NOT_REQUIRED: None}
    assert status.get("allocatedResources") == allocated
    assert status.get("allocatedResourceStatuses") == parts
    left = [*map(condition, kept), condition("Other"), new("Resizing")]
    assert status["conditions"] == left


def test_r035_what_is_there_already_is_not_written_again():
    """DR-009: Retrying the same size is no transition of the condition `Resizing`."""
    plan = Expand(Size(5, "5Gi"), is_new=False)
    before = claim("Resizing")
    assert patched(before, lambda edit: editing.mark_resizing(edit, plan, "")) is None


def test_r090_before_the_call_there_is_the_condition_alone():
    """R-090: No states and no annotation are written."""
    plan = Expand(Size(5, "5Gi"), is_new=True, is_legacy=True)
    before = claim(*EVERY, annotations={NOT_REQUIRED: "true"})
    found = patched(before, lambda edit: editing.mark_resizing(edit, plan, ""))
    assert found == ({}, {"conditions": [condition("Resizing"), condition("Other")]})


@pytest.mark.parametrize("is_infeasible", [False, True])
def test_r051_a_final_error(is_infeasible):
    """R-051: The error is an additional condition; only an infeasible size has its own state."""
    found = patched(
        claim("Resizing"),
        lambda edit: editing.mark_expand_failed(edit, "boom", is_infeasible=is_infeasible),
    )
    error = new("ControllerResizeError", message="failed to expand pvc with boom")
    state = {"allocatedResourceStatuses": storage("ControllerResizeInfeasible")}
    conditions = {"conditions": [condition("Resizing"), error]}
    assert found == ({}, conditions | (state if is_infeasible else {}))


@pytest.mark.parametrize("is_legacy", [False, True])
def test_r060_the_node_has_a_part(is_legacy):
    """R-060, R-090, DR-010: The controller's error is removed, and the node's error stays."""
    annotations, status = patched(
        claim("Resizing", *EVERY[2:], annotations={NOT_REQUIRED: "true"}),
        lambda edit: editing.mark_node_pending(edit, is_legacy=is_legacy),
    )
    kept = ("Other",) if is_legacy else ("Resizing", "NodeResizeError", "Other")
    pending = new("FileSystemResizePending", message=NODE_PART)
    assert status.pop("conditions") == [*map(condition, kept), pending]
    state = {"allocatedResourceStatuses": storage("NodeResizePending")}
    assert status == ({} if is_legacy else state)
    assert annotations == ({} if is_legacy else {NOT_REQUIRED: None})


@pytest.mark.parametrize("is_legacy", [False, True])
def test_r060_the_claim_has_its_size(is_legacy):
    """R-060, R-090: Conditions of other programs stay."""
    before = claim(*EVERY, allocatedResourceStatuses=storage("ControllerResizeInProgress"))
    annotations, status = patched(
        before, lambda edit: editing.mark_resized(edit, "5Gi", is_legacy=is_legacy)
    )
    gone = {} if is_legacy else {"allocatedResourceStatuses": None}
    assert status == {"capacity": storage("5Gi"), "conditions": [condition("Other")]} | gone
    assert annotations == ({} if is_legacy else {NOT_REQUIRED: "true"})


def test_the_last_condition_takes_the_list_along():
    """A merge patch removes a list with null; an empty list would stay."""
    found = patched(claim("Resizing"), lambda edit: edit.drop({"Resizing"}))
    assert found == ({}, {"conditions": None})


def state_of(name, target=None):
    found = {"status": name}
    return found if target is None else found | {"targetVolumeAttributesClassName": target}


def test_r102_a_class_is_begun():
    """R-102: An error of an earlier class stays until a modification succeeds."""
    found = patched(claim(ERROR), lambda edit: editing.mark_modifying(edit, "b"))
    begun = probed(MODIFYING, 'Modifying volume to "b" is in progress.')
    conditions = [condition(ERROR), begun]
    state = state_of("InProgress", "b")
    assert found == ({}, {"modifyVolumeStatus": state, "conditions": conditions})


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, {"modifyVolumeStatus": {"status": "Pending"}}),
        (state_of("Infeasible", "c"), {"modifyVolumeStatus": {"status": "Pending"}}),
        (state_of("Pending", "c"), None),
    ],
)
def test_r102_a_class_that_cannot_be_used_now(before, expected):
    """R-102: Target and conditions stay, and no write is repeated."""
    found = patched(claim(ERROR, modifyVolumeStatus=before), editing.mark_modify_pending)
    assert found == (None if expected is None else ({}, expected))


@pytest.mark.parametrize(
    ("is_infeasible", "may_run", "state", "text"),
    [
        (True, False, "Infeasible", "failed. Waiting for retry."),
        (False, False, "InProgress", "failed. Waiting for retry."),
        (False, True, "InProgress", "is still in progress."),
    ],
)
def test_r111_a_class_that_failed(is_infeasible, may_run, state, text):
    """R-111, R-112: Both conditions get a new probe time."""
    found = patched(
        claim(),
        lambda edit: editing.mark_modify_failed(
            edit, "b", is_infeasible=is_infeasible, may_run=may_run, reason="R", message="boom"
        ),
    )
    conditions = [
        probed(MODIFYING, f'Modifying volume to "b" {text}'),
        probed(ERROR, "boom", reason="R"),
    ]
    wanted = {"modifyVolumeStatus": state_of(state, "b"), "conditions": conditions}
    assert found == ({}, wanted)


def test_r110_a_class_that_is_applied():
    """R-110: The class becomes current, and the modification's state and conditions are removed."""
    before = claim(MODIFYING, "Other", ERROR, modifyVolumeStatus=state_of("InProgress", "b"))
    found = patched(before, lambda edit: editing.mark_modified(edit, "b"))
    wanted = {"currentVolumeAttributesClassName": "b", "modifyVolumeStatus": None}
    assert found == ({}, wanted | {"conditions": [condition("Other")]})


def test_r105_a_class_that_was_taken_back():
    """R-105, DR-024: The modification's state stays."""
    before = claim(MODIFYING, "Other", ERROR, modifyVolumeStatus=state_of("Infeasible", "b"))
    found = patched(before, editing.mark_modify_canceled)
    assert found == ({}, {"conditions": [condition("Other")]})


SAME = condition("Resizing", reason="R", message="m")


@pytest.mark.parametrize(
    ("old", "is_probed", "expected"),
    [
        pytest.param(SAME, False, None, id="the same"),
        pytest.param(SAME, True, SAME | {"lastProbeTime": NOW}, id="the same, probed"),
        pytest.param(SAME | {"message": "x"}, False, SAME, id="another message"),
        pytest.param(SAME | {"reason": "x"}, False, new("Resizing", reason="R", message="m"),
                     id="another reason"),
        pytest.param(condition("Resizing"), False, new("Resizing", reason="R", message="m"),
                     id="without a reason"),
        pytest.param(SAME | {"status": "False"}, False, new("Resizing", reason="R", message="m"),
                     id="another status"),
        pytest.param({"type": "Resizing", "status": "True", "reason": "R"}, False,
                     new("Resizing", reason="R", message="m"), id="without a time"),
    ],
)  # fmt: skip
def test_r112_when_a_condition_changes_its_times(old, is_probed, expected):
    """R-112: Another status or reason is a transition; the condition keeps its position."""
    before = claim("First", old, "Last")
    found = patched(
        before, lambda edit: edit.hold(Condition.RESIZING, "m", reason="R", probed=is_probed)
    )
    conditions = [condition("First"), expected, condition("Last")]
    assert found == (None if expected is None else ({}, {"conditions": conditions}))


@pytest.mark.parametrize(
    ("before", "value", "expected"),
    [
        ({}, "1", {"a": "1"}),
        ({"a": "1"}, "1", None),
        ({"a": "1"}, "2", {"a": "2"}),
        ({"a": "1"}, None, {"a": None}),
        ({}, None, None),
    ],
)
def test_an_annotation_alone_is_a_patch_without_a_status(before, value, expected):
    """DR-009: There is no patch if the annotation already has the value."""
    edit = ClaimEdit(claim(annotations=before), NOW)
    edit.annotate("a", value)
    wanted = {"metadata": {"annotations": expected}}
    assert edit.patch() == (None if expected is None else wanted)
