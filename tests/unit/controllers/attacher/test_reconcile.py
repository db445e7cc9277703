"""The status is compared with the driver's ListVolumes: section 11.6."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.attach_world import FIN, LISTS, PUBLISHES, AttachWorld
from workers.controllers.attacher import names
from workers.controllers.attacher.controller import CONTROLLER
from workers.kube import paths
from workers.queue.keys import Key

PUBLISH = ("publish", "handle1", "nodeID1")
UNPUBLISH = ("unpublish", "handle1", "nodeID1")
HERE = {"volume_id": "handle1", "published_node_ids": ["nodeID1"]}


@pytest.fixture
def world():
    world = AttachWorld(capabilities=LISTS)
    world.add_volume()
    return world


def listing(world, *entries, **step):
    world.client.respond({"ListVolumes": [{"entries": list(entries), **step}]})


def forced(world):
    """Return the keys that the last comparison added; each is then reconciled once."""
    keys = [Key.parse(text) for text, _ in world.queue.added]
    world.queue.added.clear()
    assert all(key.kind == names.FORCED for key in keys)
    return keys


def compare(world):
    world.compare()
    keys = forced(world)
    for key in keys:
        world.run(key)
    return keys


def test_ta090_attached_but_not_listed(world):
    """A-094, A-095: The volume is published again, never unpublished.

    Old metadata is removed (att-70).
    """
    metadata = {"old": "1"}
    world.add_attachment(is_marked=True, attached=True, attachmentMetadata=metadata)
    listing(world)
    world.client.respond({"ControllerPublishVolume": [{"publish_context": {"new": "2"}}]})
    compare(world)
    assert world.calls == [PUBLISH]
    assert world.status() == {"attached": True, "attachmentMetadata": {"new": "2"}}


def test_ta091_listing_agrees(world):
    world.add_attachment(is_marked=True, attached=True)
    listing(world, HERE)
    assert compare(world) == []


def test_a094_not_attached_but_listed(world):
    """A-094: The volume is published at once, without the key's back-off."""
    world.add_attachment(is_marked=True)
    listing(world, HERE)
    compare(world)
    assert world.calls == [PUBLISH]


def test_ta092_deleted_without_finalizer_but_listed(world):
    world.add_attachment(finalizers=["x"], node_id="nodeID1", is_deleting=True)
    listing(world, HERE)
    compare(world)
    assert world.calls == [UNPUBLISH]


def test_ta093_deleted_and_attached_but_not_listed(world):
    world.add_attachment(is_marked=True, attached=True, is_deleting=True)
    listing(world)
    compare(world)
    assert world.calls == [UNPUBLISH]
    assert world.is_gone()


def test_ta094_listed_without_an_attachment(world):
    """A-096: A volume that was attached by hand is never touched."""
    world.add_attachment(is_marked=True, attached=True)
    listing(world, HERE, {"volume_id": "other", "published_node_ids": ["nodeID1"]})
    assert compare(world) == []


@pytest.mark.parametrize("attacher", ["", "other"], ids=["no attachment", "one of another driver"])
def test_ta095_nothing_of_the_driver_to_compare(world, attacher):
    """A-090: Each comparison calls ListVolumes, even if there is nothing to compare yet."""
    if attacher:
        world.add_attachment(attacher=attacher, attached=True)
    listing(world, {"volume_id": "other", "published_node_ids": ["nodeID1"]})
    assert compare(world) == []
    assert world.client.methods == ["ListVolumes"]


def test_ta096_three_pages():
    """A-091: All pages count, with their tokens.

    Of a volume that is listed twice the last counts.
    """
    world = AttachWorld(capabilities=LISTS, max_entries=2)
    world.add_volume()
    world.add_attachment(is_marked=True, attached=True)
    pages = {
        "": {"entries": [{"volume_id": "handle1"}], "next_token": "2"},
        "2": {"entries": [{"volume_id": "x"}, {"no_volume": True}], "next_token": "3"},
        "3": {"entries": [HERE]},
    }
    world.client.respond({"ListVolumes": [{"pages": pages}]})
    assert compare(world) == []
    requests = world.client.requests("ListVolumes")
    assert [request.starting_token for request in requests] == ["", "2", "3"]
    assert {request.max_entries for request in requests} == {2}
    assert set(world.client.timeouts) == {15.0}


