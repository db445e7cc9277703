"""A migrated class's volume is saved in in-tree form, whose id a shadow does not know."""

from __future__ import annotations

from copy import deepcopy

import pytest

from csi_client import messages as csi
from workers.drivers.standin import answer_to
from workers.engine.shadow.comparing import Verdict, compare
from workers.migration import plugins
from workers.migration.to_in_tree import volume_to_in_tree

PV = "/api/v1/persistentvolumes/pvc-1"
ANSWERS = {
    plugins.GCE_PD: ("projects/p/zones/z/disks/d", {"partition": "1"}),
    plugins.AWS_EBS: ("vol-1", {"partition": "2"}),
    plugins.CINDER: ("id", {}),
    plugins.AZURE_DISK: (
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d",
        {"cachingMode": "ReadOnly", "fsType": "xfs"},
    ),
    plugins.AZURE_FILE: ("g#account#share", {}),
    plugins.VSPHERE: ("id", {"initialvolumefilepath": "[ds] x.vmdk"}),
    plugins.PORTWORX: ("id", {}),
}


def saved(plugin, handle, attributes, **changes):
    """Return the PV as it is saved after an answer with this handle and these attributes."""
    source = {"driver": plugin.driver_name, "volumeHandle": handle, "volumeAttributes": attributes}
    volume = {"metadata": {"name": "pvc-1"}, "spec": {"csi": source, **changes}}
    return volume_to_in_tree(volume, plugin.driver_name)


@pytest.mark.parametrize("plugin", plugins.PLUGINS, ids=lambda one: one.driver_name)
def test_what_the_drivers_id_says_is_no_difference(plugin):
    """mig-azd-1, mig-azf-1, mig-gce-2, mig-vs-1: the placeholder id is valid for every driver."""
    ours = answer_to(csi.CreateVolumeRequest(name="pvc-1")).volume.volume_id
    wanted, live = saved(plugin, ours, {}), saved(plugin, *ANSWERS[plugin])
    # The cluster's PV controller adds this annotation immediately.
    marked = live["metadata"].setdefault("annotations", {})
    marked["pv.kubernetes.io/migrated-to"] = plugin.driver_name
    assert compare(PV, None, wanted, live) == (Verdict.AGREES, ())
    other = deepcopy(live)
    other["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    assert compare(PV, None, wanted, other)[0] is Verdict.DIFFERS


def test_another_form_is_a_difference():
    """A PV that the sidecar did not translate differs."""
    ours = answer_to(csi.CreateVolumeRequest(name="pvc-1")).volume.volume_id
    live = {"metadata": {"name": "pvc-1"}, "spec": {"csi": {"driver": "ebs.csi.aws.com"}}}
    wanted = saved(plugins.AWS_EBS, ours, {})
    assert compare(PV, None, wanted, live)[0] is Verdict.DIFFERS
