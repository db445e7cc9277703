"""Changing a claim's attributes class: targets, errors, roll-back, secrets (section 11.6)."""

from __future__ import annotations

import pytest

from tests.support.resizer_world import NAME, NAMESPACE, VOLUME, ResizerWorld
from workers.kube import paths
from workers.kube.errors import ConflictError, ForbiddenError

MODIFYING, ERROR = "ModifyingVolume", "ModifyVolumeError"
PROGRESS = 'Modifying volume to "b" is in progress.'
STILL = 'Modifying volume to "b" is still in progress.'
WAITING = 'Modifying volume to "b" failed. Waiting for retry.'


def wanting(spec, current, state=None, target="b", **settings):
    """Return a world with a claim (spec VAC, curVAC, mvs) and classes a, b and c."""
    world = ResizerWorld(**settings)
    for name in "abc":
        world.attributes_class(name, tier=name)
    status = {}
    if current:
        status["currentVolumeAttributesClassName"] = current
    if state:
        found = {"status": state, "targetVolumeAttributesClassName": target}
        status["modifyVolumeStatus"] = {name: text for name, text in found.items() if text}
    world.claim(1, 1, volumeAttributesClassName=spec, status=status)
    return world


def classes(world):
    return [parameters["tier"] for parameters in world.parameters()]


def progress(world):
    """Return (state, target) of the modification."""
    found = world.seen["status"].get("modifyVolumeStatus") or {}
    return found.get("status"), found.get("targetVolumeAttributesClassName")


def condition(world, kind):
    return next(one for one in world.seen["status"]["conditions"] if one["type"] == kind)


def slow(world):
    call = world.queue.marks[world.key.text]["modify"]
    call["at"] -= 301


def test_tr120_the_class_that_is_current_rests():
    """R-100/6: A missing and an empty class name are equal."""
    for spec, current in (("a", "a"), (None, None), ("", None)):
        world = wanting(spec, current)
        world.run()
        assert world.client.methods == []
        assert world.api.writes == []


def test_tr121_another_class_is_applied():
    """R-102, R-104, R-110: The claim is written first, then the volume, then the claim again."""
    world = wanting("b", "a")
    seen = []
    world.modifies(lambda _: seen.append((progress(world), world.conditions()[MODIFYING])) or {})
    assert world.run().action.value == "done"
    assert seen == [(("InProgress", "b"), PROGRESS)]
    assert classes(world) == ["b"]
    assert world.stored["spec"]["volumeAttributesClassName"] == "b"
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "b"
    assert progress(world) == (None, None)
    assert world.conditions() == {}
    assert world.events.seen == [
        ("Normal", "VolumeModify", "external resizer is modifying volume data with vac b"),
        (
            "Normal",
            "VolumeModifySuccessful",
            "external resizer modified volume data with vac b successfully",
        ),
    ]


def test_tr122_names_travel_with_the_parameters_when_asked_for():
    """R-104: The names replace equal keys, and the class itself is not changed."""
    world = wanting("b", "a", extra_modify_metadata=True)
    world.attributes_class("b", **{"tier": "b", "csi.storage.k8s.io/pv/name": "mine"})
    before = world.api.of(paths.ATTRIBUTES_CLASSES, "b")
    world.run()
    assert world.parameters() == [
        {
            "tier": "b",
            "csi.storage.k8s.io/pvc/name": NAME,
            "csi.storage.k8s.io/pvc/namespace": "shop",
            "csi.storage.k8s.io/pv/name": VOLUME,
        }
    ]
    assert world.api.of(paths.ATTRIBUTES_CLASSES, "b") == before


def test_tr123_tr124_a_missing_class_is_waited_for():
    """R-102, DR-018: One event reports it; once the class exists, it is applied at once."""
    world = wanting("b", "a", "Infeasible", "c")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    assert world.run().action.value == "done"
    assert world.run().action.value == "done"
    assert progress(world) == ("Pending", "c")
    assert world.events.seen == [("Warning", "VolumeModifyFailed", 'VAC "b" does not exist.')]
    assert world.client.methods == []
    world.attributes_class("b", tier="b")
    world.run()
    assert classes(world) == ["b"]