def test_ta097_second_page_fails(world):
    """A-091: A partial list is not used."""
    world.add_attachment(is_marked=True, attached=True)
    pages = {"": {"next_token": "2"}, "2": {"code": "INTERNAL"}}
    world.client.respond({"ListVolumes": [{"pages": pages}]})
    assert world.compare().action.value == "done"
    assert forced(world) == []


def test_ta098_token_comes_back(world):
    """Otherwise the comparison would never end."""
    world.add_attachment(is_marked=True, attached=True)
    listing(world, next_token="2")
    assert world.compare().reason == "listing failed"
    assert forced(world) == []


def test_da010_listing_takes_too_long():
    """DA-010: Each page has a timeout, and all pages together have another."""
    world = AttachWorld(capabilities=LISTS, reconcile_timeout_seconds=-1.0)
    world.add_attachment(is_marked=True, attached=True)
    listing(world, next_token="2")
    assert world.compare().reason == "listing failed"


def test_ta099_entry_without_status(world):
    """DA-012: Unknown does not mean absent."""
    world.add_attachment(is_marked=True, attached=True)
    listing(world, {"volume_id": "handle1", "no_status": True})
    assert compare(world) == []


def test_ta100_attachment_that_cannot_be_judged(world):
    """A-093: It is skipped, but the others are compared."""
    world.add_attachment("lost", is_marked=True, source={"persistentVolumeName": "gone"})
    world.add_attachment("nowhere", node="node9", finalizers=[FIN])
    world.add_attachment(is_marked=True, attached=True)
    listing(world)
    assert [key.object.partition("/")[2] for key in compare(world)] == ["pv1-node1"]


def test_ta101_driver_lists_no_publications():
    """A-005, A-090: The driver lacks LIST_VOLUMES_PUBLISHED_NODES, so it is not called."""
    world = AttachWorld(capabilities=PUBLISHES | {"LIST_VOLUMES"})
    assert list(CONTROLLER.periodic(world.context, world.driver)) == []
    world.compare()
    assert world.client.methods == []


def test_a090_comes_back_by_itself(world):
    """A-090: The comparison is periodic."""
    (due,) = CONTROLLER.periodic(world.context, world.driver)
    assert (due.key, due.every_seconds) == (names.reconcile_key("csi/test"), 60.0)


def test_ta102_forced_publish_fails(world):
    """A-097, DA-011: The publish is retried until it succeeds; then the error is removed."""
    world.add_attachment(is_marked=True, attached=True)
    listing(world)
    world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL"}, {}]})
    (key,) = compare(world)
    assert world.status()["attached"] is True
    assert world.message()
    assert world.run(key).action.value == "done"
    assert world.status() == {"attached": True}


def test_ta103_attached_while_the_list_is_read(world):
    """MA-040, DA-013: An attachment that changed since the list began is not touched."""
    key = world.add_attachment(is_marked=True)

    def finish(_request):
        world.run(key)
        return {"entries": [HERE]}

    world.client.respond({"ListVolumes": [finish]})
    world.compare()
    assert forced(world) == []
    assert world.calls == [PUBLISH]


def test_attachment_that_went_while_the_list_was_read(world):
    world.add_attachment(is_marked=True, attached=True)

    def vanish(_request):
        world.api.drop(paths.ATTACHMENTS, "pv1-node1")
        return {"entries": []}

    world.client.respond({"ListVolumes": [vanish]})
    world.compare()
    assert forced(world) == []


GCE = "pd.csi.storage.gke.io"
GCE_NODE = "projects/p/zones/us-east1-a/instances/n"


