"""From a VolumeAttachment to a published volume: section 11.1."""

from __future__ import annotations

import pytest

from tests.support.attach_world import FIN, AttachWorld
from workers.kube import paths
from workers.kube.errors import ForbiddenError, InvalidError, NotFoundError, ServerError

VA = "volumeattachments/pv1-node1"
STATUS = f"{VA}/status"
PV = "persistentvolumes/pv1"
PUBLISH = ("publish", "handle1", "nodeID1")
REFUSED = ForbiddenError(403, "Forbidden", "no")


@pytest.fixture
def world():
    world = AttachWorld()
    world.add_volume()
    return world


def fail(world, code, message="boom", times=1):
    steps = [{"code": code, "message": message, "times": times}, {}]
    world.client.respond({"ControllerPublishVolume": steps})


def test_ta001_finalizer_and_node_id_then_publish_then_status(world):
    """A-041, A-023, A-024: One request writes the finalizer and the node ID."""
    key = world.add_attachment()
    assert world.run(key).action.value == "done"
    assert world.written == [VA, STATUS]
    assert world.calls == [PUBLISH]
    assert world.finalizers() == [FIN]
    assert world.node_id() == "nodeID1"
    assert world.status() == {"attached": True}


def test_ta002_nothing_to_mark(world):
    key = world.add_attachment(is_marked=True)
    world.run(key)
    assert world.written == [STATUS]
    assert world.calls == [PUBLISH]


@pytest.mark.parametrize(
    ("is_marked", "node_id", "remembered"),
    [(True, "old", ["old"]), (True, "nodeID1", []), (False, None, []), (False, "old", [])],
    ids=["another", "the same", "none yet", "no publish was made without our finalizer"],
)
def test_ta003_node_id_is_renewed_before_the_publish(world, is_marked, node_id, remembered):
    """MA-032: An earlier node ID is kept only after a publish: that node may have the volume."""
    key = world.add_attachment(is_marked=is_marked, node_id=node_id)
    world.run(key)
    assert world.node_id() == "nodeID1"
    assert world.calls == [PUBLISH]
    assert world.queue.marks[key.text].get("nodes", []) == remembered


def test_ta004_attached_already(world):
    """A-040: An attached volume needs no call and no write."""
    key = world.add_attachment(is_marked=True, attached=True)
    assert world.run(key).action.value == "done"
    assert (world.written, world.calls) == ([], [])


def test_ta005_attached_without_finalizer_gets_it_back_without_a_call(world):
    """DA-025: Without the finalizer its detach would be skipped."""
    key = world.add_attachment(attached=True)
    world.run(key)
    assert world.calls == []
    assert world.finalizers() == [FIN]
    assert world.node_id() is None


def test_ta006_publish_context_is_kept(world):
    """A-058: The publish context is stored in the status."""
    world.client.respond({"ControllerPublishVolume": [{"publish_context": {"a": "b"}}]})
    world.run(world.add_attachment())
    assert world.status()["attachmentMetadata"] == {"a": "b"}


def test_ta007_empty_publish_context_is_absent(world):
    world.run(world.add_attachment())
    assert "attachmentMetadata" not in world.status()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, [FIN], id="TA-008 no list"),
        pytest.param(["x"], ["x", FIN], id="TA-009 others come first"),
    ],
)
def test_finalizer_of_the_volume_comes_before_any_write_to_the_attachment(world, before, after):
    """A-025: The PV's finalizer is written first."""
    world.add_volume(finalizers=before)
    world.run(world.add_attachment())
    assert world.written == [PV, VA, STATUS]
    assert world.volume_finalizers() == after


def test_ta010_volume_cannot_be_protected(world):
    """A-042, DA-024: The owner of the claim gets an event too."""
    claim = {"name": "data", "namespace": "default", "uid": "c1"}
    world.add_volume(finalizers=None, claimRef=claim)
    world.api.fail("patch", PV, REFUSED)
    key = world.add_attachment()
    assert world.run(key).action.value == "retry"
    assert world.message() == "could not add PersistentVolume finalizer: no"
    assert world.events.seen == [("Warning", "AttachFailed", f"node node1: {world.message()}")]
    assert world.events.objects[0]["metadata"] == claim
    world.run(key)
    assert world.status() == {"attached": True}