def test_tr125_an_infeasible_class_rests():
    """R-114, DR-023: The key waits for the rest of the pause, and its back-off doesn't grow."""
    world = wanting("b", "a")
    world.modifies({"code": "INVALID_ARGUMENT"}, {})
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == ("retry", 300.0)
    outcome = world.run()
    assert outcome.action.value == "wait"
    assert 299 < outcome.delay_seconds <= 300
    assert classes(world) == ["b"]
    slow(world)
    world.run()
    assert classes(world) == ["b", "b"]


@pytest.mark.parametrize(
    ("spec", "state", "expected"),
    [
        pytest.param("c", "Infeasible", ["c"], id="TR-126 another class"),
        pytest.param("a", "Infeasible", ["a"], id="TR-127 back to the one before"),
        pytest.param("b", "InProgress", ["b"], id="TR-128 the same after a restart"),
        pytest.param("c", "InProgress", ["b", "c"], id="TR-129 the old one first"),
    ],
)
def test_the_class_that_may_be_at_work_comes_first(spec, state, expected):
    """R-100, R-101, R-103, R-115, I-2: A class whose call may still run is finished first."""
    world = wanting(spec, "a", state)
    world.settle()
    assert classes(world) == expected
    assert world.seen["status"]["currentVolumeAttributesClassName"] == spec
    assert progress(world) == (None, None)


def test_tr128_nothing_is_written_before_a_repeated_call():
    """R-103: The claim already has the state."""
    world = wanting("b", "a", "InProgress")
    writes = []
    world.modifies(lambda _: writes.append(world.status_writes()) or {})
    world.run()
    assert writes == [0]
    assert "VolumeModify" not in world.reasons()


def test_tr130_a_final_answer_lets_the_next_class_follow():
    world = wanting("c", "a", "InProgress")
    world.modifies({"code": "INTERNAL"}, {})
    world.settle()
    assert classes(world) == ["b", "c"]


def test_tr131_an_uncertain_answer_pins_the_class():
    """R-111: The same class is requested again, although the user wants another."""
    world = wanting("c", "a", "InProgress")
    world.modifies({"code": "UNAVAILABLE", "message": "rebooting"})
    assert world.run().action.value == "retry"
    world.run()
    assert classes(world) == ["b", "b"]
    assert progress(world) == ("InProgress", "b")
    assert world.conditions() == {MODIFYING: STILL, ERROR: "rebooting"}
    text = "rpc error: code = Unavailable desc = rebooting. Still modifying to VAC b"
    assert world.events.seen == [("Warning", "VolumeModifyFailed", text)]


def test_tr132_an_infeasible_class_is_said():
    """R-111: The condition has message and reason without the prefix."""
    world = wanting("b", "a")
    world.modifies({"code": "INVALID_ARGUMENT", "message": "no such tier"})
    world.run()
    assert progress(world) == ("Infeasible", "b")
    assert world.conditions() == {MODIFYING: WAITING, ERROR: "no such tier"}
    assert condition(world, ERROR)["reason"] == "InvalidArgument"
    assert world.messages()[-1] == "rpc error: code = InvalidArgument desc = no such tier"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("NOT_FOUND", id="TR-133"),
        pytest.param("OUT_OF_RANGE", id="TR-133 too"),
        "INTERNAL",
        "FAILED_PRECONDITION",
    ],
)
def test_other_final_answers_are_retried(code):
    """R-111: The next attempt is announced again."""
    world = wanting("b", "a")
    world.modifies({"code": code}, {})
    outcome = world.run()
    assert (outcome.action.value, outcome.delay_seconds) == ("retry", 0.0)
    assert progress(world) == ("InProgress", "b")
    assert world.conditions()[MODIFYING] == WAITING
    world.run()
    assert classes(world) == ["b", "b"]


def test_tr134_a_class_taken_back_while_at_work():
    """R-105, R-115: It is finished first and then cancelled; the error is removed too (DR-024)."""
    world = wanting(None, None, "InProgress")
    world.modifies({"code": "INVALID_ARGUMENT"})
    world.settle()
    assert classes(world) == ["b"]
    assert world.reasons() == ["VolumeModifyFailed", "VolumeModifyCanceled"]
    assert world.conditions() == {}
    assert progress(world) == ("Infeasible", "b")
    world.run()
    assert world.reasons().count("VolumeModifyCanceled") == 1