@pytest.mark.parametrize(
    ("listed", "difference"),
    [
        pytest.param("projects/p/zones/us-east1-a/disks/d", 0, id="TA-104 completed"),
        pytest.param("projects/UNSPECIFIED/zones/us-east1-a/disks/d", 1, id="TA-104 as stored"),
    ],
)
def test_migrated_handle_is_completed_first(listed, difference):
    """A-071: Project and zone are filled in before the comparison."""
    world = AttachWorld(driver=GCE, capabilities=LISTS, has_node=False)
    world.add_node(node_id=GCE_NODE)
    metadata = {"name": "pv1", "labels": {"topology.kubernetes.io/zone": "us-east1-a"}}
    spec = {"accessModes": ["ReadWriteOnce"], "gcePersistentDisk": {"pdName": "d"}}
    world.api.add(paths.VOLUMES, {"metadata": metadata, "spec": spec})
    marks = {"finalizers": ["external-attacher/pd-csi-storage-gke-io"], "node_id": GCE_NODE}
    world.add_attachment(attached=True, **marks)
    listing(world, {"volume_id": listed, "published_node_ids": [GCE_NODE]})
    world.compare()
    assert len(forced(world)) == difference


@pytest.mark.parametrize("driver", ["csi/test", GCE])
def test_inline_volume_that_cannot_be_completed(driver):
    """A-071: Its driver replaces no in-tree plug-in, or the node ID has another form."""
    world = AttachWorld(driver=driver, capabilities=LISTS)
    inline = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "i"}}
    world.add_attachment(attached=True, source={"inlineVolumeSpec": inline}, node_id="n")
    listing(world)
    world.compare()
    assert forced(world) == []


def test_ta105_mark_of_an_attachment_that_was_made_again(world):
    """DA-005: The key has the UID of the deleted attachment."""
    world.add_attachment(is_marked=True, attached=True)
    listing(world)
    world.compare()
    (key,) = forced(world)
    world.api.drop(paths.ATTACHMENTS, "pv1-node1")
    world.add_attachment(is_marked=True, attached=True)
    assert world.run(key).action.value == "done"
    assert world.calls == []


def test_da012_too_many_differences(world):
    """DA-012, MA-040: A wrong list is more likely than the detach of all volumes."""
    on_nodes(world, 21)
    listing(world)
    assert world.compare().reason == "too many differences"
    assert forced(world) == []
    assert world.events.reasons() == ["DoubtfulListVolumes"]
    assert world.events.objects[0]["kind"] == "CSIDriver"


def on_nodes(world, count, nodes=2):
    for number in range(2, nodes + 1):
        world.add_node(f"node{number}", f"nodeID{number}")
    for number in range(count):
        node = f"node{number % nodes + 1}"
        world.add_attachment(
            f"va{number}", node=node, node_id=f"nodeID{node[4:]}", is_marked=True, attached=True
        )


@pytest.mark.parametrize("count", [21, 25, 60])
def test_a_node_that_lost_everything_is_mended(world, count):
    """BUG-7: All differences are on one node, as after it was rebuilt."""
    on_nodes(world, count, nodes=1)
    listing(world)
    assert world.compare().reason == f"{count} differences"
    assert len(forced(world)) == count


def test_objects_that_cannot_be_compared_hold_back_no_other(world):
    """Each of them is skipped.

    Only the attachment that the driver contradicts is published again.
    """
    world.add_volume("no csi", csi={"driver": None, "volumeHandle": None}, nfs={"path": "/"})
    world.api.change(paths.VOLUMES, "no csi", {"spec": {"csi": None}})
    world.api.add(paths.CSI_NODES, {"metadata": {"name": "bare"}, "spec": {"drivers": None}})
    odd = {
        "no source": {"source": {}},
        "no volume": {"source": {"persistentVolumeName": "gone"}},
        "no csi": {"source": {"persistentVolumeName": "no csi"}},
        "inline nonsense": {"source": {"inlineVolumeSpec": {"hostPath": {"path": "/"}}}},
        "no CSINode": {"node": "gone"},
        "no driver on its node": {"node": "bare"},
    }
    for name, fields in odd.items():
        world.add_attachment(name, attached=True, **fields)
    world.add_attachment("contradicted", is_marked=True, attached=True)
    listing(world)
    assert world.compare().reason == "1 differences"
    assert [one.object for one in forced(world)] == ["node1/contradicted"]


