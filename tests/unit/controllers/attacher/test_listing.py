"""How the pages of ListVolumes are read, and which handle is looked up in them."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from workers.controllers.attacher import compare
from workers.controllers.attacher.volume import Source

GCE = "pd.csi.storage.gke.io"
NODE = "projects/p/zones/us-east1-b/instances/n"


def page(*entries):
    """Return a page; each entry has a volume ID and node IDs, or None for no status."""
    found = csi.ListVolumesResponse()
    for volume, nodes in entries:
        entry = found.entries.add()
        entry.volume.volume_id = volume
        if nodes is not None:
            entry.status.SetInParent()
            entry.status.published_node_ids.extend(nodes)
    return found


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        pytest.param([], False, id="not listed"),
        pytest.param([("v", ["n"])], True, id="on the node"),
        pytest.param([("v", ["m"])], False, id="on another node"),
        pytest.param([("v", [])], False, id="on none"),
        pytest.param([("v", None)], None, id="no status"),
        pytest.param([("w", None), ("v", ["n"])], True, id="no status of another volume"),
        pytest.param([("v", None), ("v", ["n"])], True, id="a status comes later"),
        pytest.param([("v", ["n"]), ("v", None)], None, id="the later entry has no status"),
        pytest.param([("v", ["n"]), ("v", ["m"])], False, id="the later status counts"),
    ],
)
@pytest.mark.parametrize("is_one_page", [True, False])
def test_a091_all_pages_together(entries, says, is_one_page):
    """A-091, DA-012: If an ID is listed twice, the last entry counts; no status means unknown."""
    pages = [page(*entries)] if is_one_page else [page(one) for one in entries]
    assert compare.published(pages).says("v", "n") is says


@pytest.mark.parametrize(
    ("stored", "listed"),
    [
        ("projects/UNSPECIFIED/zones/us-west1-a/disks/d", "projects/p/zones/us-west1-a/disks/d"),
        ("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "projects/p/zones/us-east1-b/disks/d"),
        ("projects/q/zones/UNSPECIFIED/disks/d", "projects/q/zones/us-east1-b/disks/d"),
        ("projects/q/zones/us-west1-a/disks/d", "projects/q/zones/us-west1-a/disks/d"),
        ("projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d", "projects/p/regions/us-east1/disks/d"),
        ("projects/UNSPECIFIED/regions/us-west1/disks/d", "projects/p/regions/us-west1/disks/d"),
    ],
)
def test_a071_what_an_in_tree_handle_lacks_comes_from_the_node(stored, listed):
    """A-071: Project, zone, and the region of a regional disk are filled in."""
    source = Source({"csi": {"driver": GCE, "volumeHandle": stored}}, is_migrated=True)
    assert compare.listed_handle(source, NODE, GCE) == listed


@pytest.mark.parametrize(
    ("handle", "node_id", "words"),
    [
        ("d", NODE, "volume handle d has an unknown form"),
        ("projects/p/zones/z/disks/d/e", NODE, "has an unknown form"),
        ("projects/p/zones/z/disks/d", "n", "node id n has an unknown form"),
        ("projects/p/zones/z/disks/d", NODE + "/more", "has an unknown form"),
    ],
)
def test_a071_what_cannot_be_completed_is_not_compared(handle, node_id, words):
    source = Source({"csi": {"driver": GCE, "volumeHandle": handle}}, is_migrated=True)
    with pytest.raises(compare.UnknownHandleError, match=words):
        compare.listed_handle(source, node_id, GCE)


@pytest.mark.parametrize(
    ("driver", "is_migrated", "handle"),
    [
        pytest.param("csi/test", False, "UNSPECIFIED", id="never in-tree"),
        pytest.param(GCE, False, "projects/UNSPECIFIED/zones/z/disks/d", id="of GCE, by CSI"),
        pytest.param("ebs.csi.aws.com", True, "vol-1", id="migrated, complete as it is"),
    ],
)
def test_a071_other_handles_stay_as_they_are(driver, is_migrated, handle):
    source = Source({"csi": {"driver": driver, "volumeHandle": handle}}, is_migrated=is_migrated)
    assert compare.listed_handle(source, "n", driver) == handle


ERROR = {"message": "boom", "time": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("deleted", "status", "state"),
    [
        (False, None, "attaching"),
        (False, {"attached": False}, "attaching"),
        (False, {"attached": True}, "attached"),
        (False, {"attached": True, "attachError": ERROR}, "failing"),
        (False, {"attached": True, "detachError": ERROR}, "attached"),
        (True, {"attached": True}, "detaching"),
        (True, {"attached": True, "attachError": ERROR}, "detaching"),
        (True, {"attached": True, "detachError": ERROR}, "failing"),
    ],
)
def test_a113_states(deleted, status, state):
    """A-113: Each attachment has exactly one state."""
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    assert compare.state({"metadata": metadata, "status": status}) == state


@pytest.mark.parametrize("is_found", [True, False])
@pytest.mark.parametrize(
    ("status", "attached"),
    [(None, False), ({}, False), ({"attached": False}, False), ({"attached": True}, True)],
)
def test_a094_a_difference_is_a_status_that_the_driver_contradicts(status, attached, is_found):
    """A-094: It does not matter if the attachment is being deleted."""
    assert compare.differs({"status": status}, is_found=is_found) is (attached != is_found)
