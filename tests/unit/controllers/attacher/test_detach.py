"""From a deleted attachment to a volume that is detached from its node: section 11.3."""

from __future__ import annotations

import hashlib
import time

import pytest

from tests.support.attach_world import FIN, AttachWorld
from workers.controllers.attacher import names
from workers.errors import DriverAway
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Lock, Mode

VA = "volumeattachments/pv1-node1"
STATUS = f"{VA}/status"
UNPUBLISH = ("unpublish", "handle1", "nodeID1")
REFUSED = ForbiddenError(403, "Forbidden", "no")
SECRET = {"controllerPublishSecretRef": {"name": "secret", "namespace": "default"}}


@pytest.fixture
def world():
    world = AttachWorld()
    world.add_volume()
    return world


def deleted(world, **options):
    return world.add_attachment(**{"attached": True, "is_marked": True} | options, is_deleting=True)


def fail(world, code, message="boom", times=1):
    steps = [{"code": code, "message": message, "times": times}, {}]
    world.client.respond({"ControllerUnpublishVolume": steps})


def test_ta050_unpublish_then_the_finalizer(world):
    """A-061, A-062: The finalizer is removed once the driver has detached the volume."""
    key = deleted(world)
    assert world.run(key).action.value == "done"
    assert world.calls == [UNPUBLISH]
    assert world.written == [VA]
    assert world.is_gone()


def test_these_are_all_requests_of_a_detach(world):
    """Issue 60: csi-attacher sends a patch and a status patch, and csi-fleet may send one more."""
    world.run(deleted(world))
    requests = [(one.verb, one.path) for one in world.api.requests]
    assert requests == [("get", VA), ("get", "persistentvolumes/pv1"), ("patch", VA)]


def test_ta051_never_confirmed_is_unpublished_all_the_same(world):
    """MA-051: `attached: false` with the finalizer means that a publish may have been made."""
    world.run(deleted(world, attached=False))
    assert world.calls == [UNPUBLISH]


@pytest.mark.parametrize("attached", [True, False])
def test_ta052_nothing_was_published(world, attached):
    """A-060: Without csi-fleet's finalizer no volume was published."""
    key = deleted(world, is_marked=False, finalizers=["x"], attached=attached)
    assert world.run(key).action.value == "done"
    assert (world.calls, world.written) == ([], [])


def test_ta053_attachment_that_others_keep(world):
    """A-062: The status then shows that the volume is detached."""
    key = deleted(world, finalizers=["x"], attachmentMetadata={"a": "b"})
    world.api.change(
        paths.ATTACHMENTS, "pv1-node1", {"status": {"detachError": {"message": "m", "time": "t"}}}
    )
    world.run(key)
    assert world.finalizers() == ["x"]
    assert world.status() == {"attached": False}
    assert world.written == [VA, STATUS]


def test_ta054_driver_refuses(world):
    """A-063: A detach error never has a code."""
    fail(world, "INTERNAL")
    key = deleted(world)
    assert world.run(key).action.value == "retry"
    error = world.status()["detachError"]
    assert error["message"] == "rpc error: code = Internal desc = boom"
    assert "errorCode" not in error
    assert world.finalizers() == [FIN]
    world.run(key)
    assert world.is_gone()


def test_ta055_deadline(world):
    fail(world, "DEADLINE_EXCEEDED")
    assert world.run(deleted(world)).action.value == "retry"
    assert "DeadlineExceeded" in world.message("detachError")


@pytest.mark.parametrize(
    "driver",
    [pytest.param("", id="TA-056 node is gone"), pytest.param("other", id="TA-057 driver is")],
)
def test_node_id_of_the_publish(driver):
    """A-065: The annotation has the node ID of the publish."""
    world = AttachWorld(has_node=False)
    world.add_volume()
    if driver:
        world.add_node(driver=driver)
    world.run(deleted(world))
    assert world.calls == [UNPUBLISH]


def test_ta058_nobody_knows_the_node_id():
    """A-065: The detach waits for the CSINode."""
    world = AttachWorld(has_node=False)
    world.add_volume()
    key = deleted(world, is_marked=False, finalizers=[FIN])
    world.run(key)
    assert world.message("detachError") == 'csinode.storage.k8s.io "node1" not found'
    assert world.calls == []
    world.add_node()
    world.run(key)
    assert world.calls == [UNPUBLISH]


def test_ta059_node_made_again_under_its_name(world):
    """DA-003: The volume is where the publish was sent, not on the node that has the name now."""
    world.run(deleted(world, node_id="old"))
    assert world.calls == [("unpublish", "handle1", "old")]


