"""What a call is sent, and on which state its result may be written.

R-040, R-104, MR-040, MR-041.
"""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from tests.support.resizer_world import HANDLE, NAME, NAMESPACE, VOLUME, ResizerWorld
from workers.controllers.resizer import request
from workers.kube import paths
from workers.observability.metrics import Metrics
from workers.observability.requests import csi_observer
from workers.queue.locks import Lock, Mode
from workers.translate.secrets import SecretRef

EBS = "ebs.csi.aws.com"
RESIZER = "volume.kubernetes.io/storage-resizer"
MODIFY_SECRET = "volume.kubernetes.io/controller-modify-secret"
GROWN = {"node_expansion_required": True}
_Mode = csi.VolumeCapability.AccessMode


def wanting(spec="b", state=None, target="b", **settings):
    """Return a world with a claim (spec VAC, a, mvs) and classes b and c."""
    world = ResizerWorld(**settings)
    for name in "bc":
        world.attributes_class(name, tier=name)
    status = {"currentVolumeAttributesClassName": "a"}
    if state:
        found = {"status": state, "targetVolumeAttributesClassName": target}
        status["modifyVolumeStatus"] = found
    world.claim(1, 1, volumeAttributesClassName=spec, status=status)
    return world


def classes(world):
    return [parameters["tier"] for parameters in world.parameters()]


# Writes of other programs during the call.


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        ({"allocatedResources": {"storage": "7Gi"}}, GROWN),
        ({"allocatedResources": {"storage": "7Gi"}}, {}),
        ({"allocatedResources": {"storage": "7Gi"}}, {"code": "INTERNAL"}),
        ({"allocatedResources": None}, GROWN),
        ({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}, GROWN),
        ({"allocatedResourceStatuses": None}, {"code": "OUT_OF_RANGE"}),
    ],
)
def test_mr040_a_size_that_nobody_waits_for_is_not_written(status, answer):
    """MR-040: Another worker requested another size, or kubelet continued."""
    world = ResizerWorld()
    after = []

    def overtaken(request):
        world.edit({"status": status})
        after.append(world.seen["status"])
        size = {"capacity_bytes": request.capacity_range.required_bytes}
        return answer if "code" in answer else answer | size

    world.answers(overtaken)
    world.claim(2, 1)
    world.run()
    assert world.seen["status"] == after[0]


@pytest.mark.parametrize("answer", [{}, {"code": "INTERNAL"}, {"code": "INVALID_ARGUMENT"}])
@pytest.mark.parametrize(
    "found",
    [
        {"status": "InProgress", "targetVolumeAttributesClassName": "c"},
        {"status": "Infeasible", "targetVolumeAttributesClassName": "b"},
        None,
    ],
)
def test_mr040_a_class_that_nobody_waits_for_is_not_written(found, answer):
    """MR-040: Neither its success nor its failure is written."""
    world = wanting()
    after = []

    def overtaken(_):
        world.edit({"status": {"modifyVolumeStatus": found}})
        after.append(world.seen["status"])
        return answer

    world.modifies(overtaken)
    world.run()
    assert world.seen["status"] == after[0]


@pytest.mark.parametrize("written", [2, 3, 5, 100])
def test_mr041_a_size_that_somebody_wrote_into_the_volume_is_not_believed(written):
    """BUG-3: Claim and volume get the driver's answer, and later growth is requested."""
    world = ResizerWorld()
    world.answers({})
    world.claim(2, 1, None, "", written)
    world.run()
    assert world.sizes() == [2]
    assert (world.state().cap, world.state().pvcap) == (2, 2)


def test_mr041_growth_after_a_size_that_somebody_wrote():
    """BUG-3: The claim is raised to exactly the size that was written."""
    world = ResizerWorld()
    world.answers({}, {})
    world.claim(3, 1, None, "", 5)
    world.run()
    world.edit({"spec": {"resources": {"requests": {"storage": "5Gi"}}}})
    world.run()
    assert world.sizes() == [3, 5]
    assert (world.state().cap, world.state().pvcap) == (5, 5)


