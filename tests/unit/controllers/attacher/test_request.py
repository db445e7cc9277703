"""The table of capabilities, and migrated volumes: sections 11.2 and A-070."""

from __future__ import annotations

import pytest

from csi_client import messages as csi
from tests.support.attach_world import PUBLISHES, AttachWorld
from workers.controllers.attacher.volume import unpublish_request
from workers.kube import paths
from workers.migration.plugins import GCE_PD
from workers.observability.requests import csi_observer

MODE = csi.VolumeCapability.AccessMode
MULTI = PUBLISHES | {"SINGLE_NODE_MULTI_WRITER"}
RWO, ROX, RWX, RWOP = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"


def published(world):
    world.run(world.add_attachment())
    requests = world.client.requests("ControllerPublishVolume")
    return requests[0] if requests else None


@pytest.mark.parametrize(
    ("modes", "abilities", "wanted"),
    [
        pytest.param([RWO], PUBLISHES, "SINGLE_NODE_WRITER", id="TA-040 RWO"),
        pytest.param([ROX], PUBLISHES, "MULTI_NODE_READER_ONLY", id="TA-040 ROX"),
        pytest.param([RWX], PUBLISHES, "MULTI_NODE_MULTI_WRITER", id="TA-040 RWX"),
        pytest.param([RWO], MULTI, "SINGLE_NODE_MULTI_WRITER", id="TA-041 RWO"),
        pytest.param([RWOP], PUBLISHES, "SINGLE_NODE_WRITER", id="TA-042 without"),
        pytest.param([RWOP], MULTI, "SINGLE_NODE_SINGLE_WRITER", id="TA-042 with"),
        pytest.param([RWX, RWO, ROX], PUBLISHES, "MULTI_NODE_MULTI_WRITER", id="TA-044 all"),
        pytest.param([RWO, RWO], PUBLISHES, "SINGLE_NODE_WRITER", id="twice"),
        pytest.param([RWX], MULTI, "MULTI_NODE_MULTI_WRITER", id="RWX with"),
    ],
)
def test_access_modes(modes, abilities, wanted):
    """A-052: The PV's modes and the driver's capabilities decide on the mode in the request."""
    world = AttachWorld(capabilities=abilities)
    world.add_volume(modes=modes)
    assert published(world).volume_capability.access_mode.mode == MODE.Mode.Value(wanted)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        pytest.param(
            [RWO, ROX],
            "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
            id="TA-043 ROX and RWO",
        ),
        pytest.param(
            [RWOP, RWO],
            "Kubernetes does not support use of ReadWriteOncePod with other access modes on the "
            "same PersistentVolume",
            id="TA-043 RWOP and RWO",
        ),
        pytest.param([], "unsupported AccessMode combination: []", id="TA-043 none"),
    ],
)
def test_access_modes_that_csi_cannot_express(modes, message):
    """A-052: The volume keeps csi-fleet's finalizer, as in the recorded case att-29 (DA-027)."""
    world = AttachWorld()
    world.add_volume(modes=modes)
    assert published(world) is None
    assert world.message() == message
    assert world.finalizers() == []


def test_ta045_block_volume():
    """A-051: The capability is of type block, without mount options."""
    world = AttachWorld()
    world.add_volume(csi={"fsType": "xfs"}, volumeMode="Block", mountOptions=["a"])
    capability = published(world).volume_capability
    assert capability.HasField("block")
    assert not capability.HasField("mount")


@pytest.mark.parametrize("default", ["ext4", ""])
def test_ta046_default_file_system(default):
    world = AttachWorld(default_fstype=default)
    world.add_volume()
    assert published(world).volume_capability.mount.fs_type == default


def test_ta047_file_system_and_mount_options():
    world = AttachWorld(default_fstype="ext4")
    world.add_volume(csi={"fsType": "xfs"}, mountOptions=["a", "b"])
    mount = published(world).volume_capability.mount
    assert (mount.fs_type, list(mount.mount_flags)) == ("xfs", ["a", "b"])


def test_a122_unpublish_always_names_a_node():
    """A-122: Without a node ID the call would mean every node."""
    with pytest.raises(AssertionError):
        unpublish_request("handle1", "", {})


GCE = "pd.csi.storage.gke.io"


def add_in_tree(world, **metadata):
    labels = {"topology.kubernetes.io/zone": "us-east1-a"}
    world.api.add(
        paths.VOLUMES,
        {
            "metadata": {"name": "pv1", "labels": labels, **metadata},
            "spec": {
                "accessModes": [RWO],
                "gcePersistentDisk": {"pdName": "disk1", "fsType": "ext4"},
            },
        },
    )


def test_a070_in_tree_volume_is_translated():
    """A-070, DA-028: The driver gets the translated handle."""
    world = AttachWorld(driver=GCE)
    add_in_tree(world)
    request = published(world)
    assert request.volume_id == "projects/UNSPECIFIED/zones/us-east1-a/disks/disk1"
    assert request.volume_capability.mount.fs_type == "ext4"
    assert world.volume_finalizers() == ["external-attacher/pd-csi-storage-gke-io"]


def test_a041_in_tree_volume_that_cannot_be_translated():
    """A-041 step 5, A-006: The status reports the translation error."""
    world = AttachWorld(driver="ebs.csi.aws.com")
    spec = {"accessModes": [RWO], "awsElasticBlockStore": {"volumeID": "aws://nonsense"}}
    world.api.add(paths.VOLUMES, {"metadata": {"name": "pv1"}, "spec": spec})
    assert published(world) is None
    assert world.message().startswith("failed to translate in tree pv to CSI: ")


def test_volume_of_no_csi_driver():
    """A-041 step 6: The status reports that the PV has no CSI source."""
    world = AttachWorld()
    spec = {"accessModes": [RWO], "nfs": {"server": "s"}}
    world.api.add(paths.VOLUMES, {"metadata": {"name": "pv1"}, "spec": spec})
    assert published(world) is None
    assert world.message() == "pv spec contained non-csi source that was not migrated"


@pytest.mark.parametrize(
    ("source", "is_migrated"),
    [
        pytest.param(
            {"csi": {"driver": GCE_PD.driver_name, "volumeHandle": "h"}}, "false", id="csi"
        ),
        pytest.param({"csi": None, "gcePersistentDisk": {"pdName": "d"}}, "true", id="in-tree"),
        pytest.param(None, "true", id="inline"),
    ],
)
def test_a072_calls_for_migrated_volumes_are_counted_apart(source, is_migrated):
    """A-072, and DA-018 for inline volumes: The label `migrated` of the metric is set.

    The metric is csi_sidecar_operations_seconds.
    """
    world = AttachWorld(driver=GCE_PD.driver_name)
    observe = csi_observer(world.context.metrics, lambda _: True)

    def answer(_):
        observe("d", "/publish", "OK", 0.1)
        return {}

    world.client.respond({"ControllerPublishVolume": [answer]})
    world.add_volume(finalizers=None, modes=["ReadWriteOnce"])
    inline = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}
    if source is not None:
        world.api.change(paths.VOLUMES, "pv1", {"spec": source})
    world.run(world.add_attachment(source=None if source else {"inlineVolumeSpec": inline}))
    name = "csi_sidecar_operations_seconds_count"
    labels = {"driver_name": "d", "method_name": "/publish", "grpc_status_code": "OK"}
    value = world.context.metrics.registry.get_sample_value
    assert value(name, labels | {"migrated": is_migrated}) == 1