def test_ma032_every_node_id_that_a_publish_was_sent_with(world):
    """MA-032: Any of these nodes may have the volume."""
    key = world.add_attachment(is_marked=True, node_id="old")
    fail_once = {"ControllerPublishVolume": [{"code": "DEADLINE_EXCEEDED"}]}
    world.client.respond(fail_once)
    world.run(key)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    world.run(key)
    assert world.calls[1:] == [UNPUBLISH, ("unpublish", "handle1", "old")]
    assert world.is_gone()


@pytest.mark.parametrize("is_lost", [False, True], ids=["Redis kept", "Redis lost"])
def test_ma032_earlier_node_ids_outlive_redis(world, is_lost):
    """MA-032, DA-003: The attachment itself lists them, in the order of its publishes."""
    key = world.add_attachment()

    def published_unheard(request):
        world.client.published.setdefault("handle1", set()).add(request.node_id)
        raise DriverAway("the driver is away")

    world.client.respond({"ControllerPublishVolume": [published_unheard, published_unheard, {}]})
    for node_id in ("nodeID2", "nodeID3"):
        with pytest.raises(DriverAway):
            world.run(key)
        world.add_node(node_id=node_id)
    assert world.run(key).action.value == "done"
    assert world.client.published["handle1"] == {"nodeID1", "nodeID2", "nodeID3"}
    annotations = world.attachment()["metadata"]["annotations"]
    assert annotations[names.EARLIER_IDS] == '["nodeID1","nodeID2"]'
    if is_lost:
        world.queue.marks.clear()
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    if not is_lost:  # two publishes may still run, so their deadlines are awaited
        assert world.run(key).action.value == "wait"
        for name in ("call", "overtaken"):
            world.queue.marks[key.text].pop(name, None)
    world.run(key)
    assert world.client.published["handle1"] == set()
    assert [node for _, _, node in world.calls[3:]] == ["nodeID3", "nodeID1", "nodeID2"]
    assert world.is_gone()


def test_ma032_one_node_id_needs_no_other_annotation(world):
    """A-041: If the node ID never changes, the attachment looks as csi-attacher would leave it."""
    world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL"}, {}]})
    key = world.add_attachment()
    world.run(key)
    world.run(key)
    assert world.attachment()["metadata"]["annotations"] == {names.NODE_ID: "nodeID1"}


def test_ma032_a_node_id_without_our_finalizer_was_never_published_to(world):
    """MA-051: Finalizer and node ID are written in one request."""
    key = world.add_attachment(node_id="old")
    world.run(key)
    assert world.attachment()["metadata"]["annotations"] == {names.NODE_ID: "nodeID1"}


def kcm_name(handle="handle1"):
    return f"csi-{hashlib.sha256(f'{handle}csi/testnode1'.encode()).hexdigest()}"


def without_volume(world, name, mark):
    key = world.add_attachment(name, is_marked=True, is_deleting=True)
    world.api.drop(paths.VOLUMES, "pv1")
    attach = names.attachment_key(key.driver, "node1", name, key.uid)
    world.queue.marks[attach.text] = mark
    return key


RECORD = {"driver": "csi/test", "handle": "handle1", "node": "nodeID1", "secret": None}


def test_ta060_volume_removed_by_force(world):
    """DA-006, MA-030: The record of the publish has the handle."""
    name = kcm_name()
    world.run(without_volume(world, name, {"record": RECORD}))
    assert world.calls == [UNPUBLISH]
    assert world.is_gone(name)
    # Its access modes are unknown now, so no other call may run at the same time.
    assert Lock("csi/test#handle1", Mode.EXCLUSIVE) in world.queue.acquired


def test_record_of_redis_is_no_authority(world):
    """MA-030: The handle must match the attachment's own name; otherwise no call is made."""
    name = kcm_name()
    forged = {"record": RECORD | {"handle": "somebody-elses"}}
    world.run(without_volume(world, name, forged))
    assert world.calls == []
    assert world.status(name)["detachError"]["message"] == 'persistentvolume "pv1" not found'


@pytest.mark.parametrize(("text", "is_known"), [('{"driver":"csi/test",', False), (None, True)])
def test_record_in_the_attachment(text, is_known):
    """MA-030: The record outlives Redis; an unreadable record is ignored."""
    world = AttachWorld(record_annotation="example.org/record")
    world.add_volume()
    key = world.add_attachment()
    world.run(key)
    if text is not None:
        annotation = {"metadata": {"annotations": {"example.org/record": text}}}
        world.api.change(paths.ATTACHMENTS, "pv1-node1", annotation)
    world.queue.marks.clear()
    world.api.drop(paths.VOLUMES, "pv1")
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    world.run(key)
    assert (UNPUBLISH in world.calls) is is_known