def test_a_claim_that_went_meanwhile_is_no_failure():
    """The claim is gone when its node part is written, so no failure is reported or logged."""
    world = ResizerWorld()

    def goes(request):
        world.api.drop(paths.CLAIMS, NAME, NAMESPACE)
        size = request.capacity_range.required_bytes
        return {"capacity_bytes": size, "node_expansion_required": True}

    world.answers(goes)
    world.claim(2, 1)
    assert world.run().action.value == "done"
    assert [one for one in world.messages() if "failed" in one] == []


def test_r060_the_volume_gets_the_size_as_it_is_spelled():
    """R-060: The size is written even if the present text has the same value."""
    world = ResizerWorld()
    world.volume(1, capacity={"storage": "2048Mi"})
    world.claim(2, 1, 2, "C-IP")
    world.run()
    assert world.stored["spec"]["capacity"] == {"storage": "2Gi"}


# How failures affect the next reconcile.


def test_mr031_without_the_flag_a_full_storage_leaves_no_mark():
    """MR-031: An answer that is not recorded cannot be used later."""
    world = ResizerWorld()
    world.answers({"code": "RESOURCE_EXHAUSTED"})
    world.claim(2, 1)
    world.run()
    assert "expand" not in world.queue.marks[world.key.text]


def test_r113_a_local_error_does_not_loosen_a_class_that_may_be_at_work():
    """R-101, MR-032: Only a class that was never sent is given up."""
    world = wanting("b", "InProgress")
    reference = {"spec": {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "n"}}}}
    world.api.change(paths.VOLUMES, VOLUME, reference)
    assert world.run().reason == "not sent"
    world.api.change(paths.VOLUMES, VOLUME, {"spec": {"csi": {"controllerExpandSecretRef": None}}})
    world.choose("c")
    world.run()
    assert classes(world) == ["b"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ABORTED", ("aborted", 0.0, 1.0)),
        ("INTERNAL", ("final", 0.0, None)),
        ("NOT_FOUND", ("final", 0.0, None)),
        ("UNAVAILABLE", ("uncertain", 0.0, None)),
        ("INVALID_ARGUMENT", ("infeasible", 300.0, None)),
    ],
)
def test_ma014_when_a_class_is_tried_again(code, expected):
    """MA-014, R-111, R-114: The back-off doubles, except after an aborted call."""
    world = wanting()
    world.modifies({"code": code})
    outcome = world.run()
    assert (outcome.reason, outcome.delay_seconds, outcome.cap_seconds) == expected


def test_dr021_a_class_of_another_driver_fails_like_an_infeasible_one():
    """DR-021: No call for it can be running, and the pause is that of R-114."""
    world = wanting()
    world.attributes_class("b", driver="other")
    outcome = world.run()
    assert (outcome.reason, outcome.delay_seconds) == ("infeasible", 300.0)
    text = 'Modifying volume to "b" failed. Waiting for retry.'
    assert world.conditions()["ModifyingVolume"] == text
    assert world.run().action.value == "wait"


def test_r103_a_class_at_work_that_is_another_drivers_by_now():
    """R-103: A class that may be in progress keeps its state and is retried."""
    world = wanting("b", "InProgress")
    world.attributes_class("b", driver="other")
    assert world.run().reason == "no class"
    assert world.seen["status"]["modifyVolumeStatus"]["status"] == "InProgress"
    assert "modify" not in world.queue.marks[world.key.text]


# The contents of the request.


@pytest.mark.parametrize(
    ("capabilities", "mode"),
    [
        (("EXPAND_VOLUME",), _Mode.SINGLE_NODE_WRITER),
        (("EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER"), _Mode.SINGLE_NODE_MULTI_WRITER),
    ],
)
def test_r041_the_access_mode_is_what_the_driver_understands(capabilities, mode):
    """R-041, A-052: No additional call is needed (DR-003)."""
    world = ResizerWorld(capabilities=capabilities)
    world.claim(2, 1)
    world.run()
    (found,) = world.client.requests("ControllerExpandVolume")
    assert found.volume_capability.access_mode.mode == mode