def test_tr135_a_class_taken_back_while_pending():
    world = wanting(None, None, "Pending", "")
    world.run()
    assert world.client.methods == []
    assert world.events.seen == []


def test_tr136_the_same_error_again_is_no_transition():
    """R-112: Only the probe time changes."""
    world = wanting("b", "a", "InProgress")
    world.modifies({"code": "UNAVAILABLE", "message": "no"})
    world.run()
    found = world.seen
    for one in found["status"]["conditions"]:
        one |= {"lastTransitionTime": "then", "lastProbeTime": "then"}
    world.edit({"status": {"conditions": found["status"]["conditions"]}})
    world.run()
    error = condition(world, ERROR)
    assert error["lastTransitionTime"] == "then"
    assert error["lastProbeTime"] != "then"


SECRETS = {"modify": "bQ==", "expand": "ZQ=="}
PREFIX = "volume.kubernetes.io/controller-modify-secret"


@pytest.mark.parametrize(
    ("annotations", "has_reference", "expected"),
    [
        pytest.param(("name", "namespace"), True, {"user": "m"}, id="TR-137 both annotations"),
        pytest.param(("name",), True, {"user": "e"}, id="TR-137 one of them"),
        pytest.param((), True, {"user": "e"}, id="TR-137 none"),
        pytest.param((), False, {}, id="TR-138 no reference at all"),
    ],
)
def test_the_secret_of_a_modification(annotations, has_reference, expected):
    """R-104: Both annotations must be present, else the volume's reference is used."""
    world = wanting("b", "a")
    for name, value in SECRETS.items():
        metadata = {"name": name, "namespace": "n"}
        world.api.add(paths.SECRETS, {"metadata": metadata, "data": {"user": value}})
    values = {f"{PREFIX}-name": "modify", f"{PREFIX}-namespace": "n"}
    chosen = {f"{PREFIX}-{one}": values[f"{PREFIX}-{one}"] for one in annotations}
    patch = {"metadata": {"annotations": chosen}}
    if has_reference:
        reference = {"name": "expand", "namespace": "n"}
        patch["spec"] = {"csi": {"controllerExpandSecretRef": reference}}
    world.api.change(paths.VOLUMES, VOLUME, patch)
    world.run()
    assert dict(world.client.requests("ControllerModifyVolume")[0].secrets) == expected


def test_tr139_a_missing_secret_is_seen_by_the_user():
    """DR-020: Event and condition report it.

    No call was made, so another class may follow (R-113).
    """
    world = wanting("b", "a")
    reference = {"name": "s", "namespace": "n"}
    source = {"spec": {"csi": {"controllerExpandSecretRef": reference}}}
    world.api.change(paths.VOLUMES, VOLUME, source)
    assert world.run().action.value == "retry"
    text = 'error getting secret s in namespace n: secrets "s" not found'
    assert world.conditions()[ERROR] == text
    assert condition(world, ERROR)["reason"] == "Internal"
    assert world.messages()[-1] == text
    world.api.change(paths.VOLUMES, VOLUME, {"spec": {"csi": {"controllerExpandSecretRef": None}}})
    world.choose("c")
    world.run()
    assert classes(world) == ["c"]


def test_tr140_a_volume_that_cannot_be_written_repeats_the_call():
    """R-110: The claim is complete only once the volume is written."""
    world = wanting("b", "a")
    world.api.fail("patch", VOLUME, ForbiddenError(403, "Forbidden", "no"))
    assert world.run().action.value == "retry"
    assert world.reasons()[-1] == "VolumeModifyFailed"
    assert world.messages()[-1].startswith("cannot get error status from modify volume err: ")
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "a"
    world.run()
    assert classes(world) == ["b", "b"]
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "b"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}, id="TR-141 in-tree"
        ),
        pytest.param({"csi": {"driver": "other", "volumeHandle": "h"}}, id="TR-141 of another"),
    ],
)
def test_a_volume_that_is_no_csi_volume_of_ours_is_skipped(spec):
    """R-100/3: Modifications are not migrated."""
    world = ResizerWorld(driver_name="ebs.csi.aws.com")
    world.attributes_class("b", tier="b")
    world.volume(1, **spec)
    annotations = {"volume.kubernetes.io/storage-resizer": "ebs.csi.aws.com"}
    world.claim(1, 1, annotations=annotations, volumeAttributesClassName="b")
    world.run()
    assert world.client.methods == []
    assert world.api.writes == []