def test_a_list_that_says_the_same_twice_is_believed(world):
    """BUG-7: Two nodes have lost all their volumes."""
    on_nodes(world, 24)
    listing(world)
    assert world.compare().reason == "too many differences"
    assert world.compare().reason == "24 differences"
    assert len(forced(world)) == 24


def test_lists_that_differ_are_not_believed(world):
    """BUG-7: The driver's answer is different each time."""
    on_nodes(world, 24)
    entry = {"volume_id": "handle1", "published_node_ids": ["nodeID1"]}
    other = {"volume_id": "handle1", "published_node_ids": ["nodeID3"]}
    world.add_node("node3", "nodeID3")
    for number in range(24, 48):
        world.add_attachment(
            f"va{number}", node="node3", node_id="nodeID3", is_marked=True, attached=True
        )
    for one in (entry, other, entry, other):
        listing(world, one)
        assert world.compare().reason == "too many differences"
    assert forced(world) == []


def hashed(handle, node="node1"):
    return f"csi-{hashlib.sha256(f'{handle}csi/test{node}'.encode()).hexdigest()}"


def test_an_attachment_of_a_volume_that_was_made_again_is_not_compared(world):
    """BUG-4: The PV of that name is another volume now."""
    world.add_attachment(hashed("old"), is_marked=True, attached=True)
    listing(world)
    assert compare(world) == []


def test_an_attachment_named_after_its_volume_is_compared(world):
    world.add_attachment(hashed("handle1"), is_marked=True, attached=True)
    listing(world)
    assert len(compare(world)) == 1


def test_many_volumes_are_listed_not_read_one_by_one(world):
    """One list request replaces many single reads."""
    for number in range(51):
        world.add_attachment(f"va{number}", is_marked=True, attached=True)
    listing(world, HERE)
    world.compare()
    read = [one.path for one in world.api.requests if one.path.startswith("persistentvolumes")]
    assert read == ["persistentvolumes"]
    assert forced(world) == []


def test_a113_what_a_comparison_tells(world):
    """A-113: States of attachments, findings and duration; no label names an attachment."""
    error = {"time": "2026-01-01T00:00:00Z", "message": "boom"}
    world.add_attachment("same", is_marked=True, attached=True)
    world.add_attachment("new", node="node2", is_marked=True)
    world.add_attachment("fails", node="node3", is_marked=True, attachError=error)
    world.add_attachment("goes", node="node4", is_marked=True, attached=True, is_deleting=True)
    world.add_attachment("lost", source={"persistentVolumeName": "gone"}, attached=True)
    listing(world, HERE)
    world.compare()
    value = world.context.metrics.registry.get_sample_value
    labels = {"driver_name": "csi/test"}
    states = {"attached": 2, "attaching": 1, "failing": 1, "detaching": 1}
    found = {one: value("csi_fleet_attachments", labels | {"state": one}) for one in states}
    assert found == states
    compared = "csi_fleet_attachments_compared_total"
    findings = {"same": 2, "skipped": 1, "different": 2, "untold": None}
    assert {one: value(compared, labels | {"finding": one}) for one in findings} == findings
    assert value("csi_fleet_attachments_compare_seconds_count", labels) == 1


@pytest.mark.parametrize(
    ("is_deleting", "wanted"),
    [
        pytest.param(False, [("publish", "handle1", "nodeID1")], id="published to the new one"),
        pytest.param(True, [], id="taken off the old one, which is still to come"),
    ],
)
def test_a093_node_that_was_made_again(world, is_deleting, wanted):
    """A-056, A-093, DA-003: The status says attached, but not to the present node."""
    world.add_attachment(is_marked=True, attached=True, node_id="old", is_deleting=is_deleting)
    listing(world, HERE | {"published_node_ids": ["old"]})
    compare(world)
    assert world.calls == wanted


def test_a093_node_that_is_gone(world):
    """A-056: Only the node ID of the publish is known."""
    world.api.drop(paths.CSI_NODES, "node1")
    world.add_attachment(is_marked=True, attached=True)
    listing(world, HERE)
    assert compare(world) == []