def test_a_server_in_trouble_blames_nobody(world):
    """A 5xx proves nothing about the attachment: the key waits, and the status stays unchanged."""
    world.add_volume(finalizers=None)
    world.api.fail("patch", PV, ServerError(503, "ServiceUnavailable", "later"))
    with pytest.raises(ServerError):
        world.run(world.add_attachment())
    assert world.message() == ""


def test_ta011_volume_is_being_deleted(world):
    world.api.mark_deleted(paths.VOLUMES, "pv1")
    world.run(world.add_attachment())
    assert world.message() == 'PersistentVolume "pv1" is marked for deletion'
    assert (world.finalizers(), world.node_id(), world.calls) == ([], None, [])


def test_ta012_volume_is_missing():
    world = AttachWorld()
    world.run(world.add_attachment())
    assert world.message() == 'persistentvolume "pv1" not found'
    assert world.written == [STATUS]


def test_ta013_and_its_error_cannot_be_saved():
    """A-042: Only the log reports the error; the key backs off anyway."""
    world = AttachWorld()
    key = world.add_attachment()
    world.api.fail("patch", STATUS, REFUSED)
    assert world.run(key).action.value == "retry"
    assert world.message() == ""
    world.run(key)
    assert world.message() == 'persistentvolume "pv1" not found'


BOTH = {"persistentVolumeName": "pv1", "inlineVolumeSpec": {"csi": {}}}
NEITHER = {}
NO_CSI = {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"]}}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(
            BOTH,
            "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source",
            id="TA-014 both",
        ),
        pytest.param(
            NEITHER,
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source",
            id="TA-014 neither",
        ),
        pytest.param(NO_CSI, "inline volume spec contains nil CSI source", id="TA-014 inline"),
    ],
)
def test_odd_sources(world, source, message):
    world.run(world.add_attachment(source=source))
    assert world.message() == message
    assert world.finalizers() == []


def test_ta015_inline_volume(world):
    """A-023: There is no PV, so none is read."""
    inline = {
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "csi/test", "volumeHandle": "inline1"},
    }
    world.run(world.add_attachment(source={"inlineVolumeSpec": inline}))
    assert world.calls == [("publish", "inline1", "nodeID1")]
    assert not [request for request in world.api.requests if "persistentvolumes" in request.path]


def test_ta016_node_is_missing():
    """A-056: The annotation is never used for an attach."""
    world = AttachWorld(has_node=False)
    world.add_volume()
    world.run(world.add_attachment(is_marked=True))
    assert world.message() == 'csinode.storage.k8s.io "node1" not found'
    assert world.calls == []


@pytest.mark.parametrize("entry", [("other", "x"), ("csi/test", "")], ids=["absent", "no id"])
def test_ta017_node_has_no_such_driver(entry):
    """A-122: An empty node ID would mean every node, so it counts as missing."""
    world = AttachWorld(has_node=False)
    world.add_volume()
    world.add_node(driver=entry[0], node_id=entry[1])
    world.run(world.add_attachment())
    assert world.message() == "CSINode node1 does not contain driver csi/test"


SECRET = {"controllerPublishSecretRef": {"name": "secret", "namespace": "default"}}


def test_ta019_secret_is_read_at_each_attempt(world):
    """A-055: The secret is never read from a cache."""
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {"foo": "YmFy"})
    fail(world, "INTERNAL")
    key = world.add_attachment()
    world.run(key)
    world.add_secret("secret", {"foo": "YmF6"})
    world.run(key)
    first, second = world.client.requests("ControllerPublishVolume")
    assert (dict(first.secrets), dict(second.secrets)) == ({"foo": "bar"}, {"foo": "baz"})


def test_ta020_secret_without_data(world):
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {})
    world.run(world.add_attachment())
    assert world.calls == [PUBLISH]


def test_ta021_secret_is_missing(world):
    world.add_volume(csi=SECRET)
    world.run(world.add_attachment())
    assert world.message() == 'failed to load secret "default/secret": secrets "secret" not found'
    assert world.finalizers() == []