def test_tr143_a_class_of_another_driver_is_not_sent():
    """DR-021: The event names both drivers.

    The request is not pending, since waiting cannot help.
    """
    world = wanting("b", "a")
    world.attributes_class("b", driver="other", tier="b")
    world.run()
    assert world.client.methods == []
    assert progress(world)[0] == "Infeasible"
    (message,) = world.messages()
    assert "other" in message
    assert world.driver_name in message
    errors = [c for c in world.seen["status"]["conditions"] if c["type"] == "ModifyVolumeError"]
    assert [one["message"] for one in errors] == [message]


def test_a_class_of_the_driver_ends_the_failure_of_anothers():
    """DR-021: External.Storage requires that a new class is applied at once."""
    world = wanting("b", "a")
    world.attributes_class("b", driver="other", tier="b")
    world.run()
    world.attributes_class("c", tier="c")
    world.edit({"spec": {"volumeAttributesClassName": "c"}})
    world.modifies({})
    assert world.run().action.value == "done"
    assert classes(world) == ["c"]
    assert "conditions" not in world.seen["status"] or not world.seen["status"]["conditions"]


def test_tr145_the_result_is_written_on_a_newer_claim_too():
    """R-110: Other fields are kept, and no second call is made."""
    world = wanting("b", "a")
    label = {"metadata": {"labels": {"a": "b"}}}
    world.modifies(lambda _: world.edit(label) or {})
    assert world.run().action.value == "done"
    assert classes(world) == ["b"]
    assert world.seen["metadata"]["labels"] == {"a": "b"}
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "b"


def test_r113_a_claim_that_goes_during_its_call():
    """R-113: No event is emitted for a deleted claim."""
    world = wanting("b", "a")

    def gone(request):
        del request
        world.api.drop(paths.CLAIMS, NAME, NAMESPACE)
        return {}

    world.modifies(gone)
    world.run()
    assert classes(world) == ["b"]
    assert world.reasons() == ["VolumeModify"]


def test_dr027_a_class_deleted_at_work_is_repeated_with_what_it_said():
    """DR-027: Its parameters are kept while the call may run."""
    world = wanting("b", "a")
    world.modifies({"code": "UNAVAILABLE"}, {})
    world.run()
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.run()
    assert classes(world) == ["b", "b"]
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "b"


def test_a_class_deleted_at_work_that_nobody_remembers():
    """R-103: An event reports it, and the modification is retried."""
    world = wanting("b", "a", "InProgress")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    assert world.run().action.value == "retry"
    assert world.messages() == ['VAC "b" does not exist.']
    assert progress(world) == ("InProgress", "b")


def test_a_result_that_cannot_be_written_is_reported():
    """R-111: The event has the text of the failed write."""
    world = wanting("b", "a", "InProgress")
    world.modifies({"code": "INTERNAL"})
    world.api.fail("patch", f"{NAME}/status", *[ConflictError(409, "Conflict", "no")] * 5)
    assert world.run().action.value == "retry"
    assert world.messages()[-1].startswith('mark PVC "data" as modify volume failed, errored')


def test_without_the_gate_or_the_capability_nothing_is_modified():
    """R-004, TR-153: The modification is not even announced."""
    for settings in ({"applies_classes": False}, {"capabilities": ("EXPAND_VOLUME",)}):
        world = wanting("b", "a", **settings)
        world.run()
        assert world.client.methods == []
        assert world.api.writes == []


def test_an_aborted_modification_is_tried_again_soon():
    """MR-013, MA-014: Five retries follow without doubling."""
    world = wanting("b", "a")
    world.modifies({"code": "ABORTED"})
    for _ in range(5):
        assert world.run().cap_seconds == 1.0
    assert world.run().cap_seconds is None