@pytest.mark.parametrize("is_allowed", [False, True])
def test_ta061_secret_is_gone(is_allowed):
    """DA-007: Only an administrator's flag allows a call without secrets (A-066)."""
    world = AttachWorld(detaches_without_missing_secret=is_allowed)
    world.add_volume(csi=SECRET)
    key = deleted(world)
    world.run(key)
    assert (world.calls == [UNPUBLISH]) is is_allowed
    if not is_allowed:
        assert world.message("detachError").startswith('failed to load secret "default/secret"')


def test_refused_secret_is_not_a_missing_one():
    """A missing permission must not lead to a call without credentials."""
    world = AttachWorld(detaches_without_missing_secret=True)
    world.add_volume(csi=SECRET)
    world.api.fail("get", "secrets/secret", REFUSED)
    world.run(deleted(world))
    assert world.calls == []


def test_ta062_volume_is_being_deleted(world):
    world.api.mark_deleted(paths.VOLUMES, "pv1")
    world.run(deleted(world))
    assert world.calls == [UNPUBLISH]


def test_ta063_finalizer_cannot_be_removed(world):
    """A-063: The unpublish is repeated, which is idempotent."""
    world.api.fail("patch", VA, REFUSED)
    key = deleted(world)
    assert world.run(key).action.value == "retry"
    assert world.message("detachError") == "could not mark as detached: no"
    world.run(key)
    assert world.calls == [UNPUBLISH, UNPUBLISH]
    assert world.is_gone()


def test_ta064_death_between_finalizer_and_status(world):
    """A-062: There is no second unpublish; the attachment is left to its other finalizers."""
    key = deleted(world, is_marked=False, finalizers=["x"], node_id="nodeID1")
    assert world.run(key).action.value == "done"
    assert world.calls == []


def test_ta065_not_found_is_an_error(world):
    """A-064: CSI requires OK for a volume that is gone."""
    fail(world, "NOT_FOUND")
    key = deleted(world)
    assert world.run(key).action.value == "retry"
    assert world.finalizers() == [FIN]


def test_ta066_inline_volume(world):
    inline = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "i"}}
    world.run(deleted(world, source={"inlineVolumeSpec": inline}))
    assert world.calls == [("unpublish", "i", "nodeID1")]


def test_ta067_deleted_by_a_user(world):
    """A-069: Only the deletion timestamp counts; running pods are not checked."""
    key = world.add_attachment(is_marked=True, attached=True)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    world.run(key)
    assert world.calls == [UNPUBLISH]


def test_da014_finalizers_of_others_stay(world):
    """DA-014: A finalizer that is added between read and write is kept."""
    add = {"metadata": {"finalizers": [FIN, "y"]}}
    world.api.before("patch", VA, lambda: world.api.change(paths.ATTACHMENTS, "pv1-node1", add))
    world.run(deleted(world))
    assert world.finalizers() == ["y"]
    assert world.calls == [UNPUBLISH]


def test_ma016_publish_of_a_dead_worker_may_still_run(world):
    """MA-016: The opposite call waits until the publish has surely ended.

    The back-off doesn't grow.
    """
    key = deleted(world, attached=False)
    attach = names.attachment_key(key.driver, "node1", "pv1-node1", key.uid)
    world.queue.marks[attach.text] = {"call": {"until": time.time() + 7}}
    outcome = world.run(key)
    assert outcome.action.value == "wait"
    assert 6 < outcome.delay_seconds <= 7
    assert world.calls == []
    world.queue.marks[attach.text] = {"call": {"until": time.time() - 1}}
    world.run(key)
    assert world.calls == [UNPUBLISH]


def test_ma016_the_status_says_that_the_publish_ended(world):
    """MA-016: A detach right after the attach does not wait, although the record isn't cleared."""
    key = world.add_attachment()
    world.run(key)
    assert world.queue.marks[key.text]["call"]["until"][0] > time.time()
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    detach = names.attachment_key(key.driver, "node1", "pv1-node1", key.uid, kind=names.DETACHMENTS)
    assert world.run(detach).action.value == "done"
    assert world.calls[-1] == UNPUBLISH