def test_secret_values_are_never_shown(world):
    """The error for a value that is not base64 names only its key."""
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {"foo": "!!hush!!"})
    world.run(world.add_attachment())
    assert "foo" in world.message()
    assert "hush" not in world.message()


@pytest.mark.parametrize("capable", [True, False])
def test_ta022_read_only_if_the_driver_can(capable):
    """A-005, A-050: `readonly` is only sent with the capability PUBLISH_READONLY."""
    abilities = {"PUBLISH_UNPUBLISH_VOLUME"} | ({"PUBLISH_READONLY"} if capable else set())
    world = AttachWorld(capabilities=abilities)
    world.add_volume(csi={"readOnly": True})
    world.run(world.add_attachment())
    (request,) = world.client.requests("ControllerPublishVolume")
    assert request.readonly is capable


def test_ta023_volume_attributes_go_along(world):
    world.add_volume(csi={"volumeAttributes": {"x": "y"}})
    world.run(world.add_attachment())
    (request,) = world.client.requests("ControllerPublishVolume")
    assert dict(request.volume_context) == {"x": "y"}


def test_ta024_driver_refuses(world):
    """A-043, A-044, A-057: No code ends the retries, and nothing is undone."""
    fail(world, "INTERNAL")
    key = world.add_attachment()
    outcome = world.run(key)
    error = world.status()["attachError"]
    assert (error["message"], error["errorCode"]) == (
        "rpc error: code = Internal desc = boom",
        13,
    )
    assert world.status()["attached"] is False
    assert world.finalizers() == [FIN]
    assert outcome.action.value == "retry"
    assert world.client.methods == ["ControllerPublishVolume"]
    world.run(key)
    assert world.status() == {"attached": True}


def test_ta025_full_node_is_told_by_its_code(world):
    """A-121: The error in the status has the driver's code."""
    fail(world, "RESOURCE_EXHAUSTED")
    world.run(world.add_attachment())
    assert world.status()["attachError"]["errorCode"] == 8


def test_ta026_code_is_left_out_without_the_gate():
    """A-101: Without the gate, the error has no code."""
    world = AttachWorld(writes_error_code=False)
    world.add_volume()
    fail(world, "RESOURCE_EXHAUSTED")
    world.run(world.add_attachment())
    assert "errorCode" not in world.status()["attachError"]


def test_ta027_code_goes_with_an_error_that_has_none(world):
    world.add_volume(csi=SECRET)
    world.add_secret("secret", {})
    fail(world, "RESOURCE_EXHAUSTED")
    key = world.add_attachment()
    world.run(key)
    world.api.drop(paths.SECRETS, "secret", "default")
    world.run(key)
    assert "errorCode" not in world.status()["attachError"]
    assert "failed to load secret" in world.message()


def test_ta028_deadline(world):
    """A-120: The outcome is unknown, and an unpublish would be a different operation (A-044)."""
    fail(world, "DEADLINE_EXCEEDED", "context deadline exceeded")
    world.run(world.add_attachment())
    assert world.status()["attachError"]["errorCode"] == 4
    assert world.client.timeouts == [15.0]
    assert world.client.methods == ["ControllerPublishVolume"]


def test_ta029_status_cannot_be_written(world):
    """A-041/12: The failure is not stored as an error, and the publish is repeated."""
    key = world.add_attachment()
    world.api.fail("patch", STATUS, REFUSED)
    with pytest.raises(ForbiddenError):
        world.run(key)
    assert world.status() == {"attached": False}
    world.run(key)
    assert world.calls == [PUBLISH, PUBLISH]
    assert world.status() == {"attached": True}


def test_ta030_attachment_cannot_be_marked(world):
    world.api.fail("patch", VA, InvalidError(422, "Invalid", "mutation denied"))
    world.run(world.add_attachment())
    assert world.message() == "could not save VolumeAttachment: mutation denied"
    assert world.calls == []


def test_ta031_attachment_of_another_driver(world):
    """A-021: Nothing is written."""
    world.run(world.add_attachment(attacher="other", source={}))
    assert world.written == []