@pytest.mark.parametrize("is_migrated", [False, True])
def test_r124_a_call_is_counted_as_migrated_when_the_volume_is(is_migrated):
    """R-124: The driver replaces an in-tree plug-in."""
    world, metrics = ResizerWorld(driver_name=EBS), Metrics()
    if is_migrated:
        source = {"volumeID": "aws://us-east-1a/vol-0123"}
        world.volume(1, csi=None, awsElasticBlockStore=source)
    observe = csi_observer(metrics, lambda _: True)
    world.answers(lambda _: observe(EBS, "/Expand", "OK", 0.1) or {})
    world.claim(2, 1, annotations={RESIZER: EBS})
    world.run()
    (family,) = metrics.csi_seconds.collect()
    assert {one.labels["migrated"] for one in family.samples} == {str(is_migrated).lower()}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"name": "s", "namespace": "n"}, SecretRef("s", "n")),
        ({"name": "s"}, SecretRef("s", "")),
        ({"namespace": "n"}, SecretRef("", "n")),
        ({}, None),
    ],
)
def test_r040_a_reference_that_is_incomplete_is_no_missing_one(reference, expected):
    """R-040: An incomplete reference cannot be read, and an event says so.

    A call without secrets would fail.
    """
    volume = {"spec": {"csi": {"controllerExpandSecretRef": reference}}}
    assert request.expand_secret(volume) == expected
    assert request.modify_secret(volume) == expected


def test_r104_the_secret_of_a_modification_is_for_nothing_else():
    """R-041, R-104: An expansion has its own secret."""
    world = ResizerWorld()
    annotations = {f"{MODIFY_SECRET}-name": "modify", f"{MODIFY_SECRET}-namespace": "n"}
    world.volume(1, annotations=annotations)
    world.api.add(
        paths.SECRETS,
        {"metadata": {"name": "modify", "namespace": "n"}, "data": {"user": "bQ=="}},
    )
    world.claim(2, 1)
    world.run()
    (found,) = world.client.requests("ControllerExpandVolume")
    assert dict(found.secrets) == {}


def test_the_deadline_of_a_class_comes_before_the_controllers():
    """DR-032: The drivers file may set one for an operation and a storage class."""
    world = ResizerWorld(timeout_seconds=7.0, serializes=True)
    world.attributes_class("b", tier="b")
    named = {("expand", "slow"): 30.0}
    world.driver.timeout_seconds = lambda operation, name: named.get((operation, name))
    world.claim(2, 1, volumeAttributesClassName="b", storageClassName="slow")
    world.run()
    found = dict(zip(world.client.methods, world.client.timeouts, strict=True))
    assert found == {"ControllerExpandVolume": 30.0, "ControllerModifyVolume": 7.0}


# Locks during the calls.


@pytest.mark.parametrize(
    ("modes", "in_use", "size", "expected"),
    [
        pytest.param(("OFFLINE",), False, 2, Mode.EXCLUSIVE, id="offline only"),
        pytest.param((), True, 2, Mode.EXCLUSIVE, id="refused in use"),
        pytest.param((), False, 2, Mode.SHARED, id="online"),
        pytest.param(("OFFLINE",), False, 1, Mode.SHARED, id="a class alone"),
        pytest.param((), True, 1, Mode.SHARED, id="a class alone, refused in use"),
    ],
)
@pytest.mark.parametrize("is_static", [True, False], ids=["static", "provisioned"])
def test_mr011_what_is_locked(modes, in_use, size, expected, is_static):
    """MR-011: For a static volume, an exclusive lock on it also needs one on its handle."""
    world = ResizerWorld(modes=modes)
    by = {"pv.kubernetes.io/provisioned-by": world.driver_name}
    world.volume(1, annotations=None if is_static else by)
    world.attributes_class("b", tier="b")
    world.claim(size, 1, volumeAttributesClassName="b")
    world.queue.marks[world.key.text] = {"in_use": True} if in_use else {}
    world.run()
    handle = f"{world.driver_name}#{HANDLE}"
    static = [Lock(f"resize:{handle}")] if is_static else []
    alone = [Lock(handle)] if is_static and expected is Mode.EXCLUSIVE else []
    assert world.queue.acquired == [Lock(VOLUME, expected), *static, *alone]


def test_mr011_a_volume_in_use_by_another_claim_of_its_handle_is_waited_for():
    """MR-011: Publishing the other volume holds a shared lock on the handle."""
    world = ResizerWorld(modes=("OFFLINE",))
    world.claim(2, 1)
    world.queue.busy[f"{world.driver_name}#{HANDLE}"] = Mode.SHARED
    assert world.run().action.value == "blocked"
    assert world.client.methods == []