def test_ma016_nothing_runs_once_the_finalizer_is_gone(world):
    """MA-016, A-094: A forced detach after the detach waits for nothing either."""
    key = world.add_attachment(finalizers=("x",))
    world.run(key)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    parts = (key.driver, "node1", "pv1-node1", key.uid)
    world.run(names.attachment_key(*parts, kind=names.DETACHMENTS))
    assert world.finalizers() == ["x"]
    assert world.run(names.attachment_key(*parts, kind=names.FORCED)).action.value == "done"
    assert world.calls[-2:] == [UNPUBLISH, UNPUBLISH]


def test_ma016_connection_lost_during_the_publish(world):
    """MA-016: The outcome of that call is unknown, so the detach waits for its deadline."""
    key = world.add_attachment()
    world.client.respond({"ControllerPublishVolume": [DriverAway("gone")]})
    with pytest.raises(DriverAway):
        world.run(key)
    world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
    assert world.run(key).action.value == "wait"
    assert world.calls == [("publish", "handle1", "nodeID1")]


def test_ma013_busy_volume_parks_the_detach(world):
    """MA-010, MA-013: The key waits for the lock of the volume."""
    world.queue.busy["csi/test#handle1"] = Mode.EXCLUSIVE
    assert world.run(deleted(world)).action.value == "blocked"
    assert world.calls == []


def test_da024_owner_of_the_claim_is_told(world):
    """DA-024: The attachment's own status is deleted with it."""
    world.add_volume(claimRef={"name": "data", "namespace": "default", "uid": "c1"})
    fail(world, "INTERNAL", times=2)
    key = deleted(world)
    world.run(key)
    world.run(key)
    text = "node node1: rpc error: code = Internal desc = boom"
    assert world.events.seen == [("Warning", "DetachFailed", text)]


def hashed(handle, node="node1"):
    return f"csi-{hashlib.sha256(f'{handle}csi/test{node}'.encode()).hexdigest()}"


def replaced(world):
    """Replace the PV by a PV of the same name with another handle."""
    world.api.drop(paths.VOLUMES, "pv1")
    world.add_volume(csi={"volumeHandle": "new"})


def test_a_detach_goes_to_the_volume_that_was_published(world):
    """BUG-4: The attachment's name proves the recorded handle."""
    key = world.add_attachment(hashed("handle1"))
    world.run(key)
    replaced(world)
    world.api.mark_deleted(paths.ATTACHMENTS, hashed("handle1"))
    assert world.run(key).action.value == "done"
    assert world.calls == [("publish", "handle1", "nodeID1"), UNPUBLISH]


@pytest.mark.parametrize("repeats", [1, 3])
def test_an_open_publish_is_not_repeated_with_another_volume(world, repeats):
    """The new volume would be published and never detached, and the first would stay published."""
    key = world.add_attachment(hashed("handle1"))
    world.client.respond({"ControllerPublishVolume": [{"code": "DEADLINE_EXCEEDED"}, {}]})
    world.run(key)
    replaced(world)
    for _ in range(repeats):
        assert world.run(key).action.value == "retry"
    status = world.api.of(paths.ATTACHMENTS, hashed("handle1"))["status"]
    assert (
        "is another volume than the one that the attachment was made for"
        in (status["attachError"]["message"])
    )
    world.api.mark_deleted(paths.ATTACHMENTS, hashed("handle1"))
    assert world.run(key).action.value == "done"
    assert world.calls == [("publish", "handle1", "nodeID1"), UNPUBLISH]
    assert world.is_gone(hashed("handle1"))


def test_without_a_record_the_new_volume_stays_where_it_is(world):
    """BUG-4: A pod may be using the new volume; the attachment's status says what to do."""
    key = deleted(world, name=hashed("handle1"))
    replaced(world)
    assert world.run(key).action.value == "retry"
    assert world.calls == []
    error = world.api.of(paths.ATTACHMENTS, hashed("handle1"))["status"]["detachError"]
    assert "is a different volume from the one that was attached" in error["message"]


def test_a_record_of_another_volume_proves_nothing(world):
    """BUG-4: No client that writes to Redis can redirect the detach to a third volume."""
    key = deleted(world, name=hashed("handle1"))
    wanted = {"driver": "csi/test", "handle": "third", "node": "nodeID1", "secret": None}
    world.queue.marks[key.text] = {"record": wanted}
    replaced(world)
    assert world.run(key).action.value == "retry"
    assert world.calls == []


def test_an_attachment_that_was_named_by_hand_goes_by_its_volume(world):
    """Such a name proves nothing about the handle."""
    key = deleted(world)
    replaced(world)
    world.run(key)
    assert world.calls == [("unpublish", "new", "nodeID1")]