def test_ta032_deleted_while_the_publish_runs(world):
    """A-045: `attached` is still written; the deletion's own reconcile detaches the volume."""
    key = world.add_attachment()

    def delete(_request):
        world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
        return {}

    world.client.respond({"ControllerPublishVolume": [delete]})
    world.run(key)
    assert world.status() == {"attached": True}
    world.run(key)
    assert world.calls == [PUBLISH, ("unpublish", "handle1", "nodeID1")]
    assert world.is_gone()


def test_ta033_deleted_before_it_is_marked(world):
    """DA-004: A deleted attachment is not an error."""
    key = world.add_attachment()
    gone = NotFoundError(404, "NotFound", 'volumeattachments "pv1-node1" not found')
    world.api.fail("patch", VA, gone)
    assert world.run(key).action.value == "done"
    assert world.calls == []


def test_ma020_deleted_between_the_read_and_the_mark(world):
    """No volume is published for an attachment that is being deleted."""
    key = world.add_attachment(finalizers=["other"])
    world.api.before("patch", VA, lambda: world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1"))
    assert world.run(key).action.value == "wait"
    assert world.calls == []
    assert world.finalizers() == ["other"]


def test_da014_finalizer_of_somebody_else_is_not_lost(world):
    """DA-014: The patch requires the list of finalizers that was read."""
    key = world.add_attachment(finalizers=["a"])
    add = {"metadata": {"finalizers": ["a", "b"]}}
    world.api.before("patch", VA, lambda: world.api.change(paths.ATTACHMENTS, "pv1-node1", add))
    world.run(key)
    assert world.finalizers() == ["a", "b", FIN]


def test_ma031_attachment_made_again_under_the_same_name(world):
    """MA-031: A late worker writes only to the attachment that it published for."""
    key = world.add_attachment()

    def make_again(_request):
        world.api.drop(paths.ATTACHMENTS, "pv1-node1")
        world.add_attachment()
        return {}

    world.client.respond({"ControllerPublishVolume": [make_again]})
    assert world.run(key).action.value == "done"
    assert world.status() == {"attached": False}


@pytest.mark.parametrize("letter", ["x", "\u00e4"])
def test_ta034_long_error_is_cut(world, letter):
    """DA-017: The text is cut between characters and marked."""
    fail(world, "INTERNAL", letter * 3000)
    world.run(world.add_attachment())
    assert 1020 < len(world.message().encode()) <= 1024
    assert world.message().endswith("...")


def test_da017_context_larger_than_an_attachment_holds(world):
    """DA-017: The error states the size, and the retries back off as for any failure."""
    context = {f"k{number}": "v" * 65_536 for number in range(5)}
    world.client.respond({"ControllerPublishVolume": [{"publish_context": context}]})
    outcome = world.run(world.add_attachment())
    assert outcome.action.value == "retry"
    assert "publish context has 327690 bytes" in world.message()
    assert world.finalizers() == [FIN]


def test_ta037_parallel_attaches_protect_the_volume_once(world):
    """DA-015: After a conflict the volume is read again, without an error."""
    world.add_volume(finalizers=None)
    other = {"metadata": {"finalizers": [FIN]}}
    world.api.before("patch", PV, lambda: world.api.change(paths.VOLUMES, "pv1", other))
    world.run(world.add_attachment())
    assert world.volume_finalizers() == [FIN]
    assert world.status() == {"attached": True}


def test_ta069_volume_of_another_driver(world):
    """DA-032: The handle has no meaning for this driver."""
    world.add_volume(finalizers=None, csi={"driver": "other"})
    world.run(world.add_attachment())
    assert "driver other" in world.message()
    assert "csi/test" in world.message()
    assert (world.volume_finalizers(), world.finalizers(), world.calls) == ([], [], [])


def test_da032_in_tree_volume_that_another_driver_stands_for(world):
    """DA-032: The translated source's driver is compared."""
    disk = {"pdName": "d"}
    world.add_volume(finalizers=None)
    world.api.change(paths.VOLUMES, "pv1", {"spec": {"csi": None, "gcePersistentDisk": disk}})
    world.run(world.add_attachment())
    assert "driver pd.csi.storage.gke.io" in world.message()
    assert (world.volume_finalizers(), world.calls) == ([], [])
